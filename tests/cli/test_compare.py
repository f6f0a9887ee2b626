from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from metalmark.app.compare import compare, find_slower
from metalmark.errors import UsageError
from metalmark.model.codec import encode_export
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Dtype, Settings
from metalmark.model.run import FailureKind
from metalmark.model.training import TrainingRun
from metalmark.stats.difference import Verdict
from metalmark.store.store import Store
from tests.compare.sides import repeats
from tests.compare.test_kinds import several, training
from tests.conftest import Cli, Verb
from tests.samples import completed, failed, plan, record

OLD, NEW = "aaaaaaaaaa", "bbbbbbbbbb"
EARLY = "2026-11-15T07:00:00.000000Z"


def fill(store_file: Path, *more: list[BenchRun], new_s: float = 0.11, **changes: Any) -> list[BenchRun]:
    """Two sweeps of one cell; the newer takes 10% more time."""
    old, new = repeats(sweep=OLD, started_at=EARLY), repeats(step_s=new_s, sweep=NEW, **changes)
    with Store(store_file) as store:
        store.add_all([*old, *new, *(one for records in more for one in records)])
    return old


def test_slower_by_ids_names_tags_and_files(inside: Cli, store_file: Path, tmp_path: Path) -> None:
    old = fill(store_file)
    named = inside("runs", "name", OLD, "main")
    assert named.returncode == 0, named.stderr
    assert inside("runs", "tag", OLD, "quiet.1").returncode == 0
    path = tmp_path / "old.json"
    path.write_bytes(encode_export(old))
    for word in (OLD, "main", "quiet.1", path, old[2].id):
        run = inside("compare", word, "last")
        assert run.returncode == 0, run.stderr
        assert "slower" in run.stdout
        assert "0.909x" in run.stdout
        assert "(5 and 5)" in run.stdout, "a record's id stands for its cell"
    listed = inside("runs", "list").stdout
    assert "main, quiet.1" in listed
    assert json.loads(inside("runs", "list", "--json").stdout)[0]["names"] == ["main", "quiet.1"]
    assert inside("runs", "unname", "main").returncode == 0
    assert "main" not in inside("runs", "list").stdout


def test_several_sides_and_what_scripts_read(inside: Cli, store_file: Path) -> None:
    third = repeats(step_s=0.05, sweep="cccccccccc")
    fill(store_file, third)
    run = inside("compare", OLD, NEW, "cccccccccc", "--json")
    first, second = json.loads(run.stdout)
    assert (first["a"], first["b"], second["b"]) == (OLD, NEW, "cccccccccc")
    assert first["rows"][0]["speed"]["verdict"] == "slower"
    assert second["rows"][0]["speed"]["verdict"] == "faster"
    assert first["rows"][0]["energy"]["reason"]
    pasted = inside("compare", OLD, NEW, "cccccccccc", "--markdown").stdout
    assert pasted.count("| A step | B step |") == 2
    assert "| faster |" in pasted


def test_fail_if_slower_names_the_cell(inside: Cli, store_file: Path) -> None:
    fill(store_file)
    run = inside("compare", OLD, NEW, "--fail-if-slower", "5%")
    assert run.returncode == 1
    assert "slower: mnist-mlp training on torch cpu takes 10.0% more time; the limit is 5%." in run.stderr
    assert "0.909x" in run.stdout, "and the table is there"
    assert inside("compare", OLD, NEW, "--fail-if-slower", "15").returncode == 0
    assert inside("compare", NEW, OLD, "--fail-if-slower", "5%").returncode == 0, "faster is not slower"


def test_fail_if_slower_by_what_no_longer_runs(inside: Cli, store_file: Path) -> None:
    crash = [record(failed(FailureKind.CRASHED, "it fell"), sweep="cccccccccc")]
    fill(store_file, crash)
    run = inside("compare", OLD, "cccccccccc", "--fail-if-slower", "5%")
    assert run.returncode == 1
    assert "broken: mnist-mlp training on torch cpu: crashed: it fell" in run.stderr


def test_a_gate_that_can_judge_nothing_does_not_pass(inside: Cli, store_file: Path) -> None:
    fill(store_file, repeats(sweep="cccccccccc", count=1))
    run = inside("compare", OLD, "cccccccccc", "--fail-if-slower", "5%")
    assert run.returncode == 2
    assert "can judge none" in run.stderr
    assert "--repeat 5" in run.stderr
    shown = inside("compare", OLD, "cccccccccc")
    assert shown.returncode == 0
    assert "can't tell: one process on a side" in shown.stdout
    assert "--repeat 5" in shown.stdout


def test_a_gate_that_can_judge_only_some_does_not_pass(verb: Verb, store_file: Path) -> None:
    """One cell is as fast as it was; the other has one process, and another time noise that hides the limit."""
    jax = plan(framework="jax")
    fill(store_file, repeats(jax, sweep=OLD, cell=1), repeats(jax, sweep=NEW, cell=1, count=1), new_s=0.1)
    assert verb("compare", OLD, NEW).exit_code == 0
    with pytest.raises(UsageError, match="can judge 1 of 2 cells only") as error:
        verb("compare", OLD, NEW, "--fail-if-slower", "5%")
    assert error.value.exit_code == 2
    found = compare(OLD, NEW, store=store_file)
    (line,) = find_slower(found, 0.05).lines
    assert line.startswith("not judged: mnist-mlp training on jax cpu: can't tell: one process on a side")
    assert "Measure: metalmark bench mnist-mlp -f jax" in line


@pytest.mark.parametrize(("limit", "judged"), [(0.05, False), (0.5, True)])
def test_what_noise_hides_is_judged_by_what_it_can_be_at_most(store_file: Path, limit: float, judged: bool) -> None:
    noisy = [
        record(completed(0.1 * factor), repeat=n, sweep=NEW) for n, factor in enumerate((0.9, 1.0, 1.1, 1.0, 1.03))
    ]
    with Store(store_file) as store:
        store.add_all([*repeats(sweep=OLD), *noisy])
    found = compare(OLD, NEW, store=store_file)
    assert found[0].rows[0].verdict is Verdict.CANT_TELL
    gate = find_slower(found, limit)
    assert not gate.failed
    assert (gate.unknown is None) is judged
    assert [*gate.lines] == [] if judged else "it may take up to" in gate.lines[0]


def test_slower_is_said_before_what_can_not_be_judged(verb: Verb, store_file: Path) -> None:
    jax = plan(framework="jax")
    fill(store_file, repeats(jax, sweep=OLD, cell=1), repeats(jax, sweep=NEW, cell=1, count=1))
    run = verb("compare", OLD, NEW, "--fail-if-slower", "5%")
    assert run.return_value == 1
    assert "slower: mnist-mlp training on torch cpu" in run.stderr
    assert "not judged: mnist-mlp training on jax cpu" in run.stderr


def test_what_is_not_like_for_like_does_not_pass_a_gate(verb: Verb, store_file: Path) -> None:
    other = repeats(plan(params={"batch_size": 64}), sweep="cccccccccc")
    fill(store_file, other, new_s=0.1)
    assert verb("compare", OLD, NEW, "--fail-if-slower", "5%").return_value == 0
    with pytest.raises(UsageError, match="can't judge what is not like for like"):
        verb("compare", OLD, NEW, "cccccccccc", "--fail-if-slower", "5%")
    with pytest.raises(UsageError, match="can judge none of these cells"):
        verb("compare", OLD, "cccccccccc", "--anyway", "--fail-if-slower", "5%")


def test_inside_of_one_sweep(inside: Cli, store_file: Path) -> None:
    half = Settings(dtype=Dtype.BFLOAT16)
    with Store(store_file) as store:
        store.add_all([*repeats(sweep=OLD), *repeats(plan(settings=half), 0.05, sweep=OLD, cell=1)])
    run = inside("compare", "last", "--by", "dtype")
    assert run.returncode == 0, run.stderr
    assert "bfloat16 (B) against float32 (A)" in run.stdout
    assert "faster" in run.stdout
    assert "different sweeps" not in run.stdout


def test_two_different_things_only_anyway(inside: Cli, store_file: Path) -> None:
    fill(store_file, repeats(plan(params={"batch_size": 64}), sweep="cccccccccc"))
    run = inside("compare", OLD, "cccccccccc")
    assert run.returncode == 2
    assert run.stdout == ""
    assert "is not like for like: batch size 32 against 64" in run.stderr
    run = inside("compare", OLD, "cccccccccc", "--anyway")
    assert run.returncode == 0
    assert "not like for like" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Compare what?"),
        ([OLD], "Compare it with what?"),
        ([OLD, "nothing0"], "no run, sweep or name 'nothing0'"),
        ([OLD, "nowhere/x.json"], "can't be read"),
        ([OLD, "README.md"], "not an export"),
        ([OLD, OLD], "is named twice"),
        ([OLD, "last", NEW], "last and bbbbbbbbbb share run"),
        ([OLD, "'; DROP TABLE runs"], "no run, sweep or name"),
        ([OLD, NEW, "--by", "framwork"], "did you mean framework?"),
        ([OLD, "--by", "framework"], "one value of framework only"),
        ([OLD, NEW, "--fail-if-slower", "much"], "takes a percentage"),
        ([OLD, NEW, "--fail-if-slower", "-5%"], "takes a percentage"),
        ([OLD, NEW, "--fail-if-slower", "nan"], "takes a percentage"),
        ([OLD, NEW, "--fail-if-slower", "0.05"], "Write the sign"),
        ([OLD, NEW, "--noise-band", "0%"], "--noise-band takes a percentage"),
        ([OLD, "published"], "is not like for like: workload mnist-mlp against bert"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input(inside: Cli, store_file: Path, arguments: list[str], message: str) -> None:
    fill(store_file)
    run = inside("compare", *arguments)
    assert run.returncode == 2, run.stdout + run.stderr
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["name", OLD, "last"], "meaning of its own"),
        (["name", OLD, "<b>"], "can't be a name"),
        (["name", "nothing0", "main"], "no run, sweep or name"),
        (["tag", "main"], "Missing argument"),
        (["unname", "nobody"], "No run has the name"),
    ],
)
def test_bad_names(inside: Cli, store_file: Path, arguments: list[str], message: str) -> None:
    fill(store_file)
    run = inside("runs", *arguments)
    assert run.returncode == 2
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def trainings(device: str, sweep: str, *accuracies: float) -> list[TrainingRun]:
    made = []
    for seed, accuracy in enumerate(accuracies):
        run = training(accuracy, seed, device=device, started_at=EARLY, sweep=sweep, repeat=seed)
        made.append(replace(run, id=f"{sweep[:5]}{device}{seed:05d}", cell=1 if device == "any" else 0))
    return made


def test_trainings_by_their_sweep_their_ids_and_a_target(inside: Cli, store_file: Path) -> None:
    with Store(store_file) as store:
        store.add_all([*trainings("cpu", OLD, 0.850, 0.851, 0.852), *trainings("any", OLD, 0.880, 0.881, 0.882)])
    split = inside("compare", "last", "--by", "device", "--target-accuracy", "84")
    assert split.returncode == 0, split.stderr
    assert split.stdout.startswith("any is more accurate than cpu: 88.10% against 85.10%, +3.00 points (95% interval")
    assert "time to 84.00%" in split.stdout
    named = inside("compare", "aaaaacpu00001", "aaaaaany00002", "--json")
    assert named.returncode == 0, named.stderr
    (document,) = json.loads(named.stdout)
    assert document["rows"][0]["trained"]["accuracy"]["repeats"] == [3, 3], "one training stands for all its repeats"
    assert document["answer"].startswith("aaaaaany00002 is more accurate")
    odd = inside("compare", "last", "--by", "device", "--target-accuracy", "860")
    assert odd.returncode == 2
    assert "--target-accuracy is a share" in odd.stderr


def test_watched_runs_by_their_names_and_no_two_kinds(inside: Cli, store_file: Path) -> None:
    fill(store_file)
    with Store(store_file) as store:
        store.add_all([*several("slowloop"), *several("fastloop", step_s=0.05)])
    run = inside("compare", "slowloop", "fastloop")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("fastloop is 2.00x faster than slowloop (95% interval")
    assert "input wait" in run.stdout
    mixed = inside("compare", OLD, "fastloop")
    assert mixed.returncode == 2
    assert mixed.stdout == ""
    assert (
        f"Only runs of one kind can be compared: {OLD} holds bench runs, fastloop holds watched runs." in mixed.stderr
    )


def test_hostile_names_are_shown_as_text(inside: Cli, store_file: Path) -> None:
    evil = plan(workload="<script>alert(1)</script>|\x1b]0;x\x07", params={"batch_size": 1})
    with Store(store_file) as store:
        store.add_all([*repeats(evil, sweep=OLD), *repeats(evil, 0.2, sweep=NEW)])
    for form in ([], ["--markdown"]):
        run = inside("compare", OLD, NEW, *form)
        assert run.returncode == 0, run.stderr
        assert "\x1b" not in run.stdout
        assert "\x07" not in run.stdout
    assert "<script>" not in inside("compare", OLD, NEW, "--markdown").stdout.replace("\\<script\\>", "")

"""`metalmark explain` and `mm.explain` as a user meets them: the verdict and its tables, the store, verification,
stored and watched runs, bad input, Ctrl-C and kill -9. On the software device, whose truth is known; PyTorch once."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import metalmark as mm
from metalmark.errors import UsageError
from metalmark.model.explanation import Bottleneck, Cause, Explained, ExplanationRun, StepShare
from metalmark.model.measurement import BenchRun
from metalmark.model.run import Failed, FailureKind
from metalmark.store.store import Store
from tests import processes
from tests.conftest import Cli
from tests.processes import HeldCommand, until
from tests.samples import (
    completed,
    explained,
    explanation_run,
    failed,
    parity_run,
    record,
    training_run,
    watched_run,
    watched_script,
)

ON_GPU = ("--framework", "fake", "--device", "gpu")
QUICK = ("--seconds", "0.05")
INPUT_BOUND = ("--data-from", "pipeline", "--input-ms", "3", "--compute-ms", "0.5", "--workers", "1")
HELD = """
import os, sys
from metalmark.workloads.fake import WORKLOAD
if "metalmark.explain.worker" in sys.orig_argv:
    with open(os.environ["HERE"], "a") as file:
        file.write(f"{os.getpid()}\\n")
"""
"""A workload whose worker tells its process ID."""


def stored(path: Path) -> list[ExplanationRun]:
    with Store(path, readonly=True) as store:
        runs = store.load(store.rows())
    return [run for run in runs if isinstance(run, ExplanationRun)]


def outcome_of(run: object) -> Explained:
    assert isinstance(run, ExplanationRun)
    assert isinstance(run.outcome, Explained), run.outcome
    return run.outcome


# A workload


def test_a_step_that_waits_for_its_loader(inside: Cli, store_file: Path) -> None:
    run = inside("explain", "fake", *ON_GPU, *QUICK, *INPUT_BOUND)
    assert run.returncode == 0, run.stderr
    assert "Input-bound: " in run.stdout.splitlines()[0]
    assert "of each step waits for the loader" in run.stdout
    assert "100.0%" in run.stdout, "the shares add up"
    (kept,) = stored(store_file)
    found = outcome_of(kept)
    assert found.bottleneck is Bottleneck.INPUT
    assert sum(share.seconds for share in found.shares) == pytest.approx(found.step_s)
    assert found.share(Cause.INPUT) > 0.5
    assert found.complete
    assert kept.plan is not None
    assert (kept.plan.framework, kept.of) == ("fake", None)
    assert f"Stored in {store_file} as {kept.id}." in run.stderr


def test_it_is_printed_as_json_and_shown_again(inside: Cli) -> None:
    run = inside("explain", "fake", *ON_GPU, *QUICK, "--compute-ms", "1", "--json", "--quiet")
    assert (run.returncode, run.stderr) == (0, "")
    (entry,) = json.loads(run.stdout)["records"]
    assert entry["kind"] == "explain"
    verdict = Bottleneck(entry["outcome"]["bottleneck"])
    assert verdict in (Bottleneck.COMPUTE, Bottleneck.UNKNOWN), "on a busy machine times may be too unsure"
    again = inside("explain", "last")
    assert again.returncode == 0, again.stderr
    assert again.stdout.lower().startswith(verdict.value), "a stored explanation is shown, not made anew"
    assert f"as {entry['id']}." in again.stderr


def test_lists_make_one_explanation_each(inside: Cli, store_file: Path) -> None:
    run = inside("explain", "fake", "--framework", "fake", "--device", "gpu,cpu", *QUICK, "--compute-ms", "1")
    assert run.returncode == 0, run.stderr
    first, second = stored(store_file)
    assert first.sweep == second.sweep != ""
    assert [one.plan.device.kind.value for one in (first, second) if one.plan] == ["gpu", "cpu"]
    assert [one.cell for one in (first, second)] == [0, 1]
    assert "per sample" in run.stdout, "from which batch size on which device is faster"
    with Store(store_file, readonly=True) as store:
        assert [row.id for row in store.rows_of_last()] == [first.id, second.id]


def test_what_is_proposed_is_measured_in_turn_with_the_baseline(inside: Cli, store_file: Path) -> None:
    run = inside("explain", "fake", *ON_GPU, *QUICK, *INPUT_BOUND, "--verify", "--repeat", "2")
    assert run.returncode == 0, run.stderr
    (kept,) = stored(store_file)
    tried = [each for each in outcome_of(kept).proposals if each.measured is not None]
    assert tried
    for proposal in tried:
        assert proposal.change is not None
        assert proposal.measured is not None
        assert proposal.measured.gain is not None
        assert proposal.measured.gain > 1.2, "a loader that is twice as fast, or none at all"
    with Store(store_file, readonly=True) as store:
        runs = store.load(store.rows_of_last())
    measured = [one for one in runs if isinstance(one, BenchRun)]
    assert kept in runs
    assert len({one.cell for one in measured}) * 2 == len(measured), "two processes per cell"
    begun = sorted(measured, key=lambda one: one.started_at)
    cells = len(measured) // 2
    assert [(one.cell, one.repeat) for one in begun[: cells + 1]] == [*((cell, 0) for cell in range(cells)), (0, 1)]
    assert "in turn with the baseline" in run.stderr


def test_where_nothing_is_proposed_nothing_is_verified(inside: Cli, store_file: Path) -> None:
    run = inside("explain", "fake", *ON_GPU, *QUICK, "--compute-ms", "2", "--memory-mb", "40", "--verify")
    assert run.returncode == 0, run.stderr
    assert "Nothing to verify: no change is proposed" in run.stderr
    (kept,) = stored(store_file)
    assert all(each.change is None for each in outcome_of(kept).proposals)


def test_figures_are_never_cut_for_their_evidence(inside: Cli, store_file: Path) -> None:
    long = StepShare(cause=Cause.HOST, seconds=0.001, error_s=0.0001, evidence="It was seen again and again " * 20)
    with Store(store_file) as store:
        store.add(explanation_run(explained(shares=(long,), step_s=0.001)))
    run = inside("explain", "last")
    row = next(line for line in run.stdout.splitlines() if line.startswith(" host"))
    assert row.split()[:4] == ["host", "1.00", "100.0%", "10.0%"]


def test_python_gives_runs(store_file: Path) -> None:
    runs = mm.explain(
        "fake", framework="fake", device="gpu", memory_ms=3, compute_ms=0.5, seconds=0.05, store=store_file,
        progress=False,
    )  # fmt: skip
    assert runs.complete
    assert outcome_of(runs[0]).bottleneck is Bottleneck.MEMORY
    assert str(runs).startswith("Bandwidth-bound")
    assert runs.to_dicts()[0]["kind"] == "explain"
    assert mm.explain(runs, store=store_file)[0] == runs[0]
    assert [one.id for one in stored(store_file)] == runs.ids


@pytest.mark.timeout(240)
def test_pytorch_on_the_cpu(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    trace = tmp_path / "step.json.gz"
    run = cli(
        "explain", "mnist-mlp", "-f", "torch", "-d", "cpu", "--seconds", "0.1", "--trace", trace, OMP_NUM_THREADS="1"
    )
    assert run.returncode == 0, run.stderr
    assert trace.stat().st_size > 1000
    for words in ("aten::", "forward and backward", "optimiser", "FLOP"):
        assert words in run.stdout, run.stdout
    shown = json.loads(cli("runs", "show", "last", "--json").stdout)["records"][0]
    shares = [share["seconds"] for share in shown["outcome"]["shares"]]
    assert sum(shares) == pytest.approx(shown["outcome"]["step_s"])


# What is stored already


def test_a_bench_run_is_explained_from_what_it_holds(inside: Cli, store_file: Path) -> None:
    with Store(store_file) as store:
        store.add_all([record(completed(), id="bench00001"), record(completed(), id="bench00002", repeat=1)])
    run = inside("explain", "bench00001")
    assert run.returncode == 0, run.stderr
    (kept,) = stored(store_file)
    assert kept.of in ("bench00001", "bench00002")
    assert kept.plan is not None
    assert outcome_of(kept).missing, "what would settle the rest"
    assert "metalmark explain mnist-mlp" in run.stdout


def test_a_stored_run_that_failed_is_no_answer(inside: Cli, store_file: Path) -> None:
    with Store(store_file) as store:
        store.add(record(failed(), id="bench00001"))
    run = inside("explain", "last")
    assert (run.returncode, run.stdout) == (1, "")
    assert "metalmark: no room" in run.stderr


def test_a_watched_run_is_explained_from_what_it_holds(inside: Cli, store_file: Path) -> None:
    watched = watched_run(id="watched001", script=watched_script())
    with Store(store_file) as store:
        store.add(watched)
    run = inside("explain", watched.name)
    assert run.returncode == 0, run.stderr
    (kept,) = stored(store_file)
    assert (kept.of, kept.plan, kept.subject) == (watched.id, None, watched.header.label)
    assert outcome_of(kept).share(Cause.INPUT) == pytest.approx(0.4)
    again = mm.explain(watched, store=store_file)
    assert outcome_of(again[0]) == outcome_of(kept)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["nothing"], "There is no workload and no run 'nothing'", "metalmark explain -- python train.py"),
        (["mnist-mpl"], "did you mean mnist-mlp?", "metalmark runs list"),
        (["parity0001"], "is a parity check, which times no step.", "metalmark explain mnist-mlp -f torch"),
        (["training01"], "Run training01 is a training", "metalmark explain mnist-mlp"),
        (["bench00001", "--verify"], "--verify needs experiments", "metalmark explain mnist-mlp -f torch -d cpu"),
        (["bench00001", "--trace", "a.json"], "--trace needs experiments", "explained from what it holds"),
        (["bench00001", "--dtype", "bfloat16"], "--dtype is of experiments", "Leave it out"),
        (["bench00001", "--batch-size", "8"], "--batch-size is of experiments", "Leave it out"),
        (["fake", *ON_GPU, "--trace", "nowhere/step.json"], "is in a folder that does not exist", "step.json.gz"),
        (["fake", *ON_GPU, "--trace", "."], "is a folder", "step.json.gz"),
        (["fake", "-f", "fake", "-d", "gpu,cpu", "--trace", "a.json"], "one trace, and these are 2", "one device"),
        (["fake", "mnist-mlp"], "One workload at a time, not 2.", ""),
        (["fake", *ON_GPU, "--batchsize", "3"], "did you mean --batch-size?", ""),
        (["fake", "-f", "fake", "-d", "cuda"], "has no cuda here", ""),
        (["fake", "-f", "torch"], "no implementation for torch", ""),
        (["examples/my_net.py"], "names a file, but not what in it", "metalmark explain -- python examples/my_net.py"),
        (["fake", "--", "python", "train.py"], "nothing else may be named before it", ""),
        (["--dtype", "bfloat16", "--", "python", "-c", "0"], "--dtype is of experiments", "Leave it out"),
        (["--"], "Which command?", "python train.py"),
        ([], "Which workload?", "metalmark explain mnist-mlp"),
    ],
    ids=lambda value: " ".join(value)[-30:] if isinstance(value, list) else "",
)  # fmt: skip
def test_a_bad_word_is_answered_before_anything_starts(
    inside: Cli, store_file: Path, arguments: list[str], message: str, hint: str
) -> None:
    with Store(store_file) as store:
        store.add_all(
            [record(id="bench00001"), parity_run(id="parity0001"), training_run(id="training01", sweep="sweep00077")]
        )
    run = inside("explain", *arguments)
    assert run.returncode == 2, run.stderr
    assert message in run.stderr
    assert hint in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""
    assert stored(store_file) == []


def test_what_is_no_run_and_no_workload(store_file: Path) -> None:
    with pytest.raises(UsageError, match="A list can't be explained"):
        mm.explain([1], store=store_file)
    with (
        mm.run("loop", hz=None, store=store_file) as run,
        pytest.raises(UsageError, match="has not ended"),
    ):
        mm.explain(run, store=store_file)


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("raise", FailureKind.CRASHED, "asked to raise"),
        ("oom", FailureKind.OUT_OF_MEMORY, "asked to be out of memory"),
        ("kill", FailureKind.CRASHED, "SIGKILL"),
    ],
)
def test_a_workload_that_fails(inside: Cli, store_file: Path, fault: str, kind: FailureKind, message: str) -> None:
    run = inside("explain", "fake", *ON_GPU, *QUICK, "--fault", fault)
    assert run.returncode == 1, run.stderr
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    (kept,) = stored(store_file)
    assert isinstance(kept.outcome, Failed)
    assert kept.outcome.kind is kind
    assert inside("runs", "show", kept.id).returncode == 0


# A command of the user's own, and mm.run

TRAIN = """
import sys, time
import torch
torch.set_num_threads(1)
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 160
    def __getitem__(self, place):
        time.sleep(0.001)
        return torch.ones(20), place % 3
def train(batches, log=lambda **_: None):
    model = torch.nn.Linear(20, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        log(loss=loss)
loader = torch.utils.data.DataLoader(Slow(), batch_size=8)
"""
SCRIPT = (
    TRAIN
    + """
train(loader)
print("trained")
sys.exit(7)
"""
)
IN_PYTHON = (
    TRAIN
    + """
import metalmark as mm
before = torch.Tensor.item, torch.Tensor.to, torch.utils.data.DataLoader.__iter__
with mm.run("loop", hz=None) as run:
    with mm.run("inner", hz=None) as inner:
        pass
    train(run.watch(loader), run.log)
assert (torch.Tensor.item, torch.Tensor.to, torch.utils.data.DataLoader.__iter__) == before, "the hooks are gone"
assert inner.result.script is None, "the outer run sees what happens"
print(run)
script, (train_pass,) = run.result.script, run.result.passes
assert script.command == "" and script.frameworks == ("torch",) and script.device == "cpu", script
assert script.steady.steps == 19 and script.first_step_s > 0, script
assert script.steady.optimizer_s > 0 and script.steady.backward_s > 0
assert 0 < script.steady.waited_s < train_pass.waited_s < 1.5 * script.steady.waited_s, "each wait counts once"
explained = mm.explain(run)
print(explained[0].outcome.bottleneck.value, explained[0].of == run.id)
def batches():
    for _ in range(10):
        time.sleep(0.005)
        yield torch.ones(8, 20), torch.zeros(8, dtype=torch.long)
with mm.run("generated", hz=None) as run:
    train(run.watch(batches()), run.log)
    for _ in run.watch(batches(), "validation"):
        pass
steady, phases = run.result.script.steady, run.result.script.phases
assert steady.steps == 9 and steady.waited_s > 9 * 0.005, "no hook knows this loader; run.watch does"
assert phases["validation"] > 10 * 0.005 and phases["training"] < 2 * phases["validation"], phases
with mm.run("broken", hz=None) as run:
    for place, _ in enumerate(run.watch(batches())):
        if place == 2:
            break
assert run.result.passes[0].steps == 3 and run.result.script.steady is None
"""
)


def test_a_command_is_run_as_it_is_and_explained(cli: Cli, store_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = cli("explain", "--", sys.executable, script)
    assert run.returncode == 7, run.stderr
    assert run.stdout.startswith("trained\nInput-bound: ")
    (kept,) = stored(store_file)
    assert (kept.subject, kept.plan) == ("train", None)
    assert kept.of is not None
    assert f"as {kept.id}." in run.stderr


def test_a_command_without_a_step_is_not_explained(inside: Cli, store_file: Path) -> None:
    run = inside("explain", "--", sys.executable, "-c", "raise SystemExit(3)")
    assert run.returncode == 3
    assert "so no steps were seen" in run.stderr
    assert run.stdout == ""
    assert stored(store_file) == []


def test_mm_run_has_the_figures_of_watch_and_a_verdict(store_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "mine.py"
    script.write_text(IN_PYTHON)
    done = processes.run([sys.executable, str(script)], METALMARK_STORE=str(store_file))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "; Input-bound: " in first
    assert second == "input-bound True"


# Ended from outside


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[HeldCommand]:
    """An explanation whose worker hangs in its fourth step."""
    file = tmp_path / "held.py"
    file.write_text(HELD)
    words = ("explain", f"{file}:WORKLOAD", *ON_GPU, *QUICK, "--fault", "hang")
    scene = HeldCommand(tmp_path, words, lambda held: held.told.exists() and held.told.read_text().endswith("\n"))
    yield scene
    scene.close()


def test_ctrl_c_is_kept_as_such(hanging: HeldCommand) -> None:
    os.kill(hanging.command.pid, signal.SIGINT)
    _, err = hanging.ended()
    assert hanging.command.returncode == 130, err
    assert "Stopped; what was explained is stored." in err
    assert "Traceback" not in err
    (run,) = stored(hanging.store)
    assert isinstance(run.outcome, Failed) or not run.outcome.complete
    assert list(hanging.temporary.iterdir()) == []


def test_a_command_that_is_killed_leaves_a_readable_store_and_no_process(hanging: HeldCommand) -> None:
    os.kill(hanging.command.pid, signal.SIGKILL)
    hanging.ended()
    until(lambda: not list(hanging.temporary.iterdir()))
    assert stored(hanging.store) == []


def test_ctrl_c_raises_in_python_after_storing(store_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from metalmark.app import explain as app

    kept = explanation_run(failed(FailureKind.INTERRUPTED, "Stopped by Ctrl-C."))
    monkeypatch.setattr(app, "_explain_plans", lambda *_, **__: ([kept], False))
    with pytest.raises(KeyboardInterrupt) as stopped:
        mm.explain("fake", framework="fake", device="gpu", store=store_file, progress=False)
    assert stopped.value.__notes__ == ["What was explained is stored."]
    runs = mm.explain("fake", framework="fake", device="gpu", store=store_file, progress=False, raise_interrupt=False)
    assert not runs.complete

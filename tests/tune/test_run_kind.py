"""A tuning is the sixth kind of run: every verb takes it, and every kind of run beside it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import metalmark as mm
from metalmark.app.results import Runs
from metalmark.display.status import Overview
from metalmark.errors import FormatError, UsageError
from metalmark.model.codec import AnyRun, decode, encode, json_schema
from metalmark.model.plan import PlanChange, Sweep
from metalmark.model.run import PARITY_FAILED, Flag
from metalmark.model.tuning import RungStatus, Tuned, TuningGoal, TuningRequest, TuningRun
from metalmark.report.answer import answer
from metalmark.report.content import Content
from metalmark.report.text.run_page import shown_flags
from metalmark.report.text.tune_page import tuning_tables
from metalmark.results.derived import flags_of
from metalmark.runner.events import Ended
from metalmark.store.bundle import encode_bundle, read_file
from metalmark.store.damage import damage_of
from metalmark.store.row import row_of
from metalmark.store.store import Store
from metalmark.track.destination import Destination
from metalmark.track.queue import Begin, End, EndStatus, Known, MetricRow, QueueEvent, QueueWriter
from metalmark.track.story import write_run
from metalmark.track.tracking import Tracking
from tests.conftest import Cli
from tests.samples import (
    BASELINE_RUNG,
    BEST_RUNG,
    DIFFERS,
    OTHER_RUNGS,
    completed,
    explanation_run,
    failed,
    parity_run,
    plan,
    record,
    rung,
    training_run,
    tuned,
    tuning_run,
    watched_run,
)

TUNED = tuning_run(id="tuned00001")
FUSED = rung(
    "+ fused", RungStatus.BEST, 0.0025, change=PlanChange(settings={"fused": True}, params={"batch_size": 64}),
    samples_per_step=64,
)  # fmt: skip
OTHER = tuning_run(
    tuned(ladder=(BASELINE_RUNG, FUSED)), id="tuned00002", sweep="sweep00004", started_at="2026-11-15T11:05:00.000000Z"
)
NOTHING = tuning_run(tuned(ladder=(BASELINE_RUNG,), others=OTHER_RUNGS[:1]), id="nothing001", sweep="sweep00005")
LOST = tuning_run(failed(message="the baseline was killed"), id="lost000001", sweep="sweep00006")
WRONG = tuning_run(
    tuned(ladder=(BASELINE_RUNG, rung("+ float16", RungStatus.DIFFERS, 0.001, parity=DIFFERS, reason="in bn1."))),
    id="wrong00001", sweep="sweep00007",
)  # fmt: skip
TRIAL = record(completed(0.0032), id="trial00000", sweep="sweep00003")
FAST_TRIAL = record(
    completed(0.0016), id="trial00001", sweep="sweep00003", cell=1, plan=BEST_RUNG.change.applied(plan())
)
CHECK = parity_run(id="check00001", sweep="sweep00003", plan=FAST_TRIAL.plan)
EVERY: tuple[AnyRun, ...] = (
    TUNED, OTHER, NOTHING, LOST, WRONG, TRIAL, FAST_TRIAL, CHECK, record(id="bench00001"),
    training_run(id="trained001"), watched_run(id="watched001"), explanation_run(id="explain001"),
)  # fmt: skip
RUNGS = len(tuned().ladder) + len(OTHER_RUNGS)


@pytest.fixture
def stored(store_file: Path) -> Path:
    with Store(store_file) as store:
        store.add_all(EVERY)
    return store_file


# The run itself


def test_it_is_written_and_read_as_any_run_is(tmp_path: Path) -> None:
    for run in EVERY:
        assert decode(encode(run)) == run
        assert not damage_of(run)
    assert "TuningRun" in json_schema()["$defs"]
    (tmp_path / "all.bundle").write_bytes(encode_bundle(EVERY))
    read = read_file(str(tmp_path / "all.bundle")).runs
    assert sorted(read, key=lambda run: run.id) == sorted(EVERY, key=lambda run: run.id)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ladder": ()}, "no baseline"),
        ({"others": (rung("x", RungStatus.NO_GAIN, gain=0.0),)}, "nothing measured has"),
        ({"others": (rung("x", RungStatus.NO_GAIN, gain=-1.5),)}, "nothing measured has"),
        ({"others": (rung("x", RungStatus.NO_GAIN, step_s=1e300),)}, "nothing measured has"),
        ({"others": (rung("x", RungStatus.NO_GAIN, change=PlanChange(settings={"dtype": "int3"})),)}, "setting"),
    ],
)
def test_what_no_search_leaves_is_damaged(changes: dict[str, Any], why: str, tmp_path: Path, inside: Cli) -> None:
    run = tuning_run(tuned(**changes))
    assert why in damage_of(run)
    file = tmp_path / "edited.json"
    records = [json.loads(encode(run))]
    file.write_text(json.dumps({"format": "metalmark-records", "schema": 2, "records": records}))
    with pytest.raises(FormatError, match=why):
        read_file(str(file))
    assert inside("runs", "import", file).returncode == 2


def test_its_row_has_the_baseline_and_the_step_of_the_best() -> None:
    row = row_of(TUNED)
    assert (row.kind, row.ending, row.workload, row.dtype) == ("tune", "2.00x", "mnist-mlp", "float32")
    assert (row.step_s, row.samples_s, row.parity) == (0.0016, pytest.approx(20_000), "agrees")
    assert (row_of(NOTHING).ending, row_of(NOTHING).step_s, row_of(NOTHING).parity) == ("nothing helps", 0.0032, "")
    assert (row_of(LOST).ending, row_of(LOST).step_s) == ("out of memory", None)
    assert row_of(WRONG).parity == "differs"


def test_settings_that_train_differently_are_a_flag() -> None:
    assert flags_of(TUNED) == ()
    assert [(flag.name, flag.evidence) for flag in flags_of(WRONG)] == [(PARITY_FAILED, "+ float16: in bn1")]
    hot = tuning_run(flags=(Flag(name="throttled", evidence="30 °C hotter"),))
    assert [flag.name for flag in flags_of(hot)] == ["throttled"]
    assert shown_flags(hot) == ()
    assert "throttled: 30 °C hotter." in tuning_tables([hot])[-1].notes
    failed = msgspec.structs.replace(LOST, flags=hot.flags)
    assert shown_flags(failed) == hot.flags


# Verbs, with every kind of run


@pytest.mark.usefixtures("stored")
def test_every_verb_takes_it(inside: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = inside("runs", "show", "tuned00001", "--wide")
    assert shown.returncode == 0, shown.stderr
    for words in (
        "bfloat16 and compile make mnist-mlp on torch, cpu 2.00x as fast (1.94x to 2.06x)", "+ bfloat16", "1.60x",
        "What else was tried", "trains differently, parity_failed", "the worker was killed", "goal: throughput",
        "ran on: cpu (Test CPU)", "took: 1 min 35 s of 10 min, 11 trials", "--dtype=bfloat16 --compile=on",
        "Not tried: graph: torch has no graphs on cpu.",
    ):  # fmt: skip
        assert words in shown.stdout, words
    listed = inside("runs", "list", "--wide").stdout
    (line,) = [line for line in listed.splitlines() if line.startswith("tuned00001")]
    assert line.split()[1] == "tune"
    assert "1.60 ms per step, 20,000 samples/s" in line
    assert "2.00x" in line
    (wrong,) = [line for line in listed.splitlines() if line.startswith("wrong00001")]
    assert PARITY_FAILED in wrong
    monkeypatch.setenv("COLUMNS", "80")
    narrow = inside("runs", "list").stdout.splitlines()
    assert any(line.startswith("tuned00001") and "2.00x, 1.60 ms per step" in line for line in narrow)
    assert any(line.startswith("wrong00001") and PARITY_FAILED in line for line in narrow)
    assert json.loads(inside("runs", "show", "tuned00001", "--json").stdout)["records"][0]["kind"] == "tune"
    assert inside("runs", "name", "tuned00001", "fast").returncode == 0
    assert inside("runs", "tag", "tuned00001", "tuned00002", "tunings").returncode == 0
    assert "2.00x as fast" in inside("runs", "show", "fast").stdout
    assert inside("runs", "export", "-o", tmp_path / "all.json").returncode == 0
    assert inside("runs", "export", "--bundle", tmp_path / "all.bundle").returncode == 0
    assert "1 run deleted" in inside("runs", "delete", "lost000001", "--yes").stderr
    assert "1 run imported" in inside("runs", "import", tmp_path / "all.json").stderr
    assert '"TuningRun"' in inside("schema").stdout
    assert "the baseline was killed" in inside("runs", "show", "lost000001").stdout
    assert "No setting helps" in inside("runs", "show", "nothing001").stdout


@pytest.mark.usefixtures("stored")
def test_its_sweep_has_the_ladder_above_the_trials_and_the_checks(inside: Cli) -> None:
    shown = inside("runs", "show", "sweep00003", "--wide")
    assert shown.returncode == 0, shown.stderr
    places = [shown.stdout.index(words) for words in ("2.00x as fast", "What else was tried", "loss 2.3", "gradient")]
    assert places == sorted(places)


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("form", ["html", "markdown", "csv", "json", "parquet"])
def test_a_report_has_it_in_every_format(inside: Cli, tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    file = tmp_path / "out"
    found = inside("report", "sweep00003", "lost000001", "--format", form, "-o", file)
    assert found.returncode == 0, found.stderr
    data = file.read_bytes()
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(data.decode())))
        assert [row["title"] for row in rows] == [
            "baseline", "'+ bfloat16", "'+ compile", "fused", "float16", "channels_last", "",
        ]  # fmt: skip
        assert [row["rung"] for row in rows] == ["0", "1", "2", "", "", "", ""]
        assert [row["dtype"] for row in rows[:5]] == ["float32", "bfloat16", "bfloat16", "float32", "float16"]
        assert [row["parity"] for row in rows[2:5]] == ["agrees", "", "differs"]
        assert (rows[4]["status"], rows[2]["gain"], rows[2]["low"]) == ("trains differently", "2.0", "1.94")
        assert (rows[0]["ending"], rows[-1]["message"]) == ("2.00x", "the baseline was killed")
    elif form == "parquet":
        import pyarrow.parquet

        assert pyarrow.parquet.read_table(file).num_rows == RUNGS + 1
    elif form == "json":
        assert len(json.loads(data)["records"]) == 5
    else:
        text = data.decode()
        assert "make mnist-mlp on torch, cpu 2.00x as fast" in text
        assert "could not be tuned: out of memory: the baseline was killed" in text
    mixed = inside("report", *(run.id for run in EVERY), "--format", form, "-o", tmp_path / "all")
    # A table is of one kind of rows; a page and JSON hold all kinds.
    assert mixed.returncode == (2 if form in ("csv", "parquet") else 0), mixed.stderr


def test_a_report_begins_with_the_answer_and_trials_say_nothing_by_themselves() -> None:
    (only,) = answer(Content(runs=(TRIAL, FAST_TRIAL, CHECK, TUNED)))
    assert only.startswith("bfloat16 and compile make mnist-mlp on torch, cpu 2.00x as fast")
    first, second, third = answer(Content(runs=(TUNED, TRIAL, OTHER, record(id="bench00001"))))
    assert first.startswith("mnist-mlp training batch 32 torch cpu: bfloat16 and compile make")
    assert second.startswith("mnist-mlp training batch 32 torch cpu: fused and batch size 64 make")
    assert "10,000 samples/s became 25,600 samples/s" in second
    assert "100 ms" in third
    assert Content(runs=(TUNED,)).title == "mnist-mlp on Test chip"


def test_what_a_tuning_planned_is_not_missing() -> None:
    assert Content(runs=(TUNED, TRIAL), plans=(plan(), plan(framework="jax"))).measured_plans == ()
    sweep = Sweep(id="sweep00003", created_at=TUNED.started_at, plans=(plan(), plan(framework="jax")))
    shown = str(Runs([TUNED], store=Path("s"), sweep=sweep))
    assert "jax" not in shown
    assert "2.00x as fast" in shown


def test_the_server_shows_it(stored: Path) -> None:
    testclient = pytest.importorskip("starlette.testclient")
    from metalmark.web.app import make_app
    from metalmark.web.guard import Rules

    ask = testclient.TestClient(make_app(stored, Rules()), base_url="http://127.0.0.1:8585").get
    for place, words in (
        ("/", "1.60 ms per step, 20,000 samples/s"),
        ("/run/tuned00001", "What each setting gains"),
        ("/run/nothing001", "No setting helps"),
        ("/run/lost000001", "the baseline was killed"),
        ("/run/wrong00001", PARITY_FAILED),
        ("/run/trial00000", "3.20 ms"),
        ("/sweep/sweep00003", "What each setting gains"),
        ("/compare?run=tuned00001&run=tuned00002", "is best with fused and batch size 64"),
    ):
        found = ask(place)
        assert found.status_code == 200, place
        assert words in found.text, place
    page = ask("/sweep/sweep00003").text
    places = [page.index(words) for words in ("2.00x as fast", "What each setting gains", "/run/trial00000")]
    assert places == sorted(places)


# Two tunings compared


@pytest.mark.usefixtures("stored")
def test_two_tunings_are_compared_by_their_best_settings(
    store_file: Path, inside: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = inside("compare", "tuned00001", "tuned00002", "--wide")
    assert found.returncode == 0, found.stderr
    said = " ".join(found.stdout.split())
    assert "Can't tell whether tuned00002 is faster than tuned00001 (1.280x)" in said
    assert "tuned00002 is best with fused and batch size 64 (1.28x), tuned00001 with bfloat16 and compile" in said
    assert "To tell, measure the best settings and compare those runs: metalmark bench mnist-mlp" in said
    assert "--dtype=bfloat16 --compile=on --repeat 5 && metalmark bench mnist-mlp" in said
    (line,) = [line for line in found.stdout.splitlines() if line.startswith(" samples/s")]
    assert line.split()[1:3] == ["20,000", "25,600"]
    (entry,) = mm.compare("tuned00001", "tuned00002", store=store_file).to_dicts()
    assert (entry["a_gain"], entry["b_gain"]) == (2.0, pytest.approx(1.28))
    assert entry["a_change"]["settings"] == {"dtype": "bfloat16", "compile": True}
    assert entry["verdict"] == "can't tell"
    json.loads(inside("compare", "tuned00001", "tuned00002", "--json").stdout)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = inside("compare", "tuned00001", "tuned00002").stdout
    assert any(line.startswith(" gain") for line in narrow.splitlines())
    mixed = inside("compare", "bench00001", "tuned00001")
    assert mixed.returncode == 2
    assert "bench00001 holds bench runs, tuned00001 holds tunings" in mixed.stderr
    wrong = " ".join(inside("compare", "tuned00001", "wrong00001", "--wide").stdout.split())
    assert f"3.20x, {PARITY_FAILED}" in wrong
    assert f"wrong00001 does not train the same network as the reference ({PARITY_FAILED})." in wrong
    lost = inside("compare", "tuned00001", "lost000001")
    assert "the baseline was killed" in lost.stdout


def test_several_tunings_per_side_have_an_interval_and_other_goals_are_refused(store_file: Path) -> None:
    def side(name: str, *steps: float, goal: TuningGoal = TuningGoal.THROUGHPUT) -> list[TuningRun]:
        best = [msgspec.structs.replace(BEST_RUNG, step_s=step_s, joules_per_sample=step_s) for step_s in steps]
        return [
            tuning_run(
                tuned(ladder=(BASELINE_RUNG, one)), id=f"{name}{at:06}", sweep=f"{name}sweep",
                request=TuningRequest(goal=goal),
            )
            for at, one in enumerate(best)
        ]  # fmt: skip

    with Store(store_file) as store:
        store.add_all(side("slow", 0.0016, 0.00161, 0.00159))
        store.add_all([*side("fast", 0.0010, 0.00101, 0.00099), record(id="extra00001", sweep="fastsweep")])
        store.add_all(side("less", 0.0016, goal=TuningGoal.MEMORY))
    (found,) = mm.compare("slowsweep", "fastsweep", store=store_file)
    assert (found.kind.value, found.rows[0].verdict.value) == ("tune", "faster")
    table = str(mm.compare("slowsweep", "fastsweep", store=store_file))
    assert "Both are best with bfloat16 and compile: fastsweep gains 2.00x (1.94 to 2.06)" in table
    assert "95%: over tunings (3 and 3), not over their trials." in table
    assert "energy per sample" in table
    with pytest.raises(UsageError, match="goal throughput against memory"):
        mm.compare("slowsweep", "lesssweep", store=store_file)


def test_its_trials_are_compared_by_themselves(store_file: Path) -> None:
    with Store(store_file) as store:
        store.add_all([TUNED, TRIAL, FAST_TRIAL, CHECK])
    (found,) = mm.compare("sweep00003", by="compile,dtype", store=store_file)
    assert found.kind.value == "bench"
    assert mm.compare("trial00000", "trial00001", by="dtype", store=store_file)[0].kind.value == "bench"


def test_its_figures_as_a_dictionary() -> None:
    entry = Runs([TUNED], store=Path("s")).to_dicts()[0]
    assert (entry["best"], entry["gain"], entry["gain_low"]) == ("bfloat16 and compile", 2.0, 1.94)
    assert (entry["status"], entry["proved"], entry["batch_size"]) == ("best", True, 32)
    assert [one["title"] for one in entry["ladder"]] == ["baseline", "+ bfloat16", "+ compile"]
    assert entry["sentence"].startswith("bfloat16 and compile make")
    lost = Runs([LOST], store=Path("s")).to_dicts()[0]
    assert (lost["best"], lost["gain"], lost["ladder"]) == (None, None, [])
    assert len(Runs(EVERY, store=Path("s")).filter(lambda run: isinstance(run, TuningRun))) == 5


# Listeners


def told(run: AnyRun) -> list[QueueEvent]:
    with QueueWriter(run.id, [Destination(tracker="mlflow", place="http://127.0.0.1:1")]) as writer:
        write_run(writer, run)
    return writer.queue.read()[0]


def test_trackers_are_told_the_ladder_and_the_best(store_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METALMARK_STORE", str(store_file))
    events = told(TUNED)
    (begin,) = [event for event in events if isinstance(event, Begin)]
    assert (begin.kind, begin.group, begin.params["tune.goal"]) == ("tune", "sweep00003", "throughput")
    rows = [event for event in events if isinstance(event, MetricRow)]
    assert [row.values["tune/gain"] for row in rows[:-1]] == pytest.approx([1.0, 1.6, 2.0])
    assert rows[2].values["tune/step_ms"] == pytest.approx(1.6)
    assert "tune/joules_per_sample" not in rows[2].values
    assert (rows[-1].values["tune/best_gain"], rows[-1].values["tune/trials"]) == (2.0, 11)
    tags = {name: value for event in events if isinstance(event, Known) for name, value in event.tags.items()}
    assert (tags["best"], tags["parity"]) == ("bfloat16 and compile", "agrees")
    assert tags["rung2"] == "+ compile: 2.00x (1.94 to 2.06), agrees"
    assert tags[PARITY_FAILED] == "float16"
    assert tags["report"].startswith("bfloat16 and compile make")
    endings = {
        run.id: [event.status for event in told(run) if isinstance(event, End)] for run in (TUNED, NOTHING, LOST)
    }
    assert endings == {
        "tuned00001": [EndStatus.FINISHED], "nothing001": [EndStatus.FINISHED], "lost000001": [EndStatus.FAILED],
    }  # fmt: skip
    stopped = tuning_run(tuned(complete=False))
    assert [event.status for event in told(stopped) if isinstance(event, End)] == [EndStatus.KILLED]
    marked = {name: value for event in told(WRONG) if isinstance(event, Known) for name, value in event.tags.items()}
    assert marked["flags"] == PARITY_FAILED


def test_whoever_listens_is_told_when_a_tuning_ends(store_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METALMARK_STORE", str(store_file))
    sweep = Sweep(id="sweep00003", created_at=TUNED.started_at, plans=(plan(),))
    overview = Overview(sweep)
    overview(Ended(run=TRIAL))
    overview(Ended(run=TUNED))
    assert overview.ended[-1] == "mnist-mlp training batch 32 torch cpu: 2.00x"
    assert overview.done == 1
    written: list[AnyRun] = []
    monkeypatch.setattr("metalmark.track.tracking.write_queue", lambda run, _: written.append(run))
    Tracking("mlflow=http://127.0.0.1:1").listener()(Ended(run=TUNED))
    assert written == [TUNED]


def test_a_tuning_of_the_oldest_shape_is_read() -> None:
    document = json.loads(encode(TUNED))
    for name in ("cell", "flags"):
        document.pop(name, None)
    assert isinstance(TUNED.outcome, Tuned)
    assert decode(json.dumps(document).encode()) == TUNED

"""An explanation is the fifth kind of run: every verb takes it, and every kind of run beside it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import msgspec
import pytest

import metalmark as mm
from metalmark.app.results import Runs
from metalmark.errors import FormatError
from metalmark.model.codec import AnyRun, decode, encode, json_schema
from metalmark.model.explanation import Bottleneck, Explained, ExplanationRun
from metalmark.model.plan import Loader
from metalmark.model.run import Absent, Flag
from metalmark.report.answer import answer
from metalmark.report.content import Content
from metalmark.results.derived import flags_of
from metalmark.store.bundle import encode_bundle, read_file
from metalmark.store.damage import damage_of
from metalmark.store.row import row_of
from metalmark.store.store import Store
from metalmark.track.destination import Destination
from metalmark.track.queue import Begin, End, EndStatus, Known, MetricRow, QueueEvent, QueueWriter
from metalmark.track.story import write_run
from tests.conftest import Cli
from tests.samples import (
    INPUT_SHARES,
    explained,
    explanation_run,
    failed,
    parity_run,
    record,
    training_run,
    watched_run,
    watched_script,
)

EXPLAINED = explanation_run(id="input00001")
assert EXPLAINED.plan is not None
FASTER = explanation_run(
    explained(
        step_s=0.0051, bottleneck=Bottleneck.COMPUTE, experiments=(),
        shares=(msgspec.structs.replace(INPUT_SHARES[0], seconds=0.0004), *INPUT_SHARES[1:]),
    ),
    id="faster0001", started_at="2026-11-15T10:05:00.000000Z",
    plan=msgspec.structs.replace(EXPLAINED.plan, loader=Loader(workers=4)),
)  # fmt: skip
SCRIPT = explanation_run(id="script0001", plan=None, subject="train.py", of="watched001")
LOST = explanation_run(failed(message="the worker was killed"), id="lost000001")
NO_STEP = explanation_run(
    explained(
        bottleneck=Bottleneck.UNKNOWN, step_s=0.0, error_s=0.0, shares=(), proposals=(), experiments=(), parts={},
        roofline=Absent("no step"), profile=Absent("no step"), missing=("metalmark explain -- python train.py",),
    ),
    id="nostep0001", plan=None, subject="idle.py",
)  # fmt: skip
WATCHED = watched_run(id="watched001", elapsed_s=6.0, script=watched_script())
EVERY: tuple[AnyRun, ...] = (
    EXPLAINED, FASTER, SCRIPT, LOST, NO_STEP, WATCHED, record(id="bench00001"), training_run(id="trained001"),
    parity_run(id="parity0001"),
)  # fmt: skip


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
    assert "ExplanationRun" in json_schema()["$defs"]
    (tmp_path / "all.bundle").write_bytes(encode_bundle(EVERY))
    read = read_file(str(tmp_path / "all.bundle")).runs
    assert sorted(read, key=lambda run: run.id) == sorted(EVERY, key=lambda run: run.id)
    old = json.loads(encode(WATCHED))
    del old["script"]
    assert decode(json.dumps(old).encode()) == msgspec.structs.replace(WATCHED, script=None)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"shares": INPUT_SHARES[1:]}, "do not add up"),
        ({"step_s": 0.0}, "do not add up"),
        ({"step_s": 1e300}, "do not add up"),
        ({"roofline": {"flops": 0.0}}, "no work"),
    ],
)
def test_what_does_not_add_up_is_damaged(changes: dict[str, object], why: str, tmp_path: Path, inside: Cli) -> None:
    outcome = explained()
    line = changes.pop("roofline", None)
    if isinstance(line, dict):
        assert not isinstance(outcome.roofline, Absent)
        changes = {"roofline": msgspec.structs.replace(outcome.roofline, **line)}
    run = explanation_run(msgspec.structs.replace(outcome, **changes))
    assert why in damage_of(run)
    file = tmp_path / "edited.json"
    records = [json.loads(encode(run))]
    file.write_text(json.dumps({"format": "metalmark-records", "schema": 2, "records": records}))
    with pytest.raises(FormatError, match=why):
        read_file(str(file))
    assert inside("runs", "import", file).returncode == 2


def test_its_row_has_the_verdict_and_the_step() -> None:
    row = row_of(EXPLAINED)
    assert (row.kind, row.ending, row.workload, row.step_s) == ("explain", "input-bound", "mnist-mlp", 0.0162)
    assert row.input_share == pytest.approx(0.71, abs=0.01)
    assert row.samples_s == pytest.approx(32 / 0.0162)
    assert (row_of(SCRIPT).name, row_of(SCRIPT).workload) == ("train.py", "")
    assert (row_of(NO_STEP).step_s, row_of(LOST).ending) == (None, "out of memory")
    flagged = explanation_run(flags=(Flag(name="throttled", evidence="30 °C hotter"),))
    assert [flag.name for flag in flags_of(flagged)] == ["throttled"]


# Verbs, with every kind of run


@pytest.mark.usefixtures("stored")
def test_every_verb_takes_it(inside: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = inside("runs", "show", "input00001", "--wide")
    assert shown.returncode == 0, shown.stderr
    for words in (
        "Input-bound: 71% of each step waits for the loader", "What would make it faster", "--workers 4", "3.09x",
        "FLOP per byte", "aten::mm", "workers 4", "mps has no graphs", "ran on: mps (Test GPU)",
    ):  # fmt: skip
        assert words in shown.stdout, words
    listed = inside("runs", "list", "--wide").stdout
    (line,) = [line for line in listed.splitlines() if line.startswith("input00001")]
    assert line.split()[1] == "explain"
    assert "16.2 ms per step, 1,975 samples/s, input wait 71.0%  input-bound" in line
    monkeypatch.setenv("COLUMNS", "80")
    (line,) = [line for line in inside("runs", "list").stdout.splitlines() if line.startswith("input00001")]
    assert "input-bound, 16.2 ms per step" in line
    assert any(line.startswith("script0001") and "train.py" in line for line in listed.splitlines())
    assert json.loads(inside("runs", "show", "input00001", "--json").stdout)["records"][0]["kind"] == "explain"
    assert inside("runs", "name", "input00001", "slow").returncode == 0
    assert inside("runs", "export", "-o", tmp_path / "all.json").returncode == 0
    assert inside("runs", "export", "--bundle", tmp_path / "all.bundle").returncode == 0
    assert "1 run deleted" in inside("runs", "delete", "lost000001", "--yes").stderr
    assert "1 run imported" in inside("runs", "import", tmp_path / "all.json").stderr
    assert '"ExplanationRun"' in inside("schema").stdout
    lost = inside("runs", "show", "lost000001")
    assert "the worker was killed" in lost.stdout
    idle = inside("runs", "show", "nostep0001")
    assert "Not told: no step was timed." in idle.stdout
    # In a narrow window a line to type stands by itself.
    assert "• To know more:\n  metalmark explain -- python train.py" in idle.stdout


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("form", ["html", "markdown", "csv", "json", "parquet"])
def test_a_report_has_it_in_every_format(inside: Cli, tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    file = tmp_path / "out"
    found = inside("report", "input00001", "lost000001", "--format", form, "-o", file)
    assert found.returncode == 0, found.stderr
    data = file.read_bytes()
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(data.decode())))
        assert [row["cause"] for row in rows] == [*(share.cause.value for share in INPUT_SHARES), ""]
        assert sum(float(row["share"]) for row in rows[:-1]) == pytest.approx(1)
        assert (rows[0]["verdict"], rows[-1]["message"]) == ("input-bound", "the worker was killed")
    elif form == "parquet":
        import pyarrow.parquet

        assert pyarrow.parquet.read_table(file).num_rows == len(INPUT_SHARES) + 1
    elif form == "json":
        assert len(json.loads(data)["records"]) == 2
    else:
        assert "Input-bound: 71% of each step waits for the loader" in data.decode()
    mixed = inside("report", *(run.id for run in EVERY), "--format", form, "-o", tmp_path / "all")
    # A table is of one kind of rows; a page and JSON hold all kinds.
    assert mixed.returncode == (2 if form in ("csv", "parquet") else 0), mixed.stderr


def test_a_report_begins_with_the_answer() -> None:
    first, second, *_ = answer(Content(runs=(record(), EXPLAINED, SCRIPT)))
    assert first.startswith("mnist-mlp training batch 32 torch mps: Input-bound: 71% of each step waits")
    assert second.startswith("train.py: Input-bound")
    (only,) = answer(Content(runs=(LOST,)))
    assert only == (
        "What mnist-mlp training batch 32 torch mps waits for could not be told: out of memory: the worker was killed."
    )
    assert Content(runs=(SCRIPT, EXPLAINED)).title.startswith("train.py, mnist-mlp on Test chip")


def test_the_server_shows_it(stored: Path) -> None:
    testclient = pytest.importorskip("starlette.testclient")
    from metalmark.web.app import make_app
    from metalmark.web.guard import Rules

    ask = testclient.TestClient(make_app(stored, Rules()), base_url="http://127.0.0.1:8585").get
    for place, words in (
        ("/", "16.2 ms per step, 1,975 samples/s"),
        ("/run/input00001", "What a step is made of"),
        ("/run/script0001", "71% of each step waits for the loader"),
        ("/run/lost000001", "the worker was killed"),
        ("/run/nostep0001", "no step was timed"),
        ("/run/watched001", "Where the host waited for the device"),
        ("/compare?run=input00001&run=faster0001", "input wait takes 11.1 ms less"),
    ):
        found = ask(place)
        assert found.status_code == 200, place
        assert words in found.text, place


@pytest.mark.usefixtures("stored")
def test_two_explanations_are_compared_by_their_shares(
    store_file: Path, inside: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = inside("compare", "input00001", "faster0001", "--wide")
    assert found.returncode == 0, found.stderr
    said = " ".join(found.stdout.split())
    assert "faster0001 is compute-bound, input00001 input-bound; input wait takes 11.1 ms less" in said
    (line,) = [line for line in found.stdout.splitlines() if line.startswith(" input wait")]
    assert "11.5 ms 71.0%" in line
    assert "-11.1 ms" in line
    assert line.rstrip().endswith("less")
    (host,) = [line for line in found.stdout.splitlines() if line.startswith(" host")]
    assert host.rstrip().endswith("can't tell")
    (entry,) = mm.compare("input00001", "faster0001", store=store_file).to_dicts()
    assert (entry["a_verdict"], entry["b_verdict"]) == ("input-bound", "compute-bound")
    assert entry["ratio"] == pytest.approx(0.0162 / 0.0051)
    assert entry["b_shares_s"]["input wait"] == pytest.approx(0.0004)
    json.loads(inside("compare", "input00001", "faster0001", "--json").stdout)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = inside("compare", "input00001", "faster0001").stdout
    assert max(len(line.rstrip()) for line in narrow.splitlines()) <= 80
    assert any(line.startswith(" memory traffic") for line in narrow.splitlines())
    mixed = inside("compare", "bench00001", "input00001")
    assert mixed.returncode == 2
    assert "bench00001 holds bench runs, input00001 holds explanations" in mixed.stderr
    lost = inside("compare", "script0001", "nostep0001", "--anyway")
    assert "no step was timed" in lost.stdout


def test_the_runs_that_verify_an_explanation_do_not_keep_it_from_being_compared(store_file: Path) -> None:
    first = msgspec.structs.replace(EXPLAINED, sweep="sweep00001")
    second = msgspec.structs.replace(FASTER, sweep="sweep00002")
    with Store(store_file) as store:
        store.add_all([first, second, record(id="verify0001"), record(id="verify0002", sweep="sweep00002")])
    (found,) = mm.compare("sweep00001", "sweep00002", store=store_file)
    assert found.kind.value == "explain"
    assert mm.compare("verify0001", "verify0002", store=store_file)[0].kind.value == "bench"


def test_its_figures_as_a_dictionary() -> None:
    entry = Runs([EXPLAINED], store=Path("s")).to_dicts()[0]
    assert entry["verdict"] == "input-bound"
    assert entry["shares"]["input wait"] == pytest.approx(0.71, abs=0.01)
    assert (entry["proposal"], entry["expected_gain"], entry["measured_gain"]) == ("4 loader workers", 3.18, 3.09)
    assert entry["batch_size"] == 32
    lost = Runs([LOST], store=Path("s")).to_dicts()[0]
    assert (lost["verdict"], lost["shares"]) == (None, {})
    kept = Runs(EVERY, store=Path("s")).filter(lambda run: isinstance(run, ExplanationRun))
    assert len(kept) == 5


# Trackers


def told(run: AnyRun) -> list[QueueEvent]:
    with QueueWriter(run.id, [Destination(tracker="mlflow", place="http://127.0.0.1:1")]) as writer:
        write_run(writer, run)
    return writer.queue.read()[0]


def test_trackers_are_told_the_shares_and_the_gains(store_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METALMARK_STORE", str(store_file))
    events = told(EXPLAINED)
    (begin,) = [event for event in events if isinstance(event, Begin)]
    assert (begin.kind, begin.params["loader.workers"]) == ("explain", "0")
    values = {name: value for event in events if isinstance(event, MetricRow) for name, value in event.values.items()}
    shares = [value for name, value in values.items() if name.startswith("explain/share/") and value is not None]
    assert sum(shares) == pytest.approx(1)
    assert values["explain/ms/input_wait"] == pytest.approx(11.5)
    assert (values["explain/gain/1_expected"], values["explain/gain/1_measured"]) == (3.18, 3.09)
    tags = {name: value for event in events if isinstance(event, Known) for name, value in event.tags.items()}
    assert (tags["verdict"], tags["proposal1"]) == ("input-bound", "4 loader workers")
    assert tags["report"].startswith("Input-bound: 71%")
    assert [event.status for event in events if isinstance(event, End)] == [EndStatus.FINISHED]
    assert [event.status for event in told(LOST) if isinstance(event, End)] == [EndStatus.FAILED]
    assert [event.status for event in told(NO_STEP) if isinstance(event, End)] == [EndStatus.FINISHED]
    assert [event.tags["explained_run"] for event in told(SCRIPT) if isinstance(event, Begin)] == ["watched001"]


def test_trackers_are_told_what_was_seen_of_a_script(store_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METALMARK_STORE", str(store_file))
    events = told(WATCHED)
    values = {name: value for event in events if isinstance(event, MetricRow) for name, value in event.values.items()}
    assert values["script/waited_ms"] == pytest.approx(4.0)
    assert values["script/first_step_s"] == 0.8
    assert values["phase/start-up_s"] == 2.5
    tags = {name: value for event in events if isinstance(event, Known) for name, value in event.tags.items()}
    assert tags["command"] == "python train.py --epochs 2"


def test_an_explanation_of_the_oldest_shape_is_read() -> None:
    document = json.loads(encode(EXPLAINED))
    for name in ("sweep", "cell", "of", "flags"):
        document.pop(name, None)
    assert isinstance(EXPLAINED.outcome, Explained)
    assert decode(json.dumps(document).encode()) == EXPLAINED

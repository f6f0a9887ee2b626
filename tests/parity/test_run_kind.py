"""A parity check is the fourth kind of run: every verb takes it. What failed its check is marked beside its speed."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path

import msgspec
import pytest

import metalmark as mm
from metalmark.app.results import Runs
from metalmark.errors import FormatError
from metalmark.model.codec import decode, encode, json_schema
from metalmark.model.parity import Compared, ParityRun, ParityVerdict, Quantity, Statistic
from metalmark.model.plan import Device, DeviceKind, Settings
from metalmark.model.run import NOTES, PARITY_FAILED
from metalmark.report.answer import answer
from metalmark.report.content import Content
from metalmark.report.html.document import document
from metalmark.report.text.exports import comma_separated, csv_text, markdown_text
from metalmark.report.text.parity_page import batch_words, parity_sentence, parity_tables, quantity_words, side_words
from metalmark.report.text.terminal import fitted
from metalmark.results.cells import cells_of
from metalmark.results.derived import flags_of
from metalmark.results.leaderboard import board_of
from metalmark.store.bundle import encode_bundle, read_file
from metalmark.store.damage import damage_of
from metalmark.store.schema import VERSION
from metalmark.store.store import Store
from metalmark.track.destination import Destination
from metalmark.track.queue import Begin, End, EndStatus, Known, MetricRow, QueueEvent, QueueWriter
from metalmark.track.story import write_run
from tests.conftest import Cli
from tests.samples import (
    AGREEING,
    DIFFERING,
    checked,
    compared,
    completed,
    diagnosis,
    failed,
    parity_mark,
    parity_run,
    plan,
    record,
    training_run,
)

AGREES = parity_run(id="agrees0001")
DIFFERS = parity_run(
    checked(DIFFERING, diagnosis=diagnosis()), id="differs001", cell=1, started_at="2026-11-15T09:01:00.000000Z"
)
LOST = parity_run(failed(message="the loss of the reference is NaN"), id="lost000001", sweep="sweep00003")
OTHER_PLAN = plan(device=Device(kind=DeviceKind.MPS), params={"batch_size": 8})


@pytest.fixture
def stored(store_file: Path) -> Path:
    with Store(store_file) as store:
        store.add_all([AGREES, DIFFERS, LOST])
    return store_file


# The run itself


def test_a_check_is_written_and_read_as_any_run_is(tmp_path: Path) -> None:
    for run in (AGREES, DIFFERS, LOST):
        assert decode(encode(run)) == run
    assert "ParityRun" in json_schema()["$defs"]
    (tmp_path / "checks.bundle").write_bytes(encode_bundle([AGREES, DIFFERS, LOST]))
    read = read_file(str(tmp_path / "checks.bundle")).runs
    assert sorted(read, key=lambda run: run.id) == [AGREES, DIFFERS, LOST]
    marked = record(parity=parity_mark())
    assert decode(encode(marked)) == marked
    old = json.loads(encode(marked))
    del old["parity"]
    assert decode(json.dumps(old).encode()) == record(id=marked.id)


@pytest.mark.parametrize("changes", [{"sigma": 0.0}, {"sigma": -1.0}, {"distance": -1.0}])
def test_a_quantity_without_noise_is_damaged(changes: dict[str, float]) -> None:
    run = parity_run(checked((compared(**changes),)))
    assert "no noise" in damage_of(run)
    assert not damage_of(DIFFERS)


def test_a_store_of_the_version_before_has_the_column_then(store_file: Path, stored: Path) -> None:
    connection = sqlite3.connect(stored)
    with connection:
        connection.execute("DROP INDEX runs_in_list")
        connection.execute("ALTER TABLE runs DROP COLUMN parity")
        connection.execute("CREATE INDEX runs_in_list ON runs (started_at, id)")
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with Store(store_file) as store:
        assert {row.parity for row in store.rows()} == {""}
        store.add(again := parity_run())
        assert {row.id: row.parity for row in store.rows()}[again.id] == "5 compared"
        assert store.load(store.rows_of(["differs001"])) == [DIFFERS]
    connection = sqlite3.connect(stored)
    assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert "parity" in connection.execute("SELECT sql FROM sqlite_master WHERE name = 'runs_in_list'").fetchone()[0]
    connection.close()


# Words


def test_the_answer_names_what_is_nearest_or_what_differs_first() -> None:
    assert parity_sentence(AGREES) == (
        "torch mps bfloat16 agrees with torch cpu: 5 quantities within their tolerance; the nearest is the gradient of "
        "conv1.weight at 4.12 of 10 sigmas."
    )
    assert parity_sentence(DIFFERS) == (
        "torch mps bfloat16 differs from torch cpu: the first difference is the output in evaluation of bn1, 310,000 "
        "sigmas off (10 allowed): typically 0.31 of its own size; 1 more of 6 quantities differs."
    )
    assert parity_sentence(LOST).endswith("could not be tested: out of memory: the loss of the reference is NaN.")
    stopped = parity_run(checked(AGREEING[:1], complete=False))
    assert stopped.verdict is ParityVerdict.UNTESTED
    assert "could not be tested to the end: 1 quantity within its tolerance" in parity_sentence(stopped)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (compared(distance=None), "not finite (10 allowed): it has a value that is not finite"),
        (compared(sigma=1e-30), "more than a million sigmas off"),
        (compared(sigmas=99, statistic=Statistic.SCALE, distance=0.01, sigma=1e-4), "1.0% off in scale"),
        (compared(sigmas=99, statistic=Statistic.LARGEST), "up to 9.9e-05 times its typical value, at element 3, 1"),
        (compared(Quantity.ACCURACY, "", distance=0.25, sigma=0.01), "held-out accuracy, 25.0 sigmas off"),
        (compared(Quantity.UPDATE, "a.b", 40.0, steps=1), "the change of the parameter a.b after 1 step, 40.0 sigmas"),
    ],
)
def test_a_difference_is_told_in_its_own_measure(row: Compared, words: str) -> None:
    assert words in parity_sentence(parity_run(checked((row,))))


def test_what_is_excused_agrees_and_is_named() -> None:
    row = compared(Quantity.STATISTIC, "bn1.mean", 1e5, excused="The momentum is counted the other way round.")
    run = parity_run(checked((*AGREEING, row)))
    assert run.verdict is ParityVerdict.AGREES
    assert "6 quantities within their tolerance, 1 of them excused" in parity_sentence(run)
    (table, _) = parity_tables([run])
    assert any("1 quantity excused, the first the running statistic bn1.mean: The mom" in note for note in table.notes)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({8: "agrees", 9: "differs", 32: "differs"}, "From batch 9 on; not at 8."),
        ({1: "agrees", 4: "differs", 8: "agrees"}, "At batch 4; not at 1, 8."),
        ({1: "differs", 2: "differs"}, "At every batch size tried: 1, 2."),
        ({1: "differs", 2: "agrees"}, "Up to batch 1; not at 2."),
        ({1: "agrees", 64: "could not be tested"}, "At none of the batch sizes tried: 1. Not tested: 64."),
    ],
)
def test_batch_sizes_in_words(sizes: dict[int, str], words: str) -> None:
    assert batch_words({size: ParityVerdict(verdict) for size, verdict in sizes.items()}) == words


def test_sides_are_named_as_people_speak_of_them() -> None:
    fast = plan(settings=Settings(compile=True, channels_last=True, threads=4))
    assert side_words(fast) == "torch cpu compile channels last 4 threads"
    assert side_words(plan(), plan()) == "torch cpu float32"
    assert quantity_words(AGREEING[2]) == "loss"
    (table,) = parity_tables([parity_run(checked((compared(Quantity.LOSS, "", steps=3),)))], columns=80)
    assert table.rows[0][3] == "3 steps"


# Tables


def test_a_check_has_a_row_per_kind_of_quantity_and_its_causes_below() -> None:
    (table,) = parity_tables([DIFFERS], columns=80)
    assert [row[0] for row in table.rows] == [
        "output in evaluation", "loss", "gradient", "change of the parameter", "running statistic",
    ]  # fmt: skip
    assert table.rows[0][1:4] == ("2", "1", "bn1")
    notes = " ".join(table.notes)
    for words in (
        "From batch 9 on", "Not there with --channels-last.", "Still there with --dtype bfloat16.", "to layer1.0.",
        "Could not be tried: --compile: no compiler", "Known issue: A known fault", "A script of 2 lines",
    ):  # fmt: skip
        assert words in notes
    narrow = fitted(table, 80)
    assert sum(max(len(row[at]) for row in narrow.rows) + 3 for at in range(len(narrow.headers))) <= 80
    (_, every) = parity_tables([DIFFERS])
    assert [row[-1] for row in every.rows] == ["differs", *["agrees"] * 4, "differs"]


def test_a_long_name_is_cut_at_its_beginning_in_a_narrow_window() -> None:
    name = "bert.encoder.layer.11.attention.self.query.weight"
    run = parity_run(checked((compared(name=name),)))
    (table,) = parity_tables([run], columns=80)
    assert table.rows[0][3] == "…1.attention.self.query.weight"
    assert name in parity_tables([run])[0].rows[0]


def test_several_checks_have_a_row_each() -> None:
    small = parity_run(checked(DIFFERING), plan=OTHER_PLAN)
    (table,) = parity_tables([AGREES, small, LOST], columns=80)
    assert table.caption.startswith("Of 3 checks, 1 agrees, 1 differs, 1 could not be tested.\nmnist-mlp, batch size 8")
    assert table.headers[:3] == ("batch size", "dtype", "verdict")
    assert [row[0] for row in table.rows] == ["32", "8", "32"]
    assert table.rows[1][2:] == ("differs", "output in evaluation of bn1", "310,000 of 10")
    assert table.rows[2][2:4] == ("could not be tested", "out of memory")


# Verbs


@pytest.mark.usefixtures("stored")
def test_every_verb_takes_it(inside: Cli, tmp_path: Path) -> None:
    shown = inside("runs", "show", "differs001", "--wide")
    assert shown.returncode == 0, shown.stderr
    for words in ("the first difference is the output in evaluation of bn1", "bn1.running_var", "import torch",
                  "reference: mnist-mlp training batch 32 torch cpu", "Everything that was compared"):  # fmt: skip
        assert words in shown.stdout
    listed = inside("runs", "list", "--wide").stdout
    assert "2 of 6 differ, first output in evaluation bn1" in listed
    assert [line.split()[1] for line in listed.splitlines()[1:]] == ["parity"] * 3
    assert json.loads(inside("runs", "show", "differs001", "--json").stdout)["records"][0]["kind"] == "parity"
    assert inside("runs", "name", "agrees0001", "good").returncode == 0
    assert inside("runs", "export", "-o", tmp_path / "checks.json").returncode == 0
    assert inside("runs", "export", "--bundle", tmp_path / "checks.bundle").returncode == 0
    assert "1 run deleted" in inside("runs", "delete", "lost000001", "--yes").stderr
    assert "1 run imported" in inside("runs", "import", tmp_path / "checks.json").stderr
    assert '"ParityRun"' in inside("schema").stdout
    shown = inside("runs", "show", "sweep00002")
    assert "Of 2 checks, 1 agrees, 1 differs." in shown.stdout


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("form", ["html", "markdown", "csv", "json", "parquet"])
def test_a_report_has_it_in_every_format(inside: Cli, tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    file = tmp_path / "out"
    found = inside("report", "differs001", "lost000001", "--format", form, "-o", file)
    assert found.returncode == 0, found.stderr
    data = file.read_bytes()
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(data.decode())))
        assert [row["quantity"] for row in rows] == [*(row.quantity.value for row in DIFFERING), ""]
        assert rows[0]["agrees"] == "differs"
        assert float(rows[0]["sigmas"]) == pytest.approx(310_000)
        assert rows[-1]["message"] == "the loss of the reference is NaN"
    elif form == "parquet":
        import pyarrow.parquet

        assert pyarrow.parquet.read_table(file).num_rows == 7
    elif form != "json":
        assert "output in evaluation of bn1" in data.decode()


def test_the_page_has_a_section_with_the_sentence_the_table_and_the_chart() -> None:
    pytest.importorskip("vl_convert")
    page = document(Content(runs=(DIFFERS,)))
    assert parity_sentence(DIFFERS).replace("'", "&#39;") in page
    assert "Distance of each quantity from the reference" in page
    assert "<title>output in evaluation of bn1: 310,000 of 10 sigmas, differs</title>" in page
    assert "<title>gradient of conv1.weight: 4.12 of 10 sigmas, agrees</title>" in page
    assert "print(torch.__version__)" in page
    evil = parity_run(checked((compared(name="<script>alert(1)</script>", sigmas=99.0),)))
    assert "<script>alert" not in document(Content(runs=(evil,)))
    assert "Not measured yet" not in document(Content(runs=(AGREES, LOST), plans=(AGREES.plan, LOST.plan)))
    assert len(Runs([AGREES, LOST], store=Path("s")).chart().svgs) == 1


def test_the_server_shows_it(stored: Path) -> None:
    testclient = pytest.importorskip("starlette.testclient")
    from metalmark.web.app import make_app
    from metalmark.web.guard import Rules

    ask = testclient.TestClient(make_app(stored, Rules()), base_url="http://127.0.0.1:8585").get
    for place, words in (
        ("/", "2 of 6 differ"),
        ("/run/differs001", "the first difference is the output in evaluation of bn1"),
        ("/run/lost000001", "the loss of the reference is NaN"),
        ("/sweep/sweep00002", "agrees with torch cpu"),
        ("/compare?run=agrees0001&run=differs001", "1 quantity newly differs"),
    ):
        found = ask(place)
        assert found.status_code == 200, place
        assert words in found.text, place


def test_compare_says_which_quantities_changed_their_verdict(store_file: Path, inside: Cli) -> None:
    worse = msgspec.structs.replace(
        AGREES, id="worse00001", sweep="sweep00009", outcome=checked(DIFFERING),
        software=msgspec.structs.replace(AGREES.software, versions={"torch": "2.14.0"}),
    )  # fmt: skip
    with Store(store_file) as store:
        store.add_all([AGREES, worse, LOST, record(id="bench00001")])
    found = inside("compare", "agrees0001", "worse00001")
    assert found.returncode == 0, found.stderr
    assert "worse00001 differs, agrees0001 agrees: 1 quantity newly differs" in found.stdout
    assert "output in evaluation of bn1" in found.stdout
    assert "1 quantity was compared in worse00001 alone." in found.stdout
    assert "torch 2.13.0 → 2.14.0" in found.stdout
    (entry,) = mm.compare("agrees0001", "worse00001", store=store_file).to_dicts()
    assert entry["newly_differ"] == ["output in evaluation of bn1"]
    assert (entry["a_parity"], entry["b_parity"]) == ("agrees", "differs")
    (back,) = mm.compare("worse00001", "agrees0001", store=store_file).to_dicts()
    assert back["newly_agree"] == ["output in evaluation of bn1"]
    json.loads(inside("compare", "agrees0001", "worse00001", "--json").stdout)
    refused = inside("compare", "agrees0001", "worse00001", "--fail-if-slower", "5%")
    assert refused.returncode == 2
    assert "a parity check measures none" in refused.stderr
    mixed = inside("compare", "bench00001", "agrees0001")
    assert mixed.returncode == 2
    assert "bench00001 holds bench runs, agrees0001 holds parity checks" in mixed.stderr
    lost = inside("compare", "agrees0001", "lost000001")
    assert "no quantity was compared in both" in lost.stdout


def told(run: ParityRun) -> list[QueueEvent]:
    with QueueWriter(run.id, [Destination(tracker="mlflow", place="http://127.0.0.1:1")]) as writer:
        write_run(writer, run)
    return writer.queue.read()[0]


def test_trackers_are_told_the_verdict_and_the_distances(store_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METALMARK_STORE", str(store_file))
    events = told(DIFFERS)
    (begin,) = [event for event in events if isinstance(event, Begin)]
    assert (begin.kind, begin.tags["reference"]) == ("parity", DIFFERS.reference.label)
    values = {name: value for event in events if isinstance(event, MetricRow) for name, value in event.values.items()}
    assert values["parity/differ"] == 2
    assert values["parity/eval_output_sigmas"] == pytest.approx(310_000)
    assert "parity/statistic_sigmas" not in values  # it is not finite
    tags = {name: value for event in events if isinstance(event, Known) for name, value in event.tags.items()}
    assert tags["parity"] == "differs"
    assert tags["report"] == parity_sentence(DIFFERS)
    assert [event.status for event in events if isinstance(event, End)] == [EndStatus.FINISHED]
    assert [event.status for event in told(LOST) if isinstance(event, End)] == [EndStatus.FAILED]


# A run that carries a mark

FAILED_MARK, AGREED_MARK = parity_mark(), parity_mark(ParityVerdict.AGREES)
FAILED_BENCH = record(completed(0.05), id="fast000001", parity=FAILED_MARK)
AGREED_BENCH = record(completed(0.1), id="right00001", cell=1, plan=plan(framework="jax"), parity=AGREED_MARK)


def test_a_failed_check_is_a_flag_that_spoils() -> None:
    assert [flag.name for flag in flags_of(FAILED_BENCH)] == [PARITY_FAILED]
    assert flags_of(AGREED_BENCH) == ()
    assert PARITY_FAILED in [flag.name for flag in flags_of(training_run(parity=FAILED_MARK))]
    assert PARITY_FAILED not in NOTES
    wrong, right = cells_of([FAILED_BENCH, AGREED_BENCH])
    assert wrong.spoiling_flags == [PARITY_FAILED]
    assert wrong.flags == {PARITY_FAILED: "check parity0001: torch mps differs: in bn1"}
    assert (wrong.parity, right.parity) == (ParityVerdict.DIFFERS, ParityVerdict.AGREES)


def test_it_is_marked_wherever_its_speed_is_shown(
    store_file: Path, inside: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = training_run(id="trained001", parity=FAILED_MARK)
    with Store(store_file) as store:
        store.add_all([FAILED_BENCH, AGREED_BENCH, trained])
    monkeypatch.setenv("COLUMNS", "80")
    for words in (
        ("runs", "list"), ("runs", "list", "--wide"), ("runs", "show", "sweep00001"), ("runs", "show", "fast000001"),
        ("runs", "show", "trained001"), ("compare", "right00001", "fast000001", "--by", "framework"),
    ):  # fmt: skip
        found = inside(*words)
        assert found.returncode == 0, found.stderr
        assert PARITY_FAILED in found.stdout, words
    lines = inside("runs", "list").stdout.splitlines()
    assert {line.split()[0] for line in lines if PARITY_FAILED in line} == {"fast000001", "trained001"}
    table = inside("runs", "show", "sweep00001", "--wide").stdout
    (row,) = [line for line in table.splitlines() if line.startswith(" jax")]
    assert "agrees" in row
    assert "parity: agrees, by check parity0001" in inside("runs", "show", "right00001").stdout
    compared_ = inside("compare", "right00001", "fast000001", "--by", "framework", "--wide").stdout
    assert "A: agrees; B: differs" in compared_
    assert "fast000001 does not train the same network as the reference (parity_failed)." in compared_


def test_it_is_marked_in_reports_and_on_the_leaderboard() -> None:
    content = Content(runs=(FAILED_BENCH, AGREED_BENCH, training_run(parity=FAILED_MARK)))
    assert sum(PARITY_FAILED in line for line in answer(content)) == 2
    assert markdown_text(content).count("parity\\_failed") >= 2
    rows = list(csv.DictReader(io.StringIO(comma_separated(cells_of([FAILED_BENCH, AGREED_BENCH])))))
    assert [(row["parity"], row["flags"]) for row in rows] == [("differs", PARITY_FAILED), ("agrees", "")]
    (epoch, *_) = csv.DictReader(io.StringIO(csv_text(Content(runs=(training_run(parity=FAILED_MARK),)))))
    assert epoch["parity"] == "differs"
    ((question,),) = board_of([[FAILED_BENCH, AGREED_BENCH]]).questions.values()
    assert [(entry.cell.how["framework"], entry.rank) for entry in question.entries] == [("jax", 1), ("torch", None)]


def test_it_is_marked_on_the_page_and_in_its_charts() -> None:
    pytest.importorskip("vl_convert")
    page = document(Content(runs=(FAILED_BENCH, AGREED_BENCH)))
    assert f"640, {PARITY_FAILED}" in page
    assert f"320, {PARITY_FAILED}" not in page
    assert f'<strong class="flag">{PARITY_FAILED}</strong>' in page
    assert "agrees, by check parity0001" in page
    trained = document(Content(runs=(training_run(parity=FAILED_MARK),)))
    assert f'<strong class="flag">{PARITY_FAILED}</strong>' in trained


def test_checks_of_a_sweep_do_not_keep_its_runs_from_being_compared(store_file: Path) -> None:
    checks = [msgspec.structs.replace(AGREES, sweep=FAILED_BENCH.sweep)]
    with Store(store_file) as store:
        store.add_all([FAILED_BENCH, AGREED_BENCH, *checks])
    (found,) = mm.compare("sweep00001", by="framework", store=store_file)
    assert [row.name for row in found.rows] == ["mnist-mlp training on jax cpu"]


def test_a_damaged_check_is_refused_when_it_is_imported(tmp_path: Path, inside: Cli) -> None:
    document = json.loads(encode(DIFFERS))
    document["outcome"]["compared"][0]["sigma"] = 0.0
    file = tmp_path / "edited.json"
    file.write_text(json.dumps({"format": "metalmark-records", "schema": 2, "records": [document]}))
    with pytest.raises(FormatError, match="no noise"):
        read_file(str(file))
    refused = inside("runs", "import", file)
    assert refused.returncode == 2
    assert "no noise to be judged by" in refused.stderr

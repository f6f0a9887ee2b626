"""`metalmark runs`: bench runs, trainings and watched runs, by every verb."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metalmark.errors import UsageError
from metalmark.model.codec import AnyRun, decode_export, encode_export
from metalmark.model.run import FailureKind
from metalmark.model.training import Ending, TrainingRun
from metalmark.store.store import Store
from metalmark.track import destination, launch
from metalmark.track.queue import Begin, End, queues
from metalmark.training.folder import RECORD, Request, write_record, write_request
from metalmark.training.lineup import LINEUP, Lineup
from tests.conftest import Cli, Verb
from tests.samples import completed, failed, plan, record, training_run, watched_run

SECRET = "/home/ada/secret/net.py"
MAKERS: dict[str, Callable[..., AnyRun]] = {"bench": record, "training": training_run, "watch": watched_run}
SHOWN = {"bench": "100 ms", "training": "90.00%", "watch": "25.0%"}
"""A figure of each that every page of it has."""
PERSONAL: dict[str, dict[str, Any]] = {
    "bench": {"outcome": failed(FailureKind.CRASHED, f"it fell in {SECRET}")},
    "training": {"ending": Ending.FAILED, "failure": failed(FailureKind.CRASHED, f"it fell in {SECRET}")},
    "watch": {"params": {"script": SECRET}},
}


@pytest.fixture(params=MAKERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def keep(store_file: Path, run: AnyRun, folder: Path | None = None) -> AnyRun:
    """Store a run; a training with its folder, as `train` leaves it."""
    with Store(store_file) as store:
        if isinstance(run, TrainingRun):
            folder = folder or store_file.parent / "trainings" / f"mnist-mlp-{run.id}"
            folder.mkdir(parents=True, exist_ok=True)
            write_request(folder, Request(id=run.id, plan=run.plan, goal=run.goal, paths={}, hz=None))
            write_record(folder, run)
            store.put_training(run, folder)
        else:
            store.add(run)
    return run


def fill(store_file: Path) -> tuple[str, str]:
    good = record(completed(0.02))
    bad = record(failed(FailureKind.CRASHED, "it fell\x1b[31m over"), cell=1, plan=plan(framework="jax"))
    with Store(store_file) as store:
        store.add_all([good, bad])
    return good.id, bad.id


def test_list(verb: Verb, store_file: Path) -> None:
    assert "metalmark bench" in verb("runs", "list").stderr
    good, _ = fill(store_file)
    run = verb("runs", "list")
    assert good in run.stdout
    assert "crashed" in run.stdout
    assert json.loads(verb("runs", "list", "--json").stdout)[0]["workload"] == "mnist-mlp"
    run = verb("runs", "list", "--limit", "1")
    assert len(run.stdout.splitlines()) == 2
    assert "newest 1 of 2" in run.stderr


def test_one_list_of_every_kind(verb: Verb, store_file: Path) -> None:
    runs = [
        keep(store_file, make(started_at=f"2026-11-15T08:00:0{number}.000000Z"))
        for number, make in enumerate(MAKERS.values())
    ]
    lines = verb("runs", "list").stdout.splitlines()
    assert len(lines) == 4, "a heading and a line for each run"
    for run, line, part in zip(runs, lines[1:], SHOWN.values(), strict=True):
        assert line.startswith(run.id), "the newest last"
        assert f" {run.header.kind} " in line
        assert part in line
    entries = json.loads(verb("runs", "list", "--json").stdout)
    assert [(one["id"], one["kind"]) for one in entries] == [(run.id, run.header.kind) for run in runs]
    assert [one["accuracy"] for one in entries] == [None, 0.9, None]


def test_show(verb: Verb, store_file: Path) -> None:
    good, _ = fill(store_file)
    run = verb("runs", "show", good[:7])
    for part in ("20.0 ms", "Test chip", "torch 2.13.0", "loss 2.3 → 0.1", "not counted"):
        assert part in run.stdout
    shown = verb("runs", "show", "last")
    assert "it fell" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert verb("runs", "show", "last", "--markdown").stdout.count("| torch |") == 1
    assert json.loads(verb("runs", "show", good, "--json").stdout)["records"][0]["id"] == good


def test_each_kind_is_shown_in_every_form(verb: Verb, store_file: Path, kind: str) -> None:
    run = keep(store_file, MAKERS[kind]())
    for query in (run.id, run.id[:8], "last"):
        page = verb("runs", "show", query).stdout
        for part in (SHOWN[kind], "Test chip", f"run {run.id}: "):
            assert part in page, query
    pasted = verb("runs", "show", run.id, "--markdown").stdout
    assert SHOWN[kind] in pasted
    assert "| --- |" in pasted or "| ---: |" in pasted
    assert decode_export(verb("runs", "show", run.id, "--json").stdout.encode(), source="stdout") == [run]
    if kind == "bench":
        assert verb("runs", "show", run.id, "--csv").stdout.startswith("workload,mode,")
    else:
        with pytest.raises(UsageError, match="one line per cell of a bench"):
            verb("runs", "show", run.id, "--csv")


def test_several_kinds_are_shown_together(verb: Verb, store_file: Path) -> None:
    runs = [keep(store_file, make()) for make in MAKERS.values()]
    for form in ([], ["--markdown"]):
        page = verb("runs", "show", *(run.id for run in runs), *form).stdout
        assert all(part in page for part in SHOWN.values())
    shown = verb("runs", "show", *(run.id for run in runs), "--json").stdout
    assert decode_export(shown.encode(), source="stdout") == runs


def test_each_kind_has_names_and_tags(verb: Verb, store_file: Path, kind: str) -> None:
    first = keep(store_file, MAKERS[kind]())
    second = keep(store_file, MAKERS[kind](started_at="2026-11-15T09:00:00.000000Z"))
    assert f"main names {first.id}" in verb("runs", "name", first.id, "main").stderr
    verb("runs", "tag", first.id, second.id, "both")
    assert "both, main" in verb("runs", "list").stdout
    assert decode_export(verb("runs", "export", "main").stdout.encode(), source="x") == [first]
    assert decode_export(verb("runs", "export", "both").stdout.encode(), source="x") == [first, second]
    verb("runs", "name", second.id, "main")
    assert decode_export(verb("runs", "export", "main").stdout.encode(), source="x") == [second], "one baseline"
    assert "names nothing now" in verb("runs", "unname", "main").stderr
    for query in ("main", "nothing"):
        with pytest.raises(UsageError, match="There is no run, sweep or name"):
            verb("runs", "show", query)
    with pytest.raises(UsageError, match="No run has the name"):
        verb("runs", "unname", "main")


def test_export_delete_import(inside: Cli, store_file: Path, tmp_path: Path) -> None:
    good, bad = fill(store_file)
    whole, one = tmp_path / "whole.json", tmp_path / "one.json"
    assert inside("runs", "export", "-o", whole).returncode == 0
    assert inside("runs", "export", good, "-o", one).returncode == 0
    assert [r["id"] for r in json.loads(one.read_text())["records"]] == [good]
    assert not list(tmp_path.glob("*.part"))
    refused = inside("runs", "delete", good)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert inside("runs", "delete", good, bad, "--yes").returncode == 0
    assert inside("runs", "list").stdout == ""
    run = inside("runs", "import", whole, one)
    assert "2 runs imported, 1 was there already" in run.stderr
    assert good in inside("runs", "list").stdout


def test_each_kind_goes_out_is_deleted_and_comes_back(verb: Verb, store_file: Path, tmp_path: Path, kind: str) -> None:
    run = keep(store_file, MAKERS[kind]())
    verb("runs", "name", run.id, "main")
    export, bundle = tmp_path / "mine.json", tmp_path / "mine.bundle"
    assert "1 run written" in verb("runs", "export", "main", "-o", export).stderr
    assert "1 run written" in verb("runs", "export", "main", "--bundle", bundle, "--with-names").stderr
    for file in (export, bundle):
        with pytest.raises(UsageError, match=r"would delete 1 run\."):
            verb("runs", "delete", run.id)
        assert "1 run deleted" in verb("runs", "delete", run.id, "--yes").stderr
        assert verb("runs", "list").stdout == ""
        assert SHOWN[kind] in verb("runs", "show", file).stdout, "a file is shown without importing it"
        assert "1 run imported, 0 were there already" in verb("runs", "import", file, "--with-names").stderr
        assert "0 runs imported, 1 was there already" in verb("runs", "import", file).stderr
        assert SHOWN[kind] in verb("runs", "show", run.id).stdout
    assert decode_export(verb("runs", "show", "main", "--json").stdout.encode(), source="x") == [run], "and its name"


def test_personal_data_of_each_kind_is_refused_or_replaced(
    verb: Verb, store_file: Path, tmp_path: Path, kind: str
) -> None:
    run = keep(store_file, MAKERS[kind](**PERSONAL[kind]))
    bundle = tmp_path / "mine.bundle"
    with pytest.raises(UsageError, match="a path"):
        verb("runs", "export", run.id, "--bundle", bundle)
    assert not bundle.exists()
    verb("runs", "export", run.id, "--bundle", bundle, "--scrub")
    shown = verb("runs", "show", bundle, "--json").stdout
    assert json.loads(shown)["records"][0]["id"] == run.id
    assert "ada" not in shown


def test_a_trainings_own_folder_goes_and_the_users_stays(verb: Verb, store_file: Path, tmp_path: Path) -> None:
    own, mine = keep(store_file, training_run()), keep(store_file, training_run(), tmp_path / "mine")
    folder = store_file.parent / "trainings" / f"mnist-mlp-{own.id}"
    assert folder.is_dir()
    said = verb("runs", "delete", own.id, mine.id, "--yes").stderr
    assert "2 runs deleted" in said
    assert f"{tmp_path / 'mine'} is your own folder and was left as it is" in said
    assert not folder.exists()
    assert (tmp_path / "mine" / RECORD).exists()
    assert verb("runs", "list").stdout == ""


def test_a_folder_that_holds_more_than_its_training_stays_with_that(verb: Verb, store_file: Path) -> None:
    """Another training has been written to it since, or the user keeps notes in it."""
    other, noted = keep(store_file, training_run()), keep(store_file, training_run())
    home = store_file.parent / "trainings"
    now = training_run()
    write_request(home / f"mnist-mlp-{other.id}", Request(id=now.id, plan=now.plan, goal=now.goal, paths={}, hz=None))
    (home / f"mnist-mlp-{noted.id}" / "notes.txt").write_text("mine")
    verb("runs", "delete", other.id, noted.id, "--yes")
    assert (home / f"mnist-mlp-{other.id}" / RECORD).exists()
    assert [path.name for path in (home / f"mnist-mlp-{noted.id}").iterdir()] == ["notes.txt"]


def test_the_folder_of_several_goes_with_the_last_of_them(verb: Verb, store_file: Path) -> None:
    above = store_file.parent / "trainings" / "mnist-mlp-lineup0001"
    members = ("torch-cpu", "torch-any")
    runs = [
        keep(store_file, training_run(sweep="lineup0001", cell=cell), above / name) for cell, name in enumerate(members)
    ]
    lineup = Lineup(id="lineup0001", created_at=runs[0].started_at, members=members)
    (above / LINEUP).write_bytes(msgspec.json.encode(lineup))
    verb("runs", "delete", runs[0].id, "--yes")
    assert [path.name for path in sorted(above.iterdir())] == ["lineup.json", "torch-any"]
    assert "1 run deleted" in verb("runs", "delete", "lineup0001", "--yes").stderr
    assert not above.exists()


def test_each_kind_is_pushed(verb: Verb, store_file: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Nothing is sent here: what waits in the queue is what would be."""
    monkeypatch.setattr(destination, "find_spec", lambda _: True)
    monkeypatch.setattr(launch, "start_senders", lambda *_, **__: [])
    run = keep(store_file, MAKERS[kind]())
    verb("runs", "push", "--to", "mlflow=http://127.0.0.1:1", "last", "-q")
    (queue,) = queues()
    events = queue.read()[0]
    assert isinstance(events[0], Begin)
    assert events[0].id == run.id
    assert isinstance(events[-1], End)
    assert run.id in verb("track", "list").stdout


def test_each_kind_is_reported(verb: Verb, store_file: Path, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("vl_convert")
    run = keep(store_file, MAKERS[kind]())
    for file in ("page.html", "page.md", "page.json"):
        assert verb("report", run.id, "-o", tmp_path / file).stdout == f"{tmp_path / file}\n"
    assert SHOWN[kind] in (tmp_path / "page.html").read_text()
    assert SHOWN[kind] in (tmp_path / "page.md").read_text()
    assert decode_export((tmp_path / "page.json").read_bytes(), source="x") == [run]


def test_what_can_not_be_compared_is_a_sentence(verb: Verb, store_file: Path) -> None:
    bench, training, watch = (keep(store_file, make()).id for make in MAKERS.values())
    for pair in ((bench, training), (training, watch), (watch, bench)):
        with pytest.raises(UsageError, match="Only runs of one kind can be compared"):
            verb("compare", *pair)


def test_an_edited_record_is_refused(inside: Cli, store_file: Path, tmp_path: Path) -> None:
    good, _ = fill(store_file)
    document = json.loads(inside("runs", "export", good).stdout)
    document["records"][0]["outcome"]["samples_per_step"] = 999
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(document))
    run = inside("runs", "import", path)
    assert run.returncode == 2
    assert "other contents" in run.stderr


def test_export_where_nothing_can_be_written(inside: Cli, store_file: Path, tmp_path: Path) -> None:
    fill(store_file)
    run = inside("runs", "export", "-o", tmp_path / "no" / "where.json")
    assert run.returncode == 2
    assert "can't be written" in run.stderr


def test_hostile_names_are_shown_as_text(verb: Verb, tmp_path: Path) -> None:
    evil = record(plan=plan(workload="<script>alert(1)</script>|\x1b]0;x\x07=cmd()", params={"batch_size": 1}))
    path = tmp_path / "evil.json"
    path.write_bytes(encode_export([evil]))
    verb("runs", "import", path)
    for arguments in (["runs", "list"], ["runs", "show", "last"], ["runs", "show", "last", "--csv"]):
        run = verb(*arguments)
        assert "\x1b" not in run.stdout
        assert "\x07" not in run.stdout
    assert "<script>" not in verb("runs", "show", "last", "--markdown").stdout.replace("\\<script\\>", "")


def test_show_alone_shows_what_the_newest_command_made(verb: Verb, store_file: Path) -> None:
    keep(store_file, record(completed(0.02), sweep="aaaaaaaaaa", started_at="2026-01-01T00:00:00Z"))
    newest = keep(store_file, record(completed(0.1), sweep="bbbbbbbbbb", started_at="2026-02-01T00:00:00Z"))
    shown = verb("runs", "show")
    assert shown.exit_code == 0
    assert shown.output == verb("runs", "show", "last").output
    assert f"run {newest.id}" in shown.output
    assert "20.0 ms" not in shown.output


def test_show_alone_without_any_run_says_what_to_type(verb: Verb, store_file: Path) -> None:
    with Store(store_file):
        pass
    with pytest.raises(UsageError, match="no run yet") as error:
        verb("runs", "show")
    assert "metalmark bench" in error.value.hint

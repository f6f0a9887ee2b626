"""Bundles and exports: what they hold comes out whole, or a sentence says why not; nothing personal goes in."""

from __future__ import annotations

import gzip
import platform
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.app.runs import export_runs, import_runs, write_file
from metalmark.errors import FormatError, UsageError
from metalmark.model.codec import AnyRun, decode_export, encode_export
from metalmark.model.measurement import Block
from metalmark.model.run import Failed, FailureKind, Flag, Machine, Run, Series, Software, Telemetry
from metalmark.model.watch import Stretch
from metalmark.store import bundle
from metalmark.store.bundle import decode_bundle, digest, encode_bundle, read_file
from metalmark.store.personal import look, without
from metalmark.store.selection import load, select
from metalmark.store.store import Store
from tests.conftest import Cli
from tests.processes import ROOT
from tests.samples import (
    MACHINE,
    completed,
    epoch,
    failed,
    plan,
    record,
    training_run,
    training_session,
    watched_run,
)

OLD = ROOT / "tests" / "fixtures" / "0.1.0"
RECORDS = [record(completed(0.02)), record(failed(message="no room"), cell=1, plan=plan(framework="jax"))]


EVERY_KIND: list[AnyRun] = [*RECORDS, training_run(sweep="lineup0001", cell=1), watched_run()]


def opened(data: bytes) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.json.decode(gzip.decompress(data))
    return document


def closed(document: object) -> bytes:
    return gzip.compress(msgspec.json.encode(document))


def rehashed(document: dict[str, Any]) -> bytes:
    raw = [msgspec.json.encode(one) for one in document["records"]]
    return closed({**document, "sha256": digest(raw, document["names"])})


def test_what_goes_in_comes_out_and_the_same_runs_are_the_same_file() -> None:
    data = encode_bundle(RECORDS, names={"main": [RECORDS[0].id]})
    found = decode_bundle(data, source="x")
    assert sorted(found.runs, key=lambda one: one.id) == sorted(RECORDS, key=lambda one: one.id)
    assert found.names == {"main": [RECORDS[0].id]}
    assert encode_bundle(reversed(RECORDS), names={"main": [RECORDS[0].id]}) == data
    assert encode_bundle(RECORDS) != data


def test_every_kind_goes_through_a_bundle_and_an_export_into_another_store(store_file: Path, tmp_path: Path) -> None:
    with Store(store_file) as store:
        store.add_all(EVERY_KIND)
        chosen = store.load(store.rows())
    files = {"runs.bundle": encode_bundle(chosen), "runs.json": encode_export(chosen)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        read = read_file(str(tmp_path / name)).runs
        with Store(tmp_path / f"{name}.sqlite3") as other:
            assert other.add_all(read) == 4
            for run in EVERY_KIND:
                assert load([select(run.id, other)], other) == [run]
    with Store(tmp_path / "runs.json.sqlite3") as other:
        assert other.add_all(read_file(str(tmp_path / "runs.bundle")).runs) == 0


def test_the_same_run_from_a_file_of_the_version_before_and_from_one_of_this_is_one_run(store_file: Path) -> None:
    old_runs = decode_export((OLD / "export.json").read_bytes(), source="export.json")
    new_runs = decode_export(encode_export(old_runs), source="again")
    bundled = decode_bundle(encode_bundle(read_file(str(OLD / "runs.bundle")).runs), source="again").runs
    assert {run.schema for run in old_runs} == {2}
    assert new_runs == old_runs
    for first, second in ((old_runs, new_runs), (new_runs, old_runs)):
        with Store(store_file) as store:
            assert store.add_all(first) == 7
            assert store.add_all(second) == 0
            assert store.add_all(bundled) == 0
            assert store.delete([run.id for run in first]) == 7


def test_the_hash_is_of_what_it_says_not_of_how_it_is_set() -> None:
    document = opened(encode_bundle(RECORDS))
    turned = {key: document[key] for key in reversed(document)}
    turned["records"] = [{key: one[key] for key in reversed(one)} for one in document["records"]]
    spaced = msgspec.json.format(msgspec.json.encode(turned), indent=3)
    assert len(decode_bundle(spaced, source="x").runs) == 2


def test_a_bundle_that_was_altered_is_refused() -> None:
    document = opened(encode_bundle(RECORDS, names={"main": [RECORDS[0].id]}))
    whole = document["records"]
    changed = [
        {**document, "records": whole[:1]},
        {**document, "records": whole[::-1]},
        {**document, "names": {}},
        {**document, "records": [{**whole[0], "cell": 7}, whole[1]]},
        {**document, "sha256": "0" * 64},
    ]
    for one in changed:
        with pytest.raises(FormatError, match="was altered"):
            decode_bundle(closed(one), source="x")


def test_each_truncation_is_refused() -> None:
    data = encode_bundle(RECORDS)
    for length in (2, 3, 10, len(data) // 2, len(data) - 8, len(data) - 1):
        with pytest.raises(FormatError, match="ends in the middle"):
            decode_bundle(data[:length], source="x")
    with pytest.raises(FormatError, match="after its end"):
        decode_bundle(data + b"more", source="x")


def test_any_flipped_bit_is_refused_or_changes_nothing() -> None:
    data = encode_bundle(RECORDS)
    whole = decode_bundle(data, source="x")
    refused = 0
    for place in range(10, len(data), 7):  # the ten bytes of gzip's header hold no content
        broken = bytearray(data)
        broken[place] ^= 0x10
        try:
            found = decode_bundle(bytes(broken), source="x")
        except FormatError:
            refused += 1
        else:
            assert found == whole, "only a bit between two blocks of the compression, which nobody reads"
    assert refused > 0.9 * len(data) / 7


@pytest.mark.parametrize(("field", "value"), [("bundle", 2), ("schema", 99), ("bundle", 0), ("schema", -1)])
def test_another_version_is_refused_by_name(field: str, value: int) -> None:
    document = {**opened(encode_bundle(RECORDS)), field: value, "records": "in another form"}
    with pytest.raises(FormatError, match=rf"{field}( version)? {value}"):
        decode_bundle(closed(document), source="x")


def test_a_record_of_a_newer_schema_is_refused() -> None:
    document = opened(encode_bundle(RECORDS))
    document["records"][0]["schema"] = 99
    with pytest.raises(FormatError, match="schema 99"):
        decode_bundle(rehashed(document), source="x")


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST_BYTES", 1 << 20)
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join([packer.compress(b" " * (1 << 20)) for _ in range(64)]) + packer.flush()
    assert len(bomb) < 1 << 18
    with pytest.raises(FormatError, match="unpacks to more than 1 MiB"):
        decode_bundle(bomb, source="x")


def test_a_file_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "large.bundle"
    path.write_bytes(encode_bundle(RECORDS))
    monkeypatch.setattr(bundle, "MOST_PACKED_BYTES", 100)
    with pytest.raises(FormatError, match="larger than any"):
        read_file(str(path))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b'{"format": "metalmark-bundle"}',
        b'{"format":"metalmark-bundle","bundle":1,"schema":1,"sha256":"","records":[' + b"[" * 100_000,
        b'{"format":"metalmark-bundle","bundle":1,"schema":1,"sha256":"","records":["\xff"]}',
        b'{"format":"metalmark-bundle","bundle":1,"schema":1,"sha256":"","records":[' + b"1" * 5000 + b"]}",
        b'{"format":"metalmark-bundle","bundle":1e99,"schema":1,"sha256":"","records":[]}',
    ],
    ids=range(8),
)
def test_rubbish_is_refused(content: bytes) -> None:
    for data in (content, gzip.compress(content)):
        with pytest.raises(FormatError):
            decode_bundle(data, source="x")


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fall_over(data: bytes) -> None:
    for one in (data, gzip.compress(data), b"\x1f\x8b" + data):
        with pytest.raises(FormatError):
            decode_bundle(one, source="x")


@pytest.mark.parametrize("name", ["last", "published", "<script>", "../up", "a b", ""])
def test_names_that_are_none_are_refused(name: str) -> None:
    document = {**opened(encode_bundle(RECORDS)), "names": {name: ["0123456789"]}}
    with pytest.raises(FormatError, match="names"):
        decode_bundle(rehashed(document), source="x")


GIVEAWAYS = {
    "a path": "/Volumes/work/secret/net.py",
    "a serial number": "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    "a serial number ": "Serial Number (system): C02XK1YZJG5H",
    "an e-mail address": "ada.lovelace@example.org",
    "the user's name": "ada_lovelace",
    "the host's name": "adas-laptop",
}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "ada_lovelace")
    monkeypatch.setattr(platform, "node", lambda: "adas-laptop.example.org")


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("what", GIVEAWAYS)
@pytest.mark.parametrize("where", ["flag", "environment", "failure", "workload", "version"])
def test_personal_data_is_refused_by_its_place(what: str, where: str) -> None:
    text = f"seen {GIVEAWAYS[what]} there"
    spoilt = {
        "flag": record(flags=(Flag(name="busy_machine", evidence=text),)),
        "environment": record(software=Software(metalmark="1", python="3", environment={"CUDA_VISIBLE_DEVICES": text})),
        "failure": record(failed(message=text)),
        "workload": record(plan=plan(workload=text)),
        "version": record(software=Software(metalmark="1", python="3", versions={text: "1"})),
    }[where]
    assert {one.what for one in look(spoilt)} >= {what.strip()}
    with pytest.raises(UsageError, match=what.strip()) as caught:
        encode_bundle([record(), spoilt])
    assert GIVEAWAYS[what] not in caught.value.message, "it names the place and not the thing"
    assert spoilt.id in caught.value.message
    assert "--scrub" in caught.value.hint
    (clean,) = decode_bundle(encode_bundle([spoilt], scrubs=True), source="x").runs
    assert GIVEAWAYS[what] not in str(clean)
    assert clean.id == spoilt.id


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("what", GIVEAWAYS)
@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("training", "sessions.software.environment.DYLD"),
        ("training", "sessions.telemetry.absent.power"),
        ("training", "setting.notes"),
        ("training", "failure.detail"),
        ("training", "plan.workload"),
        ("watch", "name"),
        ("watch", "error"),
        ("watch", "params.data"),
        ("watch", "params (a key)"),
        ("watch", "stretches (a key)"),
        ("watch", "passes.loop"),
        ("watch", "curves.name"),
        ("watch", "notes"),
    ],
)
def test_personal_data_of_a_training_and_of_a_watched_run_is_found_and_scrubbed(
    kind: str, where: str, what: str
) -> None:
    text = f"seen {GIVEAWAYS[what]} there"
    spoilt = personal_training(where, text) if kind == "training" else personal_loop(where, text)
    assert (where, what.strip()) in {(one.where, one.what) for one in look(spoilt)}
    with pytest.raises(UsageError, match=what.strip()) as caught:
        encode_bundle([spoilt])
    assert GIVEAWAYS[what] not in caught.value.message
    (clean,) = decode_bundle(encode_bundle([spoilt], scrubs=True), source="x").runs
    assert GIVEAWAYS[what] not in str(clean)
    assert (clean.id, clean.started_at, type(clean)) == (spoilt.id, spoilt.started_at, type(spoilt))


def personal_training(where: str, text: str) -> Run:
    run = training_run()
    if where.startswith("sessions.software"):
        software = Software(metalmark="1", python="3", environment={"DYLD": text})
        return training_run(sessions=(training_session(), training_session(software=software)))
    if where.startswith("sessions.telemetry"):
        return training_run(sessions=(training_session(telemetry=Telemetry(hz=5.0, absent={"power": text})),))
    if where == "setting.notes":
        assert run.setting is not None
        return training_run(setting=msgspec.structs.replace(run.setting, notes=(text,)))
    if where == "failure.detail":
        return training_run(failure=Failed(kind=FailureKind.CRASHED, message="it ended", detail=text))
    return training_run(plan=plan(workload=text))


def personal_loop(where: str, text: str) -> Run:
    run = watched_run()
    (passed,), (curve,) = run.passes, run.curves
    changes: dict[str, dict[str, Any]] = {
        "params.data": {"params": {"data": text}},
        "params (a key)": {"params": {text: 1}},
        "stretches (a key)": {"stretches": {text: run.stretches["train"]}},
        "passes.loop": {"passes": (msgspec.structs.replace(passed, loop=text),)},
        "curves.name": {"curves": (msgspec.structs.replace(curve, name=text),)},
        "notes": {"notes": (text,)},
    }
    return watched_run(**changes.get(where, {where: text}))


@pytest.mark.usefixtures("known")
def test_no_name_is_looked_for_in_what_the_hardware_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chip may be called Max, and so may its owner; the other kinds of personal data are looked for there too."""
    monkeypatch.setenv("USER", "Maxwell")
    machine = msgspec.structs.replace(MACHINE, chip="Apple Maxwell", variant="adas-laptop")

    def runs_on(machine: Machine) -> list[Run]:
        sessions = (training_session(), training_session(machine=machine))
        return [record(machine=machine), training_run(sessions=sessions), watched_run(machine=machine)]

    for run in runs_on(machine):
        assert look(run) == []
        assert without(run) == run
    for run, where in zip(
        runs_on(msgspec.structs.replace(machine, os="/Users/Shared/x")),
        ("machine.os", "sessions.machine.os", "machine.os"),
        strict=True,
    ):
        assert [(one.where, one.what) for one in look(run)] == [(where, "a path")]


@pytest.mark.usefixtures("known")
def test_a_record_as_bench_makes_it_is_left_as_it_is() -> None:
    for one in EVERY_KIND:
        assert look(one) == []
        assert without(one) == one


@pytest.mark.parametrize("name", ["localhost", "ubuntu", "max", "torch"])
def test_a_name_of_everyones_is_nobodys(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(platform, "node", lambda: name)
    monkeypatch.setenv("USER", name)
    machine = msgspec.structs.replace(MACHINE, chip="Apple M3 Max", os="Ubuntu 24.04", variant=f"for {name}")
    one = record(
        flags=(Flag(name="x", evidence="on localhost, Ubuntu, torch; serial execution; 12:34:56 at 3/4"),),
        machine=machine,
    )
    assert look(one) == []
    assert without(one) == one


TWO_VALUES = Telemetry(hz=5.0, series=(Series(name="x", unit="W", source="y", at_s=(1.0,), values=(1.0, 2.0)),))
HUGE = 10**400


def timed(**changes: Any) -> Run:
    good = completed()
    return record(msgspec.structs.replace(good, measurement=msgspec.structs.replace(good.measurement, **changes)))


def looped(steps: int, elapsed_s: float = 1.0) -> Run:
    stretch = Stretch(steps=steps, at_s=0.0, elapsed_s=elapsed_s, waited_s=0.0)
    return watched_run(stretches={"train": (stretch, stretch)})


DAMAGED: dict[str, tuple[Run, str]] = {
    "no block": (timed(blocks=()), "no block"),
    "no time": (timed(blocks=(Block(steps=1, elapsed_s=0.0, at_s=0.0),)), "lasted no time"),
    "no time a step": (timed(blocks=(Block(steps=2, elapsed_s=5e-324, at_s=0.0),)), "beyond any number"),
    "steps": (timed(blocks=(Block(steps=HUGE, elapsed_s=1.0, at_s=0.0),)), "beyond any number"),
    "samples": (record(completed(samples=HUGE)), "beyond any number"),
    "series": (record(telemetry=TWO_VALUES), "more values than times"),
    "place": (record(cell=2**60), "place in the sweep"),
    "batch size": (record(plan=plan(params={"batch_size": 2**63})), "batch size"),
    "batch size as text": (record(plan=plan(params={"batch_size": "many"})), "batch size"),
    "training's series": (
        training_run(sessions=(training_session(telemetry=TWO_VALUES), training_session())),
        "more values than times",
    ),
    "training's place": (training_run(repeat=HUGE), "place in the sweep"),
    "training's batch size": (training_run(plan=plan(params={"batch_size": -1})), "batch size"),
    "training's session": (training_run(epochs=(epoch(session=1),)), "session that is not there"),
    "training's samples": (training_run(epochs=(epoch(samples=HUGE),)), "beyond any number"),
    "loop's series": (watched_run(telemetry=TWO_VALUES), "more values than times"),
    "loop's steps": (looped(2**62), "beyond any number"),
    "loop's digits": (looped(HUGE), "beyond any number"),
    "loop's time": (looped(1, 1e308), "beyond any number"),
    "loop's curve": (
        watched_run(curves=(msgspec.structs.replace(watched_run().curves[0], steps=(1,)),)),
        "more values than steps",
    ),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_what_no_clock_gives_is_refused_at_the_border(what: str, tmp_path: Path) -> None:
    run, why = DAMAGED[what]
    with pytest.raises(FormatError, match=f"Run {run.id} of x is damaged: .*{why}|more than 64 bits"):
        decode_bundle(encode_bundle([record(), run]), source="x")
    path = tmp_path / "edited.json"
    path.write_bytes(encode_export([run]))
    with pytest.raises(FormatError, match=r"damaged|more than 64 bits"):
        read_file(str(path))


def test_an_export_is_read_by_the_same_word(tmp_path: Path) -> None:
    path = tmp_path / "plain.json"
    path.write_bytes(encode_export(RECORDS))
    assert read_file(str(path)).runs == RECORDS
    assert read_file(str(path)).names == {}
    with pytest.raises(FormatError, match="can't be read"):
        read_file(str(tmp_path / "none"))


def test_export_and_import(inside: Cli, store_file: Path, tmp_path: Path) -> None:
    named_ids = {RECORDS[0].id, EVERY_KIND[3].id}
    with Store(store_file) as store:
        store.add_all(EVERY_KIND)
        store.name("main", sorted(named_ids))
    plain, named, other = tmp_path / "a.bundle", tmp_path / "b.bundle", tmp_path / "other.sqlite3"
    run = inside("runs", "export", "--bundle", plain)
    assert run.returncode == 0, run.stderr
    assert "4 runs" in run.stderr
    data, count = export_runs(["main"], bundle=True, with_names=True, store=store_file)
    assert count == 2
    named.write_bytes(data)
    assert b"main" not in gzip.decompress(plain.read_bytes())
    run = inside("runs", "import", plain, named, "--store", other)
    assert "4 runs imported, 2 were there already" in run.stderr
    assert "--with-names" in run.stderr
    imported = import_runs([named], with_names=True, store=other)
    assert (imported.added, imported.held, imported.names) == (0, 2, 1)
    with Store(other, readonly=True) as store:
        assert {run.id for run in load([select("main", store)], store)} == named_ids
    plain.write_bytes(plain.read_bytes()[:-20])
    run = inside("runs", "import", named, plain, "--store", tmp_path / "third.sqlite3")
    assert run.returncode == 2
    assert "ends in the middle" in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "third.sqlite3").exists(), "all of the files or nothing"
    assert inside("runs", "export", "-o", "x", "--bundle", "y").returncode == 2
    with pytest.raises(UsageError, match="--scrub"):
        export_runs(scrub=True, store=store_file)
    with pytest.raises(UsageError, match="can't be written"):
        write_file(str(tmp_path / "no" / "where"), data, option="--bundle")

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

from metalmark.cli.bundling import import_files
from metalmark.errors import FormatError, UsageError
from metalmark.model.codec import encode_export
from metalmark.model.measurement import BenchRun, Block
from metalmark.model.run import Flag, Series, Software, Telemetry
from metalmark.store import bundle
from metalmark.store.bundle import decode_bundle, digest, encode_bundle, read_file
from metalmark.store.personal import look, without
from metalmark.store.sqlite import Store
from tests.conftest import Cli
from tests.samples import MACHINE, completed, failed, plan, record

RECORDS = [record(completed(0.02)), record(failed(message="no room"), cell=1, plan=plan(framework="jax"))]


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
    assert sorted(found.records, key=lambda one: one.id) == sorted(RECORDS, key=lambda one: one.id)
    assert found.names == {"main": [RECORDS[0].id]}
    assert encode_bundle(reversed(RECORDS), names={"main": [RECORDS[0].id]}) == data
    assert encode_bundle(RECORDS) != data


def test_the_hash_is_of_what_it_says_not_of_how_it_is_set() -> None:
    document = opened(encode_bundle(RECORDS))
    turned = {key: document[key] for key in reversed(document)}
    turned["records"] = [{key: one[key] for key in reversed(one)} for one in document["records"]]
    spaced = msgspec.json.format(msgspec.json.encode(turned), indent=3)
    assert len(decode_bundle(spaced, source="x").records) == 2


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
    (clean,) = decode_bundle(encode_bundle([spoilt], scrubs=True), source="x").records
    assert GIVEAWAYS[what] not in str(clean)
    assert clean.id == spoilt.id


@pytest.mark.usefixtures("known")
def test_a_record_as_bench_makes_it_is_left_as_it_is() -> None:
    for one in RECORDS:
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


def spoilt(what: str) -> BenchRun:
    good = completed()
    measured = good.measurement
    if what == "no block":
        return record(msgspec.structs.replace(good, measurement=msgspec.structs.replace(measured, blocks=())))
    if what == "no time":
        blocks = (*measured.blocks, Block(steps=1, elapsed_s=0.0, at_s=0.0))
        return record(msgspec.structs.replace(good, measurement=msgspec.structs.replace(measured, blocks=blocks)))
    if what == "more values than times":
        series = Series(name="x", unit="W", source="y", at_s=(1.0,), values=(1.0, 2.0))
        return record(telemetry=Telemetry(hz=5.0, series=(series,)))
    if what == "no place":
        return record(cell=2**60)
    return record(plan=plan(params={"batch_size": 2**63 if what == "batch size" else "many"}))


@pytest.mark.parametrize(
    "what", ["no block", "no time", "more values than times", "no place", "batch size", "no number of samples"]
)
def test_what_no_clock_gives_is_refused_at_the_border(what: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=f"damaged.*{what.removeprefix('no block').removeprefix('no time')}"):
        decode_bundle(encode_bundle([record(), spoilt(what)]), source="x")
    path = tmp_path / "edited.json"
    path.write_bytes(encode_export([spoilt(what)]))
    with pytest.raises(FormatError, match="damaged"):
        import_files([str(path)], store=str(tmp_path / "s.sqlite3"), named=False)
    assert not (tmp_path / "s.sqlite3").exists()


def test_an_export_is_read_by_the_same_word(tmp_path: Path) -> None:
    path = tmp_path / "plain.json"
    path.write_bytes(encode_export(RECORDS))
    assert read_file(str(path)).records == RECORDS
    with pytest.raises(FormatError, match="can't be read"):
        read_file(str(tmp_path / "none"))


def test_export_and_import(cli: Cli, store_file: Path, tmp_path: Path) -> None:
    with Store(store_file) as store:
        store.add_all(RECORDS)
        store.name("main", [RECORDS[0].id])
    plain, named = tmp_path / "a.bundle", tmp_path / "b.bundle"
    run = cli("runs", "export", "--bundle", plain)
    assert run.returncode == 0, run.stderr
    assert "2 records" in run.stderr
    assert cli("runs", "export", RECORDS[0].id, "--bundle", named, "--with-names").returncode == 0
    assert b"main" not in gzip.decompress(plain.read_bytes())
    other = tmp_path / "other.sqlite3"
    run = cli("runs", "import", plain, named, "--store", other)
    assert "2 records imported, 1 were there already" in run.stderr
    assert "--with-names" in run.stderr
    run = cli("runs", "import", named, "--with-names", "--store", other)
    assert "0 records imported, 1 were there already" in run.stderr
    with Store(other, readonly=True) as store:
        assert store.find(["main"]) == RECORDS[:1]
    plain.write_bytes(plain.read_bytes()[:-20])
    run = cli("runs", "import", named, plain, "--store", tmp_path / "third.sqlite3")
    assert run.returncode == 2
    assert "ends in the middle" in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "third.sqlite3").exists(), "all of the files or nothing"
    for words in (["-o", "x", "--bundle", "y"], ["--scrub"]):
        assert cli("runs", "export", *words).returncode == 2
    assert cli("runs", "export", "--bundle", tmp_path / "no" / "where").returncode == 2

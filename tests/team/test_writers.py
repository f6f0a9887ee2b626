"""Eight writers at once, and whatever is killed in the middle: what a writer was told is stored is stored, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from metalmark.app.sync import sync_runs
from metalmark.errors import StoreError
from metalmark.model.codec import decode_export, encode
from metalmark.model.measurement import BenchRun
from metalmark.store import schema
from metalmark.store.address import ServerAddress, spool_file
from metalmark.store.store import Store
from tests.processes import ROOT, until
from tests.samples import record
from tests.team.cluster import Cluster

WRITERS, EACH = 8, 250

WRITE = """
import sys
from msgspec.structs import replace
from metalmark.errors import StoreError
from metalmark.model.codec import decode
from metalmark.store.address import store_address
from metalmark.store.store import Store
writer, first, last, file = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
run = decode(open(file, "rb").read())
print("ready", flush=True)
sys.stdin.readline()
with Store(store_address(), wait_s=100.0) as store:
    try:
        store.add_all([replace(run, id="everyones0"), replace(run, id="contested0", repeat=writer)])
        print("won", flush=True)
    except StoreError as error:
        assert "with other contents" in error.message, error
# Some wait until the server is back, the others soon keep their runs on this machine.
with Store(store_address(), wait_s=0.2 if writer % 2 else 100.0) as store:
    for n in range(first, last):
        made = replace(run, id=f"w{writer}n{n:06d}", repeat=n)
        store.add(made)
        print(made.id, flush=True)
"""


class Writer:
    """A process that writes runs one by one and says which are stored."""

    def __init__(self, number: int, url: str, file: Path, *, first: int = 0) -> None:
        self.number = number
        self.told: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITE, str(number), str(first), str(EACH), str(file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, "METALMARK_STORE": url},
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self._thread = threading.Thread(target=self._hear)

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self._thread.start()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.told.append(line.strip())

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self.end(-signal.SIGKILL)

    def end(self, code: int = 0) -> None:
        self._thread.join(timeout=100)
        assert self._process.wait(timeout=100) == code, self._process.stderr and self._process.stderr.read()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


def test_what_was_told_is_there_once_though_the_server_and_a_writer_are_killed(
    cluster: Cluster, database: str, server: ServerAddress, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    file.write_bytes(_fixture())
    writers = [Writer(number, database, file) for number in range(WRITERS)]
    for writer in writers:
        writer.go()
    stored: Callable[[], int] = lambda: sum(len(writer.told) for writer in writers)  # noqa: E731
    until(lambda: stored() > 400)
    writers[0].kill()
    until(lambda: stored() > 800)
    cluster.stop("immediate")
    cluster.start()
    again = Writer(0, database, file, first=sum(one.startswith("w0") for one in writers[0].told))
    again.go()
    for writer in (*writers[1:], again):
        writer.end()

    told = [one for writer in (*writers, again) for one in writer.told if one != "won"]
    assert len(told) == len(set(told)) == WRITERS * EACH
    with Store(server, readonly=True) as store, Store(spool_file(server), readonly=True) as spooled:
        here, there = ({row.id for row in kept.rows()} for kept in (spooled, store))
    assert here
    assert here | there == {*told, "everyones0", "contested0"}
    assert not {one for one in here if int(one[1]) % 2 == 0}
    for sent in (len(here - there), 0):
        assert sync_runs(server, pull=False, store=spool_file(server)).sent.runs == sent
    ((rows, distinct),) = cluster.execute("SELECT count(*), count(DISTINCT id) FROM runs", database=_name(server))
    assert rows == distinct == WRITERS * EACH + 2
    with Store(server, readonly=True) as store:
        runs = {run.id: run for run in store.load(store.rows())}
    assert set(runs) == {*told, "everyones0", "contested0"}
    assert all(getattr(runs[one], "repeat", None) == int(one[3:]) for one in told)
    # Of eight writers of another run under one id one has it. The one that was killed may have begun again as itself.
    winners = {writer.number for writer in (*writers, again) if "won" in writer.told}
    assert winners == {getattr(runs["contested0"], "repeat", None)}


def test_two_that_make_or_migrate_the_tables_at_once_do_it_once(
    cluster: Cluster, server: ServerAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_at_once(number: int) -> list[str]:
        failures: list[str] = []
        gate = threading.Barrier(number)

        def open_one() -> None:
            gate.wait()
            try:
                with Store(server) as store:
                    store.add(record())
            except StoreError as error:
                failures.append(error.message)

        threads = [threading.Thread(target=open_one) for _ in range(number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failures

    assert open_at_once(6) == []
    assert _versions(cluster, server) == [(schema.VERSION,)]
    # The next version of the schema, as somebody will write it: its statement fails when it is run twice.
    monkeypatch.setitem(schema.STEPS, schema.VERSION, "ALTER TABLE runs ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'")
    before = schema.VERSION
    monkeypatch.setattr(schema, "VERSION", before + 1)
    assert open_at_once(6) == []
    assert _versions(cluster, server) == [(before + 1,)]
    with Store(server, readonly=True) as store:
        assert store.count() == 12
        assert store.database.read("SELECT DISTINCT mood FROM runs") == [("calm",)]
    # A step that fails half-way is taken back whole, and said.
    monkeypatch.setitem(
        schema.STEPS, before + 1, "ALTER TABLE runs ADD COLUMN half TEXT; ALTER TABLE runs ADD mood TEXT"
    )
    monkeypatch.setattr(schema, "VERSION", before + 2)
    with pytest.raises(StoreError, match="mood"):
        Store(server)
    assert _versions(cluster, server) == [(before + 1,)]
    # For this Metalmark that is a store of a newer one.
    monkeypatch.setattr(schema, "VERSION", before)
    with pytest.raises(StoreError, match=f"has version {before + 1}; this Metalmark knows up to {before}") as caught:
        Store(server, readonly=True)
    assert "pip install --upgrade metalmark" in caught.value.hint


def test_a_connection_that_was_cut_or_interrupted_is_made_anew(cluster: Cluster, server: ServerAddress) -> None:
    """The server ends it, or Ctrl-C comes while a statement waits: the store goes on, and nothing is half written."""
    import psycopg

    ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'metalmark'"
    with Store(server) as store:
        store.add(record(id="first00001"))
        for change in (
            store.count,
            lambda: store.add(record(id="second0001")),
            lambda: store.name("main", ["first00001"]),
        ):
            assert cluster.execute(ending, database=_name(server))
            change()
        with psycopg.connect(cluster.url(_name(server))) as other:
            other.execute("LOCK TABLE runs IN EXCLUSIVE MODE")
            # To this thread: one that any thread may take might not wake the one that waits.
            ctrl_c = (threading.main_thread().ident, signal.SIGINT)
            threading.Timer(0.5, signal.pthread_kill, ctrl_c).start()
            with pytest.raises(KeyboardInterrupt):
                store.add_all([record(id="third00001"), record(id="fourth0001")])
        assert store.count() == 2
        store.add(record(id="third00001"))
        assert sorted(row.id for row in store.rows()) == ["first00001", "second0001", "third00001"]
        assert store.names() == {"first00001": ["main"]}


def _versions(cluster: Cluster, server: ServerAddress) -> list[tuple[int]]:
    return cluster.execute("SELECT version FROM metalmark", database=_name(server))  # type: ignore[return-value]


def _name(server: ServerAddress) -> str:
    return server.url.rpartition("/")[2]


def _fixture() -> bytes:
    """A run that was really measured: the first of an export of 0.1.0."""
    runs = decode_export((ROOT / "tests" / "fixtures" / "0.1.0" / "export.json").read_bytes(), source="the fixture")
    return encode(next(run for run in runs if isinstance(run, BenchRun)))

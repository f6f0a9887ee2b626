"""Two stores get the same runs, sweeps and names; nothing is overwritten, and a second time nothing changes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from metalmark.app.sync import sync_runs
from metalmark.model.plan import Sweep
from metalmark.model.training import Ending
from metalmark.store import spool
from metalmark.store.address import Address, ServerAddress, spool_file
from metalmark.store.store import Store
from tests.conftest import Cli
from tests.processes import ROOT, heed_ctrl_c, metalmark, until
from tests.samples import (
    epoch,
    explained,
    explanation_run,
    parity_mark,
    plan,
    record,
    training_run,
    training_session,
    tuned,
    tuning_run,
    watched_run,
)
from tests.team.cluster import Cluster


def contents(address: Address) -> dict[str, Any]:
    """Everything that sync copies; what a row says of this machine's folders is not among it."""
    with Store(address, readonly=True) as store:
        rows = store.rows()
        sweeps = [identifier for (identifier,) in store.database.read("SELECT id FROM sweeps ORDER BY id")]
        return {
            "rows": sorted((replace(row, folder=None) for row in rows), key=lambda row: row.id),
            "runs": {run.id: run for run in store.load(rows)},
            "sweeps": [replace(store.sweep(identifier), paths={}) for identifier in sweeps],
            "names": store.names(),
        }


@pytest.fixture(params=["server", "file"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    found: Address = tmp_path / "shared.sqlite3"
    return request.getfixturevalue("server") if request.param == "server" else found


def test_both_ways_and_again(
    inside: Cli, shared: Address, store_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(shared, ServerAddress):
        monkeypatch.setenv("PGPASSWORD", dict(shared.secrets)["password"])
    sweep = Sweep(id="sweep00001", created_at="2026-11-15T08:00:00Z", plans=(plan(),), paths={"net": "/mine/net.py"})
    with Store(store_file) as store:
        store.add_sweep(sweep)
        store.add_all([record(id=f"mine{n:06d}", cell=n) for n in range(120)])
        store.put_training(training_run(id="train00001"), tmp_path / "trainings" / "first")
        store.add_all([record(id="both000001"), tuning_run(id="tuning0001")])
        store.name("main", ["sweep00001"])
        store.name("tag", ["mine000001", "both000001"], add=True)
        store.name("clash", ["mine000002"])
    with Store(shared) as store:
        store.add_all([watched_run(id="theirs0001"), explanation_run(id="theirs0002"), record(id="both000001")])
        store.name("theirs", ["theirs0001"])
        store.name("tag", ["both000001"], add=True)
        store.name("clash", ["theirs0002"])

    done = inside("runs", "sync", shared)
    assert done.returncode == 1, done.stderr  # a name was left
    assert f"122 runs, 1 sweep and 2 names sent to {shared}" in done.stderr
    assert "2 runs and 1 name taken" in done.stderr
    clash = "The name clash stands for mine000002 in one store and for theirs0002 in the other; it was left as it is."
    assert done.stderr.count("The name clash") == 1
    assert clash in done.stderr
    inside("runs", "unname", "clash")
    assert inside("runs", "sync", shared).returncode == 0  # theirs is given here now
    ours, theirs = contents(store_file), contents(shared)
    assert theirs == ours
    assert len(ours["runs"]) == 125
    assert ours["names"]["theirs0001"] == ["theirs"]
    assert [row.name for row in theirs["rows"] if row.id == "train00001"] == ["first"]

    again = inside("runs", "sync", shared)
    assert again.returncode == 0
    assert f"Nothing was to be copied between {store_file} and {shared}." in again.stderr
    assert (contents(store_file), contents(shared)) == (ours, theirs)
    # Deletions do not travel: what is still there comes back.
    inside("runs", "delete", "both000001", "--yes")
    assert "1 run taken" in inside("runs", "sync", shared).stderr
    assert contents(store_file)["runs"] == ours["runs"]
    # One way.
    with Store(store_file) as store:
        store.add(record(id="onlymine01"))
    with Store(shared) as store:
        store.add(record(id="onlytheirs"))
    assert "1 run taken" in inside("runs", "sync", "--pull", shared).stderr
    assert "onlymine01" not in contents(shared)["runs"]
    assert "1 run sent" in inside("runs", "sync", "--push", shared).stderr
    assert contents(store_file)["runs"] == contents(shared)["runs"]


def test_what_went_on_follows_and_what_was_edited_does_not(shared: Address, store_file: Path, tmp_path: Path) -> None:
    begun = training_run(id="train00001", ending=Ending.RUNNING, epochs=(), sessions=(training_session(),))
    stopped = replace(begun, ending=Ending.INTERRUPTED, epochs=(epoch(1, 0.5),))
    ended = replace(stopped, ending=Ending.EPOCHS, epochs=(epoch(1, 0.5), epoch(2, 0.9)),
                    sessions=(training_session(), training_session(first_epoch=2)))  # fmt: skip
    bench, explanation, search = record(id="bench00001"), explanation_run(id="explain001"), tuning_run(id="tuning0001")
    unmeasured = tuple(replace(one, measured=None) for one in explained().proposals)
    before = [begun, bench, replace(explanation, outcome=replace(explained(), proposals=unmeasured)),
              replace(search, outcome=replace(tuned(), trials=1, complete=False))]  # fmt: skip
    after = [ended, replace(bench, parity=parity_mark()), explanation, search]
    edited = record(id="edited0001")
    with Store(store_file) as store:
        store.add_all([*before[1:], edited])
        store.put_training(begun, tmp_path / "first")
    assert sync_runs(shared, store=store_file).sent.runs == 5
    with Store(store_file) as store:
        store.put_training(stopped, tmp_path / "first")
    assert sync_runs(shared, store=store_file).sent.advanced == 1
    with Store(store_file) as store:
        for run in after[1:]:
            store.put(run)
        store.put_training(ended, tmp_path / "first")
    with Store(shared) as store:
        store.put(replace(edited, repeat=7))
        (held,) = (row for row in store.rows() if row.id == "train00001")
        assert held.ending == Ending.INTERRUPTED
    synced = sync_runs(shared, store=store_file)
    assert (synced.sent.advanced, synced.sent.runs, synced.received.advanced, synced.received.runs) == (4, 0, 0, 0)
    assert synced.conflicts == [
        "Run edited0001 has other contents in one store than in the other; both were left as they are."
    ]
    runs = contents(shared)["runs"]
    assert [runs[run.id] for run in after] == after
    assert runs["edited0001"].repeat == 7
    assert contents(store_file)["runs"]["edited0001"] == edited
    with Store(store_file, readonly=True) as store:  # its folder is still known here
        assert store.rows_of(["train00001"])[0].path == tmp_path / "first"


def test_a_store_that_is_only_read_must_be_there(inside: Cli, store_file: Path, tmp_path: Path) -> None:
    for words in (("--push", tmp_path / "to.sqlite3"), ("--pull", tmp_path / "from.sqlite3")):
        done = inside("runs", "sync", *words)
        assert done.returncode == 2
        assert "There is no store yet at" in done.stderr
    assert not list(tmp_path.glob("*.sqlite3"))
    done = inside("runs", "sync", store_file)
    assert (done.returncode, "Both stores are" in done.stderr) == (2, True)


def test_ctrl_c_keeps_what_was_sent_and_the_rest_goes_on(server: ServerAddress, store_file: Path) -> None:
    with Store(store_file) as store:
        store.add_all([record(id=f"mine{n:06d}") for n in range(180)])
    seen: list[int] = []

    def stop(_target: str, done: int, total: int) -> None:
        assert total == 180
        seen.append(done)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    synced = sync_runs(server, store=store_file, tell=stop, raise_interrupt=False)
    assert not synced.complete
    assert len(contents(server)["runs"]) == synced.sent.runs == 100
    rest = sync_runs(server, store=store_file)
    assert rest.complete
    assert rest.sent.runs == 80
    assert contents(server)["runs"] == contents(store_file)["runs"]


def test_a_server_that_goes_away_in_a_sweep_costs_no_run(
    cluster: Cluster, database: str, server: ServerAddress, inside: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep goes on; what the server did not take waits on this machine, and the command that is said sends it."""
    words = ("bench", "fake", "-f", "fake", "-d", "gpu", "--steps", 20, "--seconds", 0.2, "--repeat", 3, "-q")
    with subprocess.Popen(
        metalmark(*words), cwd=ROOT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "METALMARK_STORE": database}, preexec_fn=heed_ctrl_c,
    ) as command:  # fmt: skip
        until(lambda: _stored(cluster, server) >= 1)
        cluster.stop("immediate")
        try:
            out, err = command.communicate(timeout=120)
        finally:
            cluster.start()
    assert command.returncode == 1, err
    assert "fake" in out  # the table of all that was measured
    assert "s3cret" not in out + err
    assert "nothing listens there" in err
    kept = re.search(
        r"(\d) runs? could not be stored in (\S+): kept in (\S+)\.\n  Send them when it is back: (.+)", err
    )
    assert kept is not None, err
    assert kept[2] == str(server)
    assert kept[3] == str(spool_file(server))
    before = _stored(cluster, server)
    assert before + int(kept[1]) == 3
    monkeypatch.setenv("PGPASSWORD", dict(server.secrets)["password"])
    for sent in (f"{kept[1]} run", "Nothing was to be copied"):
        done = inside(*shlex.split(kept[4])[1:])
        assert done.returncode == 0, done.stderr
        assert sent in done.stderr
        assert _stored(cluster, server) == 3
    runs = contents(server)["runs"].values()
    assert sorted(run.repeat for run in runs) == [0, 1, 2]


def test_what_ends_while_the_server_is_away_is_kept(server: ServerAddress, tmp_path: Path, capfd: Any) -> None:
    """A script or a training that ran for hours finds its server gone when it wants to store the end."""
    away = ServerAddress(server.url.replace("127.0.0.1", "127.0.0.2"), server.secrets)
    run = training_run(id="train00001")
    with Store(away, spools=True) as store:
        store.add(watched_run(id="watched001"))
        store.put_training(run, tmp_path / "first")
    said = capfd.readouterr().err
    assert said.count("nothing listens there") == 1
    assert "s3cret" not in said
    assert "2 runs could not be stored in" in "".join(spool.unsent())
    with Store(spool_file(away), readonly=True) as store:
        assert {row.id: row.path for row in store.rows()} == {"watched001": None, "train00001": tmp_path / "first"}
    spool._unsent.clear()


def _stored(cluster: Cluster, server: ServerAddress) -> int:
    name = server.url.rpartition("/")[2]
    ((made,),) = cluster.execute("SELECT count(*) FROM pg_class WHERE relname = 'runs'", database=name)
    return cluster.execute("SELECT count(*) FROM runs", database=name)[0][0] if made else 0

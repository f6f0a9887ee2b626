"""A server that can't be used, and a user who may not: a sentence, what to do, exit code 2, and never the password."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from metalmark.errors import StoreError
from metalmark.store.address import ServerAddress, local_folder, parse_server, store_address
from metalmark.store.store import Store
from tests.conftest import Cli
from tests.processes import ROOT
from tests.samples import record
from tests.team.cluster import PASSWORD, Cluster
from tests.team.test_verbs import assert_secret


def refused(inside: Cli, url: str, *words: object) -> str:
    done = inside(*(words or ("runs", "list")), "--store", url)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert said.startswith("metalmark: "), said
    assert "Traceback" not in said
    assert_secret(said)
    return said


def test_what_can_be_wrong_with_a_server(
    inside: Cli, cluster: Cluster, database: str, server: ServerAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGPASSWORD", "PGUSER", "PGHOST", "PGDATABASE", "PGPASSFILE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    name = server.url.rpartition("/")[2]
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        said = refused(inside, f"postgresql://me:s3cret@127.0.0.1:{port}/runs")
        assert "nothing listens there" in said
        assert f"metalmark runs sync --store FILE postgresql://me@127.0.0.1:{port}/runs" in said
        away = f"postgresql://me:s3cret@127.0.0.1:{port}/runs"
        verbs = (
            ("train", "mnist-mlp"),
            ("serve",),
            ("report", "last"),
            ("runs", "sync", f"{away}2"),
            ("explain", "last"),
        )
        for verb in verbs:
            assert "nothing listens there" in refused(inside, away, *verb)
    wrong = refused(inside, cluster.url(name, password="s3cret-and-wrong"))
    assert "the password is wrong, or there is no such user" in wrong
    assert ".pgpass" in wrong
    assert "the password is wrong, or there is no such user" in refused(inside, cluster.url(name, user="stranger"))
    assert "asks for a password" in refused(inside, cluster.url(name, password=None))
    missing = refused(inside, cluster.url("no_such_database"))
    assert "there is no database no_such_database" in missing
    assert "createdb no_such_database" in missing
    assert "there is no such host" in refused(inside, "postgresql://me:s3cret@nowhere.invalid/runs")
    assert "can't be read" in refused(inside, "postgresql://me:s3cret@127.0.0.1:port/runs")
    for unreadable in (
        "postgresql://me:s3cret/x@host/db",
        "postgresql://me:s3cret#@host/db",
        "postgres://me:s3cret@h/d b",
    ):
        assert "by their codes" in refused(inside, unreadable)
    assert "a file or a postgresql:// address, not mysql://" in refused(inside, "mysql://me:s3cret@host/db")
    assert "Both stores are postgresql://" in refused(inside, database, "runs", "sync", database)

    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert inside("runs", "list", "--store", cluster.url(name, password=None)).returncode == 0
    monkeypatch.delenv("PGPASSWORD")
    passwords = Path.home() / ".pgpass"
    escaped = PASSWORD.replace(":", "\\:")
    passwords.write_text(f"127.0.0.1:{cluster.port}:*:admin:{escaped}\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    assert inside("runs", "list", "--store", cluster.url(name, password=None)).returncode == 0

    cluster.execute("CREATE TABLE runs (id int)", database=name)
    assert "holds tables of another program" in refused(inside, database)
    assert "holds tables of another program" in refused(inside, database, "runs", "unname", "main")
    cluster.execute("DROP TABLE runs", database=name)
    inside("runs", "unname", "main", "--store", database)
    cluster.execute("UPDATE metalmark SET version = 99", database=name)
    assert "has version 99; this Metalmark knows up to" in refused(inside, database)


def test_a_right_that_is_missing_is_named(inside: Cli, cluster: Cluster, server: ServerAddress) -> None:
    name = server.url.rpartition("/")[2]
    for user in ("reader", "writer"):
        cluster.execute(f"DROP ROLE IF EXISTS {user}", database=name)
        cluster.execute(f"CREATE ROLE {user} LOGIN PASSWORD 's3cret'", database=name)
    reading, writing = (cluster.url(name, user=user, password="s3cret") for user in ("reader", "writer"))

    assert "No runs yet" in inside("runs", "list", "--store", reading).stderr  # it is empty, and nothing is made
    said = refused(inside, writing, "runs", "unname", "main")
    assert "may not make tables in the schema public" in said
    assert "GRANT USAGE, CREATE ON SCHEMA public TO writer;" in said
    with Store(server) as store:
        store.add(record(id="bench00001"))
    said = refused(inside, reading)
    assert "GRANT SELECT ON runs, sweeps, names, metalmark TO reader;" in said
    cluster.execute("GRANT SELECT ON runs, sweeps, names, metalmark TO reader", database=name)
    assert "bench00001" in inside("runs", "list", "--store", reading).stdout
    said = refused(inside, reading, "runs", "delete", "bench00001", "--yes")
    assert "GRANT SELECT, INSERT, UPDATE, DELETE ON runs, sweeps, names, metalmark TO reader;" in said
    cluster.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON runs, sweeps, names, metalmark TO writer", database=name)
    assert inside("runs", "name", "bench00001", "main", "--store", writing).returncode == 0
    assert inside("runs", "delete", "bench00001", "--yes", "--store", writing).returncode == 0
    for user in ("reader", "writer"):
        cluster.execute(f"DROP OWNED BY {user}; DROP ROLE {user}", database=name)


@pytest.mark.parametrize(
    ("given", "shown", "secret"),
    [
        ("postgresql://me:pw@host/db", "postgresql://me@host/db", "pw"),
        ("postgres://me:p%40w%2F@host:5433/db?sslmode=require", "postgresql://me@host:5433/db?sslmode=require", "p@w/"),
        ("postgresql://me:a@b@host/db", "postgresql://me@host/db", "a@b"),
        ("POSTGRESQL://host/db?password=pw&user=me", "postgresql://host/db?user=me", "pw"),
        ("postgresql:///db?host=/var/run/postgresql", "postgresql:///db?host=/var/run/postgresql", ""),
        ("postgresql://a,b:5433/db?sslpassword=pw", "postgresql://a,b:5433/db", "pw"),
        ("postgresql://me:@host/db", "postgresql://me@host/db", ""),
    ],
)  # fmt: skip
def test_a_password_is_parted_from_its_address(given: str, shown: str, secret: str) -> None:
    address = store_address(given)
    assert isinstance(address, ServerAddress)
    assert str(address) == shown
    assert repr(address) == f"ServerAddress({shown!r})"
    assert [value for _, value in address.secrets] == ([secret] if secret else [])
    # What this machine keeps for it is found again with any password.
    other = parse_server(given.replace("pw", "another"))
    assert local_folder(other) == local_folder(address)
    assert parse_server(str(address)).url == shown


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    """Two modules that can't be imported stand in the way of the real ones."""
    for name in ("psycopg", "sqlalchemy"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('none here', name={name!r})\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from metalmark.cli import main; main()"
    words = [sys.executable, "-c", code, "runs", "list", "--store", "postgresql://me:s3cret@127.0.0.1/runs"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "needs the extra `team`: psycopg is not installed" in done.stderr
    assert 'pip install "metalmark[team]"' in done.stderr
    assert_secret(done.stderr)


def test_a_file_store_imports_neither(tmp_path: Path) -> None:
    code = (
        "import sys; from metalmark.app.runs import list_runs; list_runs(); "
        "print({'sqlalchemy', 'psycopg'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True,
        env={"METALMARK_STORE": str(tmp_path / "s.sqlite3"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stdout == "set()\n"


def test_a_lock_that_is_held_is_waited_for_and_then_said(cluster: Cluster, server: ServerAddress) -> None:
    import psycopg

    with Store(server) as store:
        store.add(record(id="bench00001"))
    with psycopg.connect(cluster.url(server.url.rpartition("/")[2])) as other:
        other.execute("LOCK TABLE names")
        with Store(server, wait_s=0.3) as store, pytest.raises(StoreError, match=r"held it locked for 0\.3 s"):
            store.name("main", ["bench00001"])
        other.rollback()

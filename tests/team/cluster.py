"""A PostgreSQL of the tests' own: on a free loopback port, in a temporary folder, as a user who is not root."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

ADMIN, PASSWORD = "admin", "s3cret/of@admin"
USERS = ("postgres", "nobody")
"""Whom root becomes: PostgreSQL refuses to run as root."""


def programs() -> Path | None:
    """Return the folder of PostgreSQL's own programs, which Debian does not put on the PATH."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(os.path.realpath(on_path)).parent
    places = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/opt/homebrew/opt").glob("postgresql*/bin"),
              *Path("/usr/local/opt").glob("postgresql*/bin")]  # fmt: skip
    found = [place for place in places if (place / "initdb").exists() and (place / "pg_ctl").exists()]
    return max(found, default=None)


def why_not() -> str:
    """Return why there can be no server here, or ""."""
    if programs() is None:
        return "PostgreSQL is not installed (apt-get install postgresql, or brew install postgresql)"
    try:
        import psycopg  # noqa: F401
        import sqlalchemy  # noqa: F401
    except ImportError as error:
        return f"{error.name} is not installed (pip install 'metalmark[team]')"
    return "" if os.geteuid() or _other_user() else "PostgreSQL refuses root, and there is no other user to become"


def _other_user() -> str | None:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in USERS if name in known), None)


class Cluster:
    def __init__(self) -> None:
        found = programs()
        assert found is not None
        self._programs = found
        self._user = _other_user() if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="metalmark-postgresql-", dir="/tmp"))
        self._data = self._folder / "data"
        password = self._folder / "password"
        password.write_text(PASSWORD)
        if self._user is not None:
            for path in (self._folder, password):
                shutil.chown(path, self._user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._run("initdb", "-D", self._data, "-U", ADMIN, "-A", "scram-sha-256", f"--pwfile={password}",
                  "-E", "UTF8", "--locale=C", "--no-sync")  # fmt: skip
        self.start()

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories= -c max_connections=40"
        self._run("pg_ctl", "-D", self._data, "-w", "-o", options, "-l", self._folder / "log", "start")

    def stop(self, mode: str = "immediate") -> None:
        """`immediate` is what a power cut is to the server: nothing is written in its end."""
        self._run("pg_ctl", "-D", self._data, "-w", "-m", mode, "stop")

    def remove(self) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def make_database(self, name: str, *, owner: str = ADMIN) -> str:
        """Make an empty database; return its address, with the password."""
        self.execute(f"CREATE DATABASE {name} OWNER {owner}", database="postgres")
        return self.url(name)

    def url(self, database: str, *, user: str = ADMIN, password: str | None = PASSWORD) -> str:
        secret = "" if password is None else f":{quote(password, safe='')}"
        return f"postgresql://{user}{secret}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, *, database: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            done = connection.execute(statement, values or None)
            return done.fetchall() if done.description else []

    def _run(self, program: str, *arguments: object) -> None:
        # Into a file: the server inherits what pg_ctl has, and a pipe would never end.
        with (self._folder / "said").open("a+") as said:
            done = subprocess.run(
                [str(self._programs / program), *map(str, arguments)], user=self._user, cwd=self._folder,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                timeout=60,
            )  # fmt: skip
            said.seek(0)
            assert done.returncode == 0, f"{program}: {said.read()}"

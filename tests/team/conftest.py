"""A server for the tests of this folder, and a database of its own for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from metalmark.store.address import ServerAddress, parse_server
from tests.team.cluster import Cluster, why_not

_made = 0


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if why := why_not():
        pytest.skip(why)
    server = Cluster()
    yield server
    server.remove()


@pytest.fixture
def database(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty database, with its password; what this machine keeps for it is in the test's folder."""
    global _made
    _made += 1
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))  # where macOS has the data folder, and libpq its .pgpass
    return cluster.make_database(f"metalmark{_made}")


@pytest.fixture
def server(database: str) -> ServerAddress:
    return parse_server(database)

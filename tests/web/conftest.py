"""The server's application as a client asks it, without a socket, on a small store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `web` is not installed")

from starlette.testclient import TestClient

from metalmark.store.store import Store
from metalmark.web.app import make_app
from metalmark.web.guard import Rules
from tests.samples import completed, failed, plan, record

HOSTILE = "<script>alert(1)</script>"

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 records of three sweeps with two processes a cell, one that failed, and names that mean harm."""
    path = tmp_path_factory.mktemp("store") / "store.sqlite3"
    records = []
    for number, framework in enumerate(("torch", "jax")):
        for repeat in range(3):
            step_s = (0.010, 0.008)[number] * (1 + 0.001 * repeat)
            at = f"2026-11-15T09:00:{number}{repeat}Z"
            one = record(completed(step_s), id=f"cell{number}{repeat}0000", sweep="sweepab001", cell=number,
                         repeat=repeat, started_at=at, plan=plan(framework=framework))  # fmt: skip
            records.append(one)
    evil = failed(message=f"it broke {HOSTILE} \x1b[31m")
    records.append(record(evil, id="evil000000", sweep="sweepevil1", plan=plan(workload=f"{HOSTILE}.py:x"),
                          started_at="2026-11-15T10:00:00Z"))  # fmt: skip
    records += [
        record(id=f"many{number:06d}", sweep="sweepmany1", cell=number, started_at=f"2026-11-14T08:{number // 60:02d}:"
               f"{number % 60:02d}Z", plan=plan(workload="conv256", params={"batch_size": number + 1}))
        for number in range(113)
    ]  # fmt: skip
    with Store(path) as store:
        store.add_all(records)
        store.name("main", ["cell000000"])
    return path


@pytest.fixture
def client_of() -> Callable[..., TestClient]:
    def make(path: Path, base: str = "http://127.0.0.1:8585", **rules: Any) -> TestClient:
        return TestClient(make_app(path, Rules(**rules)), base_url=base, follow_redirects=False)

    return make


@pytest.fixture
def ask(filled: Path, client_of: Callable[..., TestClient]) -> Ask:
    return client_of(filled).get

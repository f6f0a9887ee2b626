"""Every verb that reads or writes runs does so on a server too, and shows no password."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import metalmark as mm
from metalmark.store.address import ServerAddress, local_folder
from metalmark.store.store import Store
from tests.conftest import Cli
from tests.samples import completed, plan, record
from tests.team.cluster import Cluster

ON_GPU = ("--framework", "fake", "--device", "gpu")
WORDS_OF_THE_PASSWORD = ("s3cret", "of@admin", "of%40admin")


def assert_secret(text: str) -> None:
    assert not [word for word in WORDS_OF_THE_PASSWORD if word in text]


def test_each_verb(
    inside: Cli, database: str, server: ServerAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("METALMARK_STORE", database)

    def run(*words: object) -> str:
        done = inside(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert_secret(done.stdout + done.stderr)
        return done.stdout + done.stderr

    assert "No runs yet in postgresql://admin@127.0.0.1" in run("runs", "list")
    told = run("bench", "fake", *ON_GPU, "--steps", 20, "--seconds", 0.2, "--batch-size", "8,16")
    assert "Stored in postgresql://admin@127.0.0.1" in told
    run("runs", "name", "last", "main")
    limits = ("--data", "synthetic", "--limit-samples", 64, "-f", "torch", "-d", "cpu")
    run("train", "mnist-mlp", *limits, "--epochs", 1, "-q")
    run("parity", "fake", *ON_GPU, "--steps", 1, "-q")
    run("explain", "fake", *ON_GPU, "--seconds", 0.02, "-q")
    run("tune", "fake", *ON_GPU, "--seconds", 0.1, "--repeat", 2, "--time", "8s", "--no-gate", "-q")
    script = tmp_path / "mine.py"
    script.write_text("print('hello')\n")
    assert "hello" not in run("watch", "--", sys.executable, script)  # it prints on a stream of its own
    with mm.run("loop of mine", hz=None) as recorder:
        for _ in recorder.watch(range(3)):
            pass

    rows = json.loads(run("runs", "list", "--json"))
    assert {row["kind"] for row in rows} == {"bench", "training", "parity", "explain", "tune", "watch"}
    training = next(row["id"] for row in rows if row["kind"] == "training")
    trainings = local_folder(server) / "trainings"
    assert str(trainings) in run("runs", "show", training)
    run("runs", "tag", "main", training, "good")
    assert "8" in run("compare", "main", "--by", "batch_size", "--anyway")
    assert "Stored in postgresql://" in run("explain", "main")
    run("report", "main", "-o", tmp_path / "page.html")
    run("runs", "export", "-o", tmp_path / "all.json")
    assert "0 runs imported" in run("runs", "import", tmp_path / "all.json")
    assert "good names nothing now" in run("runs", "unname", "good")
    assert list(trainings.glob("*"))
    run("runs", "delete", training, "--yes")
    assert not list(trainings.glob("*"))
    assert str(local_folder(server)) in run("track", "list")
    assert training not in mm.runs(limit=100).ids

    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    for path in (tmp_path / "page.html", tmp_path / "all.json", *files):
        assert_secret(path.read_bytes().decode(errors="replace"))
    with Store(server, readonly=True) as store:
        for table in ("runs", "sweeps", "names"):
            assert_secret(str(store.database.read(f"SELECT * FROM {table}")))


def test_pages_read_the_server(server: ServerAddress, cluster: Cluster) -> None:
    pytest.importorskip("starlette", reason="the extra `web` is not installed")
    from starlette.testclient import TestClient

    from metalmark.web.app import make_app
    from metalmark.web.guard import Rules

    with Store(server) as store:
        for n, framework in enumerate(("torch", "jax", "mlx")):
            run = record(completed(0.01 * (n + 1)), id=f"cell{n}00000", cell=n, plan=plan(framework=framework))
            store.add(run)
        store.name("main", ["cell000000"])
    client = TestClient(make_app(server, Rules()), base_url="http://127.0.0.1:8585", follow_redirects=False)
    for page in ("/", "/?q=main", "/?q=%00%25_", "/run/cell000000", "/sweep/sweep00001", "/find/main", "/live",
                 "/compare?run=cell000000&run=cell100000"):  # fmt: skip
        answer = client.get(page)
        assert answer.status_code in (200, 303), (page, answer.status_code)
        assert_secret(answer.text)
    assert "cell200000" in client.get("/").text
    assert "cell200000" not in client.get("/?q=main").text
    cluster.stop()
    try:
        away = client.get("/")
    finally:
        cluster.start()
    assert away.status_code >= 500
    assert "nothing listens there" in away.text
    assert_secret(away.text)
    assert "cell200000" in client.get("/").text

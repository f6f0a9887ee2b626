from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from metalmark.app import report
from metalmark.model.codec import encode_export
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Plan, Sweep
from metalmark.model.run import DeviceMemory, Series, Telemetry
from metalmark.results.cells import cells_of
from metalmark.store.store import Store
from metalmark.training.folder import write_record
from tests.conftest import Cli
from tests.report.contents import HOSTILE, records, run, telemetry, training, watched
from tests.report.markup import parse
from tests.samples import plan, record

pytest.importorskip("vl_convert")

OLD, NEW = "aaaaaaaaaa", "bbbbbbbbbb"


def fill(store_file: Path) -> list[BenchRun]:
    """An older sweep of one cell in two processes, and a newer one with a plan that has not run yet."""
    old = [record(run(), sweep=OLD, repeat=number, started_at="2026-11-14T08:00:00.000000Z") for number in range(2)]
    new = [record(run(0.2), sweep=NEW, cell=0, telemetry=telemetry())]
    with Store(store_file) as store:
        waiting: tuple[Plan, ...] = (new[0].plan, plan(framework="jax"))
        left_out = ("mlx not run: it is not installed.",)
        store.add_sweep(Sweep(id=NEW, created_at="2026-11-15T08:00:00.000000Z", plans=waiting, left_out=left_out))
        store.add_all([*old, *new])
    return old


def test_the_last_sweep_as_one_page(cli: Cli, store_file: Path, tmp_path: Path) -> None:
    fill(store_file)
    path = tmp_path / "page.html"
    done = cli("report", "-o", path, "--open", DISPLAY="", WAYLAND_DISPLAY="", BROWSER="true")
    assert done.returncode == 0, done.stderr
    if sys.platform == "linux":
        assert "no desktop" in done.stderr, "a browser in a terminal would take that over"
    assert done.stdout.strip() == str(path)
    assert "what the last command made" in done.stderr
    assert not list(tmp_path.glob("*.part"))
    body = parse(path.read_text()).named("main")[0].text
    assert NEW in body
    assert OLD not in body
    assert "mnist-mlp training batch 32 jax cpu" in body, "what has not run yet is said"
    assert "mlx not run: it is not installed." in body, "and what was left out"


def test_a_peak_of_no_bytes_is_no_peak() -> None:
    """Older records have it from tensorflow-metal, which counts nothing: what the process held is told instead."""
    nothing = DeviceMemory(live_bytes=0, driver_bytes=0, peak_bytes=0)
    held = Series(name="process_memory", unit="bytes", source="test", at_s=(4.5,), values=(3e8,))
    (cell,) = cells_of([record(run(placed_on="GPU:0", memory=nothing), telemetry=Telemetry(hz=5.0, series=(held,)))])
    assert cell.peak_bytes is None
    assert cell.memory_bytes == 300_000_000


@pytest.mark.parametrize(
    ("system", "variables", "has"),
    [
        ("darwin", {}, True),
        ("darwin", {"SSH_CONNECTION": "10.0.0.2 50000 10.0.0.3 22"}, False),
        ("darwin", {"SSH_TTY": "/dev/ttys001"}, False),
        ("linux", {}, False),
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"DISPLAY": "localhost:10.0", "SSH_CONNECTION": "10.0.0.2 50000 10.0.0.3 22"}, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
    ],
)
def test_where_there_are_windows_to_see(
    monkeypatch: pytest.MonkeyPatch, system: str, variables: dict[str, str], has: bool
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION", "SSH_TTY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(report, "sys", SimpleNamespace(platform=system))
    assert report.has_desktop() is has


def test_runs_by_every_word(inside: Cli, store_file: Path, tmp_path: Path) -> None:
    old = fill(store_file)
    folder = tmp_path / "run1"
    folder.mkdir()
    write_record(folder, training())
    with Store(store_file) as store:
        store.put_training(training(), folder)
        store.add(watched())
        store.name("main", [OLD])
    exported = tmp_path / "theirs.json"
    exported.write_bytes(encode_export(records()))
    words = ["main", old[0].id[:6], NEW, exported, folder, "run1", "trained0001", "watched0001", watched().name]
    done = inside("report", *words, "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    kinds = [one["kind"] for one in document["records"]]
    assert kinds.count("bench") == 2 + 1 + 7, "a run's id stands for its cell, and nothing is there twice"
    assert [one["id"] for one in document["records"] if one["kind"] == "training"] == ["trained0001"]
    assert [one["id"] for one in document["records"] if one["kind"] == "watch"] == ["watched0001"]


def test_forms_by_ending_and_to_stdout(inside: Cli, store_file: Path, tmp_path: Path) -> None:
    fill(store_file)
    pasted = inside("report", "--format", "markdown", "--against", "published")
    assert "| torch | cpu |" in pasted.stdout
    table = tmp_path / "cells.csv"
    assert inside("report", "-o", table).returncode == 0
    assert table.read_text().startswith("workload,mode,")
    opened = inside("report", "--format", "markdown", "--open")
    assert "nothing was opened" in opened.stderr
    assert opened.returncode == 0


@pytest.mark.parametrize("extra", ["web", "parquet"])
def test_an_extra_that_is_not_there_is_named(cli: Cli, store_file: Path, tmp_path: Path, extra: str) -> None:
    fill(store_file)
    missing = {"web": "jinja2", "parquet": "pyarrow"}[extra]
    (tmp_path / f"{missing}.py").write_text("raise ImportError('not here')")
    done = cli("report", "-o", tmp_path / {"web": "x.html", "parquet": "x.parquet"}[extra], PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert f'pip install "metalmark[{extra}]"' in done.stderr
    assert "Traceback" not in done.stderr
    assert cli("report", "--format", "markdown", PYTHONPATH=str(tmp_path)).returncode == 0, "and Markdown needs none"


def test_bad_input(inside: Cli, store_file: Path, tmp_path: Path) -> None:
    nothing = inside("report")
    assert nothing.returncode == 2
    assert "metalmark bench" in nothing.stderr
    fill(store_file)
    damaged = tmp_path / "damaged.json"
    lost = msgspec.json.decode(encode_export([record(run())]))
    lost["records"][0]["outcome"]["measurement"]["blocks"] = []
    damaged.write_bytes(msgspec.json.encode(lost))
    empty = tmp_path / "empty.json"
    empty.write_bytes(encode_export([]))
    for words, said in (
        (["zzzz"], "There is no run, sweep or name"),
        (["x" * 5000], "There is no run, sweep or name"),
        ([HOSTILE[0].replace("/", "")], "There is no run, sweep or name"),
        ([tmp_path / "none.json"], "can't be read"),
        ([f"{tmp_path}/none"], "neither a file nor the folder"),
        ([damaged], "damaged: it has no block"),
        ([empty], "holds no runs"),
        (["last", "-o", tmp_path / "no" / "x.json"], "can't be written"),
    ):
        done = inside("report", *words)
        assert done.returncode == 2, (words, done.stderr)
        assert said in done.stderr, (words, done.stderr)
        assert "Traceback" not in done.stderr

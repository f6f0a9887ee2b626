from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped]
import pytest

from metalmark.model.run import RunKind, now_utc
from metalmark.store.live import (
    FORGET_S,
    History,
    LiveFile,
    LiveStatus,
    clear_left_behind,
    live_folder,
    read_all,
    read_one,
    unit_of,
)
from tests.conftest import ROOT

ID = "sweep00001"


def status(**changes: Any) -> LiveStatus:
    fields: dict[str, Any] = {
        "id": ID,
        "kind": RunKind.BENCH,
        "pid": os.getpid(),
        "process_s": psutil.Process().create_time(),
        "started_at": now_utc(),
        "updated_at": now_utc(),
        "what": "x",
        "phase": "measure",
        "done": 0,
        "total": 1,
    }
    return LiveStatus(**{**fields, **changes})


def test_written_read_and_taken_away(store_file: Path) -> None:
    assert read_all(store_file) == []
    file = LiveFile(store_file, ID)
    written = status(pid=file.pid, process_s=file.process_s)
    file.write(written)
    assert read_all(store_file) == [written]
    assert read_one(store_file, ID) == written
    assert written.alive
    assert written.silent_s < 60
    file.remove()
    assert read_all(store_file) == []
    assert not live_folder(store_file).exists()
    file.write(written)
    assert read_all(store_file) == [], "what was taken away does not come back"


def test_a_process_that_is_gone_is_known(store_file: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    began_s = psutil.Process(child.pid).create_time()
    LiveFile(store_file, ID).write(status(pid=child.pid, process_s=began_s))
    (found,) = read_all(store_file)
    assert found.alive
    child.kill()
    child.communicate()
    assert not found.alive
    (found,) = read_all(store_file)
    assert not found.alive, "it is still shown, as ended"
    assert not status(pid=os.getpid(), process_s=1.0).alive, "the number was given to another process"
    began_s = psutil.Process().create_time()
    assert status(process_s=began_s - 20).alive, "the clock was corrected meanwhile"
    clear_left_behind(store_file)
    assert read_all(store_file) == []


def test_one_left_behind_long_ago_goes_when_it_is_read(store_file: Path) -> None:
    LiveFile(store_file, ID).write(status(process_s=1.0, updated_at="2026-01-01T00:00:00Z"))
    assert read_one(store_file, ID) is None
    assert not list(live_folder(store_file).iterdir())
    assert FORGET_S > 60


def test_a_command_that_begins_leaves_those_that_run(store_file: Path) -> None:
    LiveFile(store_file, ID).write(status())
    clear_left_behind(store_file)
    assert read_one(store_file, ID) is not None


@pytest.mark.parametrize(
    "change",
    [{"schema": 1}, {"schema": 3}, {"pid": 0}, {"id": "../../up"},
     {"updated_at": "yesterday"}, {"updated_at": "2026-13-40T99:00:00Z"},
     {"traces": 7}, {"done": -1}],
)  # fmt: skip
def test_what_is_no_status_is_not_believed(store_file: Path, change: dict[str, Any]) -> None:
    data = msgspec.json.encode({**msgspec.to_builtins(status()), **change})
    live_folder(store_file).mkdir()
    (live_folder(store_file) / f"{ID}.json").write_bytes(data)
    assert read_all(store_file) == []


@pytest.mark.parametrize("word", ["../store", "a/b", "", "..", "x\x00y", "é"])
def test_an_id_is_no_path(store_file: Path, word: str) -> None:
    assert read_one(store_file, word) is None


def test_a_long_history_stays_whole_and_small() -> None:
    history = History(most=100)
    for second in range(10_000):
        history.see(float(second), {"throughput": float(second)})
    (trace,) = history.traces()
    assert 50 <= len(trace.values) < 100
    assert trace.at_s[0] < 300, "the beginning is still there"
    assert trace.at_s[-1] > 9_700
    assert trace.at_s == trace.values
    assert history.latest == {"throughput": 9_999.0}, "also where its point was dropped"
    assert history.ranges == {"throughput": (0.0, 9_999.0)}
    assert unit_of("gpu0_power") == "W"
    assert unit_of("process_memory") == "bytes"


def test_a_folder_that_cannot_be_made_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite3-live").write_text("in the way")
    file = LiveFile(tmp_path / "store.sqlite3", ID)
    file.write(status())
    file.remove()
    assert (tmp_path / "store.sqlite3-live").read_text() == "in the way"


def test_a_bench_can_be_looked_on_and_leaves_nothing_but_when_killed(store_file: Path) -> None:
    words = ["bench", "fake", "-f", "fake", "-d", "gpu", "--seconds", "30", "-q"]
    command = [sys.executable, "-m", "metalmark", *words, "--store", str(store_file)]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        found = None
        for _ in range(600):
            found = next(iter(read_all(store_file)), None)
            if found is not None and any(trace.name == "throughput" for trace in found.traces):
                break
            time.sleep(0.05)
        assert found is not None
        assert found.alive
        assert found.pid == running.pid
        assert found.kind is RunKind.BENCH
        assert "fake training" in found.what
        assert (found.done, found.total) == (0, 1)
        assert {trace.name for trace in found.traces} >= {"throughput", "process_memory"}
        running.kill()
        running.wait()
        (left,) = read_all(store_file)
        assert not left.alive
    finally:
        running.kill()
        running.wait()
    done = subprocess.run(
        [*command[:-4], "0.1", "-q", "--store", str(store_file)], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 0
    assert not live_folder(store_file).exists(), "it tidied up after the one that was killed, and after itself"


def test_a_live_file_that_is_a_pipe_or_damaged_is_not_waited_for(store_file: Path) -> None:
    folder = live_folder(store_file)
    folder.mkdir()
    os.mkfifo(folder / "pipe000000.json")
    (folder / "bytes00000.json").write_bytes(b'{"what":"\xff"}')
    (folder / "nested0000.json").write_bytes(b'{"what":' + b"[" * 100_000)
    assert read_all(store_file) == []
    assert read_one(store_file, "pipe000000") is None

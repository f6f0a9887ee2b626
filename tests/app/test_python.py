"""`mm.bench`, `mm.train`, `mm.compare`, `mm.report` as a script calls them: real processes on the software device."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import metalmark as mm
from metalmark.app.results import Runs
from metalmark.errors import UsageError
from tests import processes
from tests.processes import ROOT, heed_ctrl_c

QUICK = {"framework": "fake", "device": "gpu", "steps": 20, "seconds": 0.2, "progress": False}


def test_bench_compare_and_report_are_what_the_verbs_do(store_file: Path, tmp_path: Path) -> None:
    runs = mm.bench("fake", batch_size=[8, 16], repeat=2, step_ms=1.0, store=store_file, **QUICK)  # type: ignore[arg-type]
    assert [entry["batch_size"] for entry in runs.to_dicts()] == [8, 16, 8, 16]
    assert runs.sweep is not None
    assert runs.complete
    assert str(mm.runs("last", store=store_file)) == str(runs)
    compared = mm.compare(runs, by="batch_size", anyway=True, store=store_file)
    assert len(compared) == 1
    (row,) = compared.to_dicts()
    assert (row["a_runs"], row["b_runs"]) == (2, 2), row
    assert row["verdict"] in str(compared)
    with pytest.raises(UsageError, match="named twice"):
        mm.compare("last", "last", store=store_file)
    page = mm.report(runs, output=tmp_path / "page.html", store=store_file, progress=False)
    assert page.read_text().startswith("<!doctype html>")
    again = mm.bench(resume=runs.sweep.id, store=store_file, progress=False)
    assert again.ids == runs.ids, "every cell was measured already"


def test_a_running_event_loop_and_another_thread_may_call_it(store_file: Path) -> None:
    async def inside() -> Runs:
        return mm.bench("fake", store=store_file, **QUICK)  # type: ignore[arg-type]

    assert len(asyncio.run(inside())) == 1
    found: list[Runs] = []
    thread = threading.Thread(target=lambda: found.append(mm.bench("fake", store=store_file, **QUICK)))  # type: ignore[arg-type]
    thread.start()
    thread.join()
    assert len(found[0]) == 1


SCRIPT = """
import metalmark as mm

runs = mm.bench("fake", framework="fake", device="gpu", steps=20, seconds=0.2, fault=["none", "oom"])
print(runs)
"""


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = processes.run(
        [sys.executable, str(script)], folder=tmp_path, METALMARK_STORE=str(tmp_path / "store.sqlite3")
    )
    assert done.returncode == 0, done.stderr
    assert "out of memory" in done.stdout
    assert "[2/2]" in done.stderr, "progress, as in a log"
    assert done.stdout.count("fake:0") >= 1


def test_ctrl_c_is_raised_again_and_what_ended_is_stored(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import metalmark as mm

        try:
            mm.bench("fake", framework="fake", device="gpu", steps=20, seconds=0.2, repeat=200)
        except KeyboardInterrupt as error:
            print(error.__notes__[0])
        """)
    )
    store = tmp_path / "store.sqlite3"
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "METALMARK_STORE": str(store)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    )
    assert process.stderr is not None
    while "[1/200]" not in process.stderr.readline():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert "mm.bench(resume=" in out
    assert len(mm.runs("last", store=store)) >= 1


def test_bad_input_is_a_sentence_with_a_next_step(store_file: Path) -> None:
    with pytest.raises(UsageError, match="no parameter --batchsize; did you mean --batch-size"):
        mm.bench("fake", batchsize=3, store=store_file, **QUICK)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="One workload at a time"):
        mm.train("", store=store_file)
    with pytest.raises(UsageError, match="There is no run"):
        mm.runs("nothing", store=store_file)
    with pytest.raises(UsageError, match="no format"):
        mm.report(format="pdf", store=store_file)

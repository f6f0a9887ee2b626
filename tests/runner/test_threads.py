"""Sweeps and trainings begin in any thread, under an event loop, and from a script without a `__main__` guard."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.plan import Budget, Cooldown, Plan, Sweep
from metalmark.model.run import FailureKind, new_id, now_utc
from metalmark.model.training import Ending, Goal
from metalmark.runner.events import Ended, Event, Progress, Started
from metalmark.runner.probing import probe_all
from metalmark.runner.sweeping import run_sweep
from metalmark.training.folder import Request, new_run
from metalmark.training.launch import train
from tests.processes import ROOT, heed_ctrl_c

Plans = Callable[..., Plan]


def sweep_of(plan: Plan) -> Sweep:
    return Sweep(id=new_id(), created_at=now_utc(), plans=(plan,), repeats=2, cooldown=Cooldown(limit_s=0.01))


def measured(plan: Plan) -> tuple[list[BenchRun], list[Event]]:
    assert threading.current_thread() is not threading.main_thread()
    runs: list[BenchRun] = []
    events: list[Event] = []
    assert run_sweep(sweep_of(plan), previous=[], keep=runs.append, listeners=[events.append])
    return runs, events


def test_a_sweep_runs_in_another_thread(fake_plan: Plans) -> None:
    with ThreadPoolExecutor(1) as pool:
        runs, events = pool.submit(measured, fake_plan()).result()
    assert all(isinstance(run.outcome, Completed) for run in runs)
    assert [event.repeat for event in events if isinstance(event, Started)] == [0, 1]
    assert [event.run for event in events if isinstance(event, Ended)] == runs


def test_a_probe_and_a_sweep_run_under_an_event_loop(fake_plan: Plans) -> None:
    async def notebook() -> tuple[list[BenchRun], bool]:
        runs: list[BenchRun] = []
        probes = probe_all(["fake"])
        assert probes["fake"].devices  # type: ignore[union-attr]
        # As a cell of a notebook calls it: in the loop's own thread, which waits.
        whole = run_sweep(sweep_of(fake_plan()), previous=[], keep=runs.append)
        await asyncio.sleep(0)
        return runs, whole

    runs, whole = asyncio.run(notebook())
    assert whole
    assert len(runs) == 2


def test_a_ctrl_c_whose_exception_python_drops_ends_a_sweep(fake_plan: Plans) -> None:
    runs: list[BenchRun] = []

    def keep(run: BenchRun) -> None:
        runs.append(run)
        with suppress(KeyboardInterrupt):  # as in a callback of the garbage collector
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background inherits an ignored one
    try:
        assert not run_sweep(sweep_of(fake_plan()), previous=[], keep=keep)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert [type(run.outcome) for run in runs] == [Completed]


def test_a_training_begins_and_fails_in_another_thread(fake_plan: Plans, tmp_path: Path) -> None:
    """The software device does not train: that the worker says so is what is looked for."""
    request = Request(id=new_id(), plan=fake_plan(budget=Budget(timeout_s=60)), goal=Goal(epochs=1), hz=None)
    events: list[Event] = []
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(train, request, new_run(request), tmp_path, listeners=[events.append]).result()
    assert run.ending is Ending.FAILED
    assert run.failure is not None
    assert run.failure.kind is FailureKind.CRASHED
    assert isinstance(events[0], Started)
    assert events[-1] == Ended(run=run)


SCRIPT = """
import sys
from metalmark.model.plan import *
from metalmark.model.run import new_id, now_utc
from metalmark.runner.sweeping import run_sweep
from metalmark.workloads.catalog import load
params = {p.name: p.default for p in load("fake").params}
plan = Plan(workload="fake", params=params, mode=Mode.TRAINING, framework="fake",
            device=Device(kind=DeviceKind.GPU), budget=Budget(seconds=float(sys.argv[1])))
runs = []
sweep = Sweep(id=new_id(), created_at=now_utc(), plans=(plan,), hz=None)
whole = run_sweep(sweep, previous=[], keep=runs.append,
                  listeners=[lambda event: print(getattr(event, "phase", ""), flush=True)])
print("whole", whole, type(runs[0].outcome).__name__, getattr(runs[0].outcome, "kind", ""), flush=True)
"""


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), "0.1"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines()[-1].strip() == "whole True Completed"
    assert done.stdout.count("import\n") == 1, "the script itself was not run again in the worker"


def test_ctrl_c_in_the_main_thread_stops_the_cell(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script), "600"], cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.strip() == "measure":
                os.kill(running.pid, signal.SIGINT)
                break
        last = running.stdout.read().splitlines()[-1]
    assert last == "whole False Failed interrupted"
    assert running.returncode == 0


def test_a_listener_hears_progress_in_the_thread_that_called(fake_plan: Plans) -> None:
    heard: set[int] = set()

    def listen(event: Event) -> None:
        if isinstance(event, Progress):
            heard.add(threading.get_ident())

    run_sweep(sweep_of(fake_plan()), previous=[], keep=lambda _: None, listeners=[listen])
    assert heard == {threading.get_ident()}

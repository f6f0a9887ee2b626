"""Real worker processes on the software device: every way to end is classified, and none takes the parent along."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from metalmark.machine import processes
from metalmark.model.measurement import Completed
from metalmark.model.plan import Budget, Mode, Plan
from metalmark.model.run import Failed, FailureKind
from metalmark.runner import launch
from metalmark.runner.events import Event, Progress, Sampled
from metalmark.runner.launch import run_cell

Plans = Callable[..., Plan]


def failure(plan: Plan) -> Failed:
    outcome = run_cell(plan).outcome
    assert isinstance(outcome, Failed)
    return outcome


@pytest.mark.parametrize("mode", list(Mode))
def test_a_cell_completes(fake_plan: Plans, mode: Mode) -> None:
    events: list[Event] = []
    ended = run_cell(fake_plan(mode), listeners=[events.append])
    assert isinstance(events[0], Sampled)
    heard = [event for event in events if isinstance(event, Progress)]
    outcome = ended.outcome
    assert isinstance(outcome, Completed)
    assert outcome.placed_on == "fake:0"
    assert [p.phase for p in heard if p.phase in ("import", "build", "first step")] == ["import", "build", "first step"]
    phases = outcome.phases
    assert 0 <= phases.import_s <= phases.build_s <= phases.first_step_s <= phases.warmup_s <= phases.measure_s
    assert phases.measure_s <= outcome.measurement.blocks[0].at_s <= phases.end_s
    assert {"process_cpu", "process_memory"} <= {series.name for series in ended.telemetry.series}


def test_what_was_measured_is_kept_though_the_process_never_ends(
    fake_plan: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch.Worker, "module", "tests.runner.hangs_at_its_end")
    assert isinstance(run_cell(fake_plan(budget=Budget(steps=20, seconds=0.2, stall_s=5))).outcome, Completed)


@pytest.mark.parametrize(
    ("fault", "kind", "signal_name"),
    [
        ("oom", FailureKind.OUT_OF_MEMORY, None),
        ("raise", FailureKind.CRASHED, None),
        ("crash", FailureKind.CRASHED, "SIGSEGV"),
        ("kill", FailureKind.CRASHED, "SIGKILL"),
        ("nan", FailureKind.WRONG_RESULT, None),
        ("no-sync", FailureKind.WRONG_RESULT, None),
    ],
)
def test_how_it_ended(fake_plan: Plans, fault: str, kind: FailureKind, signal_name: str | None) -> None:
    failed = failure(fake_plan(fault=fault))
    assert failed.kind is kind
    assert failed.signal == signal_name


def test_a_device_that_is_too_small(fake_plan: Plans) -> None:
    assert failure(fake_plan(batch_size=64, memory_mb=32)).kind is FailureKind.OUT_OF_MEMORY


@pytest.mark.parametrize("fault", ["hang", "open-hang"])
def test_silence_is_a_hang(fake_plan: Plans, fault: str) -> None:
    failed = failure(fake_plan(budget=Budget(stall_s=5), fault=fault))
    assert failed.kind is FailureKind.TIMED_OUT
    assert "No sign of life" in failed.message
    assert failed.phase == ("build" if fault == "open-hang" else "warm-up")


def test_too_long_in_all_is_a_time_out(fake_plan: Plans) -> None:
    failed = failure(fake_plan(budget=Budget(seconds=100, timeout_s=2.0)))
    assert failed.kind is FailureKind.TIMED_OUT
    assert "Not done after 2 s" in failed.message


def test_a_module_that_hangs_at_import(fake_plan: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import time, sys\nif 'metalmark.runner.worker' in sys.orig_argv: time.sleep(1e6)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    failed = failure(fake_plan(budget=Budget(stall_s=1.5)))
    assert failed.kind is FailureKind.TIMED_OUT
    assert failed.phase == "start"


def test_rubbish_on_every_output_harms_nothing(fake_plan: Plans) -> None:
    assert isinstance(run_cell(fake_plan(fault="rubbish")).outcome, Completed)


def test_rubbish_as_outcome_is_a_crash(fake_plan: Plans, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A worker that writes nonsense where its outcome belongs, and rubbish on the progress pipe."""
    body = (
        "import os, sys; fd = int(os.environ['METALMARK_PROGRESS_FD']); os.write(fd, b'\\xff{]\\n' * 9); "
        "os.write(fd, b'{\\x22phase\\x22:\\x22\\xff\\x22}\\n' + b'[' * 60000 + b'\\n'); "
        "open(sys.argv[-1], 'wb').write(b'{\\x22outcome\\x22:' + b'[' * 99999)"
    )
    impostor = tmp_path / "python"
    impostor.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{body}" "$@"\n')
    impostor.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(impostor))
    failed = failure(fake_plan())
    assert failed.kind is FailureKind.CRASHED
    assert "can't be read" in failed.message


def test_the_systems_own_killer_is_out_of_memory(fake_plan: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([3, 4])
    monkeypatch.setattr(launch, "oom_kill_count", lambda: next(counts))
    failed = failure(fake_plan(fault="kill"))
    assert failed.kind is FailureKind.OUT_OF_MEMORY


def the_worker(parent: int) -> psutil.Process:
    """The one that measures: a Mac's sensors are children of the same parent."""
    (worker,) = [
        child for child in psutil.Process(parent).children() if "metalmark.runner.worker" in _arguments_of(child)
    ]
    return worker


def _arguments_of(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # a tool that has just ended, or one that runs as root
        return []


def darwins_killpg(group: int, number: int) -> None:
    """As macOS does it: a signal for a group whose members have all exited is refused with EPERM."""
    members = [pid for pid in psutil.pids() if _group_of(pid) == group]
    if members and all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in members):
        raise PermissionError(1, "Operation not permitted")
    _killpg(group, number)


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:  # it has just ended, or is nobody's to ask about
        return None


_killpg = os.killpg


def test_a_group_of_the_dead_ends_well_though_macos_refuses_the_signal(
    fake_plan: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "killpg", darwins_killpg)
    assert isinstance(run_cell(fake_plan()).outcome, Completed)
    assert failure(fake_plan(fault="crash")).signal == "SIGSEGV"
    assert failure(fake_plan(budget=Budget(stall_s=1.5), fault="hang")).kind is FailureKind.TIMED_OUT


class Kqueue:
    """What `wait_for_exit` asks of macOS's kqueue, by Linux's descriptor of a process."""

    def control(self, changes: list[Any], _most: int, timeout_s: float | None) -> list[Any]:
        assert timeout_s is None, "nothing wakes up while a worker runs"
        (change,) = changes
        assert (change.filter, change.fflags) == ("KQ_FILTER_PROC", "KQ_NOTE_EXIT")
        descriptor = os.pidfd_open(change.ident)
        try:
            select.select([descriptor], [], [])
        finally:
            os.close(descriptor)
        return [change]

    def close(self) -> None: ...


def kevent(ident: int, filter: str, flags: int, fflags: str) -> Any:
    return SimpleNamespace(ident=ident, filter=filter, flags=flags, fflags=fflags, data=0)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the stand-in for kqueue is made of Linux's pidfd_open")
def test_a_cell_ends_without_waitid_as_on_macos_before_python_3_13(
    fake_plan: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "waitid")
    words = {name: name for name in ("KQ_FILTER_PROC", "KQ_NOTE_EXIT")}
    stand_in = SimpleNamespace(kqueue=Kqueue, kevent=kevent, KQ_EV_ADD=1, KQ_EV_ONESHOT=16, KQ_EV_ERROR=0x4000, **words)
    mac = load_as_darwin(processes.__file__, select=stand_in)
    monkeypatch.setattr(launch, "wait_for_exit", mac["wait_for_exit"])
    assert isinstance(run_cell(fake_plan(budget=Budget(seconds=0.2, stall_s=20))).outcome, Completed)
    assert failure(fake_plan(fault="kill")).signal == "SIGKILL"


def load_as_darwin(file: str | None, **names: Any) -> dict[str, Any]:
    """A module of ours as it is on a Mac: the parts behind `sys.platform` are chosen when it is imported."""
    assert file is not None
    held: dict[str, Any] = {"__name__": "on_a_mac"}
    source = Path(file).read_text().replace("sys.platform", '"darwin"')
    exec(compile(source, file, "exec"), held)
    held.update(names)
    return held


def test_a_waiter_that_fails_is_told_at_once_and_not_after_the_stall(
    fake_plan: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: int) -> None:
        raise AttributeError("module 'os' has no attribute 'waitid'")

    monkeypatch.setattr(launch, "wait_for_exit", missing)
    failed = failure(fake_plan(budget=Budget(stall_s=200, seconds=200)))
    assert failed.kind is FailureKind.CRASHED
    assert "could not be waited for: AttributeError" in failed.message
    assert "report it" in failed.hint


ABORTED = (
    b"libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution "
    b"failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\n"
)


@pytest.mark.parametrize(
    ("said", "code", "kind"),
    [
        (ABORTED, -signal.SIGABRT, FailureKind.OUT_OF_MEMORY),
        (b"error 8: kIOGPUCommandBufferCallbackErrorOutOfMemory\n", -signal.SIGABRT, FailureKind.OUT_OF_MEMORY),
        (b"[METAL] Insufficient Memory\n", -signal.SIGABRT, FailureKind.OUT_OF_MEMORY),
        (b"Assertion failed: x == y\n", -signal.SIGABRT, FailureKind.CRASHED),
        (ABORTED, 1, FailureKind.CRASHED),
        (b"", -signal.SIGKILL, FailureKind.CRASHED),
    ],
)
def test_metals_words_make_an_abort_out_of_memory(tmp_path: Path, said: bytes, code: int, kind: FailureKind) -> None:
    output = tmp_path / "output.txt"
    output.write_bytes(b"some warning\n" + said)
    failed = launch.died(code, output, oom_killed=False)
    assert failed.kind is kind
    assert failed.signal == (signal.Signals(-code).name if code < 0 else None)
    if kind is FailureKind.OUT_OF_MEMORY:
        assert "--batch-size" in failed.hint
        assert "SIGABRT" in failed.message


def test_a_worker_that_metal_aborts_is_out_of_memory(fake_plan: Plans) -> None:
    """The whole way: the software device prints MLX's last words and aborts."""
    failed = failure(fake_plan(fault="metal-oom"))
    assert (failed.kind, failed.signal) == (FailureKind.OUT_OF_MEMORY, "SIGABRT")
    assert "Insufficient Memory" in failed.detail


def test_ctrl_c_stops_the_worker(fake_plan: Plans) -> None:
    workers: list[psutil.Process] = []

    def interrupt(event: Event) -> None:
        if isinstance(event, Progress) and event.phase == "measure":
            workers.append(the_worker(os.getpid()))
            raise KeyboardInterrupt

    outcome = run_cell(fake_plan(budget=Budget(seconds=60)), listeners=[interrupt]).outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.INTERRUPTED
    assert workers
    assert not any(worker.is_running() for worker in workers)


PARENT = """
from metalmark.model.plan import *
from metalmark.runner.launch import run_cell
from metalmark.workloads.catalog import load
params = {p.name: p.default for p in load("fake").params}
plan = Plan(workload="fake", params=params, mode=Mode.TRAINING, framework="fake",
            device=Device(kind=DeviceKind.GPU), budget=Budget(seconds=600))
run_cell(plan, listeners=[lambda event: print(getattr(event, "phase", ""), flush=True)])
"""


def test_the_worker_dies_with_a_parent_that_was_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    for line in parent.stdout:
        if line.strip() == "measure":
            break
    worker = the_worker(parent.pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_no_descriptor_is_left_open(fake_plan: Plans) -> None:
    run_cell(fake_plan())
    before = psutil.Process().num_fds()
    for fault in ("none", "crash", "oom"):
        run_cell(fake_plan(fault=fault))
    assert psutil.Process().num_fds() == before


@pytest.mark.parametrize(("number", "raised"), [(errno.ESRCH, False), (errno.EACCES, True)])
def test_an_exit_that_was_missed_is_an_exit_and_another_error_is_not(number: int, raised: bool) -> None:
    """Where there is room for an event, macOS's kevent reports an error as one."""
    missed = SimpleNamespace(control=lambda *_: [SimpleNamespace(flags=0x4000, data=number)], close=lambda: None)
    words = dict.fromkeys(("KQ_FILTER_PROC", "KQ_NOTE_EXIT", "KQ_EV_ADD", "KQ_EV_ONESHOT"), 1)
    stand_in = SimpleNamespace(kqueue=lambda: missed, kevent=lambda *_: None, KQ_EV_ERROR=0x4000, **words)
    wait = load_as_darwin(processes.__file__, select=stand_in)["wait_for_exit"]
    with pytest.raises(PermissionError) if raised else nullcontext():
        wait(1)

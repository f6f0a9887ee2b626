"""Starts a command as it was typed, in the foreground, and attends it until it ends.

It has our terminal, our streams and our process group, as a shell would give them to it: Ctrl-C reaches it without us.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import msgspec

from metalmark.errors import UsageError
from metalmark.machine.awake import kept_awake
from metalmark.machine.orphans import marked_processes, scratch_folder
from metalmark.machine.processes import wait_for_exit
from metalmark.machine.sleep import SleepWatch
from metalmark.model.run import Telemetry
from metalmark.telemetry.sampler import Sampler
from metalmark.telemetry.sensors import default_sensors
from metalmark.watch.agent_package import AGENT_FOLDER
from metalmark.watch.seen import SeenProcesses

FOLDER = "METALMARK_WATCH_FOLDER"
HZ = 1.0
GRACE_S = 2.0
READ_EVERY_S = 5.0
LOOKS, PAUSE_S = 4, 0.15
PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
LEFT_TO_IT = (signal.SIGINT, signal.SIGQUIT)
"""The terminal sends them to the command, too, and it is the command's to say what they mean."""


class AttendedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended, and what was seen of it."""

    pid: int
    exit_code: int | None
    """None: it was ended by a signal."""
    signal: str
    begin_s: float
    """A reading of time.monotonic()."""
    elapsed_s: float
    seen: SeenProcesses
    running: tuple[int, ...]
    """Processes that it left behind."""
    telemetry: Telemetry
    notes: tuple[str, ...]

    @property
    def status(self) -> int:
        """The exit code as a shell counts it."""
        return self.exit_code if self.exit_code is not None else 128 + signal.Signals[self.signal].value


def attend(command: Sequence[str]) -> AttendedCommand:
    """Run a command to its end. What it prints and reads is its own, and so are its signals."""
    with scratch_folder() as folder, kept_awake() as sleepy:
        sleep, begin = SleepWatch(), time.monotonic()
        seen = SeenProcesses(folder, begin)
        with _signals_left_to_it() as pass_on_to:
            process = _start(command, folder)
            pass_on_to(process)
            sampler = Sampler(default_sensors(process.pid), HZ, begin)
            sampler.start()
            _wait(process, seen)
            elapsed_s = time.monotonic() - begin
            code = process.wait()
            gap = sleep.gap()
            telemetry = sampler.stop(GRACE_S)
        running = _left_running(folder)
        seen.read()
        ended_by = signal.Signals(-code).name if code < 0 else ""
        return AttendedCommand(
            pid=process.pid,
            exit_code=None if code < 0 else code,
            signal=ended_by,
            begin_s=begin,
            elapsed_s=elapsed_s,
            seen=seen,
            running=running,
            telemetry=msgspec.structs.replace(telemetry, slept_s=gap.slept_s, wall_gap_s=gap.wall_gap_s),
            notes=tuple(note for note in (gap.note, sleepy) if note),
        )


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    known = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        # An empty entry would be the current folder, so there is none where nothing was set.
        "PYTHONPATH": os.pathsep.join([str(AGENT_FOLDER), known] if known else [str(AGENT_FOLDER)]),
        FOLDER: str(folder),
    }
    try:
        return subprocess.Popen(list(command), env=environment)
    except (OSError, ValueError) as error:
        raise _not_started(command[0], error) from error


def _not_started(word: str, error: OSError | ValueError) -> UsageError:
    if Path(word).suffix == ".py":
        return UsageError(f"{word} is a script, not a command.", hint=f"metalmark watch -- python {word}")
    if isinstance(error, FileNotFoundError):
        hint = "Type it as you would without metalmark: metalmark watch -- python train.py"
        if word == "python":
            hint = "This machine may call it python3: metalmark watch -- python3 train.py"
        return UsageError(f"There is no command {word!r} here.", hint=hint)
    why = error.strerror if isinstance(error, OSError) else str(error)
    return UsageError(f"{word!r} could not be started: {why}.", hint="metalmark watch -- python train.py")


@contextmanager
def _signals_left_to_it() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """While the block lasts, the command decides about signals. What is ignored stays ignored, as under nohup.

    Functions, and not SIG_IGN: a process that is started inherits what is ignored, but no function.
    """
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        if not started:
            early.append(number)
        for process in started:
            process.send_signal(number)

    def leave(_: int, __: FrameType | None) -> None:
        return

    def pass_on_to(process: subprocess.Popen[bytes]) -> None:
        started.append(process)
        for number in early:
            process.send_signal(number)

    if threading.current_thread() is not threading.main_thread():  # only the main thread can have handlers
        yield pass_on_to
        return
    before = {}
    for numbers, handler in ((LEFT_TO_IT, leave), (PASSED_ON, pass_on)):
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield pass_on_to
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def _wait(process: subprocess.Popen[bytes], seen: SeenProcesses) -> None:
    """Sleep until the command has ended; now and then read what was written, so that it does not pile up."""
    ended = threading.Event()

    def wait() -> None:
        with suppress(ChildProcessError):
            wait_for_exit(process.pid)
        ended.set()

    threading.Thread(target=wait, daemon=True, name="waiter").start()
    while not ended.wait(READ_EVERY_S):
        seen.read()


def _left_running(folder: Path) -> tuple[int, ...]:
    """Return the processes of the command that are still there. Those that are just ending get a moment for it."""
    mark = f"{FOLDER}={folder}".encode() + b"\0"
    running = marked_processes(mark)
    for _ in range(LOOKS):
        if not running:
            break
        time.sleep(PAUSE_S)
        running = marked_processes(mark)
    return tuple(running)

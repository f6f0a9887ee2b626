"""Starts recording in this process: as a script's interpreter begins, or in one where the frameworks are imported.

install(folder)       each process of a watched script; its lines go to a file of its own in the folder
hook_into(recorder)   a process that records itself, until undo() is called
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from metalmark_agent.importing import HOOKS, ImportWatch
from metalmark_agent.recorder import Recorder, clock

FOLDER = "METALMARK_WATCH_FOLDER"
"""Environment variable with the folder for lines. Processes without it are not followed."""
FIRST_PAUSE_S, PAUSE_S = 0.1, 1.0
"""How long to wait between two flushes. A script that is killed soon has left some lines, too."""
MOST_BYTES = 4 << 20
"""Of one file of lines."""
MOST_ENDING_S = 2.0
"""How long the end of a script may wait for losses that a device still computes."""
FRAMEWORKS = ("torch", "keras", "tensorflow", "jax", "mlx")
VERSIONED = ("torch", "tensorflow", "keras", "jax", "mlx", "lightning", "transformers", "accelerate", "optax")

Undo = Callable[[], None]


class LineFile:
    """Appends lines to a file in the folder, which is opened for each: a script may close every file it has open. One
    that has grown is followed by another, so that it can be read and removed. Once the folder is gone, nobody listens
    any more."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.lost = False
        self._begin()

    def _begin(self) -> None:
        self._stem = os.path.join(self._folder, f"{os.getpid()}-{os.urandom(4).hex()}")
        self._number, self._size = 0, 0

    def forked(self) -> None:
        """In a forked child: a file of its own, which is there only if it has something to say."""
        self._begin()

    def write(self, line: dict[str, Any]) -> None:
        if self.lost:
            return
        text = "" if self._number or self._size else json.dumps(_who()) + "\n"
        text += json.dumps(line) + "\n"
        if self._size >= MOST_BYTES:
            self._number, self._size = self._number + 1, 0
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            number = os.open(f"{self._stem}.{self._number}.jsonl", flags, 0o600)
            try:
                self._size += os.write(number, text.encode())
            finally:
                os.close(number)
        except OSError:
            self.lost = True


def _who() -> dict[str, Any]:
    words = list(getattr(sys, "orig_argv", None) or getattr(sys, "argv", None) or [])
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "rank": os.environ.get("RANK", ""),
        "python": ".".join(map(str, sys.version_info[:3])),
        "spawned": "--multiprocessing-fork" in words,
        "at": clock(),
    }


class Hooks:
    """What is hooked into the frameworks of this process, for one recorder."""

    def __init__(
        self, recorder: Recorder, tell: Callable[[str], None], imported: Callable[[str], None] = lambda _: None
    ) -> None:
        self._recorder, self._tell, self._told_import = recorder, tell, imported
        self._undos: list[Undo] = []
        self._watch = ImportWatch(tuple(HOOKS), self._imported)

    def start(self) -> None:
        """Hook into what is imported already, and into the rest when it is imported."""
        self._watch.start()
        for name in HOOKS:
            # A module that is being imported by another thread is in sys.modules before it is complete.
            module = sys.modules.get(name)
            if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
                self._imported(name)

    def undo(self) -> None:
        self._watch.stop()
        while self._undos:
            self._guarded(self._undos.pop())

    def _imported(self, name: str) -> None:
        module, _, function = HOOKS[name].partition(":")

        def hook() -> None:
            self._undos.append(getattr(import_module(module), function)(self._recorder))
            framework = name.partition(".")[0]
            if framework in FRAMEWORKS and framework not in self._recorder.frameworks:
                self._recorder.frameworks.append(framework)
                self._told_import(framework)

        self._guarded(hook, f"after the import of {name}: ")

    def _guarded(self, call: Callable[[], None], where: str = "") -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  whatever goes wrong here must not reach the script
            self._tell(f"{where}{type(error).__name__}: {error}")


def hook_into(recorder: Recorder, tell: Callable[[str], None] = lambda _: None) -> Undo:
    """Record what the frameworks of this process do from now on; `tell` takes what could not be hooked into."""
    hooks = Hooks(recorder, tell)
    hooks.start()
    return hooks.undo


class Following:
    """A process of a watched script, from its first line to its last."""

    def __init__(self, folder: str) -> None:
        self._file = LineFile(folder)
        self.recorder = Recorder(self._emit, wake=self._wake)
        self._stopping = threading.Event()
        self._flushing = self._is_fork = False

    def start(self) -> None:
        self._file.write({})  # that this interpreter loaded us is worth a line
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.end)
        Hooks(self.recorder, self.tell, lambda name: self._file.write({"imported": name})).start()

    def tell(self, trouble: str) -> None:
        self._file.write({"trouble": trouble[:500]})

    def end(self) -> None:
        """At the interpreter's end. Losses that a device still computes are waited for, but not for ever."""
        self._stopping.set()
        if self._is_fork and not self.recorder.steps:
            return
        if self.recorder.pending:
            reading = threading.Thread(target=self.recorder.read_losses, daemon=True, name="metalmark-losses")
            reading.start()
            reading.join(MOST_ENDING_S)
        self.recorder.flush(ended=True)

    def _emit(self, line: dict[str, Any]) -> None:
        line["versions"] = _versions()
        error = getattr(sys, "last_value", None)
        if line.get("ended") and error is not None:  # Python sets it for what nobody caught
            line["error"] = f"{type(error).__name__}: {error}"[:2000]
        self._file.write(line)

    def _wake(self) -> None:
        """At the first sign of training: only a process that trains gets a thread of ours."""
        if self._flushing:
            return
        self._flushing = True
        threading.Thread(target=self._flush_again_and_again, daemon=True, name="metalmark-flush").start()
        process = sys.modules.get("multiprocessing.process")
        util = sys.modules.get("multiprocessing.util")
        if process is not None and util is not None and process.parent_process() is not None:
            # Children of multiprocessing end without what atexit has.
            util.Finalize(None, self.end, exitpriority=100)

    def _flush_again_and_again(self) -> None:
        pause_s, stopping = FIRST_PAUSE_S, self._stopping
        while not stopping.wait(pause_s) and not self._file.lost:
            if stopping is not self._stopping:  # a forked child has its own
                return
            pause_s = min(PAUSE_S, pause_s * 1.5)
            try:
                self.recorder.flush()
            except Exception as error:  # noqa: BLE001  the script goes on, and the next second may do better
                self.tell(f"{type(error).__name__}: {error}")

    def _forked(self) -> None:
        self._is_fork = True
        self._file.forked()
        self.recorder.forked()
        self._stopping, self._flushing = threading.Event(), False


def _versions() -> dict[str, str]:
    found = {name: getattr(sys.modules[name], "__version__", None) for name in VERSIONED if name in sys.modules}
    return {name: str(version) for name, version in found.items() if isinstance(version, str)}


def install(folder: str) -> None:
    Following(folder).start()

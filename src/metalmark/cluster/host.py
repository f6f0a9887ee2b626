"""NodeHost: what Ray runs on a node. It starts our agent there, and passes lines between that and the command.

All work is done by the agent, a process with the environment in which the node was started: Ray sets variables for its
workers that would steer a framework (OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES). An agent ends when its host does.
"""

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

RAYLET = "RAY_RAYLET_PID"
SET_BY_RAY = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONBREAKPOINT")
MOST_LINES = 256
TAIL = 600


class NodeHost:
    def __init__(self, module: str) -> None:
        """`module`: what the agent is, as `python -m` takes it."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  the agent writes to it as long as it lives
        self._agent = subprocess.Popen(
            [sys.executable, "-m", module],
            env=node_environment(),
            cwd=Path.home() if Path.home().is_dir() else "/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # What ends a group of Ray's must not end it before it has tidied up.
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True, name="agent").start()

    def send(self, line: bytes) -> None:
        assert self._agent.stdin is not None
        self._agent.stdin.write(line + b"\n")
        self._agent.stdin.flush()

    def poll(self, wait_s: float) -> list[bytes]:
        """Return the lines that the agent has written, as soon as there is one; none after so many seconds."""
        lines: list[bytes] = []
        with suppress(queue.Empty):
            while len(lines) < MOST_LINES:
                line = self._lines.get_nowait() if lines else self._lines.get(timeout=wait_s)
                if line is None:
                    self._lines.put(None)  # for whoever asks again
                    if not lines:
                        raise RuntimeError(self._how_it_ended())
                    break
                lines.append(line)
        return lines

    def stop(self) -> None:
        """Stop what the agent does now, as Ctrl-C does."""
        self._agent.send_signal(signal.SIGINT)

    def _read(self) -> None:
        assert self._agent.stdout is not None
        for line in self._agent.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _how_it_ended(self) -> str:
        code = self._agent.wait()
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - TAIL))
        last = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return f"its agent ended with {code}{f': {last[-1]}' if last else ''}"


def node_environment() -> dict[str, str]:
    """Return the environment in which somebody started the node."""
    try:
        return dict(psutil.Process(int(os.environ.get(RAYLET, os.getppid()))).environ())
    except (psutil.Error, ValueError, OSError):
        return {name: value for name, value in os.environ.items() if name not in SET_BY_RAY}

"""How much of one core the command's own process uses while its worker is measured, telemetry at 5 Hz.

python benchmarks/idle_parent.py

The real command runs in a pseudo-terminal, so that its live table is drawn too, on a real PyTorch worker; its CPU
time is read between two moments of the measuring phase. Worker and command are told apart by process id.
"""

from __future__ import annotations

import os
import pty
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path

import psutil

BOUND = 0.02
SECONDS = 20


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "METALMARK_STORE": str(Path(folder, "store.sqlite3")), "TERM": "xterm-256color"}
        script = str(Path(sysconfig.get_path("scripts")) / "metalmark")
        arguments = ["bench", "mnist-mlp", "--framework", "torch", "--device", "cpu", "--seconds", str(SECONDS + 8)]
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(script, [script, *arguments], environment)
        threading.Thread(target=_swallow, args=(terminal,), daemon=True).start()
        command = psutil.Process(pid)
        while not command.children():
            time.sleep(0.1)
        time.sleep(8)  # import, build and warm-up
        begin_s, before = time.perf_counter(), _cpu_s(command)
        time.sleep(SECONDS)
        used_s, lasted_s = _cpu_s(command) - before, time.perf_counter() - begin_s
        worker = command.children()
        if not worker:
            print("the worker ended too early", file=sys.stderr)
            return 1
        _, status = os.waitpid(pid, 0)
    print(f"watched_s: {lasted_s:.1f}")
    print(f"command_exit_code: {os.waitstatus_to_exitcode(status)}")
    share = used_s / lasted_s
    print(f"parent_share_of_one_core: {share:.4f}")
    return 0 if share <= BOUND else 1


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _swallow(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main())

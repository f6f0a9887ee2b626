"""Processes that share a store: one that is killed with kill -9 in the middle of its work, several at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def kill_after(script: str, store_file: Path, *, number: int = 40) -> int:
    """Run `script` on the store until it has printed that number; the last one it printed."""
    said = -1
    with subprocess.Popen(
        [sys.executable, "-c", script, str(store_file)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            said = int(line)
            if said == number:
                writer.kill()
                break
    return said


def run_at_once(script: str, store_file: Path, *, number: int) -> list[str]:
    """Run `script` in several processes, which each print "ready" and go on when they hear of it; what they print."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(store_file)], text=True, cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(number)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = []
    for process in processes:
        said, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        printed.append(said)
    return printed

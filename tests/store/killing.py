"""A writer that is killed with kill -9 in the middle of its work."""

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

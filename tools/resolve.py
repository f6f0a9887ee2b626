"""Proves without a Mac that `make demo` and `make test` would install on one: python tools/resolve.py [PROFILE ...]

uv resolves what the installer would ask pip for on an arm64 Mac with macOS 14, from wheels alone, for each Python
that Metalmark claims. The exit code is 1 where a set has no solution, and 3 where nothing is proved, because uv is
missing or the package index does not answer.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from install_plan import FIRST_MACOS, GOALS, NEWEST, OLDEST, PROFILES, Host, plan

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = [(3, minor) for minor in range(OLDEST[1], NEWEST[1] + 1)]
SHOWN = ("torch", "tensorflow", "tensorflow-metal", "keras", "jax", "mlx", "zeus-apple-silicon")
NO_SOLUTION, NOTHING_PROVED = 1, 3
SILENT_INDEX = ("Failed to fetch", "error sending request", "the network was disabled")
"""What uv says when the index does not answer."""


@dataclass(frozen=True)
class Resolution:
    profile: str
    python: tuple[int, int]
    versions: dict[str, str]
    """By package; empty where there is no solution."""
    reason: str = ""
    answered: bool = True
    """Whether the index answered, so that the reason is a property of the set."""


def requirements(profile: str, python: tuple[int, int]) -> list[str]:
    """Return what the installer asks pip for on an arm64 Mac."""
    mac = Host(system="Darwin", machine="arm64", python=python, macos=FIRST_MACOS, apple_silicon=True)
    project = f"metalmark[{','.join(PROFILES[profile])}] @ {ROOT.as_uri()}"
    return [*plan(mac, GOALS[profile]).requirements, project]


def find_uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


def resolve(uv: str, profile: str, python: tuple[int, int]) -> Resolution:
    command = [uv, "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:"]
    command += ["--python-platform", "aarch64-apple-darwin", "--python-version", f"{python[0]}.{python[1]}"]
    # The Python that uv itself asks may be any: without this it would download the one that it resolves for.
    command += ["--python", sys.executable, "--no-python-downloads", "--constraint", str(ROOT / "constraints.txt")]
    done = subprocess.run(
        command,
        input="\n".join(requirements(profile, python)) + "\n",
        capture_output=True,
        text=True,
        check=False,
        # The wheels' macOS: uv assumes an older one.
        env={**os.environ, "MACOSX_DEPLOYMENT_TARGET": f"{FIRST_MACOS[0]}.{FIRST_MACOS[1]}"},
        # uv looks for a project in the current folder, and for its settings: neither is wanted.
        cwd=tempfile.gettempdir(),
    )
    if done.returncode == 0:
        return Resolution(profile, python, dict(re.findall(r"^([\w.-]+)==(\S+)", done.stdout, re.MULTILINE)))
    reason = " ".join(done.stderr.split()) or f"uv ended with exit code {done.returncode}"
    return Resolution(profile, python, {}, reason, answered=not any(words in reason for words in SILENT_INDEX))


def line(resolution: Resolution) -> str:
    head = f"{GOALS[resolution.profile]}, Python {resolution.python[0]}.{resolution.python[1]}: "
    if resolution.reason:
        return head + ("no solution: " if resolution.answered else "the index did not answer: ") + resolution.reason
    versions = resolution.versions
    shown = ", ".join(f"{name} {versions[name]}" for name in SHOWN if name in versions)
    absent = ", ".join(name for name in SHOWN if name not in versions)
    return f"{head}{shown}{f'; without {absent}' if absent else ''}; {len(versions)} packages"


def main(profiles: list[str]) -> int:
    if unknown := set(profiles) - set(PROFILES):
        print(f"usage: tools/resolve.py [{' | '.join(PROFILES)}] ...; not {', '.join(unknown)}", file=sys.stderr)
        return 2
    uv = find_uv()
    if uv is None:
        print("Nothing is proved: uv is missing. Install it: pip install uv", file=sys.stderr)
        return NOTHING_PROVED
    wanted = [(profile, python) for profile in profiles or list(PROFILES) for python in PYTHONS]
    # uv mostly waits for the index.
    with ThreadPoolExecutor(4) as pool:
        resolutions = list(pool.map(lambda pair: resolve(uv, *pair), wanted))
    for resolution in resolutions:
        print(line(resolution))
    if any(resolution.reason and resolution.answered for resolution in resolutions):
        return NO_SOLUTION
    return 0 if all(resolution.answered for resolution in resolutions) else NOTHING_PROVED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Whether this process runs in a container, and what that may use: CPU quota and memory limit, cgroup 1 and 2."""

import math
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from metalmark.machine.tools import read_text, to_count

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_SYSTEM = Path("/")
_MARKS = (".dockerenv", "run/.containerenv")
_ENGINES = ("docker", "kubepods", "containerd", "libpod", "podman", "lxc", "garden", "actions_job")


class Limits(Struct, frozen=True, kw_only=True):
    """What the container may use; None where it is not limited."""

    cores: int | None = None
    memory_bytes: int | None = None


def limits(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> Limits:
    """Return the tightest limits from this process's own group up to the root, since each of them applies."""
    cores: list[int] = []
    memory: list[int] = []
    for folder in _folders(root, read_text(membership)):
        quota = _quota(folder)
        if quota is not None:
            cores.append(quota)
        for name in ("memory.max", "memory.limit_in_bytes"):
            size = to_count(read_text(folder / name))
            if size is not None:
                memory.append(size)
    return Limits(cores=min(cores, default=None), memory_bytes=min(memory, default=None))


def in_container(root: Path = _SYSTEM) -> bool | None:
    """Look for the file that the engine leaves, or for the group that it puts the first process into."""
    try:
        if any((root / mark).exists() for mark in _MARKS):
            return True
        groups = (root / "proc" / "1" / "cgroup").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    return any(engine in groups for engine in _ENGINES)


def parse_membership(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Read /proc/self/cgroup as (controller, parts of the path); version 2 has no name of a controller."""
    groups: list[tuple[str, tuple[str, ...]]] = []
    for line in text.splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        # Seen from outside its namespace a group's path begins with "..": that leads nowhere here.
        parts = tuple(part for part in fields[2].split("/") if part not in ("", ".", "..") and "\0" not in part)
        groups.extend((controller, parts) for controller in fields[1].split(",") if controller in ("", "cpu", "memory"))
    return groups


def _folders(root: Path, membership: str) -> Iterator[Path]:
    for controller, parts in parse_membership(membership):
        mount = root / controller if controller else root
        # A container often sees its own group mounted as the root, under a path that only the host knows.
        for depth in range(len(parts), -1, -1):
            yield mount.joinpath(*parts[:depth])


def _quota(folder: Path) -> int | None:
    fields = read_text(folder / "cpu.max").split() or [
        read_text(folder / "cpu.cfs_quota_us").strip(),
        read_text(folder / "cpu.cfs_period_us").strip(),
    ]
    # "max" and -1 stand for no quota, and neither can be read as a count.
    quota_us, period_us = (to_count(field) for field in (*fields, "", "")[:2])
    # Half a core is still one core that threads can run on.
    return max(1, math.ceil(quota_us / period_us)) if quota_us and period_us else None

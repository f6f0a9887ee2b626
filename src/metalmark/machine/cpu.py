"""The processor and the memory of this computer, and which of the instructions that help training it has."""

import os
import platform
import re
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from metalmark.machine.cgroup import Limits
from metalmark.machine.tools import to_count, to_name

_CPUINFO = Path("/proc/cpuinfo")
_HEAD_BYTES = 16_384
"""The first processor's entry; on a large machine the whole file takes the kernel milliseconds to write."""

# Arm servers print numbers instead of a name; these are the ones that GPUs and clouds come with.
_ARM = "0x41"
_NEOVERSE = {"0xd0c": "N1", "0xd40": "V1", "0xd49": "N2", "0xd4f": "V2", "0xd84": "V3", "0xd8e": "N3"}

# Our name for a feature; what Linux calls it among the flags (x86) or Features (Arm) of /proc/cpuinfo; and its keys
# below hw.optional on a Mac, where the value is 1, or for AMX a version.
_FEATURES: dict[str, tuple[set[str], set[str]]] = {
    "avx2": ({"avx2"}, {"avx2_0"}),
    "avx512": ({"avx512f"}, {"avx512f"}),
    "amx": ({"amx_tile"}, {"amx_version"}),
    "neon": ({"asimd"}, {"AdvSIMD", "neon"}),
    "sve": ({"sve"}, set()),
    "sme": ({"sme"}, {"arm.FEAT_SME"}),
    "bf16": ({"avx512_bf16", "avx_ne_convert", "amx_bf16", "bf16"}, {"arm.FEAT_BF16"}),
    "fp16": ({"avx512_fp16", "amx_fp16", "asimdhp"}, {"arm.FEAT_FP16", "neon_fp16"}),
    "int8": ({"avx512_vnni", "avx_vnni", "amx_int8", "i8mm"}, {"arm.FEAT_I8MM", "avx512vnni"}),
}


def parse_cpuinfo(text: str) -> str | None:
    """Return the processor's name from /proc/cpuinfo. `Serial`, which some boards print there, is not read."""
    fields = _fields(text)
    for key in ("model name", "Model", "Hardware", "cpu"):
        name = to_name(fields.get(key))
        if name:
            return name
    core = _NEOVERSE.get(fields.get("CPU part", "")) if fields.get("CPU implementer") == _ARM else None
    return f"Arm Neoverse {core}" if core else None


def flags_of(cpuinfo: str) -> set[str]:
    """Return the flags of the first processor; the others have the same."""
    fields = _fields(cpuinfo)
    return set(fields.get("flags", fields.get("Features", "")).split())


def _fields(cpuinfo: str) -> dict[str, str]:
    """Return the fields of the first processor."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields


def cpuinfo() -> str:
    """Return what Linux says of the first processor; an empty text elsewhere."""
    try:
        with _CPUINFO.open("rb") as file:
            return file.read(_HEAD_BYTES).decode("utf-8", "replace")
    except OSError:  # not a Linux
        return ""


def physical_cores() -> int | None:
    return psutil.cpu_count(logical=False) or None


def logical_cores() -> int | None:
    return psutil.cpu_count(logical=True) or None


def visible_cores() -> int | None:
    """Return the number of processors that a framework sees when it decides how many threads to start: on Linux those
    that this process may run on, elsewhere all."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return logical_cores()


def usable_cores(limits: Limits) -> int | None:
    known = [count for count in (visible_cores(), limits.cores) if count is not None]
    return min(known, default=None)


def cores_each(limits: Limits, processes: int) -> int:
    """Return how many cores each of several processes gets where they share them equally; at least one."""
    return max(1, (usable_cores(limits) or 1) // processes)


def memory_bytes(limits: Limits) -> int:
    total: int = psutil.virtual_memory().total
    # Version 1 writes "no limit" as a number near 2**63; the smaller one wins either way.
    return total if limits.memory_bytes is None else min(total, limits.memory_bytes)


def operating_system() -> str:
    """Return name and version. On a Mac it is the version that this Python is told, which sysctl may correct later.
    Linux's release is cut to its number: what follows is whatever its builder typed."""
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}".strip()
    name = os.uname()
    number = re.match(r"\d+(\.\d+)*", name.release)
    kernel = f"{name.sysname} {number[0] if number else ''}".strip()
    try:
        release = platform.freedesktop_os_release()
    except OSError:  # a bare container has no os-release
        return kernel
    distribution = to_name(release.get("PRETTY_NAME"))
    return f"{distribution}, {kernel}" if distribution else kernel


def features_of_linux(cpuinfo: str) -> tuple[str, ...]:
    flags = flags_of(cpuinfo)
    return tuple(name for name, (words, _) in _FEATURES.items() if words & flags)


def features_of_mac(sysctl: dict[str, str]) -> tuple[str, ...]:
    present = {key for _, keys in _FEATURES.values() for key in keys if to_count(sysctl.get(f"hw.optional.{key}"))}
    return tuple(name for name, (_, keys) in _FEATURES.items() if keys & present)


def is_virtual_linux(cpuinfo: str) -> bool | None:
    """Return whether an x86 processor carries the hypervisor's flag; None on Arm, which has no such flag."""
    flags = flags_of(cpuinfo)
    return "hypervisor" in flags if "fpu" in flags else None

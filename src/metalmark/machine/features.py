"""What the processor's instruction set has of what training uses, under one name on every system."""

from __future__ import annotations

from metalmark.machine.words import to_count

# Our name, then what Linux calls it among the flags (x86) or Features (Arm) of /proc/cpuinfo.
_LINUX = {
    "avx2": {"avx2"},
    "avx512": {"avx512f"},
    "amx": {"amx_tile"},
    "neon": {"asimd"},
    "sve": {"sve"},
    "sme": {"sme"},
    "bf16": {"avx512_bf16", "avx_ne_convert", "amx_bf16", "bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"},
    "int8": {"avx512_vnni", "avx_vnni", "amx_int8", "i8mm"},
}

# And below hw.optional of a Mac, where it is 1, or for AMX a version.
_MAC = {
    "avx2": {"avx2_0"},
    "avx512": {"avx512f"},
    "amx": {"amx_version"},
    "neon": {"AdvSIMD", "neon"},
    "sme": {"arm.FEAT_SME"},
    "bf16": {"arm.FEAT_BF16"},
    "fp16": {"arm.FEAT_FP16", "neon_fp16"},
    "int8": {"arm.FEAT_I8MM", "avx512vnni"},
}


def of_linux(cpuinfo: str) -> tuple[str, ...]:
    flags = flags_of(cpuinfo)
    return tuple(name for name, words in _LINUX.items() if words & flags)


def of_mac(sysctl: dict[str, str]) -> tuple[str, ...]:
    return tuple(name for name, keys in _MAC.items() if any(to_count(sysctl.get(f"hw.optional.{key}")) for key in keys))


def flags_of(cpuinfo: str) -> set[str]:
    """The first processor's; the others have the same."""
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() in ("flags", "Features"):
            return set(value.split())
    return set()

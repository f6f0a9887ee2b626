"""Whether this computer is a virtual machine, and whether we are in a container: both share with others."""

from __future__ import annotations

from pathlib import Path

from metalmark.machine.features import flags_of

_ROOT = Path("/")
_MARKS = (".dockerenv", "run/.containerenv")
_GROUPS = ("docker", "kubepods", "containerd", "libpod", "podman", "lxc", "garden", "actions_job")


def machine_of_linux(cpuinfo: str) -> bool | None:
    """x86 processors carry the hypervisor's flag; Arm's have no such thing."""
    flags = flags_of(cpuinfo)
    return "hypervisor" in flags if "fpu" in flags else None


def machine_of_mac(sysctl: dict[str, str]) -> bool | None:
    return {"0": False, "1": True}.get(sysctl.get("kern.hv_vmm_present", ""))


def container_of_linux(root: Path = _ROOT) -> bool | None:
    """By the file that the engine leaves, or by the group that it puts the first process into."""
    try:
        if any((root / mark).exists() for mark in _MARKS):
            return True
        groups = (root / "proc" / "1" / "cgroup").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    return any(word in groups for word in _GROUPS)

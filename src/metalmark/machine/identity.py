"""What this computer is: enough to compare it with others, and nothing that names its owner."""

import os
import platform
import re
import sys
import sysconfig
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from metalmark.machine import apple, chips, cpu, nvidia
from metalmark.machine.cgroup import in_container, limits
from metalmark.machine.tools import to_count, to_name
from metalmark.model.run import Absent, Gpu, Machine

_PACKAGER = re.compile(r"\| *packaged by ([^|]{1,80})\|")


class Identity(Struct, frozen=True, kw_only=True):
    machine: Machine
    failed_tools: dict[str, str] = {}
    """For each tool that failed, the reason: the machine is then described without what that tool knows."""


def identify() -> Machine:
    return read_identity().machine


@cache
def read_identity() -> Identity:
    """Describe this computer. Cached: it can't change while we run, and `system_profiler` first takes a second."""
    bounds, cpuinfo = limits(), cpu.cpuinfo()
    machine = Machine(
        chip=cpu.parse_cpuinfo(cpuinfo) or to_name(os.uname().machine) or "unknown",
        architecture=os.uname().machine,
        physical_cores=cpu.physical_cores(),
        logical_cores=cpu.logical_cores(),
        usable_cores=cpu.usable_cores(bounds),
        memory_bytes=cpu.memory_bytes(bounds),
        os=cpu.operating_system(),
        gpus=nvidia.read_gpus(),
        features=cpu.features_of_linux(cpuinfo),
        virtual_machine=cpu.is_virtual_linux(cpuinfo),
        container=in_container() if sys.platform == "linux" else None,
        # One that was built for another processor is why Metal is absent.
        python_build=describe_python(
            implementation=platform.python_implementation(),
            version=platform.python_version(),
            built_for=sysconfig.get_platform(),
            banner=sys.version,
            free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        ),
    )
    failed_tools: dict[str, str] = {}
    if sys.platform == "darwin":
        gpus = apple.read_displays()
        if isinstance(gpus, Absent):
            failed_tools["system_profiler"] = gpus.reason
            gpus = ()
        machine = as_mac(machine, apple.read_sysctl(), gpus)
    return Identity(machine=with_peaks(machine), failed_tools=failed_tools)


def as_mac(machine: Machine, sysctl: dict[str, str], gpus: tuple[Gpu, ...]) -> Machine:
    """Return the same machine with what a Mac's own tools add; what they did not say stays as it was."""
    chip = to_name(sysctl.get("machdep.cpu.brand_string"))
    translated = sysctl.get("sysctl.proc_translated") == "1"
    version = apple.macos_version(sysctl)
    if translated and gpus:
        # Under Rosetta the processor calls itself VirtualApple; the GPU still has the chip's name.
        chip = gpus[0].name
    return replace(
        machine,
        chip=chip or machine.chip,
        architecture=f"{machine.architecture} under Rosetta" if translated else machine.architecture,
        physical_cores=to_count(sysctl.get("hw.physicalcpu")) or machine.physical_cores,
        logical_cores=to_count(sysctl.get("hw.logicalcpu")) or machine.logical_cores,
        memory_bytes=to_count(sysctl.get("hw.memsize")) or machine.memory_bytes,
        os=f"macOS {version}" if version else machine.os,
        gpus=gpus or machine.gpus,
        clusters=apple.clusters(sysctl),
        # Only Apple's GPUs say how many cores they have.
        variant=next((f"{gpu.cores}-core GPU" for gpu in gpus if gpu.cores), None),
        features=cpu.features_of_mac(sysctl),
        virtual_machine=apple.is_virtual_mac(sysctl),
    )


def with_peaks(machine: Machine) -> Machine:
    """Return the machine with the peak of each GPU, or the reason why that is not known."""
    # A GPU without memory of its own shares the machine's.
    gpus = (
        replace(gpu, peak=chips.peak(gpu.name, cores=gpu.cores, memory_bytes=gpu.memory_bytes or machine.memory_bytes))
        for gpu in machine.gpus
    )
    return replace(machine, gpus=tuple(gpus))


def describe_python(*, implementation: str, version: str, built_for: str, banner: str, free_threaded: bool) -> str:
    """Return which Python runs us. The banner is read for its packager only: its compiler and date help nobody."""
    packager = _PACKAGER.search(banner)
    parts = [f"{implementation} {version} for {built_for}"]
    if free_threaded:
        parts.append("free-threaded")
    if packager:
        parts.append(f"packaged by {packager[1].strip()}")
    return to_name(", ".join(parts)) or "unknown"

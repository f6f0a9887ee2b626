"""What this computer is, put together: enough to compare, nothing that names its owner."""

from __future__ import annotations

import os
import sys
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from metalmark.machine import apple, chips, cpu, features, nvidia, python, virtual
from metalmark.machine.cgroup import limits
from metalmark.machine.words import to_count, to_name
from metalmark.model.run import Absent, Gpu, Machine


class Identity(Struct, frozen=True, kw_only=True):
    machine: Machine
    failed_tools: dict[str, str] = {}
    """Tool → why it said nothing: the machine is then described without what it knows."""


def identify() -> Machine:
    return read_identity().machine


@cache
def read_identity() -> Identity:
    """Cached: it can't change while we run, and `system_profiler` takes a second when it is first asked."""
    bounds = limits()
    machine = Machine(
        chip=cpu.chip(),
        architecture=os.uname().machine,
        physical_cores=cpu.physical_cores(),
        logical_cores=cpu.logical_cores(),
        usable_cores=cpu.usable_cores(bounds),
        memory_bytes=cpu.memory_bytes(bounds),
        os=cpu.operating_system(),
        gpus=nvidia.read_gpus(),
        features=features.of_linux(cpu.cpuinfo()),
        virtual_machine=virtual.machine_of_linux(cpu.cpuinfo()),
        container=virtual.container_of_linux() if sys.platform == "linux" else None,
        python_build=python.build(),
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
    """The same machine with what a Mac's own tools add; what they did not say stays as it was."""
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
        variant=_variant(gpus),
        features=features.of_mac(sysctl),
        virtual_machine=virtual.machine_of_mac(sysctl),
    )


def with_peaks(machine: Machine) -> Machine:
    """Each GPU with what it could do at best, or the reason why that is not known."""
    # A GPU without memory of its own shares the machine's.
    gpus = (
        replace(gpu, peak=chips.peak(gpu.name, cores=gpu.cores, memory_bytes=gpu.memory_bytes or machine.memory_bytes))
        for gpu in machine.gpus
    )
    return replace(machine, gpus=tuple(gpus))


def _variant(gpus: tuple[Gpu, ...]) -> str | None:
    """Only Apple's GPUs say how many cores they have."""
    return next((f"{gpu.cores}-core GPU" for gpu in gpus if gpu.cores), None)

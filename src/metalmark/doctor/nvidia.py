"""The NVIDIA driver's view: GPUs, the CUDA it can run, and who else is on them."""

from __future__ import annotations

import os
from pathlib import Path

from metalmark.doctor.scene import Nvidia, NvidiaGpu
from metalmark.machine.nvidia import Nvml, with_nvml
from metalmark.machine.tools import to_count, to_name
from metalmark.model.run import Absent
from metalmark.scrub import scrub

KERNEL_MODULE = Path("/proc/driver/nvidia/version")


def read() -> Nvidia | Absent | None:
    """None without a driver; Absent where there is one that does not answer."""
    found = with_nvml(describe)
    if not isinstance(found, Absent):
        return found
    # "Driver/library version mismatch" after an update without a reboot, or a module without its library.
    return Absent(scrub(found.reason)[:200]) if KERNEL_MODULE.exists() else None


def describe(nvml: Nvml) -> Nvidia:
    exact = nvml.knows("nvmlMemory_v2")
    gpus: list[NvidiaGpu] = []
    for index in range(to_count(nvml.ask("nvmlDeviceGetCount")) or 0):
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            continue
        # The second form leaves out what the driver keeps for itself, more than half a GiB on a large GPU.
        memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle, exact) if exact is not None else None
        memory = memory or nvml.ask("nvmlDeviceGetMemoryInfo", handle)
        processes = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        rates = nvml.ask("nvmlDeviceGetUtilizationRates", handle)
        gpus.append(
            NvidiaGpu(
                name=to_name(nvml.ask("nvmlDeviceGetName", handle)) or "NVIDIA GPU",
                memory_bytes=to_count(memory.total) if memory is not None else None,
                used_bytes=to_count(memory.used) if memory is not None else None,
                processes=sum(process.pid != os.getpid() for process in processes),
                busy_percent=to_count(rates.gpu) if rates is not None else None,
            )
        )
    cuda = to_count(nvml.ask("nvmlSystemGetCudaDriverVersion"))
    return Nvidia(
        driver=to_name(nvml.ask("nvmlSystemGetDriverVersion")),
        cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
        gpus=tuple(gpus),
    )

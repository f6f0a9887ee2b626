"""The NVIDIA driver's view: GPUs, the CUDA it can run, and who else is on them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from metalmark.doctor.scene import Nvidia, NvidiaGpu
from metalmark.machine.words import to_count, to_name
from metalmark.record import Absent
from metalmark.scrub import scrub

KERNEL_MODULE = Path("/proc/driver/nvidia/version")


def read() -> Nvidia | Absent | None:
    """None without a driver; Absent where there is one that does not answer."""
    try:
        import pynvml
    except ImportError:  # not installed on a Mac
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        # "Driver/library version mismatch" after an update without a reboot, or a module without its library.
        return Absent(scrub(str(error))[:200]) if KERNEL_MODULE.exists() else None
    try:
        return describe(pynvml)
    finally:
        pynvml.nvmlShutdown()


def describe(nvml: Any) -> Nvidia:
    def ask(function: str, *arguments: object) -> Any:
        try:
            return getattr(nvml, function)(*arguments)
        except (nvml.NVMLError, AttributeError):  # this GPU, driver or binding does not know: the field stays None
            return None

    exact = getattr(nvml, "nvmlMemory_v2", None)
    gpus: list[NvidiaGpu] = []
    for index in range(to_count(ask("nvmlDeviceGetCount")) or 0):
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            continue
        # The second form leaves out what the driver keeps for itself, more than half a GiB on a large GPU.
        memory = ask("nvmlDeviceGetMemoryInfo", handle, exact) if exact is not None else None
        memory = memory or ask("nvmlDeviceGetMemoryInfo", handle)
        processes = ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        rates = ask("nvmlDeviceGetUtilizationRates", handle)
        gpus.append(
            NvidiaGpu(
                name=to_name(ask("nvmlDeviceGetName", handle)) or "NVIDIA GPU",
                memory_bytes=to_count(memory.total) if memory is not None else None,
                used_bytes=to_count(memory.used) if memory is not None else None,
                processes=sum(process.pid != os.getpid() for process in processes),
                busy_percent=to_count(rates.gpu) if rates is not None else None,
            )
        )
    cuda = to_count(ask("nvmlSystemGetCudaDriverVersion"))
    return Nvidia(
        driver=to_name(ask("nvmlSystemGetDriverVersion")),
        cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
        gpus=tuple(gpus),
    )

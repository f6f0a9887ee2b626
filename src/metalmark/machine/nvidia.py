"""The NVIDIA GPUs of this computer, through the driver's own library (NVML)."""

from __future__ import annotations

from metalmark.machine.nvml import Nvml, with_nvml
from metalmark.machine.words import to_count, to_name
from metalmark.model.run import Absent, Gpu


def read_gpus() -> tuple[Gpu, ...]:
    """All of them, whatever CUDA_VISIBLE_DEVICES says; none without a driver that answers: the doctor says why."""
    found = with_nvml(describe)
    return () if isinstance(found, Absent) else found


def describe(nvml: Nvml) -> tuple[Gpu, ...]:
    driver = to_name(nvml.ask("nvmlSystemGetDriverVersion"))
    gpus: list[Gpu] = []
    for index in range(nvml.ask("nvmlDeviceGetCount") or 0):
        gpu = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        if gpu is None:
            continue
        # A GPU that shares the host's memory has none of its own to tell.
        memory = nvml.ask("nvmlDeviceGetMemoryInfo", gpu)
        gpus.append(
            Gpu(
                name=to_name(nvml.ask("nvmlDeviceGetName", gpu)) or "NVIDIA GPU",
                memory_bytes=to_count(memory.total) if memory is not None else None,
                driver=driver,
            )
        )
    return tuple(gpus)

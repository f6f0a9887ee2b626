"""The NVIDIA GPUs of this computer, through the driver's own library (NVML)."""

from __future__ import annotations

from typing import Any

from metalmark.machine.words import to_count, to_name
from metalmark.record import Gpu


def read_gpus() -> tuple[Gpu, ...]:
    """All of them, whatever CUDA_VISIBLE_DEVICES says; none without a driver."""
    try:
        import pynvml
    except ImportError:  # not installed on a Mac
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, or one that does not answer: the doctor says which
        return ()
    try:
        return describe(pynvml)
    finally:
        pynvml.nvmlShutdown()


def describe(nvml: Any) -> tuple[Gpu, ...]:
    def ask(function: str, *arguments: object) -> Any:
        try:
            return getattr(nvml, function)(*arguments)
        except nvml.NVMLError:  # this GPU or this driver does not know: the field stays None
            return None

    driver = to_name(ask("nvmlSystemGetDriverVersion"))
    gpus: list[Gpu] = []
    for index in range(ask("nvmlDeviceGetCount") or 0):
        gpu = ask("nvmlDeviceGetHandleByIndex", index)
        if gpu is None:
            continue
        # A GPU that shares the host's memory has none of its own to tell.
        memory = ask("nvmlDeviceGetMemoryInfo", gpu)
        gpus.append(
            Gpu(
                name=to_name(ask("nvmlDeviceGetName", gpu)) or "NVIDIA GPU",
                memory_bytes=to_count(memory.total) if memory is not None else None,
                driver=driver,
            )
        )
    return tuple(gpus)

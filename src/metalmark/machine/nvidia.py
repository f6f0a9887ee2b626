"""The NVIDIA GPUs of this computer, through the driver's own library (NVML)."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from metalmark.machine.tools import to_count, to_name
from metalmark.model.run import Absent, Gpu

T = TypeVar("T")


class Nvml:
    """NVML while it is open, asked without an exception for what it does not know."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def ask(self, function: str, *arguments: object) -> Any:
        """Return the answer; None where this GPU, driver or binding does not know."""
        try:
            return getattr(self._library, function)(*arguments)
        except (self._library.NVMLError, AttributeError):
            return None

    def gpus(self) -> Iterator[Any]:
        """Give the handle of each GPU that answers."""
        for index in range(to_count(self.ask("nvmlDeviceGetCount")) or 0):
            gpu = self.ask("nvmlDeviceGetHandleByIndex", index)
            if gpu is not None:
                yield gpu

    def knows(self, name: str) -> Any:
        return getattr(self._library, name, None)


def with_nvml(describe: Callable[[Nvml], T]) -> T | Absent:
    """Open NVML for one call of `describe`; Absent, with the library's reason, where no driver answers."""
    try:
        import pynvml
    except ImportError:
        return Absent("nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Absent(str(error))
    try:
        return describe(Nvml(pynvml))
    finally:
        pynvml.nvmlShutdown()


def read_gpus() -> tuple[Gpu, ...]:
    """Return all GPUs, whatever CUDA_VISIBLE_DEVICES says; none without a driver that answers: the doctor says why."""
    gpus = with_nvml(describe)
    return () if isinstance(gpus, Absent) else gpus


def describe(nvml: Nvml) -> tuple[Gpu, ...]:
    driver = to_name(nvml.ask("nvmlSystemGetDriverVersion"))
    gpus: list[Gpu] = []
    for gpu in nvml.gpus():
        # A GPU that shares the host's memory has none of its own to report.
        memory = nvml.ask("nvmlDeviceGetMemoryInfo", gpu)
        gpus.append(
            Gpu(
                name=to_name(nvml.ask("nvmlDeviceGetName", gpu)) or "NVIDIA GPU",
                memory_bytes=to_count(memory.total) if memory is not None else None,
                driver=driver,
            )
        )
    return tuple(gpus)

"""NvidiaSensor: what each NVIDIA GPU does, through the driver's own library (NVML)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metalmark.record import Absent
from metalmark.telemetry.base import Reading, Unit

# NVML averages power over a second on most GPUs since Ampere; utilisation is the share of its last sample
# period (a sixth of a second to a second) in which any kernel ran, however few of the units that one used.
_QUANTITIES: tuple[tuple[str, Unit, Callable[[Any, Any], float]], ...] = (
    ("utilisation", Unit.PERCENT, lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
    ("memory", Unit.BYTES, lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used),
    ("power", Unit.WATTS, lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
    ("temperature", Unit.CELSIUS, lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
    ("clock", Unit.MEGAHERTZ, lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
)


class NvidiaSensor:
    """Series `gpu0_utilisation`, `gpu0_memory` ... of the whole GPU, all its users counted in."""

    name = "nvidia"
    source = "nvml"

    def __init__(self, nvml: Any = None) -> None:
        """`nvml` stands in for pynvml in a test."""
        self._nvml = nvml
        self._open = False
        self._asked: list[tuple[str, Unit, Callable[[], float]]] = []

    def available(self) -> str | None:
        if self._open:
            return None
        if self._nvml is None:
            try:
                import pynvml
            except ImportError:
                return "there is no NVIDIA driver library for Python here (nvidia-ml-py; not made for Macs)"
            self._nvml = pynvml
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            return f"no NVIDIA driver answers: {error}"
        self._open = True
        try:
            gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError as error:
            self.close()
            return f"the NVIDIA driver does not list its GPUs: {error}"
        if not gpus:
            self.close()
            return "the NVIDIA driver has no GPU"
        self._asked = [
            (f"gpu{index}_{quantity}", unit, lambda ask=ask, gpu=gpu: ask(nvml, gpu))  # type: ignore[misc]
            for index, gpu in enumerate(gpus)
            for quantity, unit, ask in _QUANTITIES
        ]
        return None

    def read(self) -> list[Reading]:
        readings: list[Reading] = []
        refused: set[str] = set()
        for name, unit, ask in self._asked:
            try:
                readings.append(Reading(name=name, unit=unit, value=ask()))
            except self._nvml.NVMLError as error:
                readings.append(Reading(name=name, unit=unit, value=Absent(f"the NVIDIA driver says: {error}")))
                refused.add(name)
        # Said once: what a GPU refuses now it refuses at every tick.
        self._asked = [entry for entry in self._asked if entry[0] not in refused]
        return readings

    def close(self) -> None:
        self._asked = []
        if self._open:
            self._open = False
            self._nvml.nvmlShutdown()

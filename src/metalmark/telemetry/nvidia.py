"""NvidiaSensor: what each NVIDIA GPU does, through the driver's own library (NVML)."""

from collections.abc import Callable
from typing import Any

from metalmark.model.run import Absent
from metalmark.telemetry.base import MEASURED, Reading, Unit

# NVML averages power over a second on most GPUs since Ampere; utilisation is the share of its last sample
# period (a sixth of a second to a second) in which any kernel ran, however few units it used.
_QUANTITIES: tuple[tuple[str, Unit, Callable[[Any, Any], float]], ...] = (
    ("utilisation", Unit.PERCENT, lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
    ("memory", Unit.BYTES, lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used),
    ("power", Unit.WATTS, lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
    ("energy", Unit.JOULES, lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000),
    ("temperature", Unit.CELSIUS, lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
    ("clock", Unit.MEGAHERTZ, lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
    ("memory_clock", Unit.MEGAHERTZ, lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)),
    ("throttle", Unit.RATIO, lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
)
_METERED = {Unit.WATTS: "nvml" + MEASURED, Unit.JOULES: "nvml" + MEASURED}

# The driver's bits for why a clock is below its highest. Left out are those that do not slow a run: an idle GPU
# (1), clocks that somebody set (2), sync boost (16) and the display's (256).
HARMFUL = {0x04: "power_cap", 0x08: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "power_brake"}


def throttle_words(mask: int) -> tuple[str, ...]:
    """Return the reasons that cost speed, of those that the driver gives."""
    return tuple(word for bit, word in HARMFUL.items() if mask & bit)


class NvidiaSensor:
    """Series `gpu0_utilisation`, `gpu0_memory` ... of the whole GPU, with all its users.

    `gpu0_throttle` is 1 while its clock is held down; `gpu0_throttle_power_cap` and the like begin when first seen.
    """

    name = "nvidia"
    source = "nvml"

    def __init__(self, nvml: Any = None) -> None:
        """`nvml` stands in for pynvml in a test."""
        self._nvml = nvml
        self._open = False
        self._asked: list[tuple[str, Unit, Callable[[], float]]] = []
        self._start_j: dict[str, float] = {}
        self._throttled_by: dict[str, dict[str, None]] = {}

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
                value = ask()
            except self._nvml.NVMLError as error:
                readings.append(Reading(name=name, unit=unit, value=Absent(f"the NVIDIA driver says: {error}")))
                refused.add(name)
                continue
            if unit is Unit.JOULES:
                value -= self._start_j.setdefault(name, value)
            if unit is Unit.RATIO:
                readings += self._throttle(name, int(value))
            else:
                readings.append(Reading(name=name, unit=unit, value=value, source=_METERED.get(unit)))
        # Reported once: what a GPU refuses now it refuses at every tick.
        self._asked = [entry for entry in self._asked if entry[0] not in refused]
        return readings

    def close(self) -> None:
        self._asked = []
        if self._open:
            self._open = False
            self._nvml.nvmlShutdown()

    def _throttle(self, name: str, mask: int) -> list[Reading]:
        now = throttle_words(mask)
        seen = self._throttled_by.setdefault(name, {})
        seen |= dict.fromkeys(now)
        states = {name: bool(now), **{f"{name}_{word}": word in now for word in seen}}
        return [Reading(name=series, unit=Unit.RATIO, value=float(state)) for series, state in states.items()]

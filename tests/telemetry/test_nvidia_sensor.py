"""NvidiaSensor where there is no GPU to refuse things: a stand-in for the driver's library does."""

from __future__ import annotations

import pytest

from metalmark.model.run import Absent
from metalmark.telemetry.base import Unit
from metalmark.telemetry.nvidia import NvidiaSensor, throttle_words


class Nvml:
    """A driver with two GPUs; the second one has no power meter."""

    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2

    class NVMLError(Exception):
        pass

    class Rates:
        gpu = 97

    class Memory:
        used = 2**30

    def __init__(self, count: int = 2, broken: str = "") -> None:
        self.count, self.broken, self.opened = count, broken, 0
        self.energy_mj = 8_000_000
        self.reasons = 0x1

    def nvmlInit(self) -> None:  # noqa: N802
        self._answer("init")
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._answer("count")
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUtilizationRates(self, _: int) -> Rates:  # noqa: N802
        return self.Rates()

    def nvmlDeviceGetMemoryInfo(self, _: int) -> Memory:  # noqa: N802
        return self.Memory()

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:  # noqa: N802
        if gpu == 1:
            raise self.NVMLError("Not Supported")
        return 350_500

    def nvmlDeviceGetTemperature(self, _gpu: int, _where: int) -> int:  # noqa: N802
        return 61

    def nvmlDeviceGetClockInfo(self, _gpu: int, which: int) -> int:  # noqa: N802
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 3201}[which]

    def nvmlDeviceGetTotalEnergyConsumption(self, _: int) -> int:  # noqa: N802
        self.energy_mj += 35_000
        return self.energy_mj

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _: int) -> int:  # noqa: N802
        return self.reasons

    def _answer(self, call: str) -> None:
        if self.broken == call:
            raise self.NVMLError("Driver Not Loaded")


def test_each_gpu_has_its_series_and_a_refusal_costs_one() -> None:
    sensor = NvidiaSensor(Nvml())
    assert sensor.available() is None
    first = {reading.name: reading.value for reading in sensor.read()}
    assert first["gpu0_power"] == 350.5
    assert first["gpu1_power"] == Absent("the NVIDIA driver says: Not Supported")
    second = {reading.name: reading.value for reading in sensor.read()}
    assert set(first) - set(second) == {"gpu1_power"}
    assert second["gpu1_utilisation"] == 97
    assert second["gpu0_clock"] == 1980
    assert second["gpu0_memory_clock"] == 3201
    assert len(second) == 15


def test_energy_counts_from_the_first_reading() -> None:
    sensor = NvidiaSensor(Nvml(count=1))
    assert sensor.available() is None
    seen = [{reading.name: reading.value for reading in sensor.read()}["gpu0_energy"] for _ in range(3)]
    assert seen == [0, 35, 70]


def test_watts_and_joules_are_measured() -> None:
    sensor = NvidiaSensor(Nvml(count=1))
    assert sensor.available() is None
    sources = {reading.name: reading.source for reading in sensor.read() if reading.unit in (Unit.WATTS, Unit.JOULES)}
    assert sources == {"gpu0_power": "nvml, measured", "gpu0_energy": "nvml, measured"}


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0x0, ()),
        (0x1 | 0x2 | 0x10 | 0x100, ()),
        (0x4, ("power_cap",)),
        (0x8 | 0x40, ("hw_slowdown", "hw_thermal")),
        (0x20 | 0x80 | 0x1, ("sw_thermal", "power_brake")),
        (2**63, ()),
    ],
)
def test_reasons_that_cost_speed(mask: int, words: tuple[str, ...]) -> None:
    assert throttle_words(mask) == words


def test_the_bits_are_the_driver_s() -> None:
    pynvml = pytest.importorskip("pynvml")
    assert throttle_words(pynvml.nvmlClocksThrottleReasonSwPowerCap) == ("power_cap",)
    assert throttle_words(pynvml.nvmlClocksThrottleReasonHwSlowdown) == ("hw_slowdown",)
    assert throttle_words(pynvml.nvmlClocksThrottleReasonSwThermalSlowdown) == ("sw_thermal",)
    assert throttle_words(pynvml.nvmlClocksThrottleReasonHwThermalSlowdown) == ("hw_thermal",)
    assert throttle_words(pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown) == ("power_brake",)
    harmless = ("GpuIdle", "ApplicationsClocksSetting", "SyncBoost", "DisplayClockSetting")
    assert [throttle_words(getattr(pynvml, f"nvmlClocksThrottleReason{name}")) for name in harmless] == [()] * 4


def test_throttling_is_a_state_and_its_reason_a_series_from_when_it_is_seen() -> None:
    nvml = Nvml(count=1)
    sensor = NvidiaSensor(nvml)
    assert sensor.available() is None
    seen = []
    for nvml.reasons in (0x1, 0x4, 0x2):
        readings = sensor.read()
        seen.append({reading.name: reading.value for reading in readings if "throttle" in reading.name})
    assert seen == [
        {"gpu0_throttle": 0},
        {"gpu0_throttle": 1, "gpu0_throttle_power_cap": 1},
        {"gpu0_throttle": 0, "gpu0_throttle_power_cap": 0},
    ]


@pytest.mark.parametrize(
    ("nvml", "reason"),
    [
        (Nvml(broken="init"), "no NVIDIA driver answers: Driver Not Loaded"),
        (Nvml(broken="count"), "the NVIDIA driver does not list its GPUs: Driver Not Loaded"),
        (Nvml(count=0), "the NVIDIA driver has no GPU"),
    ],
)
def test_reasons(nvml: Nvml, reason: str) -> None:
    sensor = NvidiaSensor(nvml)
    assert sensor.available() == reason
    assert sensor.read() == []
    sensor.close()
    assert nvml.opened == 0


def test_the_library_is_opened_once_and_closed_once() -> None:
    nvml = Nvml()
    sensor = NvidiaSensor(nvml)
    assert sensor.available() is None
    assert sensor.available() is None
    assert nvml.opened == 1
    sensor.close()
    sensor.close()
    assert nvml.opened == 0
    assert sensor.read() == []

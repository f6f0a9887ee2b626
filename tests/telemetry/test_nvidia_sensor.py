"""NvidiaSensor where there is no GPU to refuse things: a stand-in for the driver's library does."""

from __future__ import annotations

import pytest

from metalmark.record import Absent
from metalmark.telemetry.nvidia import NvidiaSensor


class Nvml:
    """A driver with two GPUs; the second one has no power meter."""

    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    class Rates:
        gpu = 97

    class Memory:
        used = 2**30

    def __init__(self, count: int = 2, broken: str = "") -> None:
        self.count, self.broken, self.opened = count, broken, 0

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

    def nvmlDeviceGetClockInfo(self, _gpu: int, _which: int) -> int:  # noqa: N802
        return 1980

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
    assert len(second) == 9


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

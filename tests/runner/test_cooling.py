"""Pauses between cells, on sensors that are played from a script. No timing is asserted."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.plan import Cooldown, Plan, Sweep
from metalmark.model.run import new_id, now_utc
from metalmark.runner import idle, sweeping
from metalmark.runner.events import Event, Paused, Started
from metalmark.runner.idle import Cooler
from metalmark.runner.sweeping import run_sweep
from metalmark.telemetry.base import Reading, Sensor, Unit


class Thermometer:
    """Gives one temperature after the other, and then the last for ever."""

    name, source = "fake", "script"

    def __init__(self, *celsius: float, throttle: float = 0.0) -> None:
        self._celsius = list(celsius)
        self._throttle = throttle

    def available(self) -> str | None:
        return None

    def read(self) -> list[Reading]:
        if not self._celsius:
            return []
        value = self._celsius.pop(0) if len(self._celsius) > 1 else self._celsius[0]
        return [
            Reading(name="gpu0_throttle", unit=Unit.RATIO, value=self._throttle),
            Reading(name="gpu0_temperature", unit=Unit.CELSIUS, value=value),
        ]

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "POLL_S", 0.01)
    monkeypatch.setattr(idle, "FIRST_READING_S", 0.3)


def cooler(cooldown: Cooldown, first: Sensor, later: Sensor) -> Cooler:
    sensors = iter([[first], [later]])
    return Cooler(cooldown, lambda: next(sensors))


def test_it_waits_until_the_temperature_is_back() -> None:
    heard: list[str] = []
    note = cooler(Cooldown(limit_s=60, auto=True), Thermometer(40), Thermometer(70, 60, 50, 42)).wait(heard.append)
    assert "until it was within 3 °C" in note
    assert any("gpu0_temperature" in text and "(at first 40)" in text for text in heard)


def test_what_is_cool_already_is_not_waited_for() -> None:
    heard: list[str] = []
    note = cooler(Cooldown(limit_s=60), Thermometer(40), Thermometer(41)).wait(heard.append)
    assert "until it was within" in note
    assert heard == []


@pytest.mark.parametrize("later", [Thermometer(70), Thermometer(40, throttle=1.0), Thermometer()])
def test_the_time_may_be_over_first(later: Thermometer) -> None:
    note = cooler(Cooldown(limit_s=0.1), Thermometer(40), later).wait(lambda _: None)
    assert note == "still not cool when the 0.1 s of pause before it were over"


def test_without_a_sensor_the_pause_is_fixed_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    note = cooler(Cooldown(limit_s=0.05), Thermometer(), Thermometer()).wait(heard.append)
    assert note == "a fixed pause of 0.05 s before it: no temperature sensor answers here"
    assert heard
    monkeypatch.setattr(idle, "FIXED_S", 0.02)
    note = cooler(Cooldown(limit_s=300, auto=True), Thermometer(), Thermometer()).wait(heard.append)
    assert "fixed pause of 0.02 s" in note


class Listener:
    def __init__(self, *, interrupts: bool = False) -> None:
        self.heard: list[str] = []
        self._interrupts = interrupts

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.heard.append(f"cell {event.cell}")
        elif isinstance(event, Paused):
            self.heard.append(event.reason)
            if self._interrupts:
                raise KeyboardInterrupt


def sweep_of(plan: Plan) -> Sweep:
    return Sweep(id=new_id(), created_at=now_utc(), plans=(plan, plan), hz=None, cooldown=Cooldown(limit_s=0.05))


def test_a_sweep_pauses_between_cells_and_the_record_says_how(
    fake_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "Cooler", lambda cooldown: Cooler(cooldown, list))
    records: list[BenchRun] = []
    listener = Listener()
    assert run_sweep(sweep_of(fake_plan()), previous=[], keep=records.append, listeners=[listener])
    assert listener.heard[0] == "cell 0"
    assert listener.heard[1].startswith("cooling down")
    assert listener.heard[-1] == "cell 1"
    first, second = (record.outcome for record in records)
    assert isinstance(first, Completed)
    assert isinstance(second, Completed)
    assert first.notes == ()
    assert second.notes == ("a fixed pause of 0.05 s before it: no temperature sensor answers here",)


def test_ctrl_c_in_a_pause_ends_the_sweep_and_keeps_what_ended(
    fake_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "Cooler", lambda cooldown: Cooler(cooldown, list))
    records: list[BenchRun] = []
    listener = Listener(interrupts=True)
    assert not run_sweep(sweep_of(fake_plan()), previous=[], keep=records.append, listeners=[listener])
    assert len(records) == 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sensor-")]

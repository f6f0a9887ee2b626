"""Every sensor that is a child process, with tools that die, hang and talk nonsense in the middle. Nothing here depends
on how long a thing takes: tests wait for events, and the limits are only there so that a failure ends."""

from __future__ import annotations

import os
import re
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from metalmark.model.run import Absent, Telemetry
from metalmark.telemetry.base import Reading, Sensor, SensorLostError, Unit
from metalmark.telemetry.macmon import MacmonSensor
from metalmark.telemetry.sampler import Sampler
from tests.telemetry.fakes import MACMON, POWERMETRICS, FakeSensor, macmon, powermetrics

PATIENCE_S = 60.0
SILENCE_S = 0.5

THRICE = "for _ in range(3):\n    {0}    time.sleep(0.02)\n"
FAULTS = {
    "dies": ("sys.exit('cannot read the chip')\n", r"ended with status 1: cannot read the chip"),
    "is killed": ("import os; os.kill(os.getpid(), signal.SIGKILL)\n", r"ended with status -9"),
    "hangs": ("time.sleep(600)\n", r"gave no sample for 0.5 s"),
    "hangs for good": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(600)\n",
        r"gave no sample for 0.5 s",
    ),
    "closes its output": (
        "import os; os.dup2(os.open(os.devnull, os.O_WRONLY), 1)\nsys.stdout = None\ntime.sleep(600)\n",
        r"closed its output",
    ),
    "prints nonsense": (
        "while True:\n    print('Segmentation fault </plist>', flush=True); time.sleep(0.005)\n",
        r"printed something that is not a sample: 'Segmentation fault",
    ),
    "prints without end": ("while True: sys.stdout.write('x' * 65536)\n", r"printed a megabyte without the end"),
    "complains without end": (
        "while True: sys.stderr.write('/home/someone/x ' * 4096)\n",
        r"printed a megabyte of error messages",
    ),
}


def watched(sensor: Sensor, monkeypatch: pytest.MonkeyPatch) -> tuple[Telemetry, FakeSensor]:
    """Sampled beside a sound one until it is given up, which is when it is closed."""
    given_up = threading.Event()
    close = sensor.close

    def close_and_tell() -> None:
        close()
        given_up.set()

    monkeypatch.setattr(sensor, "close", close_and_tell)
    sound = FakeSensor(
        ([Reading(name="fake_power", unit=Unit.WATTS, value=float(value))] for value in range(10**6)), name="sound"
    )
    sampler = Sampler([sensor, sound], 100.0, time.monotonic())
    sampler.start()
    assert given_up.wait(PATIENCE_S)
    told = sampler.latest["fake_power"]
    while sampler.latest["fake_power"] == told:  # the other goes on
        time.sleep(0.01)
    return sampler.stop(PATIENCE_S), sound


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("make", "sample"), [(macmon, MACMON), (powermetrics, POWERMETRICS)])
def test_a_tool_that_breaks_in_the_middle_costs_its_own_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Sensor], sample: str, fault: str
) -> None:
    code, reason = FAULTS[fault]
    silence_s = SILENCE_S if "hangs" in fault else PATIENCE_S
    telemetry, sound = watched(make(tmp_path, THRICE.format(sample) + code, silence_s=silence_s), monkeypatch)
    (name,) = telemetry.absent
    assert name == make.__name__
    assert re.fullmatch(rf"ended at [\d.]+ s: python[\d.]* {reason}.*", telemetry.absent[name])
    series = {one.name: one for one in telemetry.series}
    assert set(series["gpu0_power"].values) <= {12.0, 12.25}
    assert 1 <= len(series["gpu0_power"].values) <= 3
    assert len(series["fake_power"].values) > 0
    assert sound.closed.is_set()
    (left,) = tmp_path.glob("*.pid")
    assert not psutil.pid_exists(int(left.read_text()))


@pytest.mark.parametrize("make", [macmon, powermetrics])
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("sys.exit('not for this chip')\n", "ended with status 1: not for this chip"),
        ("time.sleep(600)\n", "gave no sample for 0.5 s"),
        ("", "ended with status 0"),
    ],
)
def test_a_tool_that_never_begins_gives_its_reason(
    tmp_path: Path, make: Callable[..., Sensor], code: str, reason: str
) -> None:
    sensor = make(tmp_path, code, start_s=SILENCE_S if "sleep" in code else PATIENCE_S)
    assert str(sensor.available()).partition(" ")[2] == reason
    sensor.close()


def test_a_tool_that_complains_a_little_at_each_sample_is_kept(tmp_path: Path) -> None:
    """Its complaints together are longer than a pipe holds, and nobody's disk is filled with them."""
    code = f"for _ in range(40):\n    sys.stderr.write('warning\\n' * 8192); {MACMON}    time.sleep(0.01)\n"
    sensor = macmon(tmp_path, code + "sys.exit('the last word')\n")
    assert sensor.available() is None
    seen, reason = 0, ""
    while not reason:
        try:
            seen += bool(sensor.read())
        except SensorLostError as error:
            reason = str(error)
        time.sleep(0.005)
    assert reason.endswith("ended with status 1: the last word")
    assert seen > 5
    sensor.close()


def test_more_files_are_open_than_select_can_take(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"this system allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    held: list[int] = []
    try:
        while not held or held[-1] < 1024:
            held.append(os.open(os.devnull, os.O_RDONLY))
        sensor = macmon(tmp_path)
        assert sensor.available() is None
        assert sensor.read()
        sensor.close()
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_tool_that_is_not_there() -> None:
    sensor = MacmonSensor(("no-such-tool",))
    assert sensor.available() == "no-such-tool is not installed"
    assert sensor.read() == []
    sensor.close()


def test_a_line_in_two_pieces_is_one_sample(tmp_path: Path) -> None:
    halves = MACMON.replace("print(", "line = (").replace(", flush=True)", ")")
    code = f"{halves}sys.stdout.write(line[:50]); sys.stdout.flush(); time.sleep(0.1); print(line[50:], flush=True)\n"
    sensor = macmon(tmp_path, code + "time.sleep(600)\n")
    assert sensor.available() is None
    assert {reading.name: reading.value for reading in sensor.read()}["gpu0_power"] == 12.25
    assert sensor.read() == []
    sensor.close()


def test_joules_are_summed_over_every_sample_from_the_second_on(tmp_path: Path) -> None:
    sensor = powermetrics(tmp_path, POWERMETRICS * 4 + "time.sleep(600)\n")
    assert sensor.available() is None
    energy: list[float | Absent] = []
    while 18.0 not in energy:
        energy += [reading.value for reading in sensor.read() if reading.name == "gpu0_energy"]
    assert energy == sorted(energy)  # type: ignore[type-var]
    sensor.close()


def test_a_little_nonsense_is_passed_over(tmp_path: Path) -> None:
    sensor = macmon(tmp_path, f"print('warming up', flush=True)\n{MACMON}time.sleep(600)\n")
    assert sensor.available() is None
    readings: list[Reading] = []
    while not readings:
        readings = sensor.read()
    assert {reading.name: reading.value for reading in readings}["cpu_power"] == 4.5
    sensor.close()

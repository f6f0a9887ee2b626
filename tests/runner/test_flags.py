"""Each flag on a record that is spoiled and on one that is clean."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from metalmark.model.measurement import BenchRun, Block, Completed, Measurement
from metalmark.model.run import Flag, Series, Telemetry
from metalmark.runner.flags import OF_THE_MACHINE, flags_around, flags_of, flags_of_several
from tests.samples import MACHINE, completed, failed, record

Seen = dict[str, list[float]]
QUIET = Telemetry(hz=None)


def telemetry(seen: Seen, *, begin_s: float = 4.0, end_s: float = 5.0) -> Telemetry:
    """Each series spread over the measured window of the sample run, which lasts from 4 s to 5 s."""
    series = []
    for name, values in seen.items():
        at_s = tuple(begin_s + (end_s - begin_s) * (i + 0.5) / len(values) for i in range(len(values)))
        series.append(Series(name=name, unit="", source="test", at_s=at_s, values=tuple(values)))
    return Telemetry(hz=5.0, series=tuple(series))


def flags(run: Any, seen: Telemetry | Seen = QUIET) -> tuple[Flag, ...]:
    return flags_of(run, seen if isinstance(seen, Telemetry) else telemetry(seen), MACHINE)


def names(run: Any, seen: Telemetry | Seen = QUIET) -> list[str]:
    return [flag.name for flag in flags(run, seen)]


def on_gpu(**changes: Any) -> Completed:
    return completed(placed_on="cuda:0", **changes)


def measured(run: Completed, **changes: Any) -> Completed:
    measurement: Measurement = msgspec.structs.replace(run.measurement, **changes)
    return msgspec.structs.replace(run, measurement=measurement)


def stepping(times: Iterable[float]) -> Completed:
    blocks = tuple(Block(steps=1, elapsed_s=step_s, at_s=1.0) for step_s in times)
    return measured(completed(), blocks=blocks)


def test_a_clean_record_has_no_flags() -> None:
    clean: Seen = {
        "system_cpu": [25.0] * 10, "process_cpu": [200.0] * 10, "gpu0_throttle": [0.0] * 10,
        "gpu0_clock": [1900.0] * 10, "gpu0_utilisation": [99.0] * 10,
        "system_swap_in": [0.0] * 10, "system_swap_out": [4096.0] * 10,
        "on_battery": [0.0], "battery_charge": [80.0], "low_power_mode": [0.0], "cpu_speed_limit": [100.0],
        "thermal_warning": [0.0], "thermal_pressure": [0.0], "process_memory": [5e8] * 10,
    }  # fmt: skip
    assert names(completed(), clean) == []
    assert names(on_gpu(), clean) == []
    assert names(completed()) == []


def test_a_failure_has_no_flags() -> None:
    assert names(failed(), {"on_battery": [1.0]}) == []


SPOILED: list[tuple[str, Seen, str]] = [
    ("throttled", {"gpu0_throttle": [0, 1, 0], "gpu0_throttle_sw_thermal": [0, 1, 0]}, "1 of 3 samples (sw thermal)"),
    ("throttled", {"gpu0_throttle": [0, 1, 1]}, "2 of 3 samples"),
    ("power_capped", {"gpu0_throttle": [0, 1, 1], "gpu0_throttle_power_cap": [0, 1, 1]}, "in 2 of 3 samples"),
    ("throttled", {"cpu_speed_limit": [70.0]}, "70% of its speed"),
    ("throttled", {"thermal_pressure": [0.0, 1.0]}, "thermal pressure"),
    ("throttled", {"thermal_warning": [1.0]}, "thermal warning"),
    ("throttled", {"gpu0_clock": [1900.0] * 6 + [1200.0] * 6, "gpu0_utilisation": [99.0] * 12}, "1,900 to 1,200 MHz"),
    ("throttled", {"gpu0_utilisation": [98.0] * 5, "gpu0_scaled": [50.0] * 5}, "clocks worth 50%"),
    ("on_battery", {"on_battery": [1.0], "battery_charge": [63.0]}, "63% full"),
    ("low_power_mode", {"low_power_mode": [1.0]}, "save power"),
    ("swapping", {"system_swap_in": [0.0, 64 * 2.0**20], "system_swap_out": [0.0, 0.0]}, "64 MiB in and 0 MiB out"),
    ("busy_machine", {"system_cpu": [50.0], "process_cpu": [200.0]}, "2.0 of 8 cores"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "seen", "evidence"), SPOILED, ids=[f"{name} {words}" for name, _, words in SPOILED])
def test_what_telemetry_shows(name: str, seen: Seen, evidence: str) -> None:
    (flag,) = flags(on_gpu(), seen)
    assert flag.name == name
    assert evidence in flag.evidence


@pytest.mark.parametrize(("name", "seen", "_"), SPOILED, ids=[f"{name} {words}" for name, _, words in SPOILED])
def test_what_comes_after_the_window_counts_for_nothing(name: str, seen: Seen, _: str) -> None:
    assert names(on_gpu(), telemetry(seen, begin_s=5.5, end_s=6.5)) == [], name


def test_a_state_read_before_the_window_still_holds_and_a_sample_does_not() -> None:
    for seen in ({"on_battery": [1.0]}, {"low_power_mode": [1.0]}, {"cpu_speed_limit": [50.0]}):
        assert len(flags(completed(), telemetry(seen, begin_s=1.0, end_s=2.0))) == 1
    busy: Seen = {"system_cpu": [100.0], "process_cpu": [100.0], "gpu0_throttle": [1.0]}
    assert names(on_gpu(), telemetry(busy, begin_s=3.0, end_s=3.9)) == []


def test_a_desktop_that_is_never_idle_is_not_busy() -> None:
    """A twentieth of the cores, and a quarter of one at least: 0.4 of these 8."""
    assert names(completed(), {"system_cpu": [16.0], "process_cpu": [100.0]}) == [], "0.28 of a core"
    assert names(completed(), {"system_cpu": [18.0], "process_cpu": [100.0]}) == ["busy_machine"], "0.44 of a core"
    small = msgspec.structs.replace(MACHINE, logical_cores=2)
    for system, busy in ((60.0, []), (65.0, ["busy_machine"])):
        seen = telemetry({"system_cpu": [system], "process_cpu": [100.0]})
        assert [flag.name for flag in flags_of(completed(), seen, small)] == busy


def test_another_gpu_or_an_idle_one_is_not_the_runs() -> None:
    assert names(on_gpu(), {"gpu1_throttle": [1.0] * 5}) == []
    assert names(completed(), {"gpu0_throttle": [1.0] * 5}) == [], "it ran on the CPU"
    idles: Seen = {"gpu0_clock": [1900.0] * 6 + [300.0] * 6, "gpu0_utilisation": [99.0] * 6 + [2.0] * 6}
    assert names(on_gpu(), idles) == []


def test_a_power_limit_explains_a_lower_clock_and_hides_no_heat() -> None:
    capped: Seen = {"gpu0_throttle": [1.0] * 12, "gpu0_throttle_power_cap": [1.0] * 12}
    falls: Seen = {"gpu0_clock": [1900.0] * 6 + [1200.0] * 6, "gpu0_utilisation": [99.0] * 12}
    assert names(on_gpu(), {**capped, **falls}) == ["power_capped"]
    hot: Seen = {"gpu0_throttle_hw_thermal": [0.0] * 8 + [1.0] * 4}
    assert names(on_gpu(), {**capped, **hot}) == ["throttled", "power_capped"]


def test_a_cpu_whose_clock_falls_under_load() -> None:
    falls: Seen = {"cpu_clock": [3800.0] * 6 + [2200.0] * 6, "process_cpu": [199.0] * 12}
    assert names(completed(), falls) == ["throttled"]
    assert names(on_gpu(), falls) == [], "the CPU's clock is not what a GPU's run waits for"


def test_wide_intervals_are_unsteady() -> None:
    scattered = stepping([1.0, 2.0, 1.1, 1.9, 1.2, 1.8, 1.3, 1.7, 1.4, 1.6, 1.5, 1.0])
    assert names(scattered) == ["unsteady"]
    assert names(stepping([1.0, 1.01] * 6)) == []


def test_a_run_that_slows_down_is_drifting() -> None:
    (flag,) = [flag for flag in flags(stepping(1 + i / 40 for i in range(50))) if flag.name == "drifting"]
    assert flag.evidence.startswith("the last tenth is 2.1x slower than the first")
    (flag,) = flags(stepping(1 + 0.06 * i / 50 for i in range(50)))
    assert flag.name == "drifting"
    assert "+6%" in flag.evidence
    assert "slower" not in flag.evidence, "6% is no plain ratio"
    quicker = [flag for flag in flags(stepping(2 - i / 50 for i in range(50))) if flag.name == "drifting"]
    assert "faster than the first" in quicker[0].evidence


def test_memory_that_the_device_counts_and_loses() -> None:
    def holding(per_block: int) -> Completed:
        blocks = (Block(steps=10, elapsed_s=1.0, at_s=1.0, live_bytes=10**9 + per_block * i) for i in range(14))
        return measured(on_gpu(), blocks=tuple(blocks))

    (flag,) = flags(holding(10_000_000))
    assert flag.name == "leaking"
    assert "the device's live memory" in flag.evidence
    assert "954 MiB in 1,000 steps" in flag.evidence
    assert names(holding(0)) == []
    assert names(holding(-10_000_000)) == []


def test_memory_that_the_process_loses() -> None:
    """Ten samples in the second that 10 steps of 0.1 s last: 1 MB a step."""
    (flag,) = flags(completed(), {"process_memory": [5e8 + 2e6 * i for i in range(10)]})
    assert flag.name == "leaking"
    assert "the process's memory" in flag.evidence
    assert names(completed(), {"process_memory": [5e8 + 5e5 * (i % 3) for i in range(10)]}) == []


def test_operations_that_left_the_accelerator_by_name() -> None:
    (flag,) = flags(completed(placed_on="mps:0", fallbacks=("aten::one", "aten::two")))
    assert flag.name == "cpu_fallback"
    assert "mps:0: aten::one, aten::two" in flag.evidence
    (flag,) = flags(completed(placed_on="mps:0", fallbacks=tuple(f"aten::op{i}" for i in range(9))))
    assert flag.evidence.endswith("and 4 more")


def test_a_first_step_longer_than_all_the_others() -> None:
    (flag,) = flags(measured(completed(), first_step_s=60.0))
    assert flag.name == "first_step_dominates"
    assert "60 s" in flag.evidence
    assert "140 measured steps" in flag.evidence


def test_several_runs_say_what_the_machine_did_once_and_how_often() -> None:
    def run(*names: str) -> BenchRun:
        return record(flags=tuple(Flag(name=name, evidence=f"{name} was seen") for name in names))

    found = flags_of_several([run(), run("unsteady", "busy_machine"), run("busy_machine", "throttled")])
    assert [(flag.name, flag.evidence) for flag in found] == [
        ("throttled", "throttled was seen (in 1 of 3 runs)"),
        ("busy_machine", "busy_machine was seen (in 2 of 3 runs)"),
    ]
    assert flags_of_several([]) == ()


def test_every_flag_of_the_machine_is_known() -> None:
    """Those that `flags_around` gives, but for a power limit, which is no fault of a GPU that is fully used."""
    given = set(re.findall(r'Flag\(name="(\w+)"', inspect.getsource(flags_around)))
    assert given == set(OF_THE_MACHINE)

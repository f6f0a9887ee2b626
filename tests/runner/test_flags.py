from __future__ import annotations

import msgspec

from metalmark.record import Block, Completed, Series, Telemetry
from metalmark.runner.flags import flags_of
from tests.samples import MACHINE, completed, failed


def telemetry(system: float, process: float, *, at_s: float = 4.5) -> Telemetry:
    """One sample of each; 4.5 s lies inside the measured window of the sample record, 3.5 s before it."""
    one = {"unit": "%", "source": "test", "at_s": (at_s,)}
    return Telemetry(
        hz=5.0,
        series=(
            Series(name="system_cpu", values=(system,), **one),  # type: ignore[arg-type]
            Series(name="process_cpu", values=(process,), **one),  # type: ignore[arg-type]
        ),
    )


def names(outcome: object, seen: Telemetry) -> list[str]:
    return [flag.name for flag in flags_of(outcome, seen, MACHINE)]  # type: ignore[arg-type]


def test_others_load_is_a_busy_machine() -> None:
    """The sample machine has 8 logical cores: 50% of it is 4 cores, of which the worker used 2."""
    (flag,) = flags_of(completed(), telemetry(50, 200), MACHINE)
    assert flag.name == "busy_machine"
    assert "2.0 of 8 cores" in flag.evidence
    assert names(completed(), telemetry(25, 200)) == []


def test_only_the_measured_window_counts() -> None:
    assert names(completed(), telemetry(100, 100, at_s=3.5)) == []


def test_wide_intervals_are_unsteady() -> None:
    steady = completed()
    blocks = tuple(Block(steps=1, elapsed_s=1.0 + 0.1 * n, at_s=1.0) for n in range(12))
    wide = msgspec.structs.replace(steady, measurement=msgspec.structs.replace(steady.measurement, blocks=blocks))
    assert isinstance(wide, Completed)
    assert names(wide, Telemetry(hz=None)) == ["unsteady"]
    assert names(steady, Telemetry(hz=None)) == []


def test_a_failure_has_no_flags() -> None:
    assert names(failed(), telemetry(100, 0)) == []

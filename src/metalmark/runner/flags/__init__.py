"""What could spoil a number, looked for in what was recorded: each flag with its evidence, of the measured window."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from metalmark.model.measurement import Completed
from metalmark.model.run import Failed, Flag, Machine, Telemetry
from metalmark.model.watch import WatchedRun
from metalmark.runner.flags.fallback import cpu_fallback
from metalmark.runner.flags.growing import leaking
from metalmark.runner.flags.heat import throttled
from metalmark.runner.flags.load import busy_machine, swapping
from metalmark.runner.flags.power import low_power_mode, on_battery
from metalmark.runner.flags.sleep import slept
from metalmark.runner.flags.steps import drifting, first_step_dominates, unsteady
from metalmark.stats.window import Window

Look = Callable[[Completed, Window, Machine], Flag | None]
AROUND: tuple[Callable[[Completed | None, Window, Machine], Flag | None], ...] = (
    throttled, on_battery, low_power_mode, swapping, busy_machine, slept,
)  # fmt: skip
"""What the machine itself did: of any window, a training's too."""
LOOKS: tuple[Look, ...] = (*AROUND, unsteady, drifting, leaking, cpu_fallback, first_step_dominates)


def flags_of(
    outcome: Completed | Failed, telemetry: Telemetry, machine: Machine, environment: Mapping[str, str] | None = None
) -> tuple[Flag, ...]:
    if isinstance(outcome, Failed):
        return ()
    window = Window(outcome, telemetry, environment)
    found = (look(outcome, window, machine) for look in LOOKS)
    return tuple(flag for flag in found if flag is not None)


def flags_around(window: Window, machine: Machine) -> tuple[Flag, ...]:
    """Those that need no measurement between synchronisations."""
    found = (look(None, window, machine) for look in AROUND)
    return tuple(flag for flag in found if flag is not None)


def flags_of_watched(run: WatchedRun) -> tuple[Flag, ...]:
    """Those of a loop of the user's own. Where there are several GPUs, which one it used is not known."""
    placed_on = "gpu:0" if len(run.machine.gpus) == 1 else "cpu"
    return flags_around(Window.between(0.0, run.elapsed_s, placed_on, run.telemetry), run.machine)

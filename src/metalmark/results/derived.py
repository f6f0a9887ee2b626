"""What a run of any kind says beyond its raw figures: utilisation, energy, memory and flags.

Derived when shown, never stored. A figure that is not there is Absent with the reason."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, structs

from metalmark.errors import counted
from metalmark.model.codec import AnyRun
from metalmark.model.explanation import ExplanationRun
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.parity import ParityRun, ParityVerdict
from metalmark.model.plan import DeviceKind
from metalmark.model.run import PARITY_FAILED, Absent, Flag, Machine
from metalmark.model.training import ACCURACY, VALIDATION_LOSS, Ending, Epoch, Metric, Target, TrainingRun
from metalmark.model.tuning import Tuned, TuningRun
from metalmark.model.watch import WatchedRun
from metalmark.runner.flags import flags_of_watched, memory_growth
from metalmark.stats.drift import drift
from metalmark.stats.summary import median
from metalmark.stats.window import VISIBLE, Window, is_cpu
from metalmark.telemetry.energy import energy_of, parts_of
from metalmark.training import derived as of_training
from metalmark.training.derived import (
    best,
    curve,
    elapsed_s,
    figure,
    monitor_of,
    overall_samples_s,
    reaches,
    spans,
)

UNTRAINED = Absent(reason="no epoch was trained")
NO_TOKENS = Absent(reason="its samples are not counted in tokens")
UNCOUNTED = Absent(reason="this workload has no count of its work")
UNUSED = Absent(reason="it used no energy")
"""The case of a Mac's neural engine, most of the time."""
UNNUMBERED = Absent(reason=f"{VISIBLE} names the GPU in words, so which of the driver's GPUs it was is not known")
OPEN_DEVICES = {DeviceKind.GPU, DeviceKind.ANY}
"""Words for a device that leave open where a run is placed."""


class Utilisation(Struct, frozen=True, kw_only=True):
    """The mean over the window."""

    percent: float
    of: str
    source: str


class PartEnergy(Struct, frozen=True, kw_only=True):
    """What one part of the machine used in the window, including what other processes did on it."""

    part: str
    joules: float
    average_w: float
    source: str
    method: str
    modelled: bool
    """An estimate of the system, not a meter's reading."""


class Cost(PartEnergy, frozen=True, kw_only=True):
    """A part's energy, per step and per sample."""

    peak_w: float | Absent
    idle_w: float | Absent
    """Before the sweep began."""
    joules_per_step: float
    joules_per_sample: float
    samples_per_joule: float | Absent


class Memory(Struct, frozen=True, kw_only=True):
    bytes: int
    of: str
    """Who counted it: "device" or "process". The two do not count the same thing."""


class MemoryGrowth(Struct, frozen=True, kw_only=True):
    of: str
    bytes_per_1000_steps: float


class Derived(Struct, frozen=True, kw_only=True):
    """The figures of one bench run."""

    utilisation: Utilisation | Absent
    energy: Cost | Absent
    """Energy of the device that it ran on."""
    others: tuple[Cost, ...]
    """Energy of every other part that is metered; some contain each other, so they do not add up."""
    growth: tuple[MemoryGrowth, ...] | Absent
    swapped_in_bytes: float | Absent
    swapped_out_bytes: float | Absent
    flops_per_s: float | Absent
    """Achieved, by an analytic count of the model's work."""
    last_tenth_to_first: float | Absent
    """Step time at the run's end over that at its beginning."""
    tokens_per_s: float | Absent = NO_TOKENS


class TrainingFigures(Struct, frozen=True, kw_only=True):
    """The figures of one training. Times are of a mean epoch and add up: epoch = input + compute + validation."""

    label: str
    """Framework and device: what was asked for, and where it ran when that left it open."""
    seed: int
    state: str
    reason: str
    """Why it did not come to its end, as it was recorded; empty where it did."""
    epochs: int
    of_epochs: int
    best_epoch: int | None
    accuracy: float | Absent
    """Validation accuracy of the best epoch."""
    monitor: Metric
    """What made it the best."""
    best_value: float | Absent
    epoch_s: float | Absent
    input_s: float | Absent
    compute_s: float | Absent
    """Without the first step of each batch size, which traces and compiles."""
    validation_s: float | Absent
    first_steps_s: float | Absent
    """All of those first steps together."""
    samples_s: float | Absent
    utilisation: Utilisation | Absent
    energy: PartEnergy | Absent
    """Energy of the device it trained on."""
    memory_bytes: int | Absent
    """What the device counted at its peak; on the CPU, and where nothing counts, the most the process held."""
    accuracies: tuple[float, ...]
    """Empty where an epoch has none; so the losses."""
    validation_losses: tuple[float, ...]
    busy_percent: tuple[float, ...]
    """Every reading of the utilisation, in order."""
    flags: tuple[Flag, ...] = ()
    """What could have spoilt its times: heat, battery, swap, the work of others."""
    parity: ParityVerdict | None = None
    """What the parity check of its plan found; None: none was asked for."""


class TargetReached(Struct, frozen=True, kw_only=True):
    epoch: int
    seconds: float
    """Training and validation, without checkpoints, over all sessions."""
    joules: dict[str, float | Absent]
    """By part of the machine that telemetry has an energy or a power of."""


def flags_of(run: AnyRun) -> tuple[Flag, ...]:
    """What could have spoilt the figures of a run of any kind."""
    if isinstance(run, WatchedRun):
        return flags_of_watched(run)
    if isinstance(run, ParityRun | ExplanationRun):
        return run.flags
    if isinstance(run, TuningRun):
        return (*rung_flags(run), *run.flags)
    return (*parity_flags(run), *(run.flags if isinstance(run, BenchRun) else of_training.flags(run)))


def parity_flags(run: BenchRun | TrainingRun) -> tuple[Flag, ...]:
    """Return the flag of a run that did not train the same network as the reference, by the check that it carries."""
    mark = run.parity
    if mark is None or mark.verdict is not ParityVerdict.DIFFERS:
        return ()
    return (Flag(name=PARITY_FAILED, evidence=f"check {mark.run}: {mark.sentence.rstrip('.')}"),)


def rung_flags(run: TuningRun) -> tuple[Flag, ...]:
    """Return the flag of a tuning whose ladder ends with settings that do not train the same network."""
    best = run.outcome.best if isinstance(run.outcome, Tuned) else None
    if best is None or best.verdict is not ParityVerdict.DIFFERS:
        return ()
    return (Flag(name=PARITY_FAILED, evidence=f"{best.title}: {best.reason.rstrip('.') or 'it trains differently'}"),)


def derive(record: BenchRun) -> Derived | None:
    """None for a run that failed."""
    run = record.outcome
    if not isinstance(run, Completed):
        return None
    window = Window.measured(run, record.telemetry, record.software.environment)
    times = [block.elapsed_s / block.steps for block in run.measurement.blocks]
    found, few = drift(times), Absent(reason=f"too few blocks: {len(times)}")
    energy = UNNUMBERED if window.part is None else _cost(window.part, run, window)
    if isinstance(energy, Cost) and not energy.joules:
        # It did the work: a counter that stood still there did not count.
        energy = Absent(reason=f"the counter of {energy.part} ({energy.source}) stood still")
    others = [_cost(part, run, window) for part in parts_of(window.telemetry.series) if part != window.part]
    growth = tuple(
        MemoryGrowth(of=what, bytes_per_1000_steps=line.bytes_per_step * 1000)
        for what, line in memory_growth(run, window).items()
    )
    flops = run.flops_per_sample
    return Derived(
        utilisation=_utilisation([(window, record.machine)])[0],
        energy=energy,
        others=tuple(cost for cost in others if isinstance(cost, Cost)),
        growth=growth or Absent(reason="fewer than eight readings of any memory lie in the window"),
        swapped_in_bytes=_swapped(window, "system_swap_in"),
        swapped_out_bytes=_swapped(window, "system_swap_out"),
        flops_per_s=flops * run.samples_per_step / median(times) if flops else UNCOUNTED,
        last_tenth_to_first=found.ratio_last_tenth_to_first if found else few,
        tokens_per_s=run.tokens_per_sample * run.samples_per_step / median(times)
        if run.tokens_per_sample
        else NO_TOKENS,
    )


def training_figures(run: TrainingRun) -> TrainingFigures:
    epochs, top, count, failure, nothing = (
        run.epochs,
        best(run.epochs, run.goal.monitor),
        len(run.epochs),
        run.failure,
        UNTRAINED,
    )
    monitor = monitor_of(epochs, run.goal.monitor)
    first_s = sum(epoch.first_steps_s for epoch in epochs)
    input_s, compute_s, validation_s = (
        sum(getattr(epoch, name) for epoch in epochs) for name in ("input_s", "compute_s", "validation_s")
    )
    utilisation, busy = _utilisation(_sessions(run, epochs))
    memory = training_memory(run)
    placed = f" → {run.setting.placed_on}" if run.setting is not None and run.plan.device.kind in OPEN_DEVICES else ""
    return TrainingFigures(
        label=f"{run.plan.framework} {run.plan.device}{placed}",
        seed=run.plan.seed,
        state=training_state(run),
        reason=" ".join(part for part in (failure.message, failure.hint) if part) if failure is not None else "",
        epochs=count,
        of_epochs=run.goal.epochs,
        best_epoch=top.number if top is not None else None,
        accuracy=top.accuracy if top is not None else nothing,
        monitor=monitor,
        best_value=figure(top, monitor.name) if top is not None else nothing,
        epoch_s=(input_s + compute_s + validation_s - first_s) / count if count else nothing,
        input_s=input_s / count if count else nothing,
        compute_s=(compute_s - first_s) / count if count else nothing,
        validation_s=validation_s / count if count else nothing,
        first_steps_s=first_s if count else nothing,
        samples_s=overall_samples_s(epochs),
        utilisation=utilisation if count else nothing,
        energy=training_energy(run) if count else nothing,
        memory_bytes=nothing if not count else memory if isinstance(memory, Absent) else memory.bytes,
        accuracies=curve(epochs, ACCURACY),
        validation_losses=curve(epochs, VALIDATION_LOSS),
        busy_percent=tuple(busy),
        flags=flags_of(run),
        parity=None if run.parity is None else run.parity.verdict,
    )


def training_state(run: TrainingRun) -> str:
    return "killed, or still runs" if run.header.ending == Ending.RUNNING.value else run.header.ending


def training_energy(run: TrainingRun) -> PartEnergy | Absent:
    """Energy of the device it trained on, over all sessions."""
    windows = [window for window, _ in _sessions(run, run.epochs)]
    if not windows:
        return UNTRAINED
    part = windows[-1].part
    return UNNUMBERED if part is None else _energy(part, windows)


def training_memory(run: TrainingRun) -> Memory | Absent:
    held = [value for window, _ in _sessions(run, run.epochs) for value in window.values("process_memory")]
    return memory_used(_placed_on(run), run.memory.peak_bytes if run.memory is not None else None, held)


def watched_energy(run: WatchedRun) -> PartEnergy | Absent:
    """Energy of the machine's one GPU, or of the CPU where it has none: which device the loop used is not recorded."""
    if len(run.machine.gpus) > 1:
        return Absent(reason="which of the GPUs a watched loop used is not known")
    part = "gpu0" if run.machine.gpus else "cpu"
    return _energy(part, [Window([(0.0, run.elapsed_s)], "cpu", run.telemetry)])


def memory_used(placed_on: str, peak_bytes: int | Absent | None, held_bytes: Sequence[float]) -> Memory | Absent:
    """What the device counted at its peak; on the CPU, and where nothing counts, the most the process held."""
    # tensorflow-metal counts nothing, and older runs have its 0.
    if isinstance(peak_bytes, int) and peak_bytes > 0 and not is_cpu(placed_on):
        return Memory(bytes=peak_bytes, of="device")
    if held_bytes:
        return Memory(bytes=int(max(held_bytes)), of="process")
    if isinstance(peak_bytes, Absent) and not is_cpu(placed_on):
        return peak_bytes
    return Absent(reason="no reading of the process's memory")


def target_reached(run: TrainingRun, target: Target | float) -> TargetReached | None:
    """The first epoch that reaches a target, and what it took to get there; None where no epoch does. A number is a
    validation accuracy."""
    if not isinstance(target, Target):
        target = Target(name=ACCURACY, falls=False, value=target)
    epochs: list[Epoch] = []
    for epoch in run.epochs:
        epochs.append(epoch)
        if reaches(epoch, target):
            seconds = sum(elapsed_s(each) for each in epochs)
            return TargetReached(epoch=epoch.number, seconds=seconds, joules=joules_of_epochs(run, epochs))
    return None


def joules_of_epochs(run: TrainingRun, epochs: Sequence[Epoch]) -> dict[str, float | Absent]:
    """What these epochs used, by part; absent where one session's readings do not cover its share."""
    windows = [window for window, _ in _sessions(run, epochs)]
    parts = dict.fromkeys(part for window in windows for part in parts_of(window.telemetry.series))
    used = {part: _energy(part, windows) for part in parts}
    return {part: energy if isinstance(energy, Absent) else energy.joules for part, energy in used.items()}


def _sessions(run: TrainingRun, epochs: Sequence[Epoch]) -> Iterator[tuple[Window, Machine]]:
    """The window and the machine of each session that trained some of these epochs."""
    for number, session in enumerate(run.sessions):
        if times := spans(epochs, number):
            yield Window(times, _placed_on(run), session.telemetry, session.software.environment), session.machine


def _placed_on(run: TrainingRun) -> str:
    return run.setting.placed_on if run.setting is not None else str(run.plan.device)


def _utilisation(sessions: Iterable[tuple[Window, Machine]]) -> tuple[Utilisation | Absent, list[float]]:
    """The mean over all sessions, and every reading in order: the GPU's own, or the process's share of the cores."""
    every: list[float] = []
    found: Utilisation | Absent = Absent(reason="nothing ran")
    for window, machine in sessions:
        on_cpu, cores = window.part == "cpu", machine.usable_cores or machine.logical_cores or 0
        name = "process_cpu" if on_cpu else f"{window.part}_utilisation"
        readings = [] if window.off else window.values(name)
        if readings and (cores or not on_cpu):
            every += [value / cores for value in readings] if on_cpu else readings
            of = counted(cores, "core") if on_cpu else str(window.part)
            found = Utilisation(percent=sum(every) / len(every), of=of, source=window.series[name].source)
        elif not every:
            unknown = UNNUMBERED if window.part is None and not window.off else _why_not(window, name)
            found = Absent(reason="how many cores there were is not recorded") if readings else unknown
    return found, every


def _energy(part: str, windows: Sequence[Window]) -> PartEnergy | Absent:
    """The energy of a part in all windows, or the reason of the first that has none."""
    joules, elapsed_s, modelled, source, method = 0.0, 0.0, False, "", ""
    for window in windows:
        used = energy_of(part, window.telemetry.series, window.begin_s, window.end_s)
        if isinstance(used, Absent):
            return _why_not(window, "all") if window.off else used
        joules += used.joules
        elapsed_s += window.end_s - window.begin_s
        modelled, source, method = modelled or used.modelled, used.source, used.method
    return PartEnergy(
        part=part, joules=joules, average_w=joules / elapsed_s, source=source, method=method, modelled=modelled
    )


def _cost(part: str, run: Completed, window: Window) -> Cost | Absent:
    used = _energy(part, [window])
    if isinstance(used, Absent):
        return used
    steps = sum(block.steps for block in run.measurement.blocks)
    watts = window.values(f"{part}_power")
    return Cost(
        **structs.asdict(used),
        peak_w=max(watts) if watts else Absent(reason=f"nothing here gives the power of {part}"),
        idle_w=window.telemetry.idle_w.get(part, Absent(reason="it was not measured before the run")),
        joules_per_step=used.joules / steps,
        joules_per_sample=used.joules / steps / run.samples_per_step,
        samples_per_joule=steps * run.samples_per_step / used.joules if used.joules else UNUSED,
    )


def _swapped(window: Window, name: str) -> float | Absent:
    counted = None if window.off else window.counted(name)
    return _why_not(window, name) if counted is None else counted


def _why_not(window: Window, name: str) -> Absent:
    if window.off:  # switched off, or lost with the process that kept it
        return Absent(reason=window.absent.get("all", "telemetry was switched off"))
    if name in window.absent:
        return Absent(reason=window.absent[name])
    few = f"too few readings of {name} in the measured window"
    return Absent(reason=few if name in window.series else f"nothing here gives {name}")

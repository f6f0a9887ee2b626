"""Trainings side by side, as data: a Side is one of them in the figures a comparison shows. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from metalmark.model.plan import DeviceKind, word
from metalmark.model.run import Absent, Flag, Series
from metalmark.model.training import Ending, Epoch, TrainingRun, TrainingSession
from metalmark.results.cells import varying
from metalmark.results.derived import OFF, Utilisation
from metalmark.stats.window import VISIBLE, gpu_of
from metalmark.telemetry.energy import Energy, energy_of
from metalmark.training.derived import best, flags, overall_samples_s

OPEN = {DeviceKind.GPU, DeviceKind.ANY}


class Power(Struct, frozen=True, kw_only=True):
    """What the device it trained on used, the work of others on it counted in."""

    part: str
    joules: float
    average_w: float
    source: str
    modelled: bool
    """An estimate of the system, not a meter's reading."""


class Side(Struct, frozen=True, kw_only=True):
    """Times are of a mean epoch and add up: epoch = input + compute + validation."""

    id: str
    label: str
    framework: str
    device: str
    """What was asked for, and where it ran when the word left that open."""
    state: str
    reason: str
    """Why it is not whole, in its own words; empty where it is."""
    epochs: int
    of_epochs: int
    best_epoch: int | None
    accuracy: float | Absent
    """Of the best epoch, over the validation samples."""
    epoch_s: float | Absent
    input_s: float | Absent
    compute_s: float | Absent
    """Without the first step of each batch size, which traces and compiles."""
    validation_s: float | Absent
    first_steps_s: float | Absent
    """All of those first steps together."""
    samples_s: float | Absent
    utilisation: Utilisation | Absent
    power: Power | Absent
    memory_bytes: int | Absent
    """What the device counted at its peak; on the CPU, and where nothing counts, the most the process held."""
    accuracies: tuple[float, ...]
    validation_losses: tuple[float, ...]
    train_losses: tuple[float, ...]
    busy_percent: tuple[float, ...]
    """Every reading of the utilisation, in order."""
    flags: tuple[Flag, ...] = ()
    """What could have spoilt its times: heat, battery, swap, the work of others."""


def sides_of(records: Sequence[TrainingRun]) -> tuple[Side, ...]:
    return tuple(map(side_of, records))


def side_of(record: TrainingRun) -> Side:
    epochs, plan, top = record.epochs, record.plan, best(record.epochs)
    nothing = Absent(reason="no epoch was trained")
    device = _device(record)
    failure = record.failure
    first_s = sum(epoch.first_steps_s for epoch in epochs)
    input_s, compute_s, validation_s = (
        sum(getattr(epoch, name) for epoch in epochs) for name in ("input_s", "compute_s", "validation_s")
    )
    count = len(epochs)
    busy = tuple(_busy(record))
    return Side(
        id=record.id,
        label=f"{plan.framework} {device}",
        framework=plan.framework,
        device=device,
        state=_state(record),
        reason=" ".join(part for part in (failure.message, failure.hint) if part) if failure is not None else "",
        epochs=count,
        of_epochs=record.goal.epochs,
        best_epoch=top.number if top is not None else None,
        accuracy=top.accuracy if top is not None else nothing,
        epoch_s=(input_s + compute_s + validation_s - first_s) / count if count else nothing,
        input_s=input_s / count if count else nothing,
        compute_s=(compute_s - first_s) / count if count else nothing,
        validation_s=validation_s / count if count else nothing,
        first_steps_s=first_s if count else nothing,
        samples_s=overall_samples_s(epochs),
        utilisation=_utilisation(record, busy) if count else nothing,
        power=_power(record) if count else nothing,
        memory_bytes=_memory(record) if count else nothing,
        accuracies=tuple(epoch.accuracy for epoch in epochs),
        validation_losses=tuple(epoch.validation_loss for epoch in epochs),
        train_losses=tuple(epoch.train_loss for epoch in epochs),
        busy_percent=busy,
        flags=flags(record),
    )


def unlike(records: Sequence[TrainingRun]) -> dict[str, tuple[str, ...]]:
    """What differs between those that trained, besides framework and device, with the values in their order."""
    records = [record for record in records if record.epochs]
    if not records:
        return {}
    plans = [record.plan for record in records]
    params, settings = varying(plans)
    found = {name: [word(plan.params.get(name)) for plan in plans] for name in params}
    found |= {name: [word(getattr(plan.settings, name, plan.data)) for plan in plans] for name in settings}
    found |= {
        "workload": [plan.workload for plan in plans],
        "version of the workload's file": [plan.workload_digest[:12] for plan in plans],
        "seed": [str(plan.seed) for plan in plans],
        "epochs asked for": [str(record.goal.epochs) for record in records],
        "chip": [session.machine.chip for record in records for session in record.sessions[:1]],
        "samples trained on": [record.setting.data_digest[:12] for record in records if record.setting is not None],
    }
    return {name: tuple(values) for name, values in found.items() if len(set(values)) > 1}


def _device(record: TrainingRun) -> str:
    asked = str(record.plan.device)
    open_word = record.plan.device.kind in OPEN and record.setting is not None
    return f"{asked} → {record.setting.placed_on}" if open_word and record.setting is not None else asked


def _state(record: TrainingRun) -> str:
    if record.failure is not None:
        return record.failure.kind.value
    if not record.sessions:
        return "not begun"
    return "killed, or still runs" if record.ending is Ending.RUNNING else record.ending.value


def _parts(record: TrainingRun) -> Iterator[tuple[TrainingSession, list[Epoch]]]:
    """Each session that trained, with its epochs."""
    for number, session in enumerate(record.sessions):
        epochs = [epoch for epoch in record.epochs if epoch.session == number]
        if epochs:
            yield session, epochs


def _part(record: TrainingRun, session: TrainingSession) -> str | Absent:
    """What telemetry calls the device it trained on."""
    placed_on = record.setting.placed_on if record.setting is not None else str(record.plan.device)
    if placed_on.lower().startswith("cpu"):
        return "cpu"
    found = gpu_of(placed_on, session.software.environment.get(VISIBLE, ""))
    return found or Absent(reason=f"{VISIBLE} names the GPU in words, so which of the driver's it was is not known")


def _inside(series: Series, epochs: Sequence[Epoch]) -> Iterator[float]:
    for at_s, value in zip(series.at_s, series.values, strict=True):
        if any(epoch.begin_s <= at_s <= epoch.end_s for epoch in epochs):
            yield value


def _busy(record: TrainingRun) -> Iterator[float]:
    """Of the device, in percent: the GPU's own reading, or the process's share of the cores it may use."""
    for session, epochs in _parts(record):
        name, cores = _busy_name(record, session), _cores(session)
        for series in session.telemetry.series:
            if series.name == name:
                share = cores if name == "process_cpu" else 1
                yield from (value / share for value in _inside(series, epochs) if share)


def _busy_name(record: TrainingRun, session: TrainingSession) -> str | Absent:
    part = _part(record, session)
    if isinstance(part, Absent):
        return part
    return "process_cpu" if part == "cpu" else f"{part}_utilisation"


def _cores(session: TrainingSession) -> int:
    return session.machine.usable_cores or session.machine.logical_cores or 0


def _utilisation(record: TrainingRun, busy: Sequence[float]) -> Utilisation | Absent:
    session = list(_parts(record))[-1][0]
    telemetry, name = session.telemetry, _busy_name(record, session)
    if isinstance(name, Absent):
        return name
    if not busy:
        return _off(session) or Absent(
            reason=telemetry.absent.get(name) or f"nothing here gave {name} while these epochs ran"
        )
    source = next((series.source for series in telemetry.series if series.name == name), "")
    of = f"{_cores(session)} cores" if name == "process_cpu" else name.removesuffix("_utilisation")
    return Utilisation(percent=sum(busy) / len(busy), of=of, source=source)


def _off(session: TrainingSession) -> Absent | None:
    """Switched off, or gone with the process that kept it."""
    telemetry = session.telemetry
    if telemetry.hz is not None:
        return None
    return Absent(reason=telemetry.absent["all"]) if "all" in telemetry.absent else OFF


def _power(record: TrainingRun) -> Power | Absent:
    used: list[Energy] = []
    elapsed_s, part = 0.0, ""
    for session, epochs in _parts(record):
        begin_s, end_s = epochs[0].begin_s, epochs[-1].end_s
        found = _part(record, session)
        if isinstance(found, Absent):
            return found
        part, energy = found, energy_of(found, session.telemetry.series, begin_s, end_s)
        if isinstance(energy, Absent):
            return _off(session) or energy
        used.append(energy)
        elapsed_s += end_s - begin_s
    joules = sum(energy.joules for energy in used)
    return Power(
        part=part,
        joules=joules,
        average_w=joules / elapsed_s,
        source=used[-1].source,
        modelled=any(energy.modelled for energy in used),
    )


def _memory(record: TrainingRun) -> int | Absent:
    on_cpu = record.setting is not None and record.setting.placed_on.lower().startswith("cpu")
    peak = record.memory.peak_bytes if record.memory is not None else None
    if isinstance(peak, int) and not on_cpu:
        return peak
    held = [
        value
        for session, epochs in _parts(record)
        for series in session.telemetry.series
        if series.name == "process_memory"
        for value in _inside(series, epochs)
    ]
    if held:
        return int(max(held))
    return peak if isinstance(peak, Absent) and not on_cpu else Absent(reason="no reading of the process's memory")

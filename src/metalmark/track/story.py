"""Runs of every kind as the events of a queue: how one begins, what it measured, what it came to, how it ended."""

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from metalmark.errors import MetalmarkError
from metalmark.model.codec import AnyRun, encode, encode_export
from metalmark.model.explanation import Bottleneck, Explained, ExplanationRun
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.parity import Checked, ParityRun, ParityVerdict
from metalmark.model.plan import Plan, Scalar
from metalmark.model.plan import word as in_words
from metalmark.model.run import Absent, Failed, Machine, Series, Software, Telemetry
from metalmark.model.training import Ending, Epoch, TrainingRun, TrainingSetup
from metalmark.model.tuning import Tuned, TuningRun
from metalmark.model.watch import WatchedRun, WatchedScript
from metalmark.results.command import monitor_words, target_words
from metalmark.results.derived import derive, flags_of, joules_of_epochs, target_reached
from metalmark.stats.summary import median, step_interval
from metalmark.track.explain_story import explanation_metrics, explanation_tags
from metalmark.track.parity_story import check_metrics, check_tags, parity_tags
from metalmark.track.queue import (
    AttachedFile,
    AttachedModel,
    Begin,
    End,
    EndStatus,
    Known,
    MetricAxis,
    MetricRow,
    QueueEvent,
    QueueWriter,
)
from metalmark.track.tune_story import request_params, rung_metrics, tuning_metrics, tuning_tags
from metalmark.training.derived import best, elapsed_s, samples_s
from metalmark.training.folder import BEST, RECORD, read_request

MOST_ROWS = 500
"""Rows of telemetry per session: a tracker draws no more, and the run's own file has every reading."""
UNITS = {"%": "percent", "W": "watts", "J": "joules", "°C": "celsius", "MHz": "mhz", "of 1": "share"}
WATCHED = "run.json"
FINISHED = {
    "completed", Ending.EPOCHS, Ending.TARGET, Ending.PATIENCE, ParityVerdict.AGREES, ParityVerdict.DIFFERS,
    *Bottleneck,
}  # fmt: skip
KILLED = {"interrupted", Ending.RUNNING, "not begun", ParityVerdict.UNTESTED}


def write_run(writer: QueueWriter, run: AnyRun, folder: Path | None = None) -> None:
    """Write a run that is over. `folder`: where its training lies, if that is on this machine."""
    writer.append(begin_of(run), *history(run))
    conclude(writer, run, folder)


def begin_of(run: AnyRun) -> Begin:
    if isinstance(run, WatchedRun):
        return watch_begin(run.id, run.name, run.started_at, run.params)
    if isinstance(run, ExplanationRun):
        return explanation_begin(run)
    plan, params = run.plan, plan_params(run.plan)
    if isinstance(run, BenchRun):
        kind, tags = "bench", machine_tags(run.machine, run.software)
        if flags := flags_of(run):
            tags["flags"] = ", ".join(flag.name for flag in flags)
    elif isinstance(run, ParityRun):
        kind, tags = "parity", machine_tags(run.machine, run.software)
        tags["reference"] = run.reference.label
    elif isinstance(run, TuningRun):
        kind, tags = "tune", machine_tags(run.machine, run.software)
        params |= request_params(run.request)
    else:
        first = run.sessions[0] if run.sessions else None
        kind, tags = "training", machine_tags(first.machine, first.software) if first is not None else {}
        names = ("epochs", "target_accuracy", "patience", "limit_samples", "limit_steps")
        goal = {name: getattr(run.goal, name) for name in names}
        goal["target"] = None if run.goal.target is None else target_words(run.goal.target)
        goal["monitor"] = None if run.goal.monitor is None else monitor_words(run.goal.monitor)
        params |= {name: value for name, value in goal.items() if value is not None}
    if not isinstance(run, ParityRun | TuningRun):
        tags |= parity_tags(run)
        if run.sweep:
            params["repeat"] = run.repeat
    return Begin(
        id=run.id,
        name=f"{plan.workload} {plan.framework} {plan.device} {run.id}",
        kind=kind,
        at_ms=milliseconds(run.started_at),
        group=run.sweep,
        params=params,
        tags=tags,
    )


def explanation_begin(run: ExplanationRun) -> Begin:
    return Begin(
        id=run.id,
        name=f"{run.subject} {run.id}",
        kind="explain",
        at_ms=milliseconds(run.started_at),
        group=run.sweep,
        params={} if run.plan is None else plan_params(run.plan),
        tags={
            **machine_tags(run.machine, run.software),
            **({"explained_run": run.of} if run.of is not None else {}),
            **({"flags": ", ".join(flag.name for flag in run.flags)} if run.flags else {}),
        },
    )


def watch_begin(run_id: str, name: str, started_at: str, params: Mapping[str, Scalar]) -> Begin:
    return Begin(id=run_id, name=f"{name} {run_id}", kind="run", at_ms=milliseconds(started_at), params=dict(params))


def history(run: AnyRun) -> Iterator[QueueEvent]:
    """Yield what the run measured, in the order in which it is told while a run is alive."""
    if isinstance(run, TrainingRun):
        yield from _epochs(run)
    elif isinstance(run, WatchedRun):
        began_ms = milliseconds(run.started_at)
        for curve in run.curves:
            for step, at_s, value in zip(curve.steps, curve.at_s, curve.values, strict=True):
                yield step_row(step, {curve.name: value}, began_ms + round(at_s * 1000))
    elif isinstance(run, ParityRun) and isinstance(run.outcome, Checked):
        end_ms = milliseconds(run.started_at) + round(run.outcome.seconds * 1000)
        yield step_row(0, known_numbers(check_metrics(run.outcome)), end_ms)
        yield Known(tags=check_tags(run, run.outcome))
    elif isinstance(run, ExplanationRun) and isinstance(run.outcome, Explained):
        end_ms = milliseconds(run.started_at) + round(run.outcome.elapsed_s * 1000)
        yield step_row(0, known_numbers(explanation_metrics(run.outcome)), end_ms)
        yield Known(tags=explanation_tags(run, run.outcome))
    elif isinstance(run, TuningRun) and isinstance(run.outcome, Tuned):
        end_ms = milliseconds(run.started_at) + round(run.outcome.elapsed_s * 1000)
        for number, rung in enumerate(run.outcome.ladder):
            yield step_row(number, known_numbers(rung_metrics(rung)), end_ms)
        yield step_row(len(run.outcome.ladder) - 1, known_numbers(tuning_metrics(run.outcome)), end_ms)
        yield Known(tags=tuning_tags(run, run.outcome))
    elif isinstance(run, BenchRun) and isinstance(run.outcome, Completed):
        yield from _blocks(run, run.outcome)
    elif isinstance(run.outcome, Failed):
        yield Known(tags={"failure": run.outcome.message, "failure.kind": run.outcome.kind.value})


def conclude(writer: QueueWriter, run: AnyRun, folder: Path | None = None) -> None:
    """Write what the run came to, the run itself as a file, a training's best model, and the end."""
    if isinstance(run, TrainingRun):
        last = run.sessions[-1] if run.sessions else None
        ends_s = [epoch.end_s for epoch in run.epochs if epoch.session == len(run.sessions) - 1]
        ends_s += [series.at_s[-1] for series in last.telemetry.series if series.at_s] if last is not None else []
        began = run.started_at if last is None else last.started_at
        end_ms = milliseconds(began) + round(max(ends_s, default=0.0) * 1000)
        writer.append(*_training_totals(run, end_ms))
        writer.attach(AttachedFile(name=RECORD), msgspec.json.format(encode(run), indent=1))
        top = best(run.epochs, run.goal.monitor)
        if folder is not None and (folder / BEST).exists() and top is not None and run.setting is not None:
            classes, source = run.setting.classes, _workload_source(folder)
            model = AttachedModel(name=BEST, plan=run.plan, epoch=top.number, classes=classes, source=source)
            writer.attach(model, folder / BEST)
    elif isinstance(run, WatchedRun):
        end_ms = milliseconds(run.started_at) + round(run.elapsed_s * 1000)
        writer.append(*_watch_totals(run, end_ms))
        writer.attach(AttachedFile(name=WATCHED), encode(run))
    else:
        end_s = run.outcome.phases.end_s if isinstance(run.outcome, Completed) else 0.0
        end_s = run.outcome.seconds if isinstance(run.outcome, Checked) else end_s
        end_s = run.outcome.elapsed_s if isinstance(run.outcome, Explained | Tuned) else end_s
        end_ms = milliseconds(run.started_at) + round(end_s * 1000)
        writer.append(*telemetry_rows(run.telemetry, began_ms=milliseconds(run.started_at)))
        writer.attach(AttachedFile(name=RECORD), encode_export([run]))
    writer.end(End(at_ms=end_ms, status=_status(run)))


def _status(run: AnyRun) -> EndStatus:
    if isinstance(run, TuningRun) and isinstance(run.outcome, Tuned):  # its ending is a figure
        return EndStatus.FINISHED if run.outcome.complete else EndStatus.KILLED
    ending = run.header.ending
    if ending in FINISHED:
        return EndStatus.FINISHED
    return EndStatus.KILLED if ending in KILLED else EndStatus.FAILED


# Bench


def _blocks(run: BenchRun, outcome: Completed) -> Iterator[QueueEvent]:
    """Yield one row per block, on the axis of its steps; then what they come to."""
    began_ms, steps = milliseconds(run.started_at), 0
    blocks = outcome.measurement.blocks
    for block in blocks:
        steps += block.steps
        values: dict[str, float | None] = {"bench/step_s": block.elapsed_s / block.steps}
        if block.proof is not None:
            values["bench/proof"] = block.proof
        yield step_row(steps, values, began_ms + round((block.at_s + block.elapsed_s) * 1000))
    times = [block.elapsed_s / block.steps for block in blocks]
    step_s = median(times)
    interval = step_interval([times])
    derived = derive(run)
    assert derived is not None
    totals: dict[str, float | int | Absent | None] = {
        "bench/median_step_s": step_s,
        "bench/samples_s": outcome.samples_per_step / step_s,
        "bench/step_s_low": interval.low if interval else None,
        "bench/step_s_high": interval.high if interval else None,
        "bench/first_step_s": outcome.measurement.first_step_s,
        "bench/flops_per_s": derived.flops_per_s,
        "memory/live_bytes": outcome.memory.live_bytes,
        "memory/peak_bytes": outcome.memory.peak_bytes,
    }
    if not isinstance(derived.utilisation, Absent):
        totals["bench/utilisation_percent"] = derived.utilisation.percent
    for cost in (derived.energy, *derived.others):
        if not isinstance(cost, Absent):
            totals[f"energy/{cost.part}_joules"] = cost.joules
            totals[f"energy/{cost.part}_watts"] = cost.average_w
            totals[f"energy/{cost.part}_joules_per_sample"] = cost.joules_per_sample
    yield step_row(steps, known_numbers(totals), began_ms + round(outcome.phases.end_s * 1000))
    yield Known(
        params={"parameters": outcome.parameters, "trainable_parameters": outcome.trainable_parameters},
        tags={
            "placed_on": outcome.placed_on,
            "device_name": outcome.device_name,
            "data_source": outcome.data,
            "proof": outcome.proof.statement,
        },
    )


# Training


def _epochs(run: TrainingRun) -> Iterator[QueueEvent]:
    if run.setting is not None:
        yield setup_event(run.setting)
    step = 0
    for number, session in enumerate(run.sessions):
        began_ms = milliseconds(session.started_at)
        for epoch in (epoch for epoch in run.epochs if epoch.session == number):
            for count, loss in enumerate(epoch.losses, start=1):
                at_s = epoch.begin_s + (epoch.end_s - epoch.begin_s) * count / len(epoch.losses)
                yield step_row(step + count, {"train/loss": loss}, began_ms + round(at_s * 1000))
            step += epoch.steps
            yield epoch_row(epoch, began_ms + round(epoch.end_s * 1000))
        yield from session_rows(run, number)


def setup_event(setup: TrainingSetup) -> Known:
    names = ("data_digest", "train_samples", "validation_samples", "parameters", "trainable_parameters", "workers")
    values = {name: value for name in names if (value := getattr(setup, name)) is not None}
    return Known(
        params={"data_source": setup.data, **values},
        tags={
            **({"task": setup.task} if setup.task else {}),
            "placed_on": setup.placed_on,
            "device_name": setup.device_name,
            **{f"version.{name}": version for name, version in setup.versions.items()},
            **({"notes": "; ".join(setup.notes)} if setup.notes else {}),
        },
    )


def epoch_row(epoch: Epoch, at_ms: int) -> MetricRow:
    fields = ("train_loss", "validation_loss", "accuracy", "top5", "learning_rate", "input_s", "compute_s",
              "validation_s", "checkpoint_s")  # fmt: skip
    values = {name: getattr(epoch, name) for name in fields}
    numbers = known_numbers({**epoch.metrics, **values, "samples_s": samples_s(epoch), "elapsed_s": elapsed_s(epoch)})
    named = {f"epoch/{name}": value for name, value in numbers.items()}
    return MetricRow(axis=MetricAxis.EPOCH, x=epoch.number, at_ms=at_ms, values=named)


def session_rows(run: TrainingRun, number: int) -> Iterator[MetricRow]:
    """Yield the telemetry of one session."""
    session = run.sessions[number]
    began_ms = milliseconds(session.started_at)
    after_s = (began_ms - milliseconds(run.started_at)) / 1000
    yield from telemetry_rows(session.telemetry, began_ms=began_ms, after_s=after_s)


def _training_totals(run: TrainingRun, end_ms: int) -> Iterator[QueueEvent]:
    top = best(run.epochs, run.goal.monitor)
    if top is not None:
        total_s = sum(elapsed_s(epoch) for epoch in run.epochs)
        values: dict[str, float | int | Absent | None] = {
            "best/accuracy": top.accuracy,
            "best/validation_loss": top.validation_loss,
            **{f"best/{name}": value for name, value in top.metrics.items()},
            "best/epoch": top.number,
            "total/training_s": total_s,
        }
        if run.memory is not None:
            values |= {"memory/live_bytes": run.memory.live_bytes, "memory/peak_bytes": run.memory.peak_bytes}
        for part, used in joules_of_epochs(run, run.epochs).items():
            if isinstance(used, float):
                values |= {f"total/{part}_joules": used, f"total/{part}_watts": used / total_s if total_s else None}
        wanted = run.goal.wanted
        target = target_reached(run, wanted) if wanted is not None else None
        if target is not None:
            values["target/seconds"] = target.seconds
            values |= {f"target/{part}_joules": used for part, used in target.joules.items()}
        last = run.epochs[-1].number
        yield MetricRow(axis=MetricAxis.EPOCH, x=last, at_ms=end_ms, values=known_numbers(values))
    failure = {"failure": run.failure.message} if run.failure is not None else {}
    yield Known(tags={"ending": run.ending.value, **parity_tags(run), **failure})


def _workload_source(folder: Path) -> str:
    """Return the file of the user's own workload, if it is one and its training still says where that was."""
    try:
        request = read_request(folder)
    except MetalmarkError:
        return ""
    return request.paths.get(request.plan.workload, "")


# Watched loops


def _watch_totals(run: WatchedRun, end_ms: int) -> Iterator[QueueEvent]:
    yield Known(
        tags={
            **machine_tags(run.machine, run.software),
            "ending": run.ended.value,
            **({"failure": run.error} if run.error else {}),
            **({"notes": "; ".join(run.notes)} if run.notes else {}),
            **({"command": run.script.command} if run.script is not None and run.script.command else {}),
        }
    )
    yield from telemetry_rows(run.telemetry, began_ms=milliseconds(run.started_at))
    last = max((step for curve in run.curves for step in curve.steps[-1:]), default=0)
    shares = {f"input_wait/{loop}_share": run.input_wait_share(loop) for loop in run.stretches}
    script = {} if run.script is None else script_metrics(run.script)
    yield step_row(last, known_numbers({**shares, **script, "total/elapsed_s": run.elapsed_s}), end_ms)


def script_metrics(script: WatchedScript) -> dict[str, float | None]:
    """What the steps of a watched script are made of, and its phases."""
    values: dict[str, float | None] = {"script/first_step_s": script.first_step_s}
    steady = script.steady
    if steady is not None and steady.steps:
        names = ("elapsed", "waited", "forward", "backward", "optimizer", "sync", "copy", "host")
        times = {name: getattr(steady, f"{name}_s") for name in names}
        values |= {f"script/{name}_ms": time * 1000 / steady.steps for name, time in times.items() if time is not None}
    return {**values, **{f"phase/{name.replace(' ', '_')}_s": value for name, value in script.phases.items()}}


# Every kind


def plan_params(plan: Plan) -> dict[str, Scalar]:
    settings = msgspec.structs.asdict(plan.settings)
    loader = msgspec.structs.asdict(plan.loader) if plan.loader is not None else {}
    return {
        "workload": plan.workload,
        "framework": plan.framework,
        "device": str(plan.device),
        "mode": plan.mode.value,
        "data": plan.data,
        "data_from": plan.feed.value,
        "seed": plan.seed,
        **{name: in_words(value) or "auto" for name, value in settings.items()},
        **{f"loader.{name}": in_words(value) or "auto" for name, value in loader.items()},
        **plan.params,
    }


def machine_tags(machine: Machine, software: Software) -> dict[str, str]:
    tags = {
        "metalmark.version": software.metalmark,
        "python": software.python,
        "chip": machine.chip,
        "os": machine.os,
        "cores": str(machine.usable_cores or machine.logical_cores or "unknown"),
        "memory_gib": f"{machine.memory_bytes / 2**30:.1f}",
        **{f"version.{name}": version for name, version in software.versions.items()},
        **{f"gpu{number}": gpu.name for number, gpu in enumerate(machine.gpus)},
    }
    return {name: value for name, value in tags.items() if value}


def telemetry_rows(telemetry: Telemetry, *, began_ms: int, after_s: float = 0.0) -> Iterator[MetricRow]:
    """Yield each series as `system/NAME_UNIT`, thinned to means over equal spans.

    `after_s`: when this session began, in seconds after the run did.
    """
    series = [each for each in telemetry.series if each.at_s]
    if not series:
        return
    end_s = max(each.at_s[-1] for each in series)
    count = min(MOST_ROWS, max(len(each.at_s) for each in series))
    span_s = end_s / count if end_s > 0 else 1.0
    means = {}
    for each in series:
        unit = UNITS.get(each.unit, each.unit)
        means[f"system/{each.name}_{unit}" if unit else f"system/{each.name}"] = _means(each, span_s, count)
    for number in range(count):
        values: dict[str, float | None] = {name: of[number] for name, of in means.items() if number in of}
        if values:
            at_s = (number + 0.5) * span_s
            at_ms = began_ms + round(at_s * 1000)
            yield MetricRow(axis=MetricAxis.SECONDS, x=round(after_s + at_s, 3), at_ms=at_ms, values=values)


def _means(series: Series, span_s: float, count: int) -> dict[int, float]:
    sums: dict[int, tuple[float, int]] = {}
    for at_s, value in zip(series.at_s, series.values, strict=True):
        number = min(int(at_s / span_s), count - 1)
        total, readings = sums.get(number, (0.0, 0))
        sums[number] = total + value, readings + 1
    return {number: total / readings for number, (total, readings) in sums.items()}


def step_row(step: int, values: Mapping[str, float | None], at_ms: int) -> MetricRow:
    """Return a row; a number that is not finite becomes None in it."""
    finite = {name: value if value is None or math.isfinite(value) else None for name, value in values.items()}
    return MetricRow(axis=MetricAxis.STEP, x=step, at_ms=at_ms, values=finite)


def known_numbers(values: Mapping[str, float | int | Absent | None]) -> dict[str, float | None]:
    """Keep the values that were measured."""
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def milliseconds(utc: str) -> int:
    return round(datetime.fromisoformat(utc).timestamp() * 1000)

"""Measured cells and watched loops as events, once they are over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from metalmark.model.codec import encode_export
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.run import Absent, Failed, FailureKind
from metalmark.model.watch import WatchedRun, WatchEnding
from metalmark.results.derived import derive
from metalmark.stats.summary import median, samples_per_second, step_interval
from metalmark.track.destination import Destination
from metalmark.track.event import Axis, Begin, End, Event, File, Known, Row, Status
from metalmark.track.spool import Queue, Spool
from metalmark.track.story import finite, known_numbers, machine_tags, milliseconds, plan_params, telemetry_rows

RECORD, WATCHED = "record.json", "run.json"


def spool_record(record: BenchRun, destinations: Sequence[Destination]) -> Queue:
    plan, outcome = record.plan, record.outcome
    began_ms = milliseconds(record.started_at)
    begin = Begin(
        id=record.id,
        name=f"{plan.workload} {plan.framework} {plan.device} {record.id}",
        kind="bench",
        at_ms=began_ms,
        group=record.sweep,
        params={**plan_params(plan), "repeat": record.repeat},
        tags={
            **machine_tags(record.machine, record.software),
            **({"flags": ", ".join(flag.name for flag in record.flags)} if record.flags else {}),
        },
    )
    with Spool(record.id, destinations) as spool:
        spool.append(begin)
        end_s = 0.0
        if isinstance(outcome, Completed):
            spool.append(*_measured(record, outcome, began_ms))
            end_s = outcome.phases.end_s
        else:
            spool.append(Known(tags={"failure": outcome.message, "failure.kind": outcome.kind.value}))
        spool.append(*telemetry_rows(record.telemetry, began_ms=began_ms))
        spool.add_file(RECORD, encode_export([record]))
        spool.append(File(name=RECORD))
        spool.end(End(at_ms=began_ms + round(end_s * 1000), status=_status(outcome)))
    return spool.queue


def spool_watched(run: WatchedRun, destinations: Sequence[Destination]) -> Queue:
    with Spool(run.id, destinations) as spool:
        spool.append(watched_begin(run))
        began_ms = milliseconds(run.started_at)
        for curve in run.curves:
            for step, at_s, value in zip(curve.steps, curve.at_s, curve.values, strict=True):
                at_ms = began_ms + round(at_s * 1000)
                spool.append(Row(axis=Axis.STEP, x=step, at_ms=at_ms, values={curve.name: value}))
        conclude_watched(spool, run)
    return spool.queue


def watched_begin(run: WatchedRun) -> Begin:
    return Begin(
        id=run.id,
        name=f"{run.name} {run.id}",
        kind="run",
        at_ms=milliseconds(run.started_at),
        params=run.params,
    )


def conclude_watched(spool: Spool, run: WatchedRun) -> None:
    """What a watched loop came to, and its result as a file."""
    began_ms = milliseconds(run.started_at)
    end_ms = began_ms + round(run.elapsed_s * 1000)
    spool.append(
        Known(
            tags={
                **machine_tags(run.machine, run.software),
                "ending": run.ended.value,
                **({"failure": run.error} if run.error else {}),
                **({"notes": "; ".join(run.notes)} if run.notes else {}),
            }
        )
    )
    spool.append(*telemetry_rows(run.telemetry, began_ms=began_ms))
    steps = max((step for curve in run.curves for step in curve.steps[-1:]), default=0)
    shares = {f"input_wait/{loop}_share": run.input_wait_share(loop) for loop in run.stretches}
    values = known_numbers({**shares, "total/elapsed_s": run.elapsed_s})
    spool.append(Row(axis=Axis.STEP, x=steps, at_ms=end_ms, values=values))
    spool.add_file(WATCHED, msgspec.json.encode(run))
    spool.append(File(name=WATCHED))
    status = {WatchEnding.FAILED: Status.FAILED, WatchEnding.INTERRUPTED: Status.KILLED}.get(run.ended, Status.FINISHED)
    spool.end(End(at_ms=end_ms, status=status))


def _measured(record: BenchRun, run: Completed, began_ms: int) -> Iterator[Event]:
    """A row a block, on the axis of its steps; then what they come to."""
    blocks = run.measurement.blocks
    steps = 0
    for block in blocks:
        steps += block.steps
        values: dict[str, float | None] = {"bench/step_s": block.elapsed_s / block.steps}
        if block.proof is not None:
            values["bench/proof"] = finite(block.proof)
        at_ms = began_ms + round((block.at_s + block.elapsed_s) * 1000)
        yield Row(axis=Axis.STEP, x=steps, at_ms=at_ms, values=values)
    times = [block.elapsed_s / block.steps for block in blocks]
    step_s = median(times)
    interval = step_interval([times])
    derived = derive(record)
    assert derived is not None
    totals: dict[str, float | int | Absent | None] = {
        "bench/median_step_s": step_s,
        "bench/samples_s": samples_per_second(run.samples_per_step, step_s),
        "bench/step_s_low": interval.low if interval else None,
        "bench/step_s_high": interval.high if interval else None,
        "bench/first_step_s": run.measurement.first_step_s,
        "bench/flops_per_s": derived.flops_per_s,
        "memory/live_bytes": run.memory.live_bytes,
        "memory/peak_bytes": run.memory.peak_bytes,
    }
    if not isinstance(derived.utilisation, Absent):
        totals["bench/utilisation_percent"] = derived.utilisation.percent
    costs = [cost for cost in (derived.energy, *derived.others) if not isinstance(cost, Absent)]
    for cost in costs:
        totals[f"energy/{cost.part}_joules"] = cost.joules
        totals[f"energy/{cost.part}_watts"] = cost.average_w
        totals[f"energy/{cost.part}_joules_per_sample"] = cost.joules_per_sample
    at_ms = began_ms + round(run.phases.end_s * 1000)
    yield Row(axis=Axis.STEP, x=steps, at_ms=at_ms, values=known_numbers(totals))
    yield Known(
        params={"parameters": run.parameters, "trainable_parameters": run.trainable_parameters},
        tags={
            "placed_on": run.placed_on,
            "device_name": run.device_name,
            "data_source": run.data,
            "proof": run.proof.statement,
        },
    )


def _status(outcome: Completed | Failed) -> Status:
    if isinstance(outcome, Completed):
        return Status.FINISHED
    return Status.KILLED if outcome.kind is FailureKind.INTERRUPTED else Status.FAILED

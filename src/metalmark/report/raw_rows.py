"""Flat rows of everything that was measured, for data frames: a row a block, or a row an epoch.

A row a block and not a row a run: the blocks are the sample, and whoever wants a median groups by `run`. A run that
failed is one row, without figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from metalmark.model.measurement import BenchRun, Block, Completed
from metalmark.model.plan import Plan
from metalmark.model.run import Absent
from metalmark.model.training import TrainingRun

Row = dict[str, object]

BLOCKS: dict[str, str] = {
    "run": "string", "sweep": "string", "cell": "int64", "repeat": "int64", "started_at": "string",
    "workload": "string", "mode": "string", "framework": "string", "version": "string", "device": "string",
    "placed_on": "string", "device_name": "string", "chip": "string", "os": "string", "dtype": "string",
    "settings": "string", "params": "string", "batch_size": "int64", "seq_len": "int64", "data": "string",
    "data_from": "string", "outcome": "string", "message": "string", "flags": "string", "samples_per_step": "int64",
    "first_step_s": "double", "flops_per_sample": "double", "peak_bytes": "int64", "warm_up": "bool", "block": "int64",
    "steps": "int64", "elapsed_s": "double", "step_s": "double", "samples_per_s": "double", "at_s": "double",
    "waited_s": "double", "proof": "double", "live_bytes": "int64",
}  # fmt: skip
"""Column → its type in Arrow's words. `settings` and `params` are JSON."""

EPOCHS: dict[str, str] = {
    "training": "string", "started_at": "string", "workload": "string", "framework": "string", "device": "string",
    "placed_on": "string", "dtype": "string", "settings": "string", "params": "string", "batch_size": "int64",
    "data": "string", "seed": "int64", "ending": "string", "message": "string", "epoch": "int64", "session": "int64",
    "samples": "int64", "steps": "int64", "train_loss": "double", "validation_loss": "double", "accuracy": "double",
    "top5": "double", "learning_rate": "double", "input_s": "double", "compute_s": "double", "validation_s": "double",
    "first_steps_s": "double",
}  # fmt: skip


def block_rows(records: Iterable[BenchRun]) -> Iterator[Row]:
    for record in records:
        run = record.outcome
        lead = _lead(record)
        if not isinstance(run, Completed):
            yield {**_empty(BLOCKS), **lead, "outcome": run.kind.value, "message": run.message}
            continue
        lead |= {
            "outcome": "completed", "placed_on": run.placed_on, "device_name": run.device_name,
            "samples_per_step": run.samples_per_step, "first_step_s": run.measurement.first_step_s,
            "flops_per_sample": run.flops_per_sample, "peak_bytes": _known(run.memory.peak_bytes),
        }  # fmt: skip
        for warm_up, blocks in ((True, run.measurement.warmup), (False, run.measurement.blocks)):
            for number, block in enumerate(blocks):
                figures = {"warm_up": warm_up, "block": number, **_figures(block, run.samples_per_step)}
                yield {**_empty(BLOCKS), **lead, **figures}


def epoch_rows(records: Iterable[TrainingRun]) -> Iterator[Row]:
    for record in records:
        plan = record.plan
        lead: Row = {
            **_plan(plan), "training": record.id, "started_at": record.started_at, "seed": plan.seed,
            "placed_on": record.setting.placed_on if record.setting else None, "ending": record.ending.value,
            "message": record.failure.message if record.failure else None,
        }  # fmt: skip
        lead = {name: value for name, value in lead.items() if name in EPOCHS}
        if not record.epochs:
            yield {**_empty(EPOCHS), **lead}
        for epoch in record.epochs:
            shared = {name: getattr(epoch, name) for name in EPOCHS if hasattr(epoch, name)}
            yield {**_empty(EPOCHS), **lead, **shared, "epoch": epoch.number, "top5": _known(epoch.top5)}


def _lead(record: BenchRun) -> Row:
    plan = record.plan
    return {
        **_plan(plan), "run": record.id, "sweep": record.sweep, "cell": record.cell, "repeat": record.repeat,
        "started_at": record.started_at, "mode": plan.mode.value, "data_from": plan.feed.value,
        "version": record.software.versions.get(plan.framework), "chip": record.machine.chip, "os": record.machine.os,
        "flags": " ".join(flag.name for flag in record.flags) or None, "seq_len": _whole(plan, "seq_len"),
    }  # fmt: skip


def _plan(plan: Plan) -> Row:
    return {
        "workload": plan.workload, "framework": plan.framework, "device": str(plan.device), "data": plan.data,
        "dtype": plan.settings.dtype.value, "settings": msgspec.json.encode(plan.settings).decode(),
        "params": msgspec.json.encode(plan.params).decode(), "batch_size": _whole(plan, "batch_size"),
    }  # fmt: skip


def _figures(block: Block, samples: int) -> Row:
    step_s = block.elapsed_s / block.steps
    return {
        "steps": block.steps, "elapsed_s": block.elapsed_s, "step_s": step_s, "at_s": block.at_s,
        "samples_per_s": samples / step_s if step_s > 0 else None, "waited_s": block.waited_s, "proof": block.proof,
        "live_bytes": block.live_bytes,
    }  # fmt: skip


def _whole(plan: Plan, name: str) -> int | None:
    value = plan.params.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _known(value: float | Absent) -> float | None:
    return None if isinstance(value, Absent) else value


def _empty(columns: dict[str, str]) -> Row:
    return dict.fromkeys(columns)

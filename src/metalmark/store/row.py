"""Row: a run's line in a list, of whatever kind, read from columns without decoding the run."""

import os
from pathlib import Path
from types import NoneType
from typing import Any

import msgspec

from metalmark.errors import FormatError, UsageError
from metalmark.model.explanation import Cause, Explained, ExplanationRun
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.parity import Checked, ParityRun
from metalmark.model.plan import Plan
from metalmark.model.run import Absent, Run
from metalmark.model.training import TrainingRun
from metalmark.model.tuning import Tuned, TuningRun
from metalmark.model.watch import WatchedRun
from metalmark.stats.summary import median

RECORD, LINEUP = "record.json", "lineup.json"
"""What makes a folder one of a training, or of several; written out, since training/folder.py imports NumPy."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    kind: str
    sweep: str = ""
    """The runs that one command made; empty for a run by itself."""
    cell: int = 0
    repeat: int = 0
    started_at: str
    name: str = ""
    """A watched run's own name, that of a training's folder ("sweep folder/folder" for one of several), or what was
    explained where that has no plan."""
    workload: str = ""
    framework: str = ""
    device: str = ""
    mode: str = ""
    batch_size: int | None = None
    dtype: str = ""
    ending: str
    step_s: float | None = None
    samples_s: float | None = None
    steps: int | None = None
    """Number of steps of a watched run's first loop."""
    input_share: float | None = None
    """Share of that loop's time, or of an explained step, that went by waiting for batches."""
    epochs: int | None = None
    accuracy: float | None = None
    """Validation accuracy of the best epoch."""
    folder: bytes | None = None
    parity: str = ""
    """Of a parity check, what it found, in a few words; of a measured or trained run, the verdict that it carries; of a
    tuning, that of its best settings."""

    @property
    def path(self) -> Path | None:
        """The training's folder on this machine."""
        return None if self.folder is None else Path(os.fsdecode(self.folder))


COLUMNS = Row.__struct_fields__
DAMAGED = "damaged"
_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(COLUMNS, str),
    **dict.fromkeys(("cell", "repeat"), int),
    **dict.fromkeys(("batch_size", "steps", "epochs"), (int, NoneType)),
    **dict.fromkeys(("step_s", "samples_s", "input_share", "accuracy"), (float, NoneType)),
    "folder": (bytes, NoneType),
}
_sound: set[tuple[type, ...]] = set()
"""What rows of a store are made of, as far as they were seen: to look at each value of each row would take longer."""


def repaired(columns: dict[str, Any]) -> Row:
    """Return a row of the store. A value that its column can't hold becomes an empty one, and the row is shown as
    damaged: SQLite checks what is written, but a bit that was turned on the disk is not."""
    types = tuple(map(type, columns.values()))
    if types in _sound and _is_finite(columns):
        return Row(**columns)
    wrong = [name for name, value in columns.items() if not isinstance(value, _TYPES[name])]
    wrong += [name for name in _FIGURES if name not in wrong and not _is_figure(columns[name])]
    if not wrong:
        _sound.add(types)
        return Row(**columns)
    empty: dict[str, Any] = {"id": str(columns["id"]), **dict.fromkeys(("cell", "repeat"), 0)}
    for name in wrong:
        columns[name] = empty.get(name, "" if _TYPES[name] is str else None)
    return Row(**{**columns, "ending": DAMAGED})


_FIGURES = ("step_s", "samples_s", "input_share", "accuracy")


def _is_finite(columns: dict[str, Any]) -> bool:
    return all(_is_figure(columns[name]) for name in _FIGURES)


def _is_figure(value: float | None) -> bool:
    return value is None or 0 <= value < float("inf")


def row_of(run: Run, folder: Path | None = None) -> Row:
    header = run.header
    columns: dict[str, Any] = {name: getattr(header, name) for name in ("id", "sweep", "started_at", "ending")}
    columns["kind"] = header.kind.value
    if isinstance(run, WatchedRun):
        return Row(**columns, **_watch_columns(run))
    if isinstance(run, ExplanationRun):
        return Row(**columns | _explained_columns(run))
    assert isinstance(run, BenchRun | TrainingRun | ParityRun | TuningRun)
    columns |= {"cell": run.cell, **_plan_columns(run.plan)}
    if isinstance(run, TuningRun):
        return Row(**columns | _tuned_columns(run))
    if isinstance(run, ParityRun):
        return Row(**columns | _parity_columns(run))
    columns |= {"repeat": run.repeat, "parity": run.parity.verdict.value if run.parity is not None else ""}
    return Row(**columns | (_bench_columns(run) if isinstance(run, BenchRun) else _training_columns(run, folder)))


def _plan_columns(plan: Plan) -> dict[str, Any]:
    batch = plan.params.get("batch_size")
    return {
        "workload": plan.workload,
        "framework": plan.framework,
        "device": str(plan.device),
        "mode": plan.mode.value,
        "batch_size": batch if isinstance(batch, int) else None,
        "dtype": plan.settings.dtype.value,
    }


def _explained_columns(run: ExplanationRun) -> dict[str, Any]:
    columns: dict[str, Any] = {"name": storable(run.subject)} if run.plan is None else _plan_columns(run.plan)
    columns["cell"] = run.cell
    outcome = run.outcome
    if not isinstance(outcome, Explained):
        return columns
    if outcome.placed_on:
        columns["device"] = outcome.placed_on
    samples = outcome.samples_per_step
    return {
        **columns,
        "step_s": outcome.step_s or None,
        "samples_s": samples / outcome.step_s if samples and outcome.step_s else None,
        "input_share": outcome.share(Cause.INPUT) if any(one.cause is Cause.INPUT for one in outcome.shares) else None,
    }


def _tuned_columns(run: TuningRun) -> dict[str, Any]:
    """The plan's columns are those of the baseline; the figures are those of the best settings."""
    outcome = run.outcome
    if not isinstance(outcome, Tuned):
        return {}
    best = outcome.best
    samples, verdict = best.samples_per_step, best.verdict
    return {
        "device": outcome.placed_on or str(run.plan.device),
        "step_s": best.step_s or None,
        "samples_s": samples / best.step_s if samples and best.step_s else None,
        "parity": verdict.value if verdict is not None else "",
    }


def _parity_columns(run: ParityRun) -> dict[str, Any]:
    outcome = run.outcome
    if not isinstance(outcome, Checked):
        return {}
    wrong, compared = outcome.differences, len(outcome.compared)
    first = f"{wrong[0].quantity} {wrong[0].name}".rstrip() if wrong else ""
    found = f"{len(wrong)} of {compared} differ, first {first}" if wrong else f"{compared} compared"
    return {"device": outcome.placed_on or str(run.plan.device), "parity": storable(found)}


def _bench_columns(run: BenchRun) -> dict[str, Any]:
    outcome = run.outcome
    if not isinstance(outcome, Completed):
        return {}
    device = outcome.placed_on or str(run.plan.device)
    step_s = median([block.elapsed_s / block.steps for block in outcome.measurement.blocks])
    return {"device": device, "step_s": step_s, "samples_s": outcome.samples_per_step / step_s}


def _training_columns(run: TrainingRun, folder: Path | None) -> dict[str, Any]:
    from metalmark.training.derived import best, overall_samples_s

    top, samples_s = best(run.epochs, run.goal.monitor), overall_samples_s(run.epochs)
    columns: dict[str, Any] = {"device": run.setting.placed_on} if run.setting and run.setting.placed_on else {}
    if folder is not None:
        columns["name"] = storable(f"{folder.parent.name}/{folder.name}" if run.sweep else folder.name)
        columns["folder"] = os.fsencode(folder)
    return {
        **columns,
        "samples_s": samples_s if isinstance(samples_s, float) else None,
        "epochs": len(run.epochs),
        "accuracy": top.accuracy if top is not None and not isinstance(top.accuracy, Absent) else None,
    }


def _watch_columns(run: WatchedRun) -> dict[str, Any]:
    loop = next(iter(run.stretches), None)
    stretches = run.stretches[loop] if loop is not None else ()
    steps = sum(stretch.steps for stretch in stretches)
    script = run.script
    seen = {} if script is None else {"framework": ", ".join(script.frameworks), "device": script.device}
    return {
        **seen,
        "batch_size": script.batch_size if script is not None else None,
        "name": run.name,
        "step_s": sum(stretch.elapsed_s for stretch in stretches) / steps if steps else None,
        "steps": steps if loop is not None else None,
        "input_share": run.input_wait_share(loop) if loop is not None else None,
    }


def read_training(folder: Path) -> TrainingRun:
    """Return the training of a folder. Those that 0.1.0 wrote side by side did not say so: the folder above does."""
    from metalmark.training.folder import read_record
    from metalmark.training.lineup import is_lineup, read_lineup

    run = read_record(folder)
    if run.sweep or not is_lineup(folder.parent):
        return run
    try:
        lineup = read_lineup(folder.parent)
    except (FormatError, UsageError):  # whoever asks for the folder above hears of it
        return run
    if folder.name not in lineup.members:
        return run
    return msgspec.structs.replace(run, sweep=lineup.id, cell=lineup.members.index(folder.name))


def storable(text: str) -> str:
    """Write what is not text by its codes: the name of a folder, or what a user types, may be any bytes."""
    try:
        return os.fsencode(text).decode(errors="backslashreplace")
    except UnicodeEncodeError:  # not from the command line
        return text.encode(errors="backslashreplace").decode()

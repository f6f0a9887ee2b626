"""Runs for other programs: Markdown to paste, CSV with plain numbers, JSON with everything, Parquet for data frames."""

import csv
import io
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from metalmark.errors import NotInstalledError, UsageError
from metalmark.model.codec import FORMAT, AnyRun, encode_export
from metalmark.model.explanation import Explained, ExplanationRun
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.parity import Checked, ParityRun
from metalmark.model.plan import Plan, word
from metalmark.model.run import SCHEMA, Absent
from metalmark.model.training import TrainingRun
from metalmark.model.tuning import Rung, Tuned, TuningRun
from metalmark.report.answer import answer
from metalmark.report.content import Content
from metalmark.report.text.explain_page import explanation_tables
from metalmark.report.text.parity_page import parity_tables, row_verdict
from metalmark.report.text.run_page import machine_facts
from metalmark.report.text.run_tables import training_table
from metalmark.report.text.tables import Table, published_tables, sweep_table
from metalmark.report.text.tune_page import rate_of, tuning_tables
from metalmark.report.text.watch_page import watched_tables
from metalmark.report.text.world_page import WORLD, world_row
from metalmark.results.cells import Cell, cells_of
from metalmark.results.derived import Cost, Derived, Utilisation, derive, flags_of
from metalmark.results.scaling import efficiency, world_figures
from metalmark.scrub import printable, scrub
from metalmark.stats.summary import median

FlatRow = dict[str, object]

LEAD = ("workload", "mode", "framework", "device", "data", "placed_on")
FIGURES = (
    "outcome", "processes", "blocks", "step_s", "low_s", "high_s", "interval_over", "samples_per_s", "first_step_s",
    "peak_bytes", "process_bytes", "data_from", "workers", "prefetch", "waiting_share", "proof", "flags", "message",
)  # fmt: skip
TOKENS = "tokens_per_s"
DERIVED: dict[str, Callable[[Derived], object]] = {
    "utilisation_percent": lambda d: d.utilisation.percent if isinstance(d.utilisation, Utilisation) else None,
    "average_w": lambda d: d.energy.average_w if isinstance(d.energy, Cost) else None,
    "peak_w": lambda d: d.energy.peak_w if isinstance(d.energy, Cost) else None,
    "joules_per_step": lambda d: d.energy.joules_per_step if isinstance(d.energy, Cost) else None,
    "joules_per_sample": lambda d: d.energy.joules_per_sample if isinstance(d.energy, Cost) else None,
    "samples_per_joule": lambda d: d.energy.samples_per_joule if isinstance(d.energy, Cost) else None,
    "energy_of": lambda d: d.energy.part if isinstance(d.energy, Cost) else None,
    "energy_source": lambda d: d.energy.source if isinstance(d.energy, Cost) else None,
    "growth_bytes_per_1000_steps": lambda d: d.growth[0].bytes_per_1000_steps if isinstance(d.growth, tuple) else None,
    "swapped_in_bytes": lambda d: d.swapped_in_bytes,
    "swapped_out_bytes": lambda d: d.swapped_out_bytes,
    "flops_per_s": lambda d: d.flops_per_s,
    TOKENS: lambda d: d.tokens_per_s,
    "last_tenth_to_first": lambda d: d.last_tenth_to_first,
}
"""The median over the processes of a cell. Why a figure is missing is in --json and `runs show`."""

_COLUMNS: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("parquet.toml").read_text(encoding="utf-8")
)
BLOCKS, EPOCHS, QUANTITIES, SHARES, RUNGS = (
    _COLUMNS[name] for name in ("blocks", "epochs", "quantities", "shares", "rungs")
)
PARITY = "parity"
ONE_KIND = "Ask for one kind at a time; --format json and html hold all kinds."


def markdown_text(content: Content) -> str:
    """The answer, tables with their notes, and the machine: what one pastes into an issue."""
    parts = [
        f"## {escaped(content.title)}\n",
        "".join(f"{escaped(line.replace('`', ''))}\n" for line in answer(content)),
    ]
    parts += [markdown(table) for run in content.tunings for table in tuning_tables([run])]
    cells = cells_of(content.bench_runs)
    if cells:
        parts.append(markdown(sweep_table(cells)))
        if content.left_out:
            parts.append("".join(f"- {escaped(scrub(line))}\n" for line in content.left_out))
        if content.published:
            parts += [markdown(table) for table in published_tables(cells)]
    parts += [markdown(training_table(run)) for run in content.trainings]
    parts += [markdown(table) for run in content.watched for table in watched_tables(run)]
    parts += [markdown(table) for run in content.explanations for table in explanation_tables([run])]
    # A row per kind of quantity is enough to paste.
    parts += [markdown(table) for table in parity_tables(content.parities)[:1]]
    for machine in content.machines:
        facts = "; ".join(f"{fact.name}: {fact.value}" for fact in machine_facts(machine))
        parts.append(f"Machine: {escaped(facts)}.\n")
    return "\n".join(parts)


def csv_text(content: Content) -> str:
    """A line per cell; for trainings a line per epoch; for parity checks alone a line per quantity; for explanations
    a line per share of a step; for tunings a line for everything that was tried."""
    _one_kind(content, "CSV")
    if _only_parity(content):
        return _csv(QUANTITIES, (row.values() for row in quantity_rows(content.parities)))
    if content.tunings:
        return _csv(RUNGS, (row.values() for row in rung_rows(content.tunings)))
    if content.explanations:
        return _csv(SHARES, (row.values() for row in share_rows(content.explanations)))
    if not content.trainings:
        return comma_separated(cells_of(content.bench_runs))
    return _csv(EPOCHS, (row.values() for row in epoch_rows(content.trainings)))


def _csv(headers: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headers)
    writer.writerows(["" if value is None else spreadsheet(value) for value in row] for row in rows)
    return out.getvalue()


def parquet_bytes(content: Content) -> bytes:
    """A row per block of each run, warm-up marked; for trainings a row per epoch; for parity checks alone a row per
    quantity; for explanations a row per share of a step; for tunings a row for everything that was tried."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise NotInstalledError(
            "Parquet needs the extra `parquet`, which is not installed.", hint='pip install "metalmark[parquet]"'
        ) from error
    _one_kind(content, "Parquet")
    columns, rows, per = BLOCKS, block_rows(content.bench_runs), "block"
    if content.tunings:
        columns, rows, per = RUNGS, rung_rows(content.tunings), "rung"
    elif content.trainings:
        columns, rows, per = EPOCHS, epoch_rows(content.trainings), "epoch"
    elif content.explanations:
        columns, rows, per = SHARES, share_rows(content.explanations), "share of a step"
    elif _only_parity(content):
        columns, rows, per = QUANTITIES, quantity_rows(content.parities), "quantity"
    fields = [(name, pyarrow.type_for_alias(kind)) for name, kind in columns.items()]
    schema = pyarrow.schema(fields, metadata={"format": f"{FORMAT}, a row per {per}", "schema": str(SCHEMA)})
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), out)
    return out.getvalue()


def _only_parity(content: Content) -> bool:
    """Whether a table is of parity checks. Beside measured runs, those carry the verdict in a column."""
    return bool(content.parities) and not content.bench_runs and not content.trainings


def _one_kind(content: Content, form: str) -> None:
    if content.watched:
        raise UsageError(f"A watched run has no rows for {form}.", hint=ONE_KIND)
    if content.tunings:
        # Its trials have their own table; here they stand behind the rungs that they gave.
        sweeps = {run.sweep for run in content.tunings}
        others = [run for run in content.runs if not isinstance(run, TuningRun) and run.header.sweep not in sweeps]
        if others:
            raise UsageError(f"Tunings and other runs do not fit into one {form} table.", hint=ONE_KIND)
        return
    if content.explanations and len(content.explanations) < len(content.runs):
        raise UsageError(f"Explanations and other runs do not fit into one {form} table.", hint=ONE_KIND)
    if content.bench_runs and content.trainings:
        raise UsageError(f"Bench runs and trainings do not fit into one {form} table.", hint=ONE_KIND)


def markdown(table: Table) -> str:
    def line(values: Sequence[str]) -> str:
        return "| " + " | ".join(escaped(value) for value in values) + " |"

    rule = "|" + "|".join(" ---: " if numeric else " --- " for numeric in table.numeric) + "|"
    rows = [line(table.headers), rule, *(line(row) for row in table.rows)]
    notes = [f"- {escaped(note)}" for note in table.notes]
    return "\n".join([f"**{escaped(table.caption)}**", "", *rows, *([""] if notes else []), *notes]) + "\n"


def comma_separated(cells: Sequence[Cell]) -> str:
    params = list(dict.fromkeys(name for cell in cells for name in cell.plan.params))
    settings = cells[0].plan.settings.__struct_fields__ if cells else ()
    in_tokens = any(run.tokens_per_sample is not None for cell in cells for run in cell.completed)
    derived = [name for name in DERIVED if in_tokens or name != TOKENS]
    rows = []
    for cell in cells:
        plan, failure = cell.plan, cell.failure
        row: list[object] = [plan.workload, plan.mode.value, plan.framework, plan.device, plan.data]
        row += [cell.completed[0].placed_on if cell.completed else ""]
        row += [word(plan.params[name]) if name in plan.params else "" for name in params]
        row += [word(getattr(plan.settings, name)) for name in settings]
        if failure:
            row += [failure.kind.value, len(cell.records), *[""] * 9, *_feed(cell), "", "", failure.message]
        else:
            interval = cell.interval
            row += ["completed", len(cell.completed), sum(map(len, cell.step_times)), cell.step_s]
            row += [interval.low, interval.high, interval.over] if interval else ["", "", ""]
            row += [cell.samples_s, cell.first_step_s, cell.peak_bytes, cell.process_bytes]
            row += [*_feed(cell), cell.completed[0].proof.statement, " ".join(cell.flags), ""]
        verdict = cell.parity.value if cell.parity is not None else None
        rows.append([*row, *([None] * len(derived) if failure else _derived(cell, derived)), verdict])
    headers = [*LEAD, *params, *settings, *FIGURES, *derived, PARITY]
    if any(cell.plan.world for cell in cells):
        headers += WORLD
        rows = [[*row, *world_row(cell, cells)] for row, cell in zip(rows, cells, strict=True)]
    return _csv(headers, rows)


def _derived(cell: Cell, names: Iterable[str]) -> list[object]:
    figures = [derived for derived in map(derive, cell.records) if derived is not None]
    row: list[object] = []
    for name in names:
        known = [value for value in map(DERIVED[name], figures) if isinstance(value, int | float | str)]
        numbers = [value for value in known if not isinstance(value, str)]
        row.append(median(numbers) if numbers else " ".join(dict.fromkeys(map(str, known))) or None)
    return row


def _feed(cell: Cell) -> list[object]:
    loader = cell.plan.loader
    ahead: list[object] = [loader.workers, loader.prefetch] if loader else ["", ""]
    return [cell.plan.feed.value, *ahead, cell.waiting_share]


def json_text(runs: Sequence[AnyRun]) -> str:
    """Every run with all that was measured, and the derived figures beside them, where nobody takes them for readings;
    `metalmark runs import` reads it back."""
    derived = {run.id: derive(run) for run in runs if isinstance(run, BenchRun)}
    known = {name: msgspec.to_builtins(figures) for name, figures in derived.items() if figures}
    cells = cells_of(run for run in runs if isinstance(run, BenchRun))
    for cell in cells:
        for run in cell.records:
            if isinstance(run.outcome, Completed) and run.outcome.world:
                known[run.id]["world"] = msgspec.to_builtins(world_figures(run.outcome.world))
                known[run.id]["efficiency"] = msgspec.to_builtins(efficiency(cell, cells))
    return encode_export(list(runs), known).decode()


def spreadsheet(value: object) -> object:
    """Text that a spreadsheet does not run: it takes what begins like a formula for one, and a message may."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text[:1] in "=+-@" and text[:1] else text


def escaped(text: str) -> str:
    plain = printable(text).replace("\n", " ")
    for sign in "\\|`*_<>[]":
        plain = plain.replace(sign, "\\" + sign)
    return plain


def block_rows(runs: Iterable[BenchRun]) -> Iterator[FlatRow]:
    """Return a row per block and not per run: the blocks are the sample, and whoever wants a median groups by `run`. A
    run that failed is one row without figures."""
    for record in runs:
        run, plan = record.outcome, record.plan
        lead: FlatRow = {
            **dict.fromkeys(BLOCKS), **_plan(plan), "run": record.id, "sweep": record.sweep, "cell": record.cell,
            "repeat": record.repeat, "started_at": record.started_at, "mode": plan.mode.value,
            "data_from": plan.feed.value, "version": record.software.versions.get(plan.framework),
            "chip": record.machine.chip, "os": record.machine.os, "seq_len": _whole(plan, "seq_len"),
            "flags": " ".join(flag.name for flag in flags_of(record)) or None, PARITY: _verdict(record),
        }  # fmt: skip
        if not isinstance(run, Completed):
            yield {**lead, "outcome": run.kind.value, "message": run.message}
            continue
        lead |= {
            "outcome": "completed", "placed_on": run.placed_on, "device_name": run.device_name,
            "samples_per_step": run.samples_per_step, "first_step_s": run.measurement.first_step_s,
            "flops_per_sample": run.flops_per_sample, "peak_bytes": _known(run.memory.peak_bytes),
        }  # fmt: skip
        for warm_up, blocks in ((True, run.measurement.warmup), (False, run.measurement.blocks)):
            for number, block in enumerate(blocks):
                step_s = block.elapsed_s / block.steps
                rate = run.samples_per_step / step_s if step_s > 0 else None
                yield {
                    **lead, "warm_up": warm_up, "block": number, "steps": block.steps, "elapsed_s": block.elapsed_s,
                    "step_s": step_s, "at_s": block.at_s, "samples_per_s": rate, "waited_s": block.waited_s,
                    "proof": block.proof, "live_bytes": block.live_bytes,
                }  # fmt: skip


def epoch_rows(runs: Iterable[TrainingRun]) -> Iterator[FlatRow]:
    for record in runs:
        plan = record.plan
        lead: FlatRow = {
            **dict.fromkeys(EPOCHS), **_plan(plan), "training": record.id, "started_at": record.started_at,
            "seed": plan.seed, "placed_on": record.setting.placed_on if record.setting else None,
            "ending": record.ending.value, "message": record.failure.message if record.failure else None,
            PARITY: _verdict(record),
        }  # fmt: skip
        lead = {name: value for name, value in lead.items() if name in EPOCHS}
        if not record.epochs:
            yield lead
        for epoch in record.epochs:
            shared = {name: getattr(epoch, name) for name in EPOCHS if hasattr(epoch, name)}
            yield {**lead, **shared, "epoch": epoch.number, "top5": _known(epoch.top5),
                   "accuracy": _known(epoch.accuracy), "validation_loss": _known(epoch.validation_loss),
                   "metrics": msgspec.json.encode(epoch.metrics).decode() if epoch.metrics else None}  # fmt: skip


def quantity_rows(runs: Iterable[ParityRun]) -> Iterator[FlatRow]:
    """Return a row per quantity that was compared. A check that could not be made is one row without figures."""
    for run in runs:
        lead: FlatRow = {
            **dict.fromkeys(QUANTITIES), **_plan(run.plan), "run": run.id, "started_at": run.started_at,
            "mode": run.plan.mode.value, "reference": run.reference.label, "verdict": run.verdict.value,
        }  # fmt: skip
        if not isinstance(run.outcome, Checked):
            yield {**lead, "message": run.outcome.message}
            continue
        for row in run.outcome.compared:
            yield {
                **lead, "placed_on": run.outcome.placed_on, "quantity": row.quantity.value, "name": row.name,
                "steps": row.steps, "statistic": row.statistic.value, "distance": row.distance, "sigma": row.sigma,
                "sigmas": row.sigmas if row.distance is not None else None, "limit": row.limit,
                "where": " ".join(map(str, row.where)), "agrees": row_verdict(row), "excused": row.excused or None,
            }  # fmt: skip


def share_rows(runs: Iterable[ExplanationRun]) -> Iterator[FlatRow]:
    """Return a row per share of an explained step. An explanation that failed is one row without figures."""
    for run in runs:
        lead: FlatRow = {**dict.fromkeys(SHARES), "run": run.id, "started_at": run.started_at, "subject": run.subject}
        if run.plan is not None:
            lead |= {**_plan(run.plan), "mode": run.plan.mode.value}
        found = run.outcome
        if not isinstance(found, Explained):
            yield {**lead, "verdict": found.kind.value, "message": found.message}
            continue
        lead |= {
            "placed_on": found.placed_on, "verdict": found.bottleneck.value, "step_s": found.step_s,
            "step_error_s": found.error_s, "samples_per_step": found.samples_per_step,
        }  # fmt: skip
        for one in found.shares:
            yield {
                **lead, "cause": one.cause.value, "seconds": one.seconds, "error_s": one.error_s,
                "share": one.seconds / found.step_s if found.step_s else None, "evidence": one.evidence,
            }  # fmt: skip


def rung_rows(runs: Iterable[TuningRun]) -> Iterator[FlatRow]:
    """Return a row per rung of the ladder, then one for each other combination that was tried. A tuning that failed is
    one row without figures."""
    for run in runs:
        lead: FlatRow = {
            **dict.fromkeys(RUNGS), "run": run.id, "started_at": run.started_at, **_plan(run.plan),
            "mode": run.plan.mode.value, "goal": run.request.goal.value, "ending": run.header.ending,
        }  # fmt: skip
        found = run.outcome
        if not isinstance(found, Tuned):
            yield {**lead, "message": found.message}
            continue
        lead |= {"placed_on": found.placed_on, "complete": found.complete}
        for number, rung in enumerate(found.ladder):
            yield {**lead, **_rung(run.plan, rung), "rung": number}
        for rung in found.others:
            yield {**lead, **_rung(run.plan, rung)}


def _rung(plan: Plan, rung: Rung) -> FlatRow:
    """The columns of a plan are those of the rung: of the baseline with the change made."""
    return {
        **_plan(rung.change.applied(plan)), "title": rung.title, "change": msgspec.json.encode(rung.change).decode(),
        "status": rung.status.value, "value": rung.value, "step_s": rung.step_s,
        "samples_per_step": rung.samples_per_step, "samples_per_s": rate_of(rung), "gain": rung.gain, "low": rung.low,
        "high": rung.high, "processes": rung.processes, "first_step_s": rung.first_step_s,
        "peak_bytes": rung.peak_bytes, "joules_per_sample": rung.joules_per_sample,
        PARITY: rung.verdict.value if rung.verdict is not None else None, "reason": rung.reason or None,
        "trials": " ".join(rung.runs),
    }  # fmt: skip


def _verdict(run: BenchRun | TrainingRun) -> str | None:
    return run.parity.verdict.value if run.parity is not None else None


def _plan(plan: Plan) -> FlatRow:
    return {
        "workload": plan.workload, "framework": plan.framework, "device": str(plan.device), "data": plan.data,
        "dtype": plan.settings.dtype.value, "settings": msgspec.json.encode(plan.settings).decode(),
        "params": msgspec.json.encode(plan.params).decode(), "batch_size": _whole(plan, "batch_size"),
    }  # fmt: skip


def _whole(plan: Plan, name: str) -> int | None:
    value = plan.params.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _known(value: float | Absent) -> float | None:
    return None if isinstance(value, Absent) else value

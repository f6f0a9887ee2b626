"""Tables as data, for a terminal, a page and Markdown: of a sweep, of ceilings, and of published figures."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from metalmark.model.plan import CellTarget, Feed, Mode, Plan, Scalar, word
from metalmark.model.run import PARITY_FAILED, UNPROVED, Failed, FailureKind
from metalmark.report.text.units import figures, grouped, seconds, share, size
from metalmark.report.text.world_page import efficiency_words, world_notes
from metalmark.results.cells import Cell, varying
from metalmark.results.machine_titles import machine_title, titles_apart
from metalmark.results.published import METRICS, OTHER_METRICS, STEPS, PublishedFigure, published
from metalmark.results.scaling import communication_share, efficiency
from metalmark.workloads.ceiling import COPY, copied_bytes


@dataclass(frozen=True, kw_only=True)
class Table:
    headers: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    notes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    """What is drawn with characters below the notes, in a terminal."""
    drop: tuple[str, ...] = ()
    """Headers of the columns that a narrow window does without, those first that are missed least."""
    moves: Mapping[str, str] = field(default_factory=dict)
    """Column → the other one in which its value stands, in place of a hyphen, where the column is left out."""


FIGURES = (
    "step", "±95%", "samples/s", "tokens/s", "efficiency", "communication", "input wait", "first step", "memory",
    "proof", "parity", "flags",
)  # fmt: skip
DROP = ("first step", "proof", "parity", "framework", "device", "memory", "input wait", "flags", "samples/s")
"""What a narrow window does without, those first that are missed least."""
HEADERS = {"feed": "data from"}
TEXTS = {"proof", "parity", "flags", "because"}
MORE_THAN_STEPS = "It counts more than training steps, so no measured figure stands beside it."
CEILING_HEADERS = ("framework", "device", "dtype", "matrix product", "±95%", "burst", "copy", "±95%", "flags")
CEILING_NOTE = (
    "matrix product: sustained for a second, and what shares of the ceiling are of; burst: the fastest block, before "
    "power or heat brought the clock down. Both are of normally distributed numbers: at its power limit a GPU is "
    "faster on zeros."
)


def sweep_table(cells: Sequence[Cell], *, plans: Sequence[Plan] = (), targets: Sequence[CellTarget] = ()) -> Table:
    """Return a row per cell, with a column for each parameter and setting that differs, and for the machine where
    there are several. `plans` may name cells that have no run yet: they are empty rows of a table that fills.
    `targets` are the machines that these plans are for."""
    every = list(plans) or [cell.plan for cell in cells]
    params, settings = varying(every)
    names = [name for name in ("workload", "mode") if len({plan_value(plan, name) for plan in every}) > 1]
    names += [*params, *settings]
    left_out = _left_out(every, cells)
    figures_shown = [name for name in FIGURES if name not in left_out]
    # On a cluster one plan is a cell for each machine, so that cells are known by their number in the sweep.
    cells_by_plan = {str(cell.records[0].cell) if targets else repr(cell.plan): cell for cell in cells}
    keys = [str(number) if targets else repr(plan) for number, plan in enumerate(plans)]
    # Cells of two sweeps may have the same plan: without a list of plans, each cell is a row of its own.
    shown: list[tuple[Plan, Cell | None]] = [
        (plan, cells_by_plan.get(key)) for plan, key in zip(plans, keys, strict=True)
    ]
    shown = shown or [(cell.plan, cell) for cell in cells]
    machines = _machines([cell for _, cell in shown], targets)
    lead_headers = [*(["machine"] if machines else []), *(HEADERS.get(name, spaced(name)) for name in names)]
    headers = (*lead_headers, "framework", "device", *figures_shown)
    rows = []
    for row, (plan, cell) in enumerate(shown):
        lead = [*machines[row : row + 1], *(plan_value(plan, name) for name in names)]
        values = _figures(cell, cells)
        device = cell.device if cell else str(plan.device)
        rows.append((*lead, plan.framework, device, *(values[name] for name in figures_shown)))
    # No window is too narrow to say that a speed is not that of the same network.
    kept = {"flags"} if any(PARITY_FAILED in cell.flags for cell in cells) else set()
    kept |= {name for name in ("framework", "device") if not _constant(headers, rows, name)}
    numbers = {"processes"} | {
        name for name in params if all(isinstance(plan.params.get(name, 0), int | float) for plan in every)
    }
    numeric = (
        *([False] if machines else []),
        *(name in numbers for name in names),
        False,
        False,
        *(name not in TEXTS for name in figures_shown),
    )
    return Table(
        headers=headers,
        numeric=numeric,
        rows=tuple(rows),
        caption=_caption(every, names),
        notes=notes(cells),
        drop=tuple(name for name in DROP if name not in kept),
        moves={"proof": "step"},
    )


def _machines(cells: Sequence[Cell | None], targets: Sequence[CellTarget]) -> list[str]:
    """Return the machine of each row; nothing where all are of one."""
    apart = titles_apart(cell.records[0].machine for cell in cells if cell is not None)
    titles = [target.title for target in targets] or [""] * len(cells)
    shown = [
        title or ("" if cell is None else apart[machine_title(cell.records[0].machine)])
        for title, cell in zip(titles, cells, strict=True)
    ]
    return shown if len(set(filter(None, shown))) > 1 else []


def _constant(headers: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> bool:
    """Whether several rows have one value in a column: it is then said once, below the table."""
    return len(rows) > 1 and len({row[headers.index(name)] for row in rows}) == 1


def notes(cells: Sequence[Cell]) -> tuple[str, ...]:
    """What the intervals are over, what could not run and why, the flags, and what the frameworks' builds want said."""
    plans = [cell.plan for cell in cells]
    lines = []
    intervals = {cell.interval.over for cell in cells if not cell.failure and cell.interval}
    if intervals:
        lines.append(f"±95%: of the median step, over {', '.join(sorted(intervals))}.")
    if any(len(cell.completed) > 1 for cell in cells if not cell.failure):
        lines.append("step: the geometric mean of the processes' medians.")
    lines += world_notes(cells)
    if any("block" in over for over in intervals):
        lines.append("One or two processes per cell do not show how processes differ: --repeat 3 or more does.")
    for reason, group in grouped((_why(cell.failure), cell) for cell in cells if cell.failure).items():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        lines.append(f"{plan_name(group[0].plan, plans)}{more}: {reason}")
    flagged = grouped((_kind(name, cell.flags[name]), cell) for cell in cells for name in cell.flags)
    lines += [
        f"{name}: {cell.flags[name]} ({plan_name(cell.plan, plans)})." for (name, _), (cell, *_) in flagged.items()
    ]
    said = [(note, cell.plan.framework) for cell in cells for run in cell.completed for note in run.notes]
    return (*lines, *(f"{', '.join(sorted(set(who)))}: {note}" for note, who in grouped(said).items()))


def _kind(name: str, evidence: str) -> tuple[str, str]:
    """A flag is shown once, by its first cell; work is unproved for several reasons, and each of them is shown, as is
    each parity check that failed."""
    return name, evidence if name == PARITY_FAILED else re.sub(r"[\d.]+", "", evidence) if name == UNPROVED else ""


def _left_out(plans: Sequence[Plan], cells: Sequence[Cell]) -> set[str]:
    """Return the columns that would say nothing. Language models are counted in tokens, all others in samples."""
    in_tokens = {cell.tokens_s is not None for cell in cells if not cell.failure}
    left_out = {"samples/s"} if in_tokens == {True} else set()
    left_out |= {"tokens/s"} if True not in in_tokens else set()
    left_out |= {"parity"} if all(cell.parity is None for cell in cells) else set()
    left_out |= {"efficiency"} if not any(efficiency(cell, cells) for cell in cells) else set()
    shares = [communication_share(cell) for cell in cells if not cell.failure]
    left_out |= {"communication"} if not any(isinstance(found, float) for found in shares) else set()
    return left_out if any(plan.feed is Feed.PIPELINE for plan in plans) else {*left_out, "input wait"}


def _figures(cell: Cell | None, cells: Sequence[Cell]) -> dict[str, str]:
    values = dict.fromkeys(FIGURES, "")
    if cell is None:
        return values
    failure = cell.failure
    if failure:
        return {**values, "step": "-", "samples/s": "-", "tokens/s": "-", "proof": failure.kind.value}
    interval, memory, waiting = cell.interval, cell.memory_bytes, cell.waiting_share
    spent = communication_share(cell)
    return {
        "step": seconds(cell.step_s),
        "±95%": share(interval.half_share) if interval else "?",
        "samples/s": figures(cell.samples_s),
        "tokens/s": figures(cell.tokens_s) if cell.tokens_s is not None else "",
        "efficiency": efficiency_words(efficiency(cell, cells)),
        "communication": share(spent) if isinstance(spent, float) else "",
        "input wait": share(waiting) if waiting is not None else "",
        "first step": seconds(cell.first_step_s),
        "memory": size(memory) if memory is not None else "",
        "proof": cell.completed[0].proof.statement,
        "parity": "" if cell.parity is None else cell.parity.value,
        "flags": ", ".join(cell.flags),
    }


def _caption(plans: Sequence[Plan], shown: Sequence[str]) -> str:
    plan = plans[0]
    parts = [] if "workload" in shown else [plan.workload]
    parts += [] if "mode" in shown else [plan.mode.value]
    same = [name for name in plan.params if name not in shown and all(name in other.params for other in plans)]
    parts += [f"{spaced(name)} {word(plan.params[name])}" for name in same]
    parts += [] if "dtype" in shown else [plan.settings.dtype.value]
    changed = {name: value for name, value in plan.settings.changed().items() if name not in (*shown, "dtype")}
    parts += [f"{name.replace('_', '-')} {value}" for name, value in changed.items()]
    parts += [plan.world.label] if plan.world and "processes" not in shown else []
    parts += [] if "data" in shown else [f"{plan.data} data"]
    if plan.loader is not None and "feed" not in shown:
        parts += [f"{name} {getattr(plan.loader, name)}" for name in ("workers", "prefetch") if name not in shown]
    return ", ".join(parts)


def plan_name(plan: Plan, among: Sequence[Plan]) -> str:
    """The plan's label, and the parameters that tell it from the other plans."""
    params, _ = varying(among)
    extra = [f", {spaced(name)} {word(plan.params[name])}" for name in params if name in plan.params]
    return plan.label + "".join(part for part in extra if not part.startswith(", batch size"))


def plan_value(plan: Plan, name: str) -> str:
    """A parameter, a setting, or another field that a column may be of; empty where the plan has none of that name."""
    if name in plan.params:
        return word(plan.params[name])
    holder = next((part for part in (plan, plan.settings, plan.loader, plan.world) if hasattr(part, name)), None)
    return word(getattr(holder, name)) if holder is not None else ""


def spaced(name: str) -> str:
    return name.replace("_", " ")


def _why(failure: Failed) -> str:
    signal = f" ({failure.signal})" if failure.signal and failure.signal not in failure.message else ""
    phase = f"In the phase '{failure.phase}': " if failure.kind is FailureKind.CRASHED and failure.phase else ""
    return f"{failure.kind.value}. {phase}{failure.message}{signal}{f' {failure.hint}' if failure.hint else ''}"


def ceiling_table(cells: Sequence[Cell]) -> Table:
    """Return a row per framework, device and dtype."""
    copies = {(cell.plan.framework, str(cell.plan.device)): cell for cell in cells if cell.plan.workload == COPY}
    rows = []
    for cell in cells:
        plan = cell.plan
        if plan.workload == COPY:
            continue
        # A copy moves bytes, whatever they mean: it is shown once, beside the first dtype.
        copied = copies.pop((plan.framework, str(plan.device)), None)
        flags = dict.fromkeys([*cell.flags, *(copied.flags if copied else ())])
        rows.append(
            (
                plan.framework,
                cell.device,
                plan.settings.dtype.value,
                *_rate(cell),
                _burst(cell),
                *_rate(copied),
                ", ".join(flags),
            )
        )
    return Table(
        headers=CEILING_HEADERS,
        numeric=(False, False, False, True, True, True, True, True, False),
        rows=tuple(rows),
        caption="highest rates measured here",
        drop=("burst", "flags"),
        notes=(CEILING_NOTE, *notes(cells)),
    )


def _rate(cell: Cell | None) -> tuple[str, str]:
    """The rate of a product or of a copy, and its interval."""
    if cell is None or cell.failure:
        return ("-" if cell else "", "")
    interval = share(cell.interval.half_share) if cell.interval else "?"
    if cell.plan.workload == COPY:
        return f"{figures(copied_bytes(cell.plan.params) / cell.step_s / 1e9)} GB/s", interval
    return _flops_per_s(cell, cell.step_s), interval


def _burst(cell: Cell) -> str:
    """The rate of the fastest block, of those that warmed up too."""
    if cell.failure:
        return ""
    measured = [run.measurement for run in cell.completed]
    blocks = [block for each in measured for block in (*each.warmup, *each.blocks)]
    return _flops_per_s(cell, min(block.elapsed_s / block.steps for block in blocks))


def _flops_per_s(cell: Cell, step_s: float) -> str:
    run = cell.completed[0]
    assert run.flops_per_sample is not None
    return f"{figures(run.flops_per_sample * run.samples_per_step / step_s / 1e9)} GFLOP/s"


def published_tables(cells: Sequence[Cell]) -> list[Table]:
    """Return a table for each workload and mode that was both published and measured here, in the published layout."""
    tables = []
    for workload in dict.fromkeys(cell.plan.workload for cell in cells):
        for mode in Mode:
            theirs = [figure for figure in published() if figure.workload == workload and figure.mode is mode]
            ours = [cell for cell in cells if cell.plan.workload == workload and cell.plan.mode is mode]
            if theirs and ours:
                tables.append(_published_table(workload, mode, theirs, ours))
    return tables


def _published_table(workload: str, mode: Mode, theirs: list[PublishedFigure], ours: list[Cell]) -> Table:
    metric = theirs[0].metric
    names = list(theirs[0].params)
    # Only parameters that differ, in their tables or in ours, are worth a column.
    measured = [_key(names, cell.plan.params) for cell in ours]
    keys = list(dict.fromkeys([*(_key(names, figure.params) for figure in theirs), *measured]))
    keys = [key for key in keys if key in measured] or keys
    shown = [n for n in range(len(names)) if len({key[n] for key in keys}) > 1] or list(range(len(names)))
    devices = list(dict.fromkeys(figure.device for figure in theirs))
    columns = list(dict.fromkeys(_column(cell) for cell in ours)) if metric in METRICS else []
    rows = []
    for key in keys:
        here = [figure for figure in theirs if _key(names, figure.params) == key]
        published_here = {one.device: "-" if one.value is None else f"{one.value:,g}" for one in here}
        ours_here = {_column(cell): _ours(cell) for cell in ours if _key(names, cell.plan.params) == key}
        values = [*(ours_here.get(column, "") for column in columns), *(published_here.get(d, "") for d in devices)]
        rows.append((*(key[n] for n in shown), *values))
    same = [f"{spaced(names[n])} {keys[0][n]}" for n in range(len(names)) if n not in shown]
    label = METRICS.get(metric) or OTHER_METRICS[metric]
    return Table(
        headers=(*(spaced(names[n]) for n in shown), *columns, *(f"{device} *" for device in devices)),
        numeric=(True,) * (len(shown) + len(columns) + len(devices)),
        rows=tuple(rows),
        caption=", ".join([workload, mode.value, *same, label]),
        notes=(
            *dict.fromkeys(f"* Published, not measured by us: {one.source}; {one.note}." for one in theirs),
            "A hyphen means out of memory; what is empty was not run or not published.",
            *(
                []
                if metric in METRICS
                else ["It counts more than training steps, so no measured figure stands beside it."]
            ),
        ),
        drop=tuple(f"{device} *" for device in reversed(devices[1:])),
    )


def device_name(cell: Cell) -> str:
    """What it ran on: the GPU where the machine has one, else the chip."""
    machine = cell.records[0].machine
    return cell.completed[0].device_name if cell.completed and machine.gpus else machine.chip


def _column(cell: Cell) -> str:
    settings = "".join(f", {name} {value}" for name, value in cell.plan.settings.changed().items())
    return f"{cell.plan.framework} {cell.plan.device}: {device_name(cell)}{settings}"


def _ours(cell: Cell) -> str:
    kind = cell.failure.kind.value if cell.failure else ""
    mark = f" {PARITY_FAILED}" if PARITY_FAILED in cell.flags else ""
    return "-" if kind == "out of memory" else kind or f"{figures(cell.step_s * STEPS)}{mark}"


def _key(names: Sequence[str], params: Mapping[str, Scalar]) -> tuple[str, ...]:
    return tuple(word(params[name]) if name in params else "" for name in names)

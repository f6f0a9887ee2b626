"""Runs, Comparisons and Diagnosis: what a use case returns. Each prints as the command's own table, shows as HTML in a
notebook, and gives its figures as plain dictionaries, a pandas frame or an Arrow table."""

import html
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import msgspec

from metalmark.errors import NotInstalledError, UsageError, counted
from metalmark.model.codec import AnyRun
from metalmark.model.explanation import Explained, ExplanationRun
from metalmark.model.measurement import BenchRun
from metalmark.model.parity import Checked, ParityRun
from metalmark.model.plan import Sweep, word
from metalmark.model.run import Absent, RunKind
from metalmark.model.training import TrainingRun
from metalmark.model.tuning import Tuned, TuningRun
from metalmark.model.watch import WatchedRun
from metalmark.report.content import Content
from metalmark.report.text.tables import Table
from metalmark.results.cells import Cell, cells_of
from metalmark.results.derived import flags_of
from metalmark.store.address import Address
from metalmark.store.row import row_of

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
    import pyarrow

    from metalmark.doctor.check import Finding
    from metalmark.doctor.scene import Scene
    from metalmark.results.comparison import CellComparison, Comparison
    from metalmark.results.pairing import Side
    from metalmark.results.quantity_changes import QuantityChange

WIDTH = 200
"""Characters per line where nothing says how wide the window is: nothing is cut."""
STYLE = "text-align:{align};padding:0.2em 0.8em;white-space:nowrap"


class Tabular(ABC):
    """Anything that is shown as tables and read as rows."""

    @abstractmethod
    def tables(self, columns: int = WIDTH) -> list[Table]:
        """Return the tables that the command prints."""

    @abstractmethod
    def to_dicts(self) -> list[dict[str, Any]]:
        """Return its figures as plain dictionaries, one per row."""

    def to_pandas(self) -> "pandas.DataFrame":
        """One row per entry of `to_dicts`. It needs pandas, which Metalmark does not install."""
        try:
            import pandas as pd
        except ImportError as error:
            raise NotInstalledError("to_pandas() needs pandas.", hint="pip install pandas") from error
        return pd.DataFrame(self.to_dicts())

    def to_arrow(self) -> "pyarrow.Table":
        """One row per entry of `to_dicts`, as Parquet and DuckDB read it. It needs pyarrow."""
        try:
            import pyarrow as pa
        except ImportError as error:
            raise NotInstalledError("to_arrow() needs pyarrow.", hint='pip install "metalmark[parquet]"') from error
        return pa.Table.from_pylist(self.to_dicts())

    def __str__(self) -> str:
        from rich.console import Console

        from metalmark.report.text.terminal import print_table

        out = io.StringIO()
        # Else rich would show it in a notebook by itself, beside what the notebook shows.
        console = Console(file=out, width=WIDTH, highlight=False, color_system=None, force_jupyter=False)
        for table in self.tables():
            print_table(table, console)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return "".join(_html_table(table) for table in self.tables())


class Runs(Tabular, Sequence[AnyRun]):
    """Runs of any kind, in order. `runs[0]` is a run, `runs[1:]` and `runs.filter(framework="torch")` are Runs."""

    def __init__(
        self,
        runs: Iterable[AnyRun],
        *,
        store: Address,
        sweep: Sweep | None = None,
        complete: bool = True,
        folder: Path | None = None,
        as_list: bool = False,
    ) -> None:
        self._runs = tuple(runs)
        self.store = store
        """The file that the runs are kept in."""
        self.sweep = sweep
        """The sweep that these runs are of, where one command made them."""
        self.complete = complete
        """False: Ctrl-C ended it before its last cell or epoch."""
        self.folder = folder
        """The folder that a training, or several, were written to."""
        self._as_list = as_list

    @overload
    def __getitem__(self, index: int | str) -> AnyRun: ...
    @overload
    def __getitem__(self, index: slice) -> "Runs": ...
    def __getitem__(self, index: int | str | slice) -> "AnyRun | Runs":
        """A run by its place or by its id, or the beginning of one; a slice gives Runs."""
        if isinstance(index, slice):
            return self._with(self._runs[index])
        if isinstance(index, int):
            return self._runs[index]
        matching = [run for run in self._runs if run.id.startswith(index)]
        if len(matching) != 1:
            raise KeyError(f"{len(matching)} of these runs have an id that begins with {index!r}")
        return matching[0]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[AnyRun]:
        return iter(self._runs)

    @property
    def ids(self) -> list[str]:
        return [run.id for run in self._runs]

    @property
    def cells(self) -> list[Cell]:
        """The cells of bench runs: the processes of one plan together, with their median step time and its interval."""
        return cells_of(run for run in self._runs if isinstance(run, BenchRun))

    @property
    def notes(self) -> tuple[str, ...]:
        """What `all` could have meant and did not, each with its reason."""
        return self.sweep.left_out if self.sweep is not None else ()

    def filter(self, condition: Callable[[AnyRun], bool] | None = None, **values: object) -> "Runs":
        """Keep the runs that a function takes, or whose entries in `to_dicts` have these values:
        `runs.filter(framework="torch", batch_size=64)`, `runs.filter(lambda run: run.header.ending == "completed")`."""
        kept = []
        for run in self._runs:
            entry = run_dict(run) if values else {}
            unknown = [name for name in values if name not in entry]
            if unknown and len(self._runs) == 1:
                raise UsageError(f"Runs have no {unknown[0]}.", hint=f"They have: {', '.join(entry)}.")
            matches = not unknown and all(entry[name] == value for name, value in values.items())
            if matches and (condition is None or condition(run)):
                kept.append(run)
        return self._with(kept)

    def content(self, *, published: bool = False) -> Content:
        """What a report of these runs is made of."""
        plans = self.sweep.plans if self.sweep is not None else ()
        return Content(runs=self._runs, plans=plans, left_out=self.notes, published=published)

    def tables(self, columns: int = WIDTH) -> list[Table]:
        """The tables that these runs are shown as; `columns` is the width of the window, in characters."""
        from metalmark.report.text.run_tables import list_table, run_tables

        if self._as_list:
            return [list_table([row_of(run) for run in self._runs])]
        plans, targets = (self.sweep.plans, self.sweep.targets) if self.sweep is not None else ((), ())
        return run_tables(self._runs, plans=plans, targets=targets, columns=columns)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary per run: what ran, where, how it ended, and its figures (`step_s`, `samples_s`, ...)."""
        return [run_dict(run) for run in self._runs]

    def chart(self) -> "Chart":
        """Draw throughput (bench runs), the curves (trainings), the distances (parity checks), the shares of a step
        (explanations) or the ladder (tunings), as the report does. It needs the extra `web`."""
        from metalmark.report.charts.cells import throughput_figures
        from metalmark.report.charts.draw import Figure
        from metalmark.report.charts.explain import explanation_figures
        from metalmark.report.charts.over_time import together_figures, training_figures, watched_figures
        from metalmark.report.charts.parity import parity_figures
        from metalmark.report.charts.tune import tuning_figures

        cells, content = self.cells, self.content()
        drawn = [figure for run in content.tunings for figure in tuning_figures(run)]
        drawn += throughput_figures(cells) if cells else []
        if len(content.trainings) == 1:
            drawn += training_figures(content.trainings[0])
        elif content.trainings:
            drawn += together_figures(content.trainings)
        drawn += [figure for run in content.watched for figure in watched_figures(run)]
        drawn += [figure for run in content.parities for figure in parity_figures(run)]
        drawn += [figure for run in content.explanations for figure in explanation_figures(run)]
        return Chart([figure.svg for figure in drawn if isinstance(figure, Figure)])

    def _with(self, runs: Iterable[AnyRun]) -> "Runs":
        """Some of these runs. They are no longer the whole sweep, so nothing is shown as missing."""
        return Runs(runs, store=self.store, complete=self.complete, as_list=self._as_list)


class Comparisons(Tabular, Sequence["Comparison"]):
    """The first side against each of the others."""

    def __init__(
        self, comparisons: "Sequence[Comparison]", refused: Sequence[UsageError] = (), sides: "Sequence[Side]" = ()
    ) -> None:
        self._comparisons, self.sides = tuple(comparisons), tuple(sides)
        self.refused = tuple(refused)
        """Why some sides could not be compared with the first."""

    @overload
    def __getitem__(self, index: int) -> "Comparison": ...
    @overload
    def __getitem__(self, index: slice) -> "Comparisons": ...
    def __getitem__(self, index: int | slice) -> "Comparison | Comparisons":
        if isinstance(index, slice):
            return Comparisons(self._comparisons[index], self.refused, self.sides)
        return self._comparisons[index]

    def __len__(self) -> int:
        return len(self._comparisons)

    def tables(self, columns: int = WIDTH) -> list[Table]:  # noqa: ARG002
        from metalmark.report.compare_page import comparison_table

        return [comparison_table(one) for one in self._comparisons]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary per compared cell: the verdict, the ratio of speeds with its 95% interval, both sides."""
        return [_comparison_dict(one, row) for one in self._comparisons for row in one.rows]


class Diagnosis(Tabular):
    """What the doctor found: the machine, what each framework can use, and what is broken with what to type."""

    def __init__(self, scene: "Scene", findings: "Sequence[Finding]") -> None:
        self.scene, self.findings = scene, tuple(findings)

    def tables(self, columns: int = WIDTH) -> list[Table]:  # noqa: ARG002
        """Return none: what the doctor found is a page of sentences."""
        return []

    @property
    def exit_code(self) -> int:
        """0: nothing is wrong; 1: warnings; 2: errors."""
        from metalmark.doctor.catalog import exit_code

        return exit_code(self.findings)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary per finding."""
        return [msgspec.to_builtins(finding) for finding in self.findings]

    def document(self) -> dict[str, Any]:
        """Everything, as `metalmark doctor --json` prints it."""
        from metalmark.report.text.doctor_page import document

        return document(self.scene, self.findings)

    def __str__(self) -> str:
        from metalmark.report.text.doctor_page import page

        return page(self.scene, self.findings)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class Chart:
    """Drawings of runs: shown by a notebook, or written as SVG."""

    def __init__(self, svgs: Sequence[str]) -> None:
        self.svgs = tuple(svgs)

    def save(self, path: str) -> None:
        """Write the first drawing as an SVG file."""
        from metalmark.app.runs import write_file

        if not self.svgs:
            raise UsageError("There is no drawing to write.", hint="These runs have no figures.")
        write_file(path, self.svgs[0].encode(), option="save(FILE)")

    def __repr__(self) -> str:
        return f"{counted(len(self.svgs), 'chart')}: save() writes one as SVG, a notebook shows them"

    def _repr_html_(self) -> str:
        return "".join(f"<div>{svg}</div>" for svg in self.svgs)


def run_dict(run: AnyRun) -> dict[str, Any]:
    """A run in plain values: its row in a list, its settings and parameters, its flags."""
    row = msgspec.structs.asdict(row_of(run))
    del row["folder"]
    entry: dict[str, Any] = {**row, "label": run.header.label, "flags": [flag.name for flag in flags_of(run)]}
    if isinstance(run, WatchedRun):
        return {**entry, **run.params}
    if isinstance(run, ParityRun):
        entry |= _check_dict(run)
    if isinstance(run, ExplanationRun):
        entry |= _explanation_dict(run)
    if isinstance(run, TuningRun):
        entry |= _tuning_dict(run)
    plan = run.plan
    if plan is None:
        return entry
    settings = {name: word(getattr(plan.settings, name)) for name in plan.settings.__struct_fields__}
    if isinstance(run, TrainingRun):
        entry["seed"] = plan.seed
    return {**entry, **settings, "data": plan.data, **plan.params}


def _check_dict(run: ParityRun) -> dict[str, Any]:
    """What a parity check found: the verdict, and what differs first or is nearest to its limit."""
    from metalmark.report.text.parity_page import parity_sentence, worst_of

    rows = run.outcome.compared if isinstance(run.outcome, Checked) else ()
    wrong = [row for row in rows if not row.agrees]
    shown = wrong[0] if wrong else worst_of(rows) if rows else None
    return {
        "verdict": run.verdict.value,
        "reference": run.reference.label,
        "sentence": parity_sentence(run),
        "compared": len(rows),
        "differ": len(wrong),
        "quantity": shown.quantity.value if shown is not None else None,
        "of": shown.name if shown is not None else None,
        "sigmas": shown.sigmas if shown is not None and shown.distance is not None else None,
        "limit": shown.limit if shown is not None else None,
    }


def _explanation_dict(run: ExplanationRun) -> dict[str, Any]:
    """What an explanation found: the verdict, the share of each cause, and the first proposal."""
    from metalmark.report.text.explain_page import explanation_sentence

    found = run.outcome if isinstance(run.outcome, Explained) else None
    first = found.proposals[0] if found is not None and found.proposals else None
    did = first.measured if first is not None else None
    return {
        "subject": run.subject,
        "of": run.of,
        "verdict": found.bottleneck.value if found is not None else None,
        "sentence": explanation_sentence(run),
        "shares": {one.cause.value: found.share(one.cause) for one in found.shares} if found is not None else {},
        "proposal": first.title if first is not None else None,
        "expected_gain": first.gain if first is not None else None,
        "measured_gain": did.gain if did is not None else None,
    }


def _tuning_dict(run: TuningRun) -> dict[str, Any]:
    """What a tuning found: the best settings, what they gain, and each rung of the ladder."""
    from metalmark.report.text.tune_page import settings_words, tuning_sentence

    found = run.outcome if isinstance(run.outcome, Tuned) else None
    best = found.best if found is not None else None
    return {
        "goal": run.request.goal.value,
        "sentence": tuning_sentence(run),
        "best": settings_words(best.change) if best is not None else None,
        "change": msgspec.to_builtins(best.change) if best is not None else None,
        "status": best.status.value if best is not None else None,
        "proved": best.proved if best is not None else None,
        "gain": best.gain if best is not None else None,
        "gain_low": best.low if best is not None else None,
        "gain_high": best.high if best is not None else None,
        "baseline_step_s": found.baseline.step_s if found is not None else None,
        "ladder": [msgspec.to_builtins(rung) for rung in found.ladder] if found is not None else [],
        "trials": found.trials if found is not None else 0,
        "complete": found.complete if found is not None else False,
    }


def _comparison_dict(found: "Comparison", row: "CellComparison") -> dict[str, Any]:
    speed = None if isinstance(row.speed, Absent) else row.speed
    entry: dict[str, Any] = {
        "cell": row.name,
        "a": found.a,
        "b": found.b,
        "verdict": row.verdict.value,
        "ratio": speed.ratio if speed else None,
        "low": speed.low if speed else None,
        "high": speed.high if speed else None,
        "reason": row.reason,
        "like_for_like": not row.no_speed_up,
    }
    if found.kind is RunKind.PARITY:
        entry["newly_differ"] = [_quantity(one) for one in row.quantities if one.turned and one.a and one.a.agrees]
        entry["newly_agree"] = [_quantity(one) for one in row.quantities if one.turned and one.b and one.b.agrees]
    for side, figures in (("a", row.a), ("b", row.b)):
        entry |= {f"{side}_runs": figures.processes, f"{side}_ending": figures.failure or "completed"}
        values = {"step_s": figures.step_s, "samples_s": figures.samples_per_s, "memory_bytes": figures.memory_bytes}
        entry |= {f"{side}_{name}": None if isinstance(value, Absent) else value for name, value in values.items()}
        if figures.bottleneck:
            entry |= {f"{side}_verdict": figures.bottleneck, f"{side}_shares_s": figures.shares_s}
        if figures.tuned is not None:
            entry |= {f"{side}_gain": figures.tuned.gain, f"{side}_change": msgspec.to_builtins(figures.tuned.change)}
        if figures.parity is not None:
            entry[f"{side}_parity"] = figures.parity.value
        if figures.trained is not None:
            entry |= {f"{side}_accuracies": list(figures.trained.accuracies)}
    if row.trained is not None and not isinstance(row.trained.accuracy, Absent):
        gap = row.trained.accuracy
        entry |= {"accuracy_gap": gap.value, "accuracy_gap_low": gap.low, "accuracy_gap_high": gap.high}
    if row.trained is not None and row.trained.monitored is not None:
        gap = row.trained.monitored
        entry |= {"monitored_gap": gap.value, "monitored_gap_low": gap.low, "monitored_gap_high": gap.high}
        for side, figures in (("a", row.a), ("b", row.b)):
            if figures.trained is not None and figures.trained.metric is not None:
                entry |= {"monitored": figures.trained.metric.name, f"{side}_monitored": list(figures.trained.values)}
    return entry


def _quantity(change: "QuantityChange") -> str:
    from metalmark.report.text.parity_page import quantity_words

    row = change.b or change.a
    return quantity_words(row) if row is not None else ""


def _html_table(table: Table) -> str:
    def row(values: Sequence[str], tag: str) -> str:
        cells = [
            f'<{tag} style="{STYLE.format(align="right" if numeric else "left")}">{html.escape(value)}</{tag}>'
            for value, numeric in zip(values, table.numeric, strict=True)
        ]
        return f"<tr>{''.join(cells)}</tr>"

    notes = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
    return (
        f"<table><caption>{html.escape(table.caption)}</caption><thead>{row(table.headers, 'th')}</thead>"
        f"<tbody>{''.join(row(each, 'td') for each in table.rows)}</tbody></table>"
        + (f"<ul>{notes}</ul>" if notes else "")
    )

"""The page that compares runs with the first of them: the engine and the words of `metalmark compare`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse

from metalmark.app.choices import parse_accuracy
from metalmark.errors import UsageError
from metalmark.model.run import RunKind
from metalmark.report.compare_page import comparison_table
from metalmark.report.html.blocks import from_table
from metalmark.results.comparison import PUBLISHED, comparable_keys, compare_runs, find_sides, runs_of
from metalmark.results.measured import Measured, measured_of
from metalmark.results.pairing import shown
from metalmark.store.sqlite import Store
from metalmark.web.shell import render, respond

MOST_RUNS = 60


def compare_page(request: Request, store_path: Path) -> HTMLResponse:
    asked = request.query_params
    queries = list(dict.fromkeys(query.strip() for query in asked.getlist("run") if query.strip()))
    by = [key for key in asked.getlist("by") if key]
    if not queries:
        raise UsageError("Choose runs to compare.", hint="Tick two or more in the list of runs.")
    if len(queries) > MOST_RUNS:
        raise UsageError(f"{len(queries)} runs are too many for one page.", hint=f"Choose {MOST_RUNS} at most.")
    queries = _ordered(queries, asked.get("base", ""), store_path)
    anyway, target = "anyway" in asked, asked.get("target", "").strip().removesuffix("%").strip()
    form = {"words": queries, "by": by, "anyway": anyway, "target": target,
            "command": _command(queries, by, anyway, target)}  # fmt: skip
    try:
        sides, keys = find_sides(queries, by, store_path, files=False)
        found, refused = compare_runs(sides, by=keys, anyway=anyway, target_accuracy=_accuracy(target))
    except UsageError as error:
        cells = _cells(queries, store_path)
        body = render("compare.html", **form, **_choices(cells), tables=[], refused=[error])
        return respond("Compare", body, status=400)
    cells = [cell for side in sides for cell in side.cells]
    tables = [from_table(comparison_table(one)) for one in found]
    body = render("compare.html", **form, **_choices(cells), tables=tables, refused=refused)
    return respond("Compare", body, subtitle=f"against {sides[0].name}")


def _accuracy(text: str) -> float | None:
    try:
        return parse_accuracy(float(text)) if text else None
    except ValueError:
        raise UsageError(f"{text!r} is not an accuracy.", hint="Give a share (0.86) or a percentage (86).") from None


def _ordered(queries: list[str], base: str, store_path: Path) -> list[str]:
    """The chosen baseline first, else the oldest: what is new is compared with what was."""
    if base in queries:
        return [base, *(query for query in queries if query != base)]
    if len(queries) < 2:
        return queries
    with Store(store_path, readonly=True) as store:
        began = {
            query: min(run.started_at for run in runs_of(query, store, files=False))
            for query in queries
            if query != PUBLISHED
        }
    return sorted(queries, key=lambda query: began.get(query, "~"))


def _command(queries: Sequence[str], by: Sequence[str], anyway: bool, target: str) -> str:
    """The same comparison in a terminal, quoted, since it is there to be copied into a shell."""
    words = [*queries, *(["--by", ",".join(by)] if by else []), *(["--anyway"] if anyway else [])]
    words += ["--target-accuracy", target] if target else []
    return f"metalmark compare {shlex.join(words)}"


def _cells(queries: Sequence[str], store_path: Path) -> list[Measured]:
    """What the form offers choices of, where nothing could be compared yet."""
    with Store(store_path, readonly=True) as store:
        try:
            runs = [runs_of(query, store, files=False) for query in queries if query != PUBLISHED]
        except UsageError:
            return []
    return [cell for found in runs for cell in measured_of(found)]


def _choices(cells: Iterable[Measured]) -> dict[str, object]:
    """Keys of which more than one value is known; and whether a target accuracy makes sense."""
    every = list(cells)
    keys = [key for key in comparable_keys(every) if len({cell.value(key) for cell in every}) > 1]
    trainings = any(cell.kind is RunKind.TRAINING for cell in every)
    return {"keys": [(key, shown(key)) for key in keys], "trainings": trainings}

"""Any runs against the first of them: the engine and the words of `metalmark compare`, on a page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse

from metalmark.errors import UsageError
from metalmark.model.measurement import BenchRun
from metalmark.report.compare_page import comparison_table
from metalmark.report.html.tables import from_table
from metalmark.results.pairing import Side, shown
from metalmark.results.sides import PUBLISHED, compare_sides, find_sides, stored
from metalmark.store.sqlite import Store
from metalmark.web.shell import render, respond

MOST_RUNS = 60


def compare_page(request: Request, store_path: Path) -> HTMLResponse:
    query = request.query_params
    words = list(dict.fromkeys(word.strip() for word in query.getlist("run") if word.strip()))
    by = [key for key in query.getlist("by") if key]
    if not words:
        raise UsageError("Choose runs to compare.", hint="Tick two or more in the list of runs.")
    if len(words) > MOST_RUNS:
        raise UsageError(f"{len(words)} runs are too many for one page.", hint=f"Choose {MOST_RUNS} at most.")
    words = _ordered(words, query.get("base", ""), store_path)
    anyway = "anyway" in query
    form = {"words": words, "by": by, "anyway": anyway, "command": _command(words, by, anyway)}
    try:
        sides, keys = find_sides(words, by, store_path, read=stored)
        found, refused = compare_sides(sides, by=keys, anyway=anyway)
    except UsageError as error:
        body = render("compare.html", **form, keys=_keys(words, store_path), tables=[], refused=[error])
        return respond("Compare", body, status=400)
    tables = [from_table(comparison_table(one)) for one in found]
    body = render("compare.html", **form, keys=_comparable(sides), tables=tables, refused=refused)
    return respond("Compare", body, subtitle=f"against {sides[0].name}")


def _ordered(words: list[str], base: str, path: Path) -> list[str]:
    """The one that was asked for first, else the oldest: what is new is set against what was."""
    if base in words:
        return [base, *(word for word in words if word != base)]
    if len(words) < 2:
        return words
    with Store(path, readonly=True) as store:
        began = {word: _began(stored(word, store)) for word in words if word != PUBLISHED}
    return sorted(words, key=lambda word: began.get(word, "~"))


def _command(words: Sequence[str], by: Sequence[str], anyway: bool) -> str:
    """Quoted, since it is there to be copied into a shell."""
    keys = ["--by", ",".join(by)] if by else []
    return f"metalmark compare {shlex.join([*words, *keys, *(['--anyway'] if anyway else [])])}"


def _began(records: Sequence[BenchRun]) -> str:
    return min((record.started_at for record in records), default="")


def _keys(words: Sequence[str], path: Path) -> list[tuple[str, str]]:
    """What the form offers where nothing could be compared yet."""
    from metalmark.results.measured import measured_of

    with Store(path, readonly=True) as store:
        try:
            cells = [cell for word in words if word != PUBLISHED for cell in measured_of(stored(word, store))]
        except UsageError:
            return []
    return _comparable([Side("", cells)])


def _comparable(sides: Sequence[Side]) -> list[tuple[str, str]]:
    """Keys that more than one value is known of."""
    cells = [cell for side in sides for cell in side.cells]
    keys = dict.fromkeys(key for cell in cells for key in (*cell.how, "dtype", *cell.around))
    return [(key, shown(key)) for key in keys if len({cell.value(key) for cell in cells}) > 1]

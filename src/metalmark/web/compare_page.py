"""The page that compares runs with the first of them: the engine and the words of `metalmark compare`."""

import shlex
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import HTMLResponse

from metalmark.app.compare import compare
from metalmark.errors import MetalmarkError, UsageError
from metalmark.model.codec import AnyRun
from metalmark.model.run import RunKind
from metalmark.report.compare_page import comparison_table
from metalmark.report.html.page import from_table
from metalmark.results.comparison import Comparison
from metalmark.results.measured import Measured, measured_of
from metalmark.results.pairing import shown
from metalmark.results.sides import PUBLISHED, comparable_keys, runs_of
from metalmark.store.address import Address
from metalmark.store.store import Store
from metalmark.web.shell import left_out, render, respond

MOST_RUNS = 60


def compare_page(request: Request, store_address: Address) -> HTMLResponse:
    asked = request.query_params
    queries = list(dict.fromkeys(query.strip() for query in asked.getlist("run") if query.strip()))
    by = [key for key in asked.getlist("by") if key]
    if not queries:
        raise UsageError("Choose runs to compare.", hint="Tick two or more in the list of runs.")
    if len(queries) > MOST_RUNS:
        raise UsageError(f"{len(queries)} runs are too many for one page.", hint=f"Choose {MOST_RUNS} at most.")
    damaged: list[MetalmarkError] = []
    queries = _ordered(queries, asked.get("base", ""), store_address)
    anyway, target = "anyway" in asked, asked.get("target", "").strip().removesuffix("%").strip()
    # The same comparison in a terminal, quoted, since it is there to be copied into a shell.
    words = [*queries, *(["--by", ",".join(by)] if by else []), *(["--anyway"] if anyway else [])]
    words += ["--target-accuracy", target] if target else []
    found: list[Comparison] = []
    status, subtitle = 200, ""
    try:
        accuracy = _accuracy(target)
        compared = compare(
            *queries, by=by, anyway=anyway, target_accuracy=accuracy, store=store_address, files=False,
            on_damaged=damaged.append,
        )  # fmt: skip
        found, refused, subtitle = list(compared), compared.refused, f"against {compared.sides[0].name}"
        cells = [cell for side in compared.sides for cell in side.cells]
    except UsageError as error:
        cells, refused, status = _cells(queries, store_address), (error,), 400
    body = render(
        "compare.html", words=queries, by=by, anyway=anyway, target=target, keys=compare_choices(cells),
        trainings=any(cell.kind is RunKind.TRAINING for cell in cells), refused=refused,
        tables=[from_table(comparison_table(one)) for one in found], command=f"metalmark compare {shlex.join(words)}",
    )  # fmt: skip
    return respond("Compare", left_out(damaged) + body, subtitle=subtitle, status=status)


def _accuracy(text: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        raise UsageError(f"{text!r} is not an accuracy.", hint="Give a share (0.86) or a percentage (86).") from None


def _ordered(queries: list[str], base: str, store_address: Address) -> list[str]:
    """The chosen baseline first, else the oldest: what is new is compared with what was."""
    if base in queries:
        return [base, *(query for query in queries if query != base)]
    if len(queries) < 2:
        return queries
    with Store(store_address, readonly=True) as store:
        runs = {query: _runs_of(query, store) for query in queries if query != PUBLISHED}
    began = {query: min(run.started_at for run in found) for query, found in runs.items()}
    return sorted(queries, key=lambda query: began.get(query, "~"))


def _runs_of(query: str, store: Store) -> list[AnyRun]:
    """Damaged runs are named by the comparison itself."""
    return runs_of(query, store, files=False, on_error=lambda _: None)


def _cells(queries: Sequence[str], store_address: Address) -> list[Measured]:
    """What the form offers choices of, where nothing could be compared yet."""
    with Store(store_address, readonly=True) as store:
        try:
            runs = [_runs_of(query, store) for query in queries if query != PUBLISHED]
        except UsageError:
            return []
    return [cell for found in runs for cell in measured_of(found)]


def compare_choices(cells: Sequence[Measured]) -> list[tuple[str, str]]:
    """Keys that tell these cells apart and can be compared, each with its name."""
    return [(key, shown(key)) for key in comparable_keys(cells) if len({cell.value(key) for cell in cells}) > 1]

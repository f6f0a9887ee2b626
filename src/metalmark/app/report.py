"""Write what was measured as a page, as tables to paste, or as data: one file that needs no other."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from metalmark.app.bench import bench_runs
from metalmark.app.results import Runs
from metalmark.app.runs import OnDamaged, say_left_out, sweep_of, write_file
from metalmark.errors import UsageError
from metalmark.model.measurement import BenchRun
from metalmark.report.content import Content
from metalmark.report.text import exports
from metalmark.results.ceilings import ceilings_of
from metalmark.store.address import StoreChoice, store_address
from metalmark.store.selection import LAST, load, select_all
from metalmark.store.store import Store
from metalmark.track.launch import Say, say_nothing, say_on_stderr
from metalmark.workloads.ceiling import COPY, MATMUL

ENDINGS = {".html": "html", ".htm": "html", ".md": "markdown", ".csv": "csv", ".json": "json", ".parquet": "parquet"}
DEFAULTS = {"html": "report.html", "parquet": "report.parquet"}
FORMS = ("html", "markdown", "csv", "json", "parquet")
LARGE_BYTES = 3 << 20


def report(
    *runs: str | Runs,
    output: str | os.PathLike[str] | None = None,
    format: str | None = None,
    published: bool = False,
    store: StoreChoice = None,
    progress: bool = True,
    on_damaged: OnDamaged = say_left_out,
) -> Path:
    """Write a report of runs (default: what the last command made), and return its path.

    `mm.report(runs, output="compare.html")`. The format follows the file's ending unless `format` says otherwise:
    html, markdown, csv, json or parquet. `on_damaged` is told of each run that can't be read.
    """
    say = say_on_stderr if progress else say_nothing
    name = os.fspath(output) if output is not None else None
    form = form_of(format, name)
    content = gather(runs, store, published=published, say=say, on_damaged=on_damaged)
    data = render(content, form, say=say)
    path = name or DEFAULTS.get(form, f"report.{form}")
    write_file(path, data)
    return Path(path)


def form_of(form: str | None, output: str | None) -> str:
    if form is not None:
        if form not in FORMS:
            raise UsageError(f"There is no format {form!r}.", hint=f"Formats: {', '.join(FORMS)}.")
        return form
    ending = Path(output).suffix.lower() if output else ""
    return ENDINGS.get(ending, "html")


def gather(
    queries: Sequence[str | Runs],
    store: StoreChoice,
    *,
    published: bool = False,
    say: Say = say_nothing,
    on_damaged: OnDamaged = say_left_out,
) -> Content:
    """Find what a report is of: runs of every kind, what their sweeps planned, and the ceilings of their devices."""
    words = [query for query in queries if isinstance(query, str)]
    given = [query for query in queries if isinstance(query, Runs)]
    with Store(store_address(store), readonly=True) as opened:
        if not queries:
            words = [_newest(opened, say)]
        selections = select_all(words, opened)
        stored = load(selections, opened, whole_cells=True, on_error=on_damaged)
        runs = {run.id: run for run in (*stored, *(r for one in given for r in one))}
        found = [sweep_of(one.sweep, opened, on_damaged) for one in selections if one.sweep]
        sweeps = [sweep for sweep in found if sweep is not None]
        sweeps += [one.sweep for one in given if one.sweep is not None]
        # Only a device that something ran on has a ceiling that is of interest.
        frameworks = sorted({run.plan.framework for run in runs.values() if isinstance(run, BenchRun)})
        ceilings = [MATMUL, COPY] if frameworks else []
        measured = opened.of_workloads(ceilings, frameworks=frameworks, on_error=on_damaged)
    return Content(
        runs=tuple(runs.values()),
        plans=tuple(plan for sweep in sweeps for plan in sweep.plans),
        left_out=tuple(dict.fromkeys(line for sweep in sweeps for line in sweep.left_out)),
        ceilings=ceilings_of(bench_runs(measured)),
        published=published,
    )


def render(content: Content, form: str, *, say: Say = say_nothing) -> bytes:
    data = _RENDERERS[form](content)
    if form == "html" and len(data) > LARGE_BYTES:
        say(f"It is {len(data) / 2**20:.1f} MiB: name fewer runs for a smaller page.")
    return data


def open_page(path: Path) -> str:
    """Open a page in the browser. Return why not, or nothing."""
    if not has_desktop():
        return "There is no desktop here to open it on."
    import webbrowser

    return "" if webbrowser.open(path.resolve().as_uri()) else "No browser took it: open the file yourself."


def has_desktop() -> bool:
    """A browser in a terminal would take that over, so none is asked for where there are no windows.

    A Mac always has windows, but over ssh they are not where the user sits. X's can come through ssh, and say so.
    """
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return True
    remote = os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY")
    return sys.platform in ("darwin", "win32") and not remote


def _newest(store: Store, say: Say) -> str:
    if not store.rows(limit=1):
        raise UsageError(
            f"There is nothing to report yet in {store.address}.", hint="Measure: metalmark bench mnist-mlp"
        )
    say("A report of what the last command made; name runs to choose others.")
    return LAST


def _html(content: Content) -> bytes:
    from metalmark.report.html.document import document

    return document(content).encode()


_RENDERERS: dict[str, Callable[[Content], bytes]] = {
    "html": _html,
    "markdown": lambda content: exports.markdown_text(content).encode(),
    "csv": lambda content: exports.csv_text(content).encode(),
    "json": lambda content: exports.json_text(content.runs).encode(),
    "parquet": exports.parquet_bytes,
}

"""A folder of bundles from many machines as a static site: an index, a leaderboard per workload, a page per machine.

Links are relative, nothing is loaded from anywhere, and each page is complete by itself.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from pathlib import Path

from msgspec import Struct

from metalmark.errors import MetalmarkError, StoreError, UsageError
from metalmark.machine.durable import write_whole
from metalmark.model.codec import encode
from metalmark.model.measurement import BenchRun
from metalmark.report.html.page import Value, columns_of, environment, page, render, table
from metalmark.report.text.run_page import Fact, machine_facts
from metalmark.report.text.units import count, figures, grouped, known, seconds, size
from metalmark.results.leaderboard import Board, BoardEntry, Question, board_of, slug
from metalmark.store.bundle import MAKE_ONE, read_file
from metalmark.store.personal import look

NAV = [("Leaderboards", "../index.html")]
MARK = ".metalmark-site"
"""Lists the files of the site, so that the next one removes pages that are gone, and no file of anybody else."""
OURS = re.compile(r"(?:index|workload/[a-z0-9-]+|machine/[a-z0-9-]+)\.html")
RANKED = columns_of(
    "rank", "samples/s", "95%", "machine", "framework", "device", "settings", "memory", "J per sample", "processes",
    "versions", "flags", numbers={"rank", "samples/s", "95%", "memory", "J per sample", "processes"},
)  # fmt: skip
FAILED = columns_of("machine", "framework", "device", "what happened")
HERE = columns_of(
    "workload", "what", "framework", "device", "samples/s", "95%", "step", "rank", "flags",
    numbers={"samples/s", "95%", "step", "rank"},
)  # fmt: skip
NOTES = (
    "A machine ranks before another if it is faster beyond both 95% intervals; those that can't be told apart share a "
    "rank.",
    "Flags say what could have spoiled a figure: look at them before you believe a rank.",
    "Fewer than three processes: the interval is over blocks, and leaves out how processes differ (*).",
)


class Site(Struct, frozen=True, kw_only=True):
    pages: tuple[str, ...]
    records: int
    machines: int
    refused: dict[str, str]
    """File → why it is not in the site."""


def find_bundles(folder: Path) -> list[Path]:
    """Return every file of the folder that could be a bundle, by name."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder.", hint="Name the folder that the bundles lie in.")
    found = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not found:
        raise UsageError(f"There is no bundle in {folder}.", hint=MAKE_ONE)
    return found


def write_site(bundles: Sequence[Path], out: Path) -> Site:
    """Write the site of all bundles that can be read; the others are named in what it returns."""
    environment()  # without the extra `web` this says so, before anything is read
    gathered, refused = _gather(bundles)
    if not gathered:
        name, reason = next(iter(refused.items()), ("", "there are none"))
        raise UsageError(f"None of these bundles can be shown. {name}: {reason}", hint=MAKE_ONE)
    board, count = board_of(gathered), sum(map(len, gathered))
    pages = site_pages(board, records=count, refused=len(refused))
    _write(out, pages)
    return Site(pages=tuple(pages), records=count, machines=len(board.machines), refused=refused)


def _gather(bundles: Sequence[Path]) -> tuple[list[list[BenchRun]], dict[str, str]]:
    """Return the runs that each bundle adds to those before it, and why some add none."""
    gathered: list[list[BenchRun]] = []
    held: dict[str, BenchRun] = {}
    refused: dict[str, str] = {}
    for path in bundles:
        try:
            found = [run for run in read_file(str(path)).runs if isinstance(run, BenchRun)]
        except MetalmarkError as error:
            refused[path.name] = error.message
            continue
        personal = next((one for run in found for one in look(run)), None)
        twice = next((one for one in found if one.id in held and encode(held[one.id]) != encode(one)), None)
        if personal is not None:
            refused[path.name] = f"it would give away {personal.what} in {personal.where} of run {personal.run}."
        elif not found:
            refused[path.name] = "it holds no bench run, and leaderboards are of those."
        elif twice is not None:
            refused[path.name] = f"it has another run {twice.id} than a bundle before it."
        else:
            fresh = {run.id: run for run in found if run.id not in held}
            held.update(fresh)
            gathered.append(list(fresh.values()))
    return [runs for runs in gathered if runs], refused


def _write(out: Path, pages: dict[str, str]) -> None:
    try:
        mark, before = out / MARK, []
        if mark.is_file():
            before = [line for line in mark.read_text(encoding="utf-8").splitlines() if OURS.fullmatch(line)]
        elif out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"{out} holds other things already.", hint="Name a new folder, or an empty one.")
        for name, text in pages.items():
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode())
        write_whole(mark, ("\n".join(sorted(pages)) + "\n").encode())
        for name in set(before) - set(pages):
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{out} can't be written: {error.strerror}.", hint="Name another folder.") from error


def site_pages(board: Board, *, records: int, refused: int) -> dict[str, str]:
    """Return the text of each page, by file."""
    pages = {"index.html": _index(board, records, refused)}
    for workload, questions in board.questions.items():
        pages[f"workload/{slug(workload)}.html"] = _workload(workload, questions)
    for name in board.machines:
        pages[f"machine/{slug(name)}.html"] = _machine(name, board)
    return pages


def _index(board: Board, records: int, refused: int) -> str:
    rows: list[list[str | Value]] = []
    for workload, questions in board.questions.items():
        entries = [entry for question in questions for entry in question.entries]
        machines = {entry.machine for entry in entries}
        link = Value(text=workload, href=f"./workload/{slug(workload)}.html")
        rows.append([link, str(len(questions)), str(len(entries)), str(len(machines))])
    counts = {"questions", "results", "machines"}
    columns = columns_of("workload", "questions", "results", "machines", numbers=counts)
    body = table(columns, rows, caption="Leaderboards", notes=[
        "A question is a workload with its parameters, mode, dtype and data: only answers to the same one are ranked."
    ])  # fmt: skip
    results = Counter(
        entry.machine for questions in board.questions.values() for question in questions for entry in question.entries
    )
    body += table(
        columns_of("machine", "results", numbers=counts),
        [[Value(text=name, href=f"./machine/{slug(name)}.html"), str(results[name])] for name in board.machines],
        caption="Machines",
    )
    if refused:
        body += render("notes.html", notes=[_refused_note(refused)])
    subtitle = f"{count(records, 'run')}, {count(len(board.machines), 'kind')} of machines"
    return page("Leaderboards", body, nav=[("Leaderboards", "")], subtitle=subtitle)


def _refused_note(refused: int) -> str:
    were, are = ("was", "is") if refused == 1 else ("were", "are")
    return f"{count(refused, 'file')} of the folder {were} refused and {are} not shown."


def _workload(workload: str, questions: Sequence[Question]) -> str:
    from markupsafe import Markup

    body = Markup()
    for number, question in enumerate(questions):
        if question.entries:
            rows = [_ranked(entry) for entry in question.entries]
            # Without columns that are empty in every row.
            texts = [[cell.text if isinstance(cell, Value) else cell for cell in row] for row in rows]
            told = [any(column) for column in zip(*texts, strict=True)]
            body += table(
                list(compress(RANKED, told)), [list(compress(row, told)) for row in rows], caption=question.words,
                marks=["flagged" if entry.cell.flags else "" for entry in question.entries],
                notes=NOTES if number == 0 else (), anchor=f"q{number}",
            )  # fmt: skip
        if question.failed:
            lost: list[list[str | Value]] = [
                [_to_machine(name), cell.how["framework"], cell.how["device"], cell.failure]
                for name, cell in question.failed
            ]
            body += table(FAILED, lost, caption=f"Could not run: {question.words}", marks=["failed"] * len(lost))
    # Each flag once, with what was seen in the first cell that has it; then what the frameworks' builds want said.
    entries = [entry for question in questions for entry in question.entries]
    flagged = grouped((name, entry) for entry in entries for name in entry.cell.flags)
    evidence = [
        *(f"{name}: {one.cell.flags[name]} ({one.cell.name}, {one.machine})." for name, (one, *_) in flagged.items()),
        *dict.fromkeys(note for entry in entries for note in entry.cell.notes),
    ]
    if evidence:
        body += Markup("<h2>{}</h2>").format("What to know") + render("notes.html", notes=evidence)
    return page(workload, body, nav=NAV, subtitle="a table for each question: only like is compared with like")


def _machine(name: str, board: Board) -> str:
    machines = board.machines[name]
    systems = dict.fromkeys(machine.os for machine in machines)
    several = Fact("systems", "; ".join(systems)) if len(systems) > 1 else None
    facts = [several if several and fact.name == "system" else fact for fact in machine_facts(machines[-1])]
    rows: list[list[str | Value]] = []
    marks: list[str] = []
    failed: list[list[str | Value]] = []
    for workload, questions in board.questions.items():
        for number, question in enumerate(questions):
            place = f"../workload/{slug(workload)}.html#q{number}"
            own = [entry for entry in question.entries if entry.machine == name]
            rows += [_here(entry, question, place) for entry in own]
            marks += ["flagged" if entry.cell.flags else "" for entry in own]
            failed += [
                [Value(text=workload), cell.how["framework"], cell.how["device"], cell.failure]
                for machine, cell in question.failed
                if machine == name
            ]
    body = render("facts.html", facts=facts)
    if rows:
        body += table(HERE, rows, caption="Measured on this machine", marks=marks)
    if failed:
        columns = (*columns_of("workload"), *FAILED[1:])
        body += table(columns, failed, caption="What could not run on this machine", marks=["failed"] * len(failed))
    return page(name, body, nav=NAV)


def _ranked(entry: BoardEntry) -> list[str | Value]:
    cell = entry.cell
    # Packages of the framework: other versions are on no leaderboard.
    versions = [f"{key} {value}" for key, value in cell.around.items() if key.startswith(cell.how["framework"])]
    return [
        Value(text="" if entry.rank is None else str(entry.rank), sort=float(entry.rank or 1e9)),
        *_rate(entry), _to_machine(entry.machine), cell.how["framework"], cell.how["device"], entry.settings,
        known(cell.memory_bytes, size, ""), "" if entry.joules is None else figures(entry.joules),
        f"{len(cell.processes)}{'*' if entry.few else ''}", ", ".join(versions),
        Value(text=", ".join(cell.flags), look="flag"),
    ]  # fmt: skip


def _here(entry: BoardEntry, question: Question, place: str) -> list[str | Value]:
    cell = entry.cell
    return [
        Value(text=question.workload, href=place), question.words, cell.how["framework"], cell.how["device"],
        *_rate(entry), seconds(cell.samples_per_step / entry.samples_s),
        "" if entry.rank is None else f"{entry.rank} of {len(question.entries)}",
        Value(text=", ".join(cell.flags), look="flag"),
    ]  # fmt: skip


def _rate(entry: BoardEntry) -> tuple[Value, str]:
    interval = "?" if entry.low is None or entry.high is None else f"{figures(entry.low)} to {figures(entry.high)}"
    return Value(text=figures(entry.samples_s), sort=entry.samples_s), interval


def _to_machine(name: str) -> Value:
    return Value(text=name, href=f"../machine/{slug(name)}.html", look="wide")

"""The pages of a static site, from a Board: an index, a page a workload, a page a machine."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from metalmark.model.run import Absent
from metalmark.report.html.facts import Fact, facts_block, machine_facts
from metalmark.report.html.page import Link, page, render
from metalmark.report.html.tables import Column, Kind, Value, table
from metalmark.report.units import figures, seconds, size
from metalmark.results.leaderboard import Board, Entry, Question, slug

RANKED = (
    Column(name="rank", kind=Kind.NUMBER), Column(name="samples/s", kind=Kind.NUMBER),
    Column(name="95%", kind=Kind.NUMBER), Column(name="machine"), Column(name="framework"), Column(name="device"),
    Column(name="settings"), Column(name="memory", kind=Kind.NUMBER), Column(name="J a sample", kind=Kind.NUMBER),
    Column(name="processes", kind=Kind.NUMBER), Column(name="versions"), Column(name="flags"),
)  # fmt: skip
FAILED = (
    Column(name="machine"), Column(name="framework"), Column(name="device"), Column(name="what happened"),
)  # fmt: skip
HERE = (
    Column(name="workload"), Column(name="what"), Column(name="framework"), Column(name="device"),
    Column(name="samples/s", kind=Kind.NUMBER), Column(name="95%", kind=Kind.NUMBER),
    Column(name="step", kind=Kind.NUMBER), Column(name="rank", kind=Kind.NUMBER), Column(name="flags"),
)  # fmt: skip
NOTES = (
    "A machine that is faster than another beyond both 95% intervals stands before it; those that can't be told apart "
    "share a rank.",
    "Flags say what could have spoiled a figure: look at them before you believe a place.",
    "Fewer than three processes: the interval is over blocks, and leaves out how processes differ (*).",
)


def site_pages(board: Board, *, records: int, refused: int) -> dict[str, str]:
    """File → its text."""
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
    columns = (Column(name="workload"), Column(name="questions", kind=Kind.NUMBER),
               Column(name="results", kind=Kind.NUMBER), Column(name="machines", kind=Kind.NUMBER))  # fmt: skip
    body = table(columns, rows, caption="Leaderboards", notes=[
        "A question is a workload with its parameters, mode, dtype and data: only answers to the same one are ranked."
    ])  # fmt: skip
    machines_rows: list[list[str | Value]] = [
        [Value(text=name, href=f"./machine/{slug(name)}.html"), str(_results(board, name))] for name in board.machines
    ]
    body += table((Column(name="machine"), Column(name="results", kind=Kind.NUMBER)), machines_rows, caption="Machines")
    if refused:
        body += render("notes.html", notes=[f"{refused} files of the folder were refused and are not shown."])
    subtitle = f"{records:,} records, kinds of machines: {len(board.machines)}"
    return page("Leaderboards", body, nav=_nav(""), subtitle=subtitle)


def _workload(workload: str, questions: Sequence[Question]) -> str:
    body = Markup()
    for number, question in enumerate(questions):
        if question.entries:
            columns, rows = _told([_ranked(entry) for entry in question.entries])
            body += table(
                columns,
                rows,
                caption=question.words,
                marks=["flagged" if entry.cell.flags else "" for entry in question.entries],
                notes=NOTES if number == 0 else (),
                anchor=f"q{number}",
            )
        if question.failed:
            lost: list[list[str | Value]] = [
                [_to_machine(name), cell.how["framework"], cell.how["device"], cell.failure]
                for name, cell in question.failed
            ]
            body += table(FAILED, lost, caption=f"Could not run: {question.words}", marks=["failed"] * len(lost))
    evidence = _evidence(questions)
    if evidence:
        body += Markup("<h2>{}</h2>").format("What to know") + render("notes.html", notes=evidence)
    return page(workload, body, nav=_nav("../"), subtitle="like with like: a table for each question")


def _machine(name: str, board: Board) -> str:
    machines = board.machines[name]
    facts = machine_facts(machines[-1])
    systems = dict.fromkeys(machine.os for machine in machines)
    if len(systems) > 1:
        facts = [Fact("systems", "; ".join(systems)) if fact.name == "system" else fact for fact in facts]
    rows: list[list[str | Value]] = []
    marks: list[str] = []
    failed: list[list[str | Value]] = []
    for workload, questions in board.questions.items():
        for number, question in enumerate(questions):
            place = f"../workload/{slug(workload)}.html#q{number}"
            for entry in question.entries:
                if entry.machine == name:
                    rows.append(_here(entry, question, place))
                    marks.append("flagged" if entry.cell.flags else "")
            failed += [
                [Value(text=workload), cell.how["framework"], cell.how["device"], cell.failure]
                for machine, cell in question.failed
                if machine == name
            ]
    body = facts_block(facts)
    if rows:
        body += table(HERE, rows, caption="What was measured on it", marks=marks)
    if failed:
        columns = (Column(name="workload"), *FAILED[1:])
        body += table(columns, failed, caption="What could not run on it", marks=["failed"] * len(failed))
    return page(name, body, nav=_nav("../"))


def _ranked(entry: Entry) -> list[str | Value]:
    cell = entry.cell
    versions = [f"{key} {value}" for key, value in cell.around.items() if key in _packages(entry)]
    return [
        Value(text="" if entry.rank is None else str(entry.rank), sort=float(entry.rank or 1e9)),
        Value(text=figures(entry.samples_s), sort=entry.samples_s),
        _interval(entry),
        _to_machine(entry.machine),
        cell.how["framework"],
        cell.how["device"],
        entry.settings,
        "" if isinstance(cell.memory_bytes, Absent) else size(cell.memory_bytes),
        "" if entry.joules is None else figures(entry.joules),
        f"{len(cell.processes)}{'*' if entry.few else ''}",
        ", ".join(versions),
        Value(text=", ".join(cell.flags), look="flag"),
    ]


def _told(rows: list[list[str | Value]]) -> tuple[list[Column], list[list[str | Value]]]:
    """Without the columns that nobody has anything in."""
    texts = [[cell.text if isinstance(cell, Value) else cell for cell in row] for row in rows]
    kept = [place for place in range(len(RANKED)) if any(row[place] for row in texts)]
    return [RANKED[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _here(entry: Entry, question: Question, place: str) -> list[str | Value]:
    cell = entry.cell
    return [
        Value(text=question.workload, href=place),
        question.words,
        cell.how["framework"],
        cell.how["device"],
        Value(text=figures(entry.samples_s), sort=entry.samples_s),
        _interval(entry),
        seconds(cell.samples_per_step / entry.samples_s),
        "" if entry.rank is None else f"{entry.rank} of {len(question.entries)}",
        Value(text=", ".join(cell.flags), look="flag"),
    ]


def _interval(entry: Entry) -> str:
    return "?" if entry.low is None or entry.high is None else f"{figures(entry.low)} to {figures(entry.high)}"


def _packages(entry: Entry) -> list[str]:
    """Those of the framework: the rest of what was around is on no leaderboard."""
    framework = entry.cell.how["framework"]
    return [key for key in entry.cell.around if key.startswith(framework)]


def _to_machine(name: str) -> Value:
    return Value(text=name, href=f"../machine/{slug(name)}.html", look="wide")


def _evidence(questions: Sequence[Question]) -> list[str]:
    """Each flag once, with what was seen in the first cell that has it; then what the frameworks' builds want said."""
    said: dict[str, str] = {}
    entries = [entry for question in questions for entry in question.entries]
    for entry in entries:
        for name, evidence in entry.cell.flags.items():
            said.setdefault(name, f"{name}: {evidence} ({entry.cell.name}, {entry.machine}).")
    return [*said.values(), *dict.fromkeys(note for entry in entries for note in entry.cell.notes)]


def _results(board: Board, machine: str) -> int:
    every = (entry for questions in board.questions.values() for question in questions for entry in question.entries)
    return sum(entry.machine == machine for entry in every)


def _nav(up: str) -> list[Link]:
    return [Link(text="Leaderboards", href=f"{up}index.html" if up else "")]

"""What the doctor says: its findings, an error that it knows, and the lines of `metalmark env`."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from metalmark.backends.base import Probe
from metalmark.doctor.catalog import exit_code
from metalmark.doctor.check import Check, Finding, Severity
from metalmark.doctor.environment import ShellAction, ShellChange
from metalmark.doctor.known_errors import FurtherCause
from metalmark.doctor.recognise import Match, Unrecognised
from metalmark.doctor.scene import Scene
from metalmark.report.text.run_list import columns
from metalmark.report.text.units import count
from metalmark.runner.ask import NoAnswer
from metalmark.scrub import printable

FORMAT = "metalmark-doctor"
SCHEMA = 1
WIDEST = 110
ERROR_WIDTH = 100
MOST_SHARED = 8
MOST_ERRORS = 4
"""More than this in one text is a log to be read, and the first ones are the likeliest."""

# A hard limit that was lowered can't be raised again in that shell, and without -S bash lowers both.
_LIMIT = "ulimit -S -n {value}"

_POSIX = {ShellAction.LIMIT: _LIMIT, ShellAction.SET: "export {name}={value}", ShellAction.UNSET: "unset {name}"}
_FISH = {ShellAction.LIMIT: _LIMIT, ShellAction.SET: "set -gx {name} {value}", ShellAction.UNSET: "set -e {name}"}

SHELLS: dict[str, dict[ShellAction, str]] = {"bash": _POSIX, "zsh": _POSIX, "fish": _FISH}
EVALUATE = {
    "bash": 'eval "$(metalmark env)"',
    "zsh": 'eval "$(metalmark env --shell zsh)"',
    "fish": "metalmark env --shell fish | source",
}
NOTHING = "Nothing to set: no limit, thread count or variable here needs a change."

Paint = Callable[[str, str], str]
"""paint(text, style): colour is an addition; the text says everything without it."""


def plain(text: str, style: str) -> str:  # noqa: ARG001
    return text


def page(scene: Scene, findings: Sequence[Finding], *, width: int = WIDEST, paint: Paint = plain) -> str:
    width = max(40, min(width, WIDEST))
    lines = [*map(printable, _machine(scene)), "", paint("What works", "title"), *_matrix(scene, width, paint), ""]
    lines += [paint("What is wrong, worst first" if findings else "Nothing is wrong.", "title")]
    for finding in findings:
        lines += ["", *_finding(finding, width, paint)]
    lines += ["", summary(findings)] if findings else []
    return "\n".join(lines).rstrip()


def story(check: Check, *, width: int = WIDEST) -> str:
    """Return the whole story of a check, with its sources."""
    lines = [f"{check.name}: {check.title}", "", *_wrap(check.story, max(40, min(width, WIDEST)))]
    if check.sources:
        lines += ["", "Sources:", *(f"  {source}" for source in check.sources)]
    return "\n".join(lines)


def document(scene: Scene, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings for programs, without any host, user, path or serial number."""
    return {
        "format": FORMAT, "schema": SCHEMA, "machine": msgspec.to_builtins(scene.machine), "platform": scene.platform,
        "python": scene.python, "architecture": scene.architecture, "macos": scene.macos,
        "frameworks": [_framework(scene, name) for name in scene.frameworks],
        "findings": [msgspec.to_builtins(finding) for finding in findings], "counts": _counts(findings),
        "exit_code": exit_code(findings),
    }  # fmt: skip


def summary(findings: Sequence[Finding]) -> str:
    counts = [count(number, severity) for severity, number in _counts(findings).items() if number]
    return f"{', '.join(counts)}. The whole story of one:\n  metalmark doctor --explain {findings[0].check}"


def _machine(scene: Scene) -> Iterator[str]:
    if machine := scene.machine:
        cores = f"{count(machine.usable_cores or machine.logical_cores, 'core')}, " if machine.logical_cores else ""
        yield f"{machine.chip}, {cores}{machine.memory_bytes / 2**30:.0f} GiB, {machine.os}"
    else:
        yield f"{'macOS' if scene.mac else scene.platform} {scene.macos or ''}".strip()
    if (nvidia := scene.nvidia) and nvidia.gpus:
        cuda = f", CUDA up to {nvidia.cuda[0]}.{nvidia.cuda[1]}" if nvidia.cuda else ""
        yield f"{', '.join(gpu.name for gpu in nvidia.gpus)}; driver {nvidia.driver}{cuda}"
    yield f"Python {scene.python}, {scene.architecture}{' under Rosetta' if scene.translated else ''}"


def _matrix(scene: Scene, width: int, paint: Paint) -> list[str]:
    """A table of frameworks and devices, then why devices are missing, each reason once."""
    probes = [probe for probe in scene.probes.values() if isinstance(probe, Probe)]
    words = list(dict.fromkeys(report.word for probe in probes for report in probe.devices)) or ["cpu"]
    rows: list[tuple[str, ...]] = []
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, missing in scene.frameworks.items():
        probe = scene.probes.get(name)
        if isinstance(probe, Probe):
            devices = {report.word: report for report in probe.devices}
            cells = ["yes" if word in devices and devices[word].present else "-" for word in words]
            rows.append((name, printable(probe.versions.get(name, "?")), *cells))
            for report in probe.devices:
                if not report.present:
                    reasons.setdefault((report.word, report.reason), []).append(name)
        else:
            state = "not installed" if missing else "no answer"
            rows.append((name, state, *("-" for _ in words)))
            why = f"it lacks {', '.join(missing)}." if missing else probe.reason if probe is not None else "not asked."
            reasons.setdefault(("", why), []).append(name)
    lines = [f"  {line}" for line in columns(("framework", "version", *words), rows).splitlines()]
    lines[0] = paint(lines[0], "header")
    for (word, reason), names in reasons.items():
        where = f"no {word} in {', '.join(names)}" if word else ", ".join(names)
        lines += _wrap(printable(f"{where}: {reason}"), width, "  ", " " * 6)
    return lines


def _finding(finding: Finding, width: int, paint: Paint) -> Iterator[str]:
    mark = finding.severity.value.upper() if finding.severity is Severity.ERROR else finding.severity.value
    yield f"{paint(mark, finding.severity.value)}: {paint(printable(finding.title), 'title')}  [{finding.check}]"
    for label, text in (("seen", finding.evidence), ("why", finding.why)):
        yield from _wrap(printable(f"{label + ':':6}{text}"), width, "  ", " " * 8)
    # Commands are not wrapped: they are there to be copied.
    for number, line in enumerate(finding.fix):
        yield f"  {'fix:' if number == 0 else '':6}{paint(printable(line), 'fix')}"


def _wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    # An address, a variable or the name of a check is copied: it stays whole.
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )


def _framework(scene: Scene, name: str) -> dict[str, Any]:
    probe = scene.probes.get(name)
    found: dict[str, Any] = {"name": name, "missing": list(scene.frameworks[name])}
    if isinstance(probe, Probe):
        return {**found, "versions": probe.versions, "devices": [msgspec.to_builtins(r) for r in probe.devices]}
    reason = probe.reason if isinstance(probe, NoAnswer) else "not installed"
    return {**found, "versions": {}, "devices": [], "reason": reason}


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    return {severity.value: sum(finding.severity is severity for finding in findings) for severity in Severity}


def error_page(matches: Sequence[Match]) -> str:
    parts = [_entry(match) for match in matches[:MOST_ERRORS]]
    if rest := [match.name for match in matches[MOST_ERRORS:]]:
        parts.append(_words(f"Also in the text: {', '.join(rest)}."))
    return "\n\n".join("\n".join(lines) for lines in parts)


def unknown_page(unrecognised: Unrecognised) -> str:
    """Return what the error seems to be and what to do next, where nothing was recognised."""
    lines = [f"This is none of the {unrecognised.known} errors that Metalmark knows."]
    lines += [f"  its last error: {unrecognised.last_error}"] if unrecognised.last_error else []
    if unrecognised.nearest:
        lines += ["", "Nearest, not recognised (they share words with the text, and may be about something else):"]
    for near in unrecognised.nearest:
        lines += [f"  {near.name}   shares: {', '.join(near.shared[:MOST_SHARED])}"]
        lines += [*_wrap(near.happened, ERROR_WIDTH, "    ", "    "), f"    source: {near.source}"]
    steps = [part for step in unrecognised.next_steps for part in _wrap(step, ERROR_WIDTH, "  - ", "    ")]
    return "\n".join([*lines, "", "What to do next:", *steps])


def _entry(match: Match) -> list[str]:
    lines = [match.name, *_words(f"seen in line {match.line}: {match.evidence}", "  ")]
    lines += [f"  holds for: {', '.join(match.holds_for)}"] if match.holds_for else []
    lines += _cause(match)
    if match.also:
        lines.append(f"  the same text has {count(len(match.also), 'further cause')}, likeliest first:")
    for number, cause in enumerate(match.also, 2):
        lines += ["", *_cause(cause, f"{number}. ")]
    return [*lines, f"  source: {match.source}"]


def _cause(cause: Match | FurtherCause, number: str = "") -> Iterator[str]:
    yield from _words(f"{number}what happened: {cause.happened}", "  ")
    if cause.tell:
        yield from _words(f"how to tell: {cause.tell}", "  ")
    yield from _words(f"what to change: {cause.change}", "  ")
    yield from (f"      {line}" for line in cause.fix)


def _words(text: str, indent: str = "") -> list[str]:
    return _wrap(text, ERROR_WIDTH, indent, f"{indent}  ")


def shell_lines(steps: Sequence[ShellChange], shell: str) -> str:
    words = SHELLS[shell]
    lines = [_comment(f"Nothing is changed until you evaluate these lines: {EVALUATE[shell]}" if steps else NOTHING)]
    for step in steps:
        lines.append(_comment(step.why if step.action is not ShellAction.NOTE else f"{step.name}: {step.why}"))
        if step.action in words:
            lines.append(words[step.action].format(name=step.name, value=step.value))
    return "\n".join(lines)


def _comment(text: str) -> str:
    # A line end in here would make the rest of it a command.
    return f"# {' '.join(printable(text).split())}"

"""Collect a Scene: every tool and every framework side by side, each within its own time limit, all within one."""

import platform
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from metalmark.backends.base import Probe
from metalmark.backends.catalog import FRAMEWORKS, visible
from metalmark.doctor import macos, readers
from metalmark.doctor.scene import Nvidia, Scene, ToolFailure
from metalmark.machine.identity import Identity, read_identity
from metalmark.machine.tools import run_tool
from metalmark.model.plan import Settings
from metalmark.model.run import Absent
from metalmark.runner.ask import NoAnswer, ask
from metalmark.scrub import scrub

# How long a framework's first answer may take.
if sys.platform == "darwin":
    PROBE_S = 90.0
    WHY_SLOW = "macOS scans a large framework when it is first imported, which may take a minute"
else:
    PROBE_S = 24.0
    WHY_SLOW = "a first import from a cold disk may take that long"

LIMIT_S = PROBE_S + 6.0
"""For everything together: one framework may take most of it, although none normally takes ten seconds."""
QUIET_LIMIT_S = 4.0
REMIND_S = 10.0
"""After this time the user is told what is waited for; again after twice as long, and so on."""

_LEAST = {"platform": sys.platform, "architecture": platform.machine(), "python": platform.python_version()}
"""What is known even where this process can't be read."""

Tell = Callable[[str, float, object], None]
"""tell(name, after_s, answer), called with each answer as it comes, and with WAITING while one is late."""
WAITING: Final = object()


def probe(name: str) -> Probe | NoAnswer:
    environment = FRAMEWORKS[name].environment(Settings())
    return ask("metalmark.runner.probing", name, Probe, environment=environment, timeout_s=PROBE_S)


def missing_imports() -> dict[str, tuple[str, ...]]:
    return {framework.name: tuple(framework.missing()) for framework in visible()}


@dataclass(frozen=True, kw_only=True)
class Readers:
    """How each part of a Scene is read; a test replaces some."""

    read_here: Callable[[], dict[str, Any]] = readers.read_process
    frameworks: Callable[[], dict[str, tuple[str, ...]]] = missing_imports
    probe: Callable[[str], Probe | NoAnswer] = probe
    run: macos.Run = run_tool
    mac_tools: Sequence[macos.MacTool] = macos.TOOLS
    tool_s: float = macos.TOOL_S
    read_nvidia: Callable[[], Nvidia | Absent | None] = readers.read_nvidia
    read_busy_cores: Callable[[], float | None] = readers.read_busy_cores
    read_installed: Callable[[], dict[str, Any]] = readers.read_packages
    read_disks: Callable[[], Any] = readers.read_disks
    identify: Callable[[], Identity] = read_identity
    quiet_limit_s: float = QUIET_LIMIT_S
    limit_s: float = LIMIT_S
    remind_s: float = REMIND_S


def collect(tell: Tell, by: Readers | None = None) -> Scene:
    """Collect everything; `tell` is called with each answer as it comes, and with what is waited for."""
    by = by or Readers()
    failures: list[ToolFailure] = []
    # Before anything of ours runs: the probes use the processor themselves, and hold the GPU while they look at it.
    questions: dict[str, Callable[[], Any]] = {
        "this process": by.read_here,
        "search for frameworks": by.frameworks,
        "processor load": by.read_busy_cores,
        "NVML": by.read_nvidia,
    }
    known = _known(ask_together(questions, limit_s=by.quiet_limit_s, tell=tell), failures)
    fields = {**known.get("this process", _LEAST), "frameworks": known.get("search for frameworks", {})}
    fields |= {"busy_cores": known.get("processor load"), "nvidia": known.get("NVML")}

    probed = [name for name, missing in fields["frameworks"].items() if not missing]
    tools = by.mac_tools if fields["platform"] == "darwin" else ()
    questions = {name: partial(by.probe, name) for name in probed}
    questions |= {"installed packages": by.read_installed, "machine": by.identify, "free disk space": by.read_disks}
    questions |= {tool.name: partial(macos.ask, tool, by.run, by.tool_s) for tool in tools}
    limit_s = max(by.limit_s - by.quiet_limit_s, 0.1)
    answers = ask_together(questions, limit_s=limit_s, tell=tell, remind_s=by.remind_s)
    probes = {name: answers.pop(name) for name in probed}
    known = _known(answers, failures)
    fields["probes"] = {
        name: NoAnswer(reason=answer.reason) if isinstance(answer, Absent) else answer
        for name, answer in probes.items()
    }
    fields |= known.get("installed packages", {})
    fields["disks"] = known.get("free disk space", ())
    identity: Identity | None = known.get("machine")
    if identity is not None:
        fields["machine"] = identity.machine
        failures += [ToolFailure(tool=tool, reason=reason) for tool, reason in identity.failed_tools.items()]
    for tool in tools:
        fields |= {name: value for name, value in known.get(tool.name, {}).items() if value is not None}
    return Scene(**fields, troubles=tuple(failures))


def collect_quickly() -> Scene:
    """Collect the part of a Scene that the shell decides: no framework is asked and no GPU."""
    fields = readers.read_process()
    if sys.platform == "darwin":
        sysctl = macos.ask(next(tool for tool in macos.TOOLS if tool.name == "sysctl"))
        # Without its answer the memory is still known; only a wired limit would be missed.
        if not isinstance(sysctl, Absent):
            fields |= {name: value for name, value in sysctl.items() if value is not None}
    return Scene(**{**fields, "frameworks": missing_imports(), "packages": readers.read_packages()["packages"]})


def ask_together(
    questions: Mapping[str, Callable[[], Any]], *, limit_s: float, tell: Tell, remind_s: float = REMIND_S
) -> dict[str, Any]:
    """Ask slow questions side by side and return the answers by name, in the order of the questions.

    An Absent stands for a question that raised or was not answered in time; that one is left behind.
    """
    arrivals: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    started_s = time.monotonic()

    def answer_one(name: str, question: Callable[[], Any]) -> None:
        try:
            answer = question()
        except Exception as error:  # noqa: BLE001  whatever a question throws costs only its own answer
            answer = Absent(scrub(f"it raised {type(error).__name__}: {error}")[:300])
        arrivals.put((name, answer))

    for name, question in questions.items():
        # Daemons: the interpreter's end must not wait for a question that hangs.
        threading.Thread(target=answer_one, args=(name, question), daemon=True, name=f"doctor-{name}").start()
    answers: dict[str, Any] = {}
    while len(answers) < len(questions):
        wait_s = started_s + min(limit_s, remind_s) - time.monotonic()
        try:
            name, answer = arrivals.get(timeout=wait_s) if wait_s > 0 else arrivals.get_nowait()
        except queue.Empty:
            if remind_s >= limit_s:
                break
            for name in questions:
                if name not in answers:
                    tell(name, remind_s, WAITING)
            remind_s *= 2
            continue
        answers[name] = answer
        tell(name, time.monotonic() - started_s, answer)
    for name in questions:
        if name not in answers:
            answers[name] = Absent(f"it gave no answer within {limit_s:g} s")
            tell(name, limit_s, answers[name])
    return {name: answers[name] for name in questions}


def _known(answers: Mapping[str, Any], failures: list[ToolFailure]) -> dict[str, Any]:
    """Return the answers that say something, and add the reasons of the others to `failures`."""
    failures += [
        ToolFailure(tool=name, reason=answer.reason) for name, answer in answers.items() if isinstance(answer, Absent)
    ]
    return {name: answer for name, answer in answers.items() if answer is not None and not isinstance(answer, Absent)}

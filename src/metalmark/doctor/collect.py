"""Collects a Scene: every tool and every framework side by side, each within its own limit, all within one."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from metalmark.backends.base import Probe
from metalmark.backends.catalog import FRAMEWORKS, visible
from metalmark.doctor import here, installed, macos, nvidia
from metalmark.doctor.patience import LIMIT_S, PROBE_S, REMIND_S
from metalmark.doctor.scene import Nvidia, Scene, Trouble
from metalmark.doctor.together import Tell, ask_together
from metalmark.machine.identity import Identity, read_identity
from metalmark.machine.tools import run_tool
from metalmark.model.plan import Settings
from metalmark.model.run import Absent
from metalmark.runner.ask import NoAnswer, ask

QUIET_LIMIT_S = 4.0

_LEAST = {"platform": sys.platform, "architecture": platform.machine(), "python": platform.python_version()}
"""What is known even where this process can't look about itself."""

Answer = tuple[dict[str, Any], list[Trouble]]
"""Fields of the Scene, and what was wrong."""


def probe(name: str) -> Probe | NoAnswer:
    environment = FRAMEWORKS[name].environment(Settings())
    return ask("metalmark.runner.probing", name, Probe, environment=environment, timeout_s=PROBE_S)


def lacking() -> dict[str, tuple[str, ...]]:
    return {framework.name: tuple(framework.missing()) for framework in visible()}


@dataclass(frozen=True, kw_only=True)
class Means:
    """How each thing is asked: a test puts others in their place."""

    read_here: Callable[[], dict[str, Any]] = here.read
    frameworks: Callable[[], dict[str, tuple[str, ...]]] = lacking
    probe: Callable[[str], Probe | NoAnswer] = probe
    run: macos.Run = run_tool
    mac_tools: Sequence[macos.MacTool] = macos.TOOLS
    tool_s: float = macos.TOOL_S
    read_nvidia: Callable[[], Nvidia | Absent | None] = nvidia.read
    read_busy_cores: Callable[[], float | None] = here.busy_cores
    read_installed: Callable[[], dict[str, Any]] = installed.read
    read_disks: Callable[[], Any] = here.disks
    identify: Callable[[], Identity] = read_identity
    quiet_limit_s: float = QUIET_LIMIT_S
    limit_s: float = LIMIT_S
    remind_s: float = REMIND_S


@dataclass
class _Found:
    fields: dict[str, Any]
    troubles: list[Trouble] = field(default_factory=list)

    def take(self, name: str, value: Any, *, into: str) -> None:
        if isinstance(value, Absent):
            self.troubles.append(Trouble(tool=name, reason=value.reason))
        elif value is not None:
            self.fields[into] = value


def collect(tell: Tell, means: Means | None = None) -> Scene:
    """`tell` hears each answer as it comes, and what is waited for."""
    means = means or Means()
    # Before anything of ours runs: the probes are busy themselves, and hold the GPU while they look at it.
    quiet = ask_together(
        {
            "this process": means.read_here,
            "search for frameworks": means.frameworks,
            "processor load": means.read_busy_cores,
            "NVML": means.read_nvidia,
        },
        limit_s=means.quiet_limit_s,
        tell=tell,
    )
    found = _Found({})
    found.take("this process", quiet["this process"], into="here")
    found.fields = dict(found.fields.pop("here", _LEAST))
    found.take("search for frameworks", quiet["search for frameworks"], into="frameworks")
    frameworks: dict[str, tuple[str, ...]] = found.fields.get("frameworks", {})
    found.take("processor load", quiet["processor load"], into="busy_cores")
    found.take("NVML", quiet["NVML"], into="nvidia")
    _ask_everybody(means, found, [name for name, missing in frameworks.items() if not missing], tell)
    return Scene(**{**found.fields, "troubles": tuple(found.troubles)})


def _ask_everybody(means: Means, found: _Found, frameworks: Sequence[str], tell: Tell) -> None:
    tools = means.mac_tools if found.fields.get("platform") == "darwin" else ()
    questions: dict[str, Callable[[], Any]] = {name: _bind(means.probe, name) for name in frameworks}
    questions |= {tool.name: _bind(macos.ask, tool, means.run, means.tool_s) for tool in tools}
    single = {
        "installed packages": (means.read_installed, "installed"),
        "machine": (means.identify, "machine"),
        "free disk space": (means.read_disks, "disks"),
    }
    questions |= {name: question for name, (question, _) in single.items()}
    limit_s = max(means.limit_s - means.quiet_limit_s, 0.1)
    answers = ask_together(questions, limit_s=limit_s, tell=tell, remind_s=means.remind_s)
    for name, (_, into) in single.items():
        found.take(name, answers[name], into=into)
    found.fields |= found.fields.pop("installed", {})
    identity: Identity | None = found.fields.pop("machine", None)
    if identity is not None:
        found.fields["machine"] = identity.machine
        found.troubles += [Trouble(tool=tool, reason=reason) for tool, reason in identity.failed_tools.items()]
    for tool in tools:
        answer: Answer | Absent = answers[tool.name]
        if isinstance(answer, Absent):
            found.troubles.append(Trouble(tool=tool.name, reason=answer.reason))
            continue
        found.fields |= {name: value for name, value in answer[0].items() if value is not None}
        found.troubles += answer[1]
    found.fields["probes"] = {
        name: NoAnswer(reason=answers[name].reason) if isinstance(answers[name], Absent) else answers[name]
        for name in frameworks
    }


def _bind(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: function(*arguments)

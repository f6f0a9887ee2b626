"""What `metalmark list` shows, as data and as text."""

from collections.abc import Callable
from typing import Any

import click

from metalmark.backends.catalog import UNKNOWN, Framework, version_of, visible
from metalmark.model.plan import word
from metalmark.report.text.width import window_columns, wrapped
from metalmark.runner.ask import NoAnswer
from metalmark.runner.probing import probe_all
from metalmark.workloads.catalog import load, shown_names

Entries = list[dict[str, Any]]


def workloads() -> Entries:
    entries: Entries = []
    for workload in map(load, shown_names()):
        params = [
            {"flag": f"--{p.name.replace('_', '-')}", "default": p.default, "help": p.help, "choices": [*p.choices]}
            for p in workload.params
        ]
        modes, frameworks = [mode.value for mode in workload.modes], list(workload.info.frameworks)
        lead = {"name": workload.name, "title": workload.title, "frameworks": frameworks}
        entries.append({**lead, "modes": modes, "params": params})
    return entries


def frameworks() -> Entries:
    return [
        {"name": framework.name, "title": framework.title, "version": _version(framework),
         "install": _install(framework.name),
         "limits": [{"setting": limit.flag, "works_on": list(limit.only), "reason": limit.reason}
                    for limit in framework.limits]}
        for framework in visible()
    ]  # fmt: skip


def devices() -> Entries:
    present = [framework for framework in visible() if not framework.missing()]
    entries: Entries = []
    for name, probe in probe_all(f.name for f in present).items():
        if isinstance(probe, NoAnswer):
            entries.append(_no_device(name, probe.reason, fix=""))
            continue
        entries += [
            {"framework": name, "device": report.word, "present": report.present, "name": report.name,
             "reason": report.reason, "fix": report.fix}
            for report in probe.devices
        ]  # fmt: skip
    absent = [framework.name for framework in visible() if framework not in present]
    return entries + [_no_device(name, "it is not installed.", fix=_install(name)) for name in absent]


def _no_device(framework: str, reason: str, *, fix: str) -> dict[str, Any]:
    return {"framework": framework, "device": "", "present": False, "reason": reason, "fix": fix}


def _install(framework: str) -> str:
    return f'pip install "metalmark[{framework}]"'


LISTS: dict[str, Callable[[], Entries]] = {"workloads": workloads, "frameworks": frameworks, "devices": devices}


def print_list(what: str, entries: Entries) -> None:
    for entry in entries:
        click.echo(wrapped(_LINES[what](entry), window_columns()))


def _workload_lines(entry: dict[str, Any]) -> str:
    lines = [f"{entry['name']}: {entry['title']}", f"    on {', '.join(entry['frameworks'])}"]
    for param in entry["params"]:
        choices = f" ({', '.join(param['choices'])})" if param["choices"] else ""
        lines.append(f"    {param['flag']} {word(param['default'])}{choices}  {param['help']}")
    return "\n".join(lines)


def _framework_lines(entry: dict[str, Any]) -> str:
    state = entry["version"] or f"not installed: {entry['install']}"
    lines = [f"{entry['name']}: {entry['title']}, {state}"]
    for limit in entry["limits"]:
        where = f"only on {', '.join(limit['works_on'])}" if limit["works_on"] else "not available"
        lines.append(f"    {limit['setting']}: {where}; {limit['reason']}")
    return "\n".join(lines)


def _device_lines(entry: dict[str, Any]) -> str:
    where = f"{entry['framework']} {entry['device']}".strip()
    if entry["present"]:
        return f"{where}: {entry['name']}"
    return f"{where}: absent; {entry['reason']} {entry['fix']}".rstrip()


_LINES = {"workloads": _workload_lines, "frameworks": _framework_lines, "devices": _device_lines}


def _version(framework: Framework) -> str | None:
    """From the installed package's metadata: importing the framework would take seconds."""
    if framework.missing():
        return None
    package = framework.packages[0]
    found = version_of(package) or version_of(f"{package}-cpu")
    return "installed, version unknown" if found in (None, UNKNOWN) else found

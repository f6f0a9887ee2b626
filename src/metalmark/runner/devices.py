"""What `--device all` means on this machine: every device each framework has, and why it lacks the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from metalmark.model.plan import Device
from metalmark.runner.ask import NoAnswer
from metalmark.runner.probing import probe_all
from metalmark.runner.values import parse_device


@dataclass(frozen=True, kw_only=True)
class Choice:
    devices: dict[str, tuple[Device, ...]]
    notes: list[str] = field(default_factory=list)


def choose_devices(frameworks: Sequence[str], words: Sequence[str]) -> Choice:
    """Devices by framework. Only `all` needs a probe; a word that names a device is for the worker to find."""
    named = [parse_device(word) for word in words if word != "all"]
    if "all" not in words:
        return Choice(devices={framework: tuple(named) for framework in frameworks})
    choice = Choice(devices={})
    for framework, probe in probe_all(frameworks).items():
        if isinstance(probe, NoAnswer):
            choice.notes.append(f"{framework} not run: {probe.reason}")
            continue
        present = [parse_device(report.word) for report in probe.devices if report.present]
        choice.devices[framework] = tuple(dict.fromkeys([*present, *named]))
        for report in probe.devices:
            if not report.present:
                fix = f" {report.fix}" if report.fix else ""
                choice.notes.append(f"{framework} {report.word} not run: {report.reason}{fix}")
    return choice

"""Which devices each framework has on this machine, asked in a process of its own per framework.

As a process: `python -m metalmark.runner.probing FRAMEWORK ANSWER`.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from metalmark.backends.base import Probe
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import UnsupportedError
from metalmark.machine.durable import write_struct
from metalmark.model.plan import Device, DeviceKind, Plan, Settings
from metalmark.model.run import Failed, FailureKind
from metalmark.runner.ask import Asker, NoAnswer, ask, in_one_line, traceback_of
from metalmark.runner.values import parse_device

TIMEOUT_S = 120.0
EVERYWHERE = {DeviceKind.CPU, DeviceKind.ANY}


def probe_all(names: Iterable[str], *, timeout_s: float = TIMEOUT_S) -> dict[str, Probe | NoAnswer]:
    """Probe frameworks side by side. One that crashes or hangs at import is a finding, and does not hang the caller."""
    wanted, asker = list(names), Asker()

    def one(name: str) -> Probe | NoAnswer:
        environment = FRAMEWORKS[name].environment(Settings())
        return ask("metalmark.runner.probing", name, Probe, environment=environment, timeout_s=timeout_s, asker=asker)

    with ThreadPoolExecutor(max_workers=max(1, len(wanted))) as pool:
        try:
            return dict(zip(wanted, pool.map(one, wanted), strict=True))
        except BaseException:
            # Ctrl-C: leaving the pool waits for its threads, and they for their answers.
            asker.give_up()
            raise


@dataclass(frozen=True, kw_only=True)
class DeviceChoice:
    devices: dict[str, tuple[Device, ...]]
    """By framework."""
    notes: list[str] = field(default_factory=list)
    """What `all` left out, each with its reason."""


def choose_devices(frameworks: Sequence[str], words: Sequence[str]) -> DeviceChoice:
    """Return the devices to run on. Only `all` needs a probe; a device that is named is for the worker to find."""
    named = [parse_device(word) for word in words if word != "all"]
    if "all" not in words:
        return DeviceChoice(devices={framework: tuple(named) for framework in frameworks})
    choice = DeviceChoice(devices={})
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


def absences(plans: Sequence[Plan]) -> list[Failed | None]:
    """Return for each plan why it can't run here, or None. Only frameworks whose device could be missing are probed."""
    asked = list(dict.fromkeys(plan.framework for plan in plans if plan.device.kind not in EVERYWHERE))
    probes = probe_all(asked) if asked else {}
    return [absence(plan, probes.get(plan.framework)) for plan in plans]


def absence(plan: Plan, probe: Probe | NoAnswer | None) -> Failed | None:
    """Return why this plan can't run, which its worker would say too, minutes later."""
    if isinstance(probe, NoAnswer):
        # The import fails whatever the device is.
        return Failed(kind=FailureKind.CRASHED, message=probe.reason, phase="import", detail=probe.detail)
    if plan.device.kind in EVERYWHERE or probe is None:
        return None
    kind = plan.device.kind
    on_gpu = kind is DeviceKind.GPU
    reports = [report for report in probe.devices if (report.word != DeviceKind.CPU if on_gpu else report.word == kind)]
    present = next((report for report in reports if report.present), None)
    if present is None:
        wanted = "accelerator" if on_gpu else kind.value
        reasons = [f"{report.word}: {report.reason}" for report in reports]
        return Failed(
            kind=FailureKind.UNSUPPORTED,
            message=" ".join([f"{FRAMEWORKS[plan.framework].title} has no {wanted} here.", *reasons]),
            hint=next((report.fix for report in reports if report.fix), ""),
        )
    try:
        FRAMEWORKS[plan.framework].check(plan.settings, present.word, plan.loader)
    except UnsupportedError as error:
        return Failed(kind=FailureKind.UNSUPPORTED, message=error.message, hint=error.hint)
    return None


def main(name: str, answer: str) -> None:
    result: Probe | NoAnswer
    try:
        result = FRAMEWORKS[name].backend().probe()
    except BaseException as error:  # noqa: BLE001  whatever an import throws is the finding
        result = NoAnswer(reason=in_one_line(error, "it fails at import: "), detail=traceback_of(error))
    write_struct(Path(answer), result)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
    os._exit(0)  # the answer is on the disk; some frameworks take a second to shut down, or hang there

"""What can't run here, known before anything starts: a device word against what its framework's probe found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metalmark.backends.base import DeviceReport, Probe
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import UnsupportedError
from metalmark.model.plan import DeviceKind, Plan
from metalmark.model.run import Failed, FailureKind
from metalmark.runner.ask import NoAnswer
from metalmark.runner.probing import probe_all

EVERYWHERE = {DeviceKind.CPU, DeviceKind.ANY}


def absences(plans: Sequence[Plan]) -> list[Failed | None]:
    """For each plan why it can't run, or None. A framework is asked only where a device could be missing."""
    asked = list(dict.fromkeys(plan.framework for plan in plans if plan.device.kind not in EVERYWHERE))
    probes = probe_all(asked) if asked else {}
    return [absence(plan, probes.get(plan.framework)) for plan in plans]


def absence(plan: Plan, probe: Probe | NoAnswer | None) -> Failed | None:
    """The worker would say the same, minutes later."""
    if isinstance(probe, NoAnswer):
        # As it fails, it fails on every device.
        return Failed(kind=FailureKind.CRASHED, message=probe.reason, phase="import", detail=probe.detail)
    if plan.device.kind in EVERYWHERE or probe is None:
        return None
    title = FRAMEWORKS[plan.framework].title
    reports = [report for report in probe.devices if _is_meant(plan.device.kind, report)]
    present = next((report for report in reports if report.present), None)
    if present is None:
        return _absent(f"{title} has no {_name(plan.device.kind)} here.", reports)
    try:
        FRAMEWORKS[plan.framework].check(plan.settings, present.word, plan.loader)
    except UnsupportedError as error:
        return Failed(kind=FailureKind.UNSUPPORTED, message=error.message, hint=error.hint)
    return None


def _is_meant(kind: DeviceKind, report: DeviceReport) -> bool:
    return report.word != DeviceKind.CPU if kind is DeviceKind.GPU else report.word == kind


def _name(kind: DeviceKind) -> str:
    return "accelerator" if kind is DeviceKind.GPU else kind.value


def _absent(what: str, reports: Iterable[DeviceReport]) -> Failed:
    reasons = [f"{report.word}: {report.reason}" for report in reports]
    fix = next((report.fix for report in reports if report.fix), "")
    return Failed(kind=FailureKind.UNSUPPORTED, message=" ".join([what, *reasons]), hint=fix)

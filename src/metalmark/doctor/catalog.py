"""All checks by name, in the order in which findings of one severity are shown; `examine` runs them over a Scene."""

from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

from msgspec.structs import replace

from metalmark.doctor.check import Check, Finding, Severity, warning
from metalmark.doctor.scene import Scene
from metalmark.errors import UsageError, did_you_mean
from metalmark.scrub import scrub

NAMES = ("python_checks", "tensorflow_checks", "torch_checks", "jax_checks", "known_bugs", "nvidia_checks",
         "packages_checks", "probe_checks", "loader_checks", "machine_checks")  # fmt: skip
FAMILIES = tuple(import_module(f"metalmark.doctor.{name}") for name in NAMES)


def checks_of(family: ModuleType) -> list[Check]:
    """Return the checks that a file defines, in its order."""
    return [value for value in vars(family).values() if isinstance(value, Check)]


CHECKS: dict[str, Check] = {check.name: check for family in FAMILIES for check in checks_of(family)}
WORST_FIRST = tuple(Severity)


def find(name: str) -> Check:
    check = CHECKS.get(name)
    if check is None:
        near = did_you_mean(name, CHECKS)
        raise UsageError(f"There is no check {name!r}{near}", hint=f"Checks: {', '.join(CHECKS)}.")
    return check


def examine(scene: Scene, checks: Iterable[Check] | None = None) -> list[Finding]:
    """Return the findings, worst first."""
    chosen = CHECKS.values() if checks is None else checks
    findings = [finding for check in chosen for finding in _look(check, scene)]
    return sorted(findings, key=lambda finding: WORST_FIRST.index(finding.severity))


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0 if nothing is wrong, 1 for warnings, 2 for errors; notes do not count."""
    severities = {finding.severity for finding in findings}
    return 2 if Severity.ERROR in severities else 1 if Severity.WARNING in severities else 0


def _look(check: Check, scene: Scene) -> list[Finding]:
    try:
        return check.look(scene)
    except Exception as error:  # noqa: BLE001  one broken check must not cost the others
        failed = warning(
            f"The doctor's own check {check.name} failed",
            evidence=scrub(f"{type(error).__name__}: {error}")[:300],
            why="This is a fault of Metalmark, not of your machine: whether the symptom is there is unknown.",
            fix=("Please report it with this line.",),
        )
        return [replace(failed, check=check.name)]

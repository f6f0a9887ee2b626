"""Every release of tensorflow-metal, and the pairs on both sides of each boundary."""

from __future__ import annotations

import pytest

from metalmark.doctor.check import Severity
from metalmark.doctor.tensorflow_checks import Minor, PairVerdict, best_plugin, find_plugin, install_lines, plugins
from tests.doctor.scenes import MAC, broken, change, look

LOADS, FAILS, UNKNOWN = PairVerdict.LOADS, PairVerdict.FAILS, PairVerdict.UNKNOWN

# version, oldest and newest TensorFlow, oldest and newest Python, wheels for an Intel Mac, fails from
ROWS: list[tuple[str, Minor, Minor, int, int, bool, Minor | None]] = [
    ("0.1.0", (2, 5), (2, 5), 8, 9, True, None),
    ("0.1.1", (2, 5), (2, 5), 8, 9, True, None),
    ("0.1.2", (2, 5), (2, 5), 8, 9, True, None),
    ("0.2.0", (2, 6), (2, 6), 8, 9, True, None),
    ("0.3.0", (2, 7), (2, 7), 8, 9, True, None),
    ("0.4.0", (2, 8), (2, 8), 8, 9, True, None),
    ("0.5.0", (2, 9), (2, 9), 8, 10, True, None),
    ("0.5.1", (2, 9), (2, 9), 8, 10, True, None),
    ("0.6.0", (2, 10), (2, 10), 8, 10, True, None),
    ("0.7.0", (2, 11), (2, 11), 8, 10, True, None),
    ("0.7.1", (2, 11), (2, 11), 8, 10, True, None),
    ("0.8.0", (2, 12), (2, 12), 8, 11, True, None),
    ("1.0.0", (2, 13), (2, 13), 8, 11, True, None),
    ("1.0.1", (2, 15), (2, 17), 8, 11, False, (2, 18)),
    ("1.1.0", (2, 14), (2, 17), 9, 11, False, (2, 18)),
    ("1.2.0", (2, 15), (2, 19), 9, 12, False, (2, 20)),
]


def test_the_table_is_whole() -> None:
    assert [plugin.version for plugin in plugins()] == [row[0] for row in ROWS]


@pytest.mark.parametrize(("version", "oldest", "newest", "first", "last", "intel", "fails"), ROWS)
def test_each_release(
    version: str, oldest: Minor, newest: Minor, first: int, last: int, intel: bool, fails: Minor | None
) -> None:
    plugin = find_plugin(version)
    assert plugin is not None
    assert plugin.tensorflow == (oldest, newest)
    assert plugin.pythons == ((3, first), (3, last))
    assert ("x86_64" in plugin.architectures) is intel
    assert "arm64" in plugin.architectures
    assert plugin.fails_from == fails
    assert plugin.loads(oldest) is plugin.loads(newest) is LOADS
    assert plugin.loads((newest[0], newest[1] + 1)) is (FAILS if fails else UNKNOWN)
    assert plugin.loads((oldest[0], oldest[1] - 1)) is UNKNOWN
    assert plugin.has_wheel((3, last))
    assert not plugin.has_wheel((3, last + 1))
    assert not plugin.has_wheel((3, first - 1))


# The pairs around each boundary, as they are found installed.
PAIRS: list[tuple[str, str, str, list[Severity]]] = [
    ("2.16.2", "1.1.0", "3.11.9", []),
    ("2.17.1", "1.1.0", "3.11.9", []),
    ("2.18.0", "1.1.0", "3.11.9", [Severity.ERROR]),
    ("2.18.1", "1.0.1", "3.11.9", [Severity.ERROR]),
    ("2.17.0", "1.0.1", "3.11.9", []),
    ("2.18.0", "1.2.0", "3.12.4", []),
    ("2.19.0", "1.2.0", "3.12.4", []),
    ("2.19.1", "1.2.0", "3.9.0", []),
    ("2.20.0", "1.2.0", "3.12.4", [Severity.ERROR]),
    ("2.20.0rc1", "1.2.0", "3.12.4", [Severity.ERROR]),
    ("2.21.0", "1.2.0", "3.12.4", [Severity.ERROR]),
    ("2.15.1", "1.2.0", "3.11.9", []),
    ("2.14.1", "1.2.0", "3.11.9", [Severity.WARNING]),
    ("2.14.0", "1.1.0", "3.11.9", []),
    ("2.13.0", "1.1.0", "3.11.9", [Severity.WARNING]),
    ("2.19.0", "1.2.0", "3.13.0", [Severity.ERROR]),
    ("2.17.0", "1.1.0", "3.12.0", [Severity.ERROR]),
    ("2.13.0", "1.0.0", "3.11.0", []),
    ("2.12.0", "1.0.0", "3.11.0", [Severity.WARNING]),
    ("nonsense", "1.2.0", "3.12.4", []),
    ("2.20.0", "nonsense", "3.12.4", []),
]


@pytest.mark.parametrize(("tensorflow", "metal", "python", "severities"), PAIRS)
def test_pairs(tensorflow: str, metal: str, python: str, severities: list[Severity]) -> None:
    scene = change(
        MAC,
        python=python,
        packages={"tensorflow": tensorflow, "tensorflow-metal": metal},
        probes={"tensorflow": broken()},
    )
    findings = look("tensorflow-metal-pair", scene)
    assert [finding.severity for finding in findings] == severities
    for finding in findings:
        assert any('"tensorflow==2.19.*" tensorflow-metal==1.2.0' in line for line in finding.fix)


def test_tensorflow_macos_counts_as_tensorflow() -> None:
    """Before 2.15.1 `tensorflow` on a Mac was a stub that required it."""
    packages = {"tensorflow": "2.14.1", "tensorflow-macos": "2.14.1", "tensorflow-metal": "1.1.0"}
    scene = change(MAC, python="3.11.9", packages=packages, probes={"tensorflow": broken()})
    assert look("tensorflow-metal-pair", scene) == []
    old = change(scene, packages={"tensorflow": None, "tensorflow-macos": "2.13.0", "tensorflow-metal": "1.2.0"})
    (finding,) = look("tensorflow-metal-pair", old)
    assert "tensorflow-macos 2.13.0" in finding.evidence


def test_the_pin_that_works_for_each_python() -> None:
    for minor in (9, 10, 11, 12):
        assert install_lines((3, minor)) == ('pip install "tensorflow==2.19.*" tensorflow-metal==1.2.0',)
    assert best_plugin((3, 13)) is None
    assert install_lines((3, 13)) == (
        "python3.12 -m venv .venv",
        '.venv/bin/pip install "tensorflow==2.19.*" tensorflow-metal==1.2.0',
    )


def test_what_is_advised_loads() -> None:
    plugin = best_plugin((3, 12))
    assert plugin is not None
    assert plugin.loads((2, 19)) is LOADS

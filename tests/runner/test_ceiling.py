"""Which ceilings this machine has measured before."""

from __future__ import annotations

import pytest

from metalmark.machine.identity import identify
from metalmark.model.plan import Device, DeviceKind, Dtype
from metalmark.model.run import Software
from metalmark.runner import ceiling
from tests.samples import record


@pytest.mark.parametrize(
    ("version", "installed", "same"),
    [
        ("2.13.0", "2.13.0", True),
        ("2.13.0+cu130", "2.13.0+cu130", True),
        ("2.13.0+cu130", "2.13.0", True),  # PyTorch's own word, and its package's
        ("2.13.0+cu130", "2.13.0+cpu", False),
        ("2.12.0+cu130", "2.13.0", False),
        ("2.13.0", None, False),
        ("unknown", "unknown", False),  # two damaged packages may differ
    ],
)
def test_by_the_version_that_is_installed(
    monkeypatch: pytest.MonkeyPatch, version: str, installed: str | None, same: bool
) -> None:
    monkeypatch.setattr(ceiling, "version_of", lambda _: installed)
    plans = ceiling.ceiling_plans({"torch": [Device(kind=DeviceKind.CPU)]}, [Dtype.FLOAT32], 1)
    software = Software(metalmark="0.1.0", python="3.11.7", versions={"torch": version})
    kept = [record(plan=plan, machine=identify(), software=software) for plan in plans]
    assert list(ceiling.measured_before(plans, kept)) == ([0, 1] if same else [])

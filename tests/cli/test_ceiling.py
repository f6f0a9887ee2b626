"""`metalmark ceiling`, as a user runs it: measured once, shown again, and a share of it beside every record."""

from __future__ import annotations

import re

import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.plan import Budget, DeviceKind
from metalmark.runner import ceiling as ceilings
from tests.conftest import Cli

HERE = ("-f", "torch", "-d", "cpu", "--threads", "1", "--dtype", "float32")


@pytest.mark.skipif(bool(FRAMEWORKS["torch"].missing()), reason="torch is not installed")
def test_a_ceiling_is_measured_once_and_a_share_of_it_is_shown(inside: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    # README's ceiling is measured in its full size by tests/test_docs.py.
    monkeypatch.setattr(ceilings, "SIZES", {DeviceKind.CPU: (256, 1)})
    monkeypatch.setattr(ceilings, "Budget", lambda **_: Budget(steps=20, seconds=0.2))
    first = inside("ceiling", *HERE)
    assert first.returncode == 0, first.stderr
    assert re.search(r"torch +cpu +float32 +[\d.,]+ GFLOP/s .* [\d.,]+ GB/s", first.stdout), first.stdout
    again = inside("ceiling", *HERE)
    assert "2 of 2 were measured before" in again.stderr
    assert again.stdout == first.stdout
    bench = ("bench", "mnist-mlp", "-f", "torch", "-d", "cpu", "--steps", "10", "--seconds", "0.2", "-q")
    assert inside(*bench, "--threads", "1").returncode == 0
    assert re.search(
        r"[\d.]+% of the [\d.,]+ GFLOP/s that a matrix product reached here", inside("runs", "show", "last").stdout
    )
    assert inside(*bench, "--threads", "2").returncode == 0
    shown = inside("runs", "show", "last").stdout
    assert "not measured yet: metalmark ceiling -f torch -d cpu --dtype float32 --threads 2" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dtype", "float8"), "float8"),
        (("-f", "torchh"), "did you mean torch"),
        (("-f", "torch", "-d", "gpuu"), "did you mean gpu"),
        (("--threads", "0"), "0 is not in the range"),
    ],
)
def test_bad_input(inside: Cli, arguments: tuple[str, ...], message: str) -> None:
    run = inside("ceiling", *arguments)
    assert run.returncode == 2
    assert message in run.stderr
    assert "Traceback" not in run.stderr

"""--strict and --cooldown as a user types them."""

from __future__ import annotations

from pathlib import Path

import pytest

from metalmark.errors import UsageError
from metalmark.model.plan import Sweep
from metalmark.model.run import Flag
from metalmark.store.store import Store
from tests.conftest import Cli, Verb
from tests.samples import completed, plan, record

QUICK = ("--framework", "fake", "--device", "gpu", "--steps", "20", "--seconds", "0.2")


def stored(store_file: Path, *flags: Flag) -> None:
    """A sweep that has ended: --resume has nothing left to run and only judges it."""
    sweep = Sweep(id="sweep00001", created_at="2026-11-15T08:00:00.000000Z", plans=(plan(),))
    with Store(store_file) as store:
        store.add_sweep(sweep)
        store.add(record(completed(), flags=flags))


def test_a_clean_cell_passes(inside: Cli, store_file: Path) -> None:
    stored(store_file)
    run = inside("bench", "--resume", "--strict")
    assert run.returncode == 0, run.stderr
    assert "--strict" not in run.stderr


def test_a_note_is_shown_and_fails_nothing(inside: Cli, store_file: Path) -> None:
    stored(store_file, Flag(name="power_capped", evidence="x"))
    run = inside("bench", "--resume", "--strict")
    assert run.returncode == 0, run.stderr
    assert "power_capped" in run.stdout
    assert "--strict" not in run.stderr


def test_a_flagged_cell_fails_and_is_named(inside: Cli, store_file: Path) -> None:
    stored(store_file, Flag(name="swapping", evidence="x"), Flag(name="on_battery", evidence="y"))
    assert inside("bench", "--resume").returncode == 0
    run = inside("bench", "--resume", "--strict", "-q")
    assert run.returncode == 1
    assert "--strict: mnist-mlp training batch 32 torch cpu: swapping, on_battery" in run.stderr
    assert "swapping" in run.stdout, "the number is shown all the same"


def test_a_leak_and_a_loss_that_does_not_fall_are_timed_and_fail(cli: Cli) -> None:
    run = cli("bench", "fake", *QUICK, "--leak-mb", "1", "--fault", "flat", "--telemetry", "off", "--strict")
    assert run.returncode == 1
    assert "--strict: fake training batch 32 fake gpu: unproved, " in run.stderr
    assert "leaking" in run.stderr
    assert "unproved: the loss did not fall on a fixed batch: 2.3 at the first step, 2.3 after " in run.stdout
    assert "samples/s" in run.stdout


def test_strict_about_a_proof_that_is_off(verb: Verb) -> None:
    with pytest.raises(UsageError, match="--proof off leaves every cell so"):
        verb("bench", "fake", *QUICK, "--proof", "off", "--strict")


def test_a_pause_between_cells_is_shown_and_noted(cli: Cli) -> None:
    run = cli("bench", "fake", *QUICK, "--batch-size", "1,2", "--cooldown", "0.5")
    assert run.returncode == 0, run.stderr
    assert "pause" in run.stdout, "what it waited for stands in the notes"


@pytest.mark.parametrize("text", ["soon", "0", "-3", "nan", "inf", "1e9"])
def test_a_pause_that_is_none(inside: Cli, text: str) -> None:
    run = inside("bench", "fake", *QUICK, "--cooldown", text)
    assert run.returncode == 2
    assert "--cooldown is auto or seconds" in run.stderr
    assert "Traceback" not in run.stderr

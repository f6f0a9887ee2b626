"""What can't be checked: a sentence on stderr, exit code 2, no traceback; what was compared outlives Ctrl-C.

On the software device, whose faults are parameters.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from metalmark.model.parity import Checked, ParityRun, ParityVerdict, Quantity
from metalmark.model.run import Failed, FailureKind
from metalmark.store.store import Store
from tests.conftest import Cli
from tests.processes import HeldCommand, until

ON_GPU = ("--framework", "fake", "--device", "gpu")
QUICK = ("--seeds", "0", "--repeats", "0", "--no-diagnose")

HELD = """
import os, sys
from metalmark.workloads.fake import WORKLOAD
if "metalmark.parity.worker" in sys.orig_argv:
    with open(os.environ["HERE"], "a") as file:
        file.write(f"{os.getpid()}\\n")
"""
"""A workload whose sides tell their process IDs."""
CHANGING = """
import sys
from metalmark.workloads.fake import WORKLOAD
if "metalmark.parity.worker" in sys.orig_argv:
    with open(__file__, "a") as file:
        file.write("# changed\\n")
"""

UNSEEDED = """
import os
from dataclasses import replace
import numpy as np
from metalmark.workloads.fake import WORKLOAD as FAKE
def batch(params, rng):
    return FAKE.batch(params, np.random.default_rng(list(os.urandom(8))))
WORKLOAD = replace(FAKE, batch=batch)
"""


def stored(path: Path) -> list[ParityRun]:
    with Store(path, readonly=True) as store:
        runs = store.load(store.rows())
    return [run for run in runs if isinstance(run, ParityRun)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fake", *ON_GPU, "--reference", "cpuu"], "--reference is a device, a framework or both, not 'cpuu'."),
        (["fake", *ON_GPU, "--reference", "torch"], "no implementation for torch"),
        (["fake", *ON_GPU, "--repro", "."], "is a folder"),
        (["fake", *ON_GPU, "--repro", "nowhere/fault.py"], "is in a folder that does not exist"),
        (["fake", "mnist-mlp"], "One workload at a time, not 2."),
        (["fake", *ON_GPU, "--batchsize", "3"], "did you mean --batch-size?"),
        (["fake", *ON_GPU, "--batch-size", "0"], "must be at least 1"),
        (["fake", *ON_GPU, "--steps", "0"], "--steps"),
        (["fake", *ON_GPU, "--draws", "0"], "--draws"),
        (["fake", "--framework", "fake", "--device", "gpuu"], "did you mean gpu?"),
        ([], "Which workload?"),
    ],
    ids=lambda value: " ".join(value)[-30:] if isinstance(value, list) else "",
)
def test_a_bad_word_is_answered_before_anything_starts(
    inside: Cli, store_file: Path, arguments: list[str], message: str
) -> None:
    run = inside("parity", *arguments)
    assert run.returncode == 2, run.stderr
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""
    assert not store_file.exists()


@pytest.mark.parametrize(
    ("fault", "more", "message", "hint"),
    [
        ("parity-untrainable", (), "The model has no trainable parameters", "--mode inference"),
        ("parity-nan", (), "The reference itself gives values that are not finite: ", "Mend the network"),
        ("parity-random", (), "The reference is not deterministic: the same step gave ", "Use a dropout layer"),
        ("oom", (), "fake on gpu: FakeMemoryError", "Use a smaller --batch-size."),
        ("oom", ("-d", "cpu", "--reference", "gpu"), "fake on gpu, the reference: ", "Use a smaller --batch-size."),
        ("raise", (), "fake on gpu: RuntimeError: asked to raise", ""),
        ("parity-naan", (), "The software device has no fault 'parity-naan'; did you mean nan?", "Faults of"),
    ],
)
def test_what_can_not_be_compared_is_a_sentence(
    inside: Cli, store_file: Path, fault: str, more: tuple[str, ...], message: str, hint: str
) -> None:
    run = inside("parity", "fake", *ON_GPU, *more, *QUICK, "--fault", fault)
    assert run.returncode == 2, run.stderr
    assert f"metalmark: {message}" in run.stderr
    assert hint in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == "", "there is no figure to show"
    (kept,) = stored(store_file)
    assert kept.verdict is ParityVerdict.UNTESTED
    assert isinstance(kept.outcome, Failed)


def test_without_trainable_parameters_outputs_can_be_compared(inside: Cli) -> None:
    run = inside("parity", "fake", *ON_GPU, *QUICK, "--fault", "parity-untrainable", "--mode", "inference")
    assert run.returncode == 0, run.stderr


def test_several_checks_of_which_one_fails_say_which(inside: Cli, store_file: Path) -> None:
    run = inside("parity", "fake", *ON_GPU, *QUICK, "--fault", "none,parity-nan")
    assert run.returncode == 2, run.stderr
    assert "metalmark: fake training batch 32 fake gpu: The reference itself gives" in run.stderr
    assert [one.verdict for one in stored(store_file)] == [ParityVerdict.AGREES, ParityVerdict.UNTESTED]


def test_a_file_that_changes_between_the_two_sides(inside: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(CHANGING)
    run = inside("parity", f"{file}:WORKLOAD", *ON_GPU, *QUICK)
    assert run.returncode == 2, run.stderr
    assert "mine.py:WORKLOAD has changed since this check began" in run.stderr
    assert "leave the file alone until it ends" in run.stderr
    assert "Traceback" not in run.stderr


def test_batches_that_each_side_draws_for_itself(inside: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(UNSEEDED)
    run = inside("parity", f"{file}:WORKLOAD", *ON_GPU, *QUICK)
    assert run.returncode == 2, run.stderr
    assert "metalmark: The two sides made different batches" in run.stderr
    assert "draw all of its random numbers from rng" in run.stderr


def has_compared(held: HeldCommand, quantity: Quantity) -> bool:
    return any(quantity.value in path.read_text() for path in held.temporary.glob("*/case0/candidate.jsonl"))


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldCommand]:
    """A check whose second side hangs in its fourth training step, after gradients and the optimiser were compared."""
    file = tmp_path / "held.py"
    file.write_text(HELD)
    words = ("parity", f"{file}:WORKLOAD", *ON_GPU, *QUICK, "--fault", "hang")
    scene = HeldCommand(tmp_path, words, lambda held: has_compared(held, Quantity.OPTIMIZER))
    yield scene
    scene.close()


def test_ctrl_c_keeps_what_was_compared(held: HeldCommand) -> None:
    os.kill(held.command.pid, signal.SIGINT)
    out, err = held.ended()
    assert held.command.returncode == 130, err
    assert "Stopped; what was compared is stored." in err
    assert "gradient" in out, "and is shown"
    assert "Traceback" not in err
    (run,) = stored(held.store)
    assert isinstance(run.outcome, Checked)
    assert {Quantity.EVAL_OUTPUT, Quantity.GRADIENT} <= {row.quantity for row in run.outcome.compared}
    assert not run.outcome.complete
    assert run.verdict is ParityVerdict.UNTESTED, "what agrees so far need not agree to the end"
    assert list(held.temporary.iterdir()) == []


def test_a_side_that_is_killed_is_a_failed_run(held: HeldCommand) -> None:
    os.kill(held.pids[-1], signal.SIGKILL)
    out, err = held.ended()
    assert held.command.returncode == 2, err
    assert "metalmark: fake on gpu: The worker gave no outcome: it was ended by SIGKILL." in err
    assert out == ""
    (run,) = stored(held.store)
    assert isinstance(run.outcome, Failed)
    assert run.outcome.kind is FailureKind.CRASHED


def test_a_command_that_is_killed_leaves_a_readable_store_and_no_process(held: HeldCommand) -> None:
    os.kill(held.command.pid, signal.SIGKILL)
    held.ended()
    until(lambda: not list(held.temporary.iterdir()))
    assert stored(held.store) == []

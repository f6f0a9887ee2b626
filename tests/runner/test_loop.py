"""The clock on the software device, in this process: what is counted, kept and refused. No timing is asserted."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from metalmark.backends.fake import FakeSession
from metalmark.errors import WrongResultError
from metalmark.model.measurement import Block, Measurement, Proof
from metalmark.model.plan import Budget, Mode, Plan
from metalmark.runner import loop
from metalmark.runner.evidence import Evidence
from metalmark.runner.loop import Clock

Plans = Callable[..., Plan]
BLOCK_S = loop.BLOCK_S


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted, kept and refused does not depend on how long a block is."""
    monkeypatch.setattr(loop, "BLOCK_S", BLOCK_S / 10)


def measure(plan: Plan) -> tuple[FakeSession, Measurement, Proof, list[str]]:
    session = FakeSession(plan, plan.params)
    phases: list[str] = []
    clock = Clock(session, plan.budget, origin_s=time.monotonic(), tell=lambda phase, *_: phases.append(phase))
    evidence = Evidence(session, clock, plan.mode, plan.proof)
    first_step_s = clock.first_step()
    evidence.after_first_step()
    measurement = clock.measure(first_step_s)
    return session, measurement, evidence.conclude(), phases


@pytest.mark.parametrize("steps", [1, 7, 10, 25, 140])
def test_fixed_steps_are_measured_exactly(fake_plan: Plans, steps: int) -> None:
    _, measured, _, _ = measure(fake_plan(budget=Budget(steps=steps, seconds=0.2), step_ms=0.2))
    assert sum(block.steps for block in measured.blocks) == steps
    assert len(measured.blocks) >= min(steps, 10)


def test_seconds_need_ten_blocks_too(fake_plan: Plans) -> None:
    _, measured, _, phases = measure(fake_plan(budget=Budget(seconds=0.01), step_ms=5.0))
    assert len(measured.blocks) >= 10
    assert all(block.elapsed_s > 0 and block.proof is not None for block in measured.blocks)
    assert phases[0] == "warm-up"
    assert phases[-1] == "measure"


def test_warm_up_is_kept_and_apart(fake_plan: Plans) -> None:
    session, measured, proof, _ = measure(fake_plan(step_ms=1.0))
    assert measured.warmup[0].steps == 1
    assert len(measured.warmup) >= 4
    counted = 1 + sum(block.steps for block in (*measured.warmup, *measured.blocks)) + proof.extra_steps
    assert counted == session._steps, "every step the device took is accounted for"


def test_a_block_is_long_against_its_synchronisation(fake_plan: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "BLOCK_S", BLOCK_S)
    _, measured, _, _ = measure(fake_plan(step_ms=0.5, budget=Budget(steps=1200, seconds=0.2)))
    assert measured.blocks[0].steps >= 100, "0.1 s of 0.5 ms steps"


def test_noise_that_never_settles_is_said(fake_plan: Plans) -> None:
    _, measured, _, _ = measure(fake_plan(step_ms=20.0, noise=0.5, budget=Budget(steps=2, seconds=0.1)))
    assert not measured.steady


@pytest.mark.parametrize(
    ("fault", "mode", "message"),
    [
        ("nan", Mode.TRAINING, "nan at step"),
        ("nan", Mode.INFERENCE, "nan at step"),
        ("no-sync", Mode.TRAINING, "still working after synchronize"),
        ("no-sync", Mode.INFERENCE, "still working after synchronize"),
    ],
)
def test_work_that_was_not_done_is_no_result(fake_plan: Plans, fault: str, mode: Mode, message: str) -> None:
    with pytest.raises(WrongResultError, match=message):
        measure(fake_plan(mode, fault=fault))


def test_half_a_synchronisation_is_caught_too(fake_plan: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the block is still in the queue: too little for the early watch, enough for the final check."""

    def early(session: FakeSession) -> None:
        left = session._queue[-1] - time.perf_counter() if session._queue else 0.0
        time.sleep(max(left * 0.8, 0.0))

    monkeypatch.setattr(FakeSession, "synchronize", early)
    with pytest.raises(WrongResultError, match="still working"):
        measure(fake_plan(step_ms=10.0, budget=Budget(steps=50, seconds=0.2)))


def test_a_loss_that_falls_late_gets_extra_steps(fake_plan: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        FakeSession, "proof", lambda session: 3.0 if 1 < session._steps < 40 else 2.0 - session._steps / 1000
    )
    _, _, proof, _ = measure(fake_plan(budget=Budget(steps=1, seconds=0.1), step_ms=20.0))
    assert proof.extra_steps > 10
    assert proof.last < proof.first


def test_a_slow_reading_is_not_pending_work(fake_plan: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine threads wait for each other, and reading an idle device takes as long as the block."""
    read = FakeSession.proof

    def slowly(session: FakeSession) -> float:
        time.sleep(0.1)
        return read(session)

    monkeypatch.setattr(FakeSession, "proof", slowly)
    _, measured, _, _ = measure(fake_plan(step_ms=50.0, budget=Budget(steps=4, seconds=0.2)))
    assert sum(block.steps for block in measured.blocks) == 4


@pytest.mark.parametrize("every", [False, True])
def test_one_block_alone_accuses_nobody(fake_plan: Plans, monkeypatch: pytest.MonkeyPatch, every: bool) -> None:
    """The only block that counts is read while another process has the processor, or synchronisation is broken."""
    plan = fake_plan(budget=Budget(steps=1, seconds=0.2), step_ms=0.2)
    phases: list[str] = []
    clock = Clock(
        FakeSession(plan, plan.params), plan.budget, origin_s=0.0, tell=lambda phase, *_: phases.append(phase)
    )
    measured, after_warm_up = clock.block, iter([0.05])

    def block(steps: int) -> Block:
        drain_s = 0.05 if every else next(after_warm_up, 0.0) if "measure" in phases else 0.0
        return replace(measured(steps), elapsed_s=0.1, drain_s=drain_s)

    monkeypatch.setattr(clock, "block", block)
    first_step_s = clock.first_step()
    if every:
        with pytest.raises(WrongResultError, match="took 100 ms by the clock, and its result another 50 ms"):
            clock.measure(first_step_s)
    else:
        (counted,) = clock.measure(first_step_s).blocks
        assert (counted.steps, counted.drain_s) == (1, 0.05)

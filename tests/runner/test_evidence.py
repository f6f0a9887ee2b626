"""The proof on the software device, in this process: what is wrong, what is only doubted, and what `--proof` does."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest

from metalmark.app.choices import parse_proof
from metalmark.backends.fake import FakeSession
from metalmark.errors import UsageError, WrongResultError
from metalmark.model.codec import decode, encode
from metalmark.model.measurement import BenchRun, Proof
from metalmark.model.plan import Mode, Plan, Proving
from metalmark.model.run import NOTES, Telemetry
from metalmark.report.text.tables import notes
from metalmark.results.cells import Cell
from metalmark.results.command import bench_command
from metalmark.runner.evidence import NOT_TRIED, PATIENCE_STEPS, Evidence
from metalmark.runner.flags import flags_of
from metalmark.runner.loop import Clock
from tests.samples import MACHINE, completed, plan, record

Plans = Callable[..., Plan]
TRAINING, INFERENCE = Mode.TRAINING, Mode.INFERENCE


def prove(plan: Plan, session: FakeSession | None = None) -> tuple[Proof, int]:
    """Step as a cell does, for a few steps only; return the proof and how many untimed steps it took."""
    session = session or FakeSession(plan, plan.params)
    clock = Clock(session, plan.budget, origin_s=time.monotonic(), tell=lambda *_: None)
    evidence = Evidence(session, clock, plan.mode, plan.proof)
    clock.first_step()
    evidence.after_first_step()
    clock.block(3)
    before = session._steps
    return evidence.conclude(), session._steps - before


@pytest.fixture
def quick_plan(fake_plan: Plans) -> Plans:
    def make(mode: Mode, fault: str, proof: Proving = Proving.FLAG) -> Plan:
        return msgspec.structs.replace(fake_plan(mode, fault=fault, step_ms=0.01), proof=proof)

    return make


WRONG = [
    (TRAINING, "wrong", "None of 3 trainable arrays changed in"),
    (TRAINING, "frozen", "None of 3 trainable arrays changed in"),
    (INFERENCE, "moving", "3 of 3 trainable arrays changed during inference"),
    (INFERENCE, "wrong", "The same batch gave another output"),
    (TRAINING, "nan", "The result is nan"),
    (INFERENCE, "nan", "The result is nan"),
]
NEEDS_A_STEP = (INFERENCE, "wrong")
"""Only a further step on the same batch shows it."""


@pytest.mark.parametrize(
    ("mode", "fault", "message", "proof"),
    [(*one, proof) for one in WRONG for proof in Proving if (one[:2], proof) != (NEEDS_A_STEP, Proving.OFF)],
)
def test_what_is_wrong_is_no_result_however_it_is_proved(
    quick_plan: Plans, mode: Mode, fault: str, message: str, proof: Proving
) -> None:
    session = None
    if fault == "nan":  # it comes from the sixth step on
        plan = quick_plan(mode, fault, proof)
        session = FakeSession(plan, plan.params)
        session._steps = 2
    with pytest.raises(WrongResultError, match=message):
        prove(quick_plan(mode, fault, proof), session)


DOUBTS = [
    (TRAINING, "flat", "the loss did not fall on a fixed batch: 2.3 at the first step, 2.3 after "),
    (TRAINING, "unused", "1 of 3 trainable arrays did not change in "),
    (INFERENCE, "zero-head", "two different batches gave the same output (mean square 0)"),
]


@pytest.mark.parametrize(("mode", "fault", "seen"), DOUBTS)
def test_what_a_correct_model_may_do_is_flagged_and_timed(quick_plan: Plans, mode: Mode, fault: str, seen: str) -> None:
    proof, _ = prove(quick_plan(mode, fault))
    (doubt,) = proof.doubts
    assert doubt.startswith(seen)
    (flag,) = flags_of(completed(proof=proof), Telemetry(hz=None), MACHINE)
    assert (flag.name, flag.evidence) == ("unproved", doubt)
    assert flag.name not in NOTES, "--strict fails on it"
    run = record(completed(proof=proof), flags=(flag,))
    cell = Cell(plan=run.plan, records=(run,))
    assert cell.step_s is not None
    assert cell.spoiling_flags == ["unproved"]


@pytest.mark.parametrize(("mode", "fault", "seen"), DOUBTS)
def test_strict_makes_a_doubt_a_wrong_result(quick_plan: Plans, mode: Mode, fault: str, seen: str) -> None:
    with pytest.raises(WrongResultError) as caught:
        prove(quick_plan(mode, fault, Proving.STRICT))
    assert caught.value.message.lower().startswith(seen)
    assert caught.value.hint


@pytest.mark.parametrize("mode", [TRAINING, INFERENCE])
@pytest.mark.parametrize("proof", [Proving.STRICT, Proving.FLAG])
def test_what_is_proved_has_no_doubt(quick_plan: Plans, mode: Mode, proof: Proving) -> None:
    found, extra = prove(quick_plan(mode, "none", proof))
    assert found.doubts == ()
    assert 0 < extra <= 4
    assert found.moved == ("3 of 3" if mode is TRAINING else "0 of 3")


def test_arrays_that_did_not_move_are_named(quick_plan: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    proof, _ = prove(quick_plan(TRAINING, "unused"))
    assert proof.doubts[0].endswith(" steps: head.bias")
    assert proof.moved == "2 of 3"
    still = (0.0,) * 8
    monkeypatch.setattr(FakeSession, "fingerprint", lambda session: (float(session._steps), *still))
    monkeypatch.setattr(FakeSession, "fingerprint_names", lambda _: tuple("abcdefghi"))
    proof, _ = prove(quick_plan(TRAINING, "none"))
    assert proof.doubts[0].startswith("8 of 9 trainable arrays")
    assert proof.doubts[0].endswith(": b, c, d, e, f and 3 more")


def test_two_doubts_are_one_flag(quick_plan: Plans) -> None:
    proof, extra = prove(quick_plan(TRAINING, "flat+unused"))
    assert len(proof.doubts) == 2
    assert extra > PATIENCE_STEPS, "it was given every chance"
    (flag,) = flags_of(completed(proof=proof), Telemetry(hz=None), MACHINE)
    assert flag.evidence == "; ".join(proof.doubts)


def test_each_reason_is_told_below_the_table_once(quick_plan: Plans) -> None:
    cells = []
    for number, (mode, fault, _) in enumerate((*DOUBTS, DOUBTS[0])):
        proof, _ = prove(quick_plan(mode, fault))
        flags = flags_of(completed(proof=proof), Telemetry(hz=None), MACHINE)
        run = record(completed(proof=proof), plan=plan(params={"batch_size": number + 1}), flags=flags)
        cells.append(Cell(plan=run.plan, records=(run,)))
    told = [note for note in notes(cells) if note.startswith("unproved: ")]
    assert [seen in note for note, (_, _, seen) in zip(told, DOUBTS, strict=True)] == [True] * 3


def test_a_model_without_trainable_arrays(quick_plan: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeSession, "fingerprint", lambda _: ())
    with pytest.raises(WrongResultError, match="no trainable array"):
        prove(quick_plan(TRAINING, "none"))
    assert prove(quick_plan(INFERENCE, "none"))[0].moved == "0 of 0"


@pytest.mark.parametrize("mode", [TRAINING, INFERENCE])
@pytest.mark.parametrize("fault", ["none", "flat", "zero-head"])
def test_off_takes_no_step_and_says_so(quick_plan: Plans, mode: Mode, fault: str) -> None:
    proof, extra = prove(quick_plan(mode, fault, Proving.OFF))
    assert (extra, proof.extra_steps) == (0, 0)
    assert proof.statement == "not tried"
    assert proof.doubts == (NOT_TRIED,)
    run = record(completed(proof=proof), plan=plan(proof=Proving.OFF))
    read = decode(encode(run))
    assert isinstance(read, BenchRun)
    assert read == run
    assert bench_command(read.plan).endswith(" --proof off")


def test_a_plan_from_before_is_read_as_the_default() -> None:
    old = msgspec.json.decode(encode(record()))
    del old["plan"]["proof"], old["outcome"]["proof"]["doubts"]
    read = decode(msgspec.json.encode(old))
    assert isinstance(read, BenchRun)
    assert read.plan.proof is Proving.FLAG
    assert "--proof" not in bench_command(read.plan)


@pytest.mark.parametrize(("text", "said"), [("lax", "There is no --proof 'lax'"), ("strict,off", "takes one word")])
def test_a_word_that_is_none(text: str, said: str) -> None:
    assert [parse_proof(word) for word in ("strict", "flag", "off")] == list(Proving)
    with pytest.raises(UsageError, match=said):
        parse_proof(text)

"""`bench --parity` and `train --parity`: each way of training is checked once, and its runs carry the verdict."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import msgspec
import pytest

import metalmark as mm
from metalmark.app import gate
from metalmark.app.gate import ON_CPU, REDUCED, is_own_reference, pass_gate, what_is_checked
from metalmark.app.parity import reference_plan
from metalmark.errors import UsageError
from metalmark.model.codec import AnyRun
from metalmark.model.measurement import BenchRun
from metalmark.model.parity import ParityRun, ParityVerdict
from metalmark.model.plan import Device, DeviceKind, Dtype, Feed, Loader, Mode, Plan, Settings, Sweep
from metalmark.model.run import Failed, FailureKind
from metalmark.model.training import Ending, TrainingRun
from metalmark.parity import judge
from metalmark.parity.examine import Examined
from metalmark.parity.examine import examine as original
from metalmark.store.store import Store
from tests.conftest import ROOT, Cli
from tests.samples import plan as sample_plan

ON_GPU = ("--framework", "fake", "--device", "gpu", "--steps", "20", "--seconds", "0.2", "--telemetry", "off")


def stored(path: Path) -> list[AnyRun]:
    with Store(path, readonly=True) as store:
        return store.load(store.rows())


def checks_of(path: Path) -> list[ParityRun]:
    return [run for run in stored(path) if isinstance(run, ParityRun)]


def benches_of(path: Path) -> list[BenchRun]:
    return [run for run in stored(path) if isinstance(run, BenchRun)]


def test_each_distinct_plan_is_checked_once_and_marks_its_runs(inside: Cli, store_file: Path) -> None:
    words = ("--fault", "none,parity-gradient-scale", "--repeat", "2")
    run = inside("bench", "fake", *ON_GPU, *words, "--parity", "--strict")
    assert run.returncode == 1, run.stderr
    checks, benches = checks_of(store_file), benches_of(store_file)
    assert len(checks) == 2, "repeats share their plan's check"
    assert len(benches) == 4
    for bench in benches:
        assert bench.parity is not None
        (check,) = [one for one in checks if one.id == bench.parity.run]
        assert check.plan.settings == bench.plan.settings
        assert check.plan.params == bench.plan.params
        assert check.reference.device.kind is DeviceKind.CPU
        wanted = ParityVerdict.AGREES if bench.plan.params["fault"] == "none" else ParityVerdict.DIFFERS
        assert check.verdict is bench.parity.verdict is wanted
        assert ("gradient of head.weight" in bench.parity.sentence) is (wanted is ParityVerdict.DIFFERS)
    wrong = [line for line in run.stderr.splitlines() if line.startswith("--strict: ") and "parity_failed" in line]
    assert len(wrong) == 1, run.stderr
    assert "parity_failed" in run.stdout
    assert {run.sweep for run in checks} & {run.sweep for run in benches} == set(), "`last` is the bench alone"


def test_what_can_not_be_tested_is_measured_and_marked_so(inside: Cli, store_file: Path) -> None:
    run = inside("bench", "fake", *ON_GPU, "--fault", "parity-random", "--parity")
    assert run.returncode == 0, run.stderr
    (bench,) = benches_of(store_file)
    assert bench.parity is not None
    assert bench.parity.verdict is ParityVerdict.UNTESTED
    assert "not deterministic" in bench.parity.sentence
    assert "could not be tested" in run.stdout
    assert "parity_failed" not in run.stdout


def test_a_check_in_inference_is_of_outputs(inside: Cli, store_file: Path) -> None:
    """A gradient that is wrong does not matter where none is computed."""
    run = inside("bench", "fake", *ON_GPU, "--mode", "inference", "--fault", "parity-gradient-scale", "--parity")
    assert run.returncode == 0, run.stderr
    (check,), (bench,) = checks_of(store_file), benches_of(store_file)
    assert check.plan.mode is Mode.INFERENCE
    assert bench.parity is not None
    assert bench.parity.verdict is ParityVerdict.AGREES


def test_no_check_of_what_is_its_own_reference_or_not_here(store_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(**fields: object) -> Plan:
        return msgspec.structs.replace(sample_plan(), **fields)

    asked: list[Sweep] = []

    def check_none(sweep: Sweep, **_: object) -> tuple[list[ParityRun], bool]:
        asked.append(sweep)
        return [], True

    monkeypatch.setattr(gate, "check_all", check_none)
    monkeypatch.setattr(gate, "absences", lambda plans: [
        Failed(kind=FailureKind.UNSUPPORTED, message="not here") if plan.device.kind is DeviceKind.MPS else None
        for plan in plans
    ])  # fmt: skip
    itself, other_threads = change(), change(settings=Settings(threads=1))
    lower, absent = change(settings=Settings(dtype=Dtype.BFLOAT16)), change(device=Device(kind=DeviceKind.MPS))
    fed = msgspec.structs.replace(lower, feed=Feed.PIPELINE, loader=Loader(workers=2), seed=7)
    assert is_own_reference(itself)
    assert is_own_reference(other_threads)
    steered = change(settings=Settings(environment="OMP_WAIT_POLICY=ACTIVE"))
    assert not is_own_reference(steered)
    assert what_is_checked(steered).settings.environment == "OMP_WAIT_POLICY=ACTIVE"
    assert reference_plan(steered, *ON_CPU).settings.environment == ""
    plans = [itself, other_threads, lower, absent, fed]
    found = pass_gate(plans, checks="checks0001", paths={}, store=store_file, progress=False, say=lambda _: None)
    assert found.marks == (None,) * 5
    (sweep,) = asked
    assert len(sweep.plans) == 1, "a loader and another seed make no other network"
    assert sweep.plans[0].feed is Feed.RESIDENT
    assert sweep.plans[0].loader is None


def test_an_interrupted_sweep_is_resumed_with_its_checks(store_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the second of two checks: nothing is measured. --resume makes the one that is missing, and all cells
    have their marks."""
    made: list[str] = []

    def stopped_at(number: int) -> None:
        def examine(plan: Plan, *arguments: object, **options: object) -> Examined:
            made.append(plan.settings.dtype.value)
            found = original(plan, *arguments, **options)  # type: ignore[arg-type]
            if len(made) != number:
                return found
            failure = Failed(kind=FailureKind.INTERRUPTED, message="Stopped by Ctrl-C.")
            return msgspec.structs.replace(found, outcome=failure, interrupted=True)

        monkeypatch.setattr("metalmark.app.parity.examine_twice", examine)

    stopped_at(2)
    options = {"framework": "fake", "device": "gpu", "steps": 20, "seconds": 0.2, "telemetry": None, "progress": False}
    runs = mm.bench("fake", **options, dtype="float32,bfloat16", parity=True, raise_interrupt=False, store=store_file)  # type: ignore[arg-type]
    assert not runs.complete
    assert len(runs) == 0
    stopped_at(0)
    runs = mm.bench(resume="last", progress=False, store=store_file)
    assert runs.complete
    assert made == ["float32", "bfloat16", "bfloat16"]
    assert [run.parity and run.parity.verdict for run in runs] == [ParityVerdict.AGREES] * 2  # type: ignore[union-attr]


def test_a_sweep_that_was_begun_without_can_not_be_resumed_with_it(inside: Cli, store_file: Path) -> None:
    with Store(store_file) as store:
        old = Sweep(id="sweep00001", created_at="2026-11-15T08:00:00.000000Z", plans=(sample_plan(),))
        store.add_sweep(old)
    run = inside("bench", "--resume", "--parity")
    assert run.returncode == 2
    assert "was begun without --parity" in run.stderr
    written = msgspec.to_builtins(old)
    del written["parity"]
    assert msgspec.convert(written, Sweep) == old, "a store of an older version is read as one without"


def test_a_training_is_checked_and_resumed_with_its_check(
    store_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while it is checked leaves a training that can go on, checked then; its mark outlives the next resume."""
    reduced = msgspec.structs.replace(REDUCED, draws=1, steps=1, repeats=0)
    monkeypatch.setattr(gate, "REDUCED", reduced)
    words = {"framework": "torch", "device": "cpu", "dtype": "bfloat16", "batch_size": 500, "limit_samples": 500}
    common = {"store": store_file, "progress": False, "telemetry": None}

    def interrupt(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)  # in this thread, before the next line

    with monkeypatch.context() as patched:
        patched.setattr(gate, "check_all", interrupt)
        stopped = mm.train(
            "mnist-mlp", **words, **common, epochs=1, parity=True, out=tmp_path / "one", raise_interrupt=False
        )  # type: ignore[arg-type]
    assert not stopped.complete
    (begun,) = stopped
    assert isinstance(begun, TrainingRun)
    assert begun.ending is Ending.INTERRUPTED
    (trained,) = mm.train(resume=tmp_path / "one", store=store_file, progress=False)
    assert isinstance(trained, TrainingRun)
    assert trained.parity is not None
    assert trained.parity.verdict is ParityVerdict.AGREES, trained.parity.sentence
    (check,) = checks_of(store_file)
    assert trained.parity.run == check.id
    job = tmp_path / "one" / "job.json"
    job.write_bytes(msgspec.json.encode({**msgspec.json.decode(job.read_bytes()), "parity": ""}))
    with pytest.raises(UsageError, match="begun without --parity"):
        mm.train(resume=tmp_path / "one", parity=True, store=store_file, progress=False)


def test_the_page_has_the_limits_that_are_used() -> None:
    page = (ROOT / "docs" / "parity.md").read_text()
    for statistic, limit in judge.LIMITS.items():
        assert re.search(rf"^\| {statistic.value} \| .* \| {limit:g} \|$", page, re.MULTILINE), statistic
    text = " ".join(page.split())
    assert f"so {judge.OF_FEW[6]:g} sigmas with six draws, and {judge.OF_FEW[4]:g} with four." in text
    assert f"a binomial's sigma: {judge.DROPOUT_LIMIT:g}." in text
    assert f"the random numbers of dropout: {judge.CURVE_LIMIT:g}." in text
    assert f"repeats the same step at most {REDUCED.repeats} times" in text

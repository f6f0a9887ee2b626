"""What is proposed, in which order, with what to type and to write, and what is not."""

from __future__ import annotations

import shlex
from dataclasses import replace

import msgspec
import pytest

from metalmark.backends.catalog import FRAMEWORKS, visible
from metalmark.cli.bench import command as bench
from metalmark.explain.instructions import device_type, snippets, typed, written
from metalmark.explain.job import Counted, Line, Opened, Tried
from metalmark.explain.judge import explain_lines
from metalmark.model.explanation import Experiment, ExperimentKind, Explained, OperationWork, Proposal
from metalmark.model.plan import Dtype, Feed, Plan, PlanChange
from metalmark.model.run import Flag, Telemetry
from tests.explain.worlds import World

MS = 1e-3
QUIET = Telemetry(hz=None)


def tried(kind: ExperimentKind, change: PlanChange, seconds: float, error_s: float = 0.0) -> Tried:
    return Tried(experiment=Experiment(kind=kind, change=change, seconds=seconds, error_s=error_s))


def explained(world: World, *more: Line, plan: Plan | None = None, flags: tuple[Flag, ...] = ()) -> Explained:
    return explain_lines([*world.lines(), *more], plan or world.plan(), QUIET, flags, ())


def titled(found: Explained, title: str) -> Proposal:
    return next(each for each in found.proposals if title in each.title)


def titles(found: Explained) -> list[str]:
    return [each.title for each in found.proposals]


def test_a_gain_that_was_tried_is_what_is_expected() -> None:
    world = World(host_s=10 * MS, compute_s=2 * MS, memory_s=MS)
    found = explained(world)
    captured = titled(found, "CUDA graph")
    assert captured.gain == pytest.approx(10 / 3, rel=0.01)
    assert captured.low is not None
    assert captured.high is not None
    assert captured.low < captured.gain < captured.high
    assert captured.typed == "--graph"
    assert "torch.cuda.graph" in captured.written
    assert captured.change == PlanChange(settings={"graph": True})
    gains = [each.gain for each in found.proposals if each.gain is not None]
    assert gains == sorted(gains, reverse=True)


def test_a_larger_batch_counts_samples_and_is_of_a_sensible_size() -> None:
    larger = titled(explained(World(host_s=100 * MS, compute_s=0.1 * MS, memory_s=0.1 * MS)), "a batch of")
    assert larger.typed == "--batch-size 256"
    assert larger.gain == pytest.approx(8, rel=0.01)
    assert "learning rate" in larger.written


def test_the_baseline_beside_an_experiment_counts() -> None:
    """The machine was half as fast while it was tried, and so was the step beside it."""
    world = World(compute_s=9 * MS, memory_s=MS)
    slow = Experiment(
        kind=ExperimentKind.DTYPE, change=PlanChange(settings={"dtype": Dtype.BFLOAT16}), seconds=10 * MS,
        baseline_s=20 * MS,
    )  # fmt: skip
    lower = titled(explained(world, Tried(experiment=slow)), "bfloat16")
    assert lower.gain == pytest.approx(2, rel=0.01)
    assert lower.typed == "--dtype bfloat16"
    assert 'autocast("cuda"' in lower.written
    assert "metalmark parity" in lower.reason


def test_what_gains_nothing_or_may_lose_is_not_proposed() -> None:
    world = World(compute_s=9 * MS, memory_s=MS)
    little = tried(ExperimentKind.COMPILED, PlanChange(settings={"compile": True}), 9.9 * MS)
    unsure = tried(ExperimentKind.FUSED, PlanChange(settings={"fused": True}), 8 * MS, error_s=5 * MS)
    found = explained(world, little, unsure)
    assert not {"compiling the step", "a fused optimiser"} & set(titles(found))


def test_what_the_framework_lacks_there_is_not_proposed() -> None:
    world = World(asynchronous=False, compute_s=9 * MS)
    graph = tried(ExperimentKind.CAPTURED, PlanChange(settings={"graph": True}), MS)
    found = explained(world, graph)
    assert not any("graph" in title for title in titles(found))
    plan = msgspec.structs.replace(world.plan(), framework="mlx")
    fused = tried(ExperimentKind.FUSED, PlanChange(settings={"fused": True}), MS)
    assert "a fused optimiser" not in titles(explained(world, fused, plan=plan))


def test_a_faster_step_gains_nothing_while_it_waits_for_input() -> None:
    world = World(produce_s=20 * MS, workers=1, host_s=MS, compute_s=4 * MS)
    found = explained(world, tried(ExperimentKind.COMPILED, PlanChange(settings={"compile": True}), 2 * MS))
    assert "compiling the step" not in titles(found)
    assert not any(title.startswith("a batch of") for title in titles(found))
    best = found.proposals[0]
    assert best.title == "4 loader workers"
    assert best.typed == "--workers 4"
    assert best.gain == pytest.approx(4, rel=0.02)
    assert best.written == "DataLoader(..., num_workers=4, persistent_workers=True)"


def test_in_one_process_input_and_step_add_up() -> None:
    world = World(asynchronous=False, produce_s=5 * MS, host_s=MS, compute_s=8 * MS, memory_s=MS)
    found = explained(world, tried(ExperimentKind.COMPILED, PlanChange(settings={"compile": True}), 5 * MS))
    assert titled(found, "compiling").gain == pytest.approx(15 / 10, rel=0.02)


def test_the_fewest_workers_that_bring_as_much() -> None:
    found = explained(World(produce_s=9 * MS, workers=1, host_s=MS, compute_s=4 * MS))
    assert titled(found, "loader worker").typed == "--workers 2"


def test_workers_are_reckoned_where_none_were_tried() -> None:
    world = World(
        produce_s=12 * MS, workers=1, host_s=MS, compute_s=3 * MS, left_out=frozenset({ExperimentKind.LOADER})
    )
    more = titled(explained(world), "loader worker")
    assert more.typed == "--workers 3"
    assert more.gain == pytest.approx(3, rel=0.05)


def test_data_on_the_device_where_no_loader_suffices() -> None:
    found = explained(World(produce_s=100 * MS, workers=1, host_s=MS, compute_s=4 * MS))
    resident = titled(found, "lies on the device")
    assert resident.typed == "--data-from resident"
    assert resident.change == PlanChange(feed=Feed.RESIDENT)
    assert resident.gain == pytest.approx(20, rel=0.02)


def test_too_few_open_files() -> None:
    world = World(produce_s=16 * MS, workers=1, left_out=frozenset({ExperimentKind.LOADER}))
    refused = Experiment(
        kind=ExperimentKind.LOADER, change=PlanChange(loader={"workers": 4}), seconds=None,
        absent="The loader's workers need about 1100 open files; this system allows 256",
    )  # fmt: skip
    files = titled(explained(world, Tried(experiment=refused)), "open files")
    assert "ulimit -n 4096" in files.typed
    assert "ulimit -n 4096" in files.written
    assert files.change is None
    assert "1,024 files" in files.reason


def test_a_wait_in_every_step() -> None:
    found = explained(World(host_s=5 * MS, compute_s=4 * MS, memory_s=MS, waits=True))
    waits = titled(found, "not waiting")
    assert waits.gain == pytest.approx(2, rel=0.05)
    assert "net.py:7" in waits.reason
    assert "loss.detach()" in waits.written
    assert waits.change is None


def test_a_host_bound_step_in_other_frameworks() -> None:
    world = World(host_s=10 * MS, compute_s=2 * MS)
    for framework, words in (("jax", "lax.scan"), ("tensorflow", "steps_per_execution"), ("mlx", "async_eval")):
        found = explained(world, plan=msgspec.structs.replace(world.plan(), framework=framework))
        assert words in titled(found, "several steps").written
    assert "several steps per call" not in titles(explained(world))


def test_a_huge_embedding() -> None:
    world = World(asynchronous=False, optimizer_s=20 * MS)
    rows = Counted(work=(*world.work(), OperationWork(name="aten::embedding", calls=1, flops=0.0, bytes=1.0)))
    assert "SparseAdam" in titled(explained(world, rows), "sparse").written
    assert not any("sparse" in title for title in titles(explained(world)))


def test_a_machine_that_swaps() -> None:
    found = explained(World(), flags=(Flag(name="swapping", evidence="it swapped 100 MiB"),))
    smaller = titled(found, "a batch of 16")
    assert smaller.gain is None
    assert smaller.typed == "--batch-size 16"
    assert found.proposals[-1] == smaller


def test_fewer_threads() -> None:
    found = explained(World(asynchronous=False, crowded=2.0))
    fewer = titled(found, "2 threads")
    assert fewer.typed == "--threads 2"
    assert fewer.gain == pytest.approx(2, rel=0.02)
    assert "OMP_NUM_THREADS=2" in fewer.written


def test_a_change_as_it_is_typed() -> None:
    changes = (
        PlanChange(settings={"dtype": Dtype.BFLOAT16, "compile": True, "channels_last": True, "threads": 4}),
        PlanChange(loader={"workers": 4, "prefetch": 8, "pin": True}),
        PlanChange(params={"batch_size": 64}),
        PlanChange(feed=Feed.RESIDENT),
        PlanChange(settings={"graph": True, "fused": True}),
    )
    known = {option for parameter in bench.params for option in parameter.opts}
    for change in changes:
        words = shlex.split(typed(change))
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert flags - {"--batch-size"} <= known
        assert words
    assert typed(changes[1]) == "--workers 4 --prefetch 8 --pin"
    assert typed(PlanChange(settings={"compile": False})) == "--compile=off"


def test_every_framework_has_what_to_write() -> None:
    names = {framework.name for framework in visible()}
    for change, lines in snippets().items():
        assert set(lines) <= names, change
        for framework in lines:
            line = written(change, framework, value=4, device="cuda", operations="aten::foo")
            assert line
            assert "{" not in line
    for change in ("workers", "compile", "batch_size", "fewer_waits"):
        assert set(snippets()[change]) == names
    assert written("graph", "mlx", value="") == ""


def test_the_type_of_a_device() -> None:
    assert [device_type(each) for each in ("cpu", "CPU:0", "TFRT_CPU_0", "", "cuda:1", "mps:0")] == [
        "cpu", "cpu", "cpu", "cpu", "cuda", "mps",
    ]  # fmt: skip
    assert device_type("GPU:0") in ("cuda", "mps")
    for framework in FRAMEWORKS.values():
        assert all(limit.reason for limit in framework.limits)


def test_the_fewest_threads_that_are_as_fast_are_proposed_on_a_small_machine() -> None:
    world = replace(World(asynchronous=False, compute_s=9 * MS), crowded=3.0)
    whole_s = world.resident_s()
    one = tried(ExperimentKind.THREADS, PlanChange(settings={"threads": 1}), whole_s / 2.95)
    opened = next(line for line in world.lines() if isinstance(line, Opened))
    assert opened.threads == 4
    assert titled(explained(world, one), "thread").typed == "--threads 1"

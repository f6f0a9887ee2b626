"""From experiments to shares and a verdict: on simulated machines whose shares are known, and on any lines at all."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metalmark.explain.job import Ceiling, Counted, Line, Opened, Profiled, SyncSeen, Tried
from metalmark.explain.judge import explain_lines
from metalmark.explain.parts import SharePart, added_up
from metalmark.explain.scaling import BatchTime, fit
from metalmark.explain.sentences import crossing_of, device_sentence, verdict_sentence
from metalmark.explain.verdict import verdict_of
from metalmark.model.explanation import (
    Bottleneck,
    Cause,
    Experiment,
    ExperimentKind,
    Explained,
    OperationCost,
    OperationWork,
    Profile,
    Roofline,
    StepShare,
)
from metalmark.model.plan import Feed, Loader, Mode, PlanChange
from metalmark.model.run import Absent, Flag, Series, Telemetry
from tests import samples
from tests.explain.worlds import BATCH, World

QUIET = Telemetry(hz=None)
POINTS = 0.10


def explained(world: World, flags: tuple[Flag, ...] = (), fallbacks: tuple[str, ...] = ()) -> Explained:
    return explain_lines(world.lines(), world.plan(), QUIET, flags, fallbacks)


def off(found: Explained, world: World) -> dict[Cause, float]:
    """By how many points each share is off."""
    truth = world.truth()
    return {
        cause: found.share(cause) - truth[cause] for cause in Cause if abs(found.share(cause) - truth[cause]) > 0.01
    }


def true_verdict(world: World) -> Bottleneck:
    shares = [StepShare(cause=cause, seconds=share, error_s=0, evidence="-") for cause, share in world.truth().items()]
    return verdict_of(shares, threads_gain=world.crowded)


MS = 1e-3
CASES = {
    "a producer slower than the step": (World(produce_s=16 * MS, workers=1, host_s=MS), Bottleneck.INPUT),
    "a producer in the same process": (World(produce_s=16 * MS, asynchronous=False), Bottleneck.INPUT),
    "tiny kernels": (World(host_s=10 * MS, compute_s=0.5 * MS, memory_s=0.5 * MS, fixed_s=MS), Bottleneck.HOST),
    "tiny kernels on the CPU": (
        World(asynchronous=False, host_s=10 * MS, compute_s=MS, memory_s=MS, optimizer_s=MS), Bottleneck.HOST,
    ),
    "large products": (World(compute_s=20 * MS, memory_s=2 * MS), Bottleneck.COMPUTE),
    "large products on the CPU": (World(asynchronous=False, compute_s=20 * MS, memory_s=2 * MS), Bottleneck.COMPUTE),
    "element-wise": (World(compute_s=MS, memory_s=20 * MS), Bottleneck.MEMORY),
    "element-wise on the CPU": (World(asynchronous=False, compute_s=MS, memory_s=20 * MS), Bottleneck.MEMORY),
    "a wait in every step": (
        World(host_s=5 * MS, compute_s=3 * MS, memory_s=1.5 * MS, waits=True), Bottleneck.SYNC,
    ),
    "a wait that hides nothing": (World(host_s=0.5 * MS, compute_s=20 * MS, waits=True), Bottleneck.COMPUTE),
    "threads in each other's way": (World(asynchronous=False, crowded=2.0), Bottleneck.THREADS),
    "a huge embedding": (World(asynchronous=False, optimizer_s=20 * MS, compute_s=2 * MS), Bottleneck.OPTIMIZER),
    "a huge embedding on a device": (World(optimizer_s=20 * MS, compute_s=2 * MS), Bottleneck.OPTIMIZER),
    "large batches": (
        World(produce_s=MS, workers=4, place_s=20 * MS, host_s=MS, compute_s=2 * MS), Bottleneck.TRANSFER,
    ),
    "balanced": (
        World(asynchronous=False, host_s=3 * MS, compute_s=3 * MS, memory_s=3 * MS, optimizer_s=2 * MS),
        Bottleneck.BALANCED,
    ),
    "inference": (World(training=False, compute_s=9 * MS), Bottleneck.COMPUTE),
    "inference on the CPU": (
        World(training=False, asynchronous=False, host_s=9 * MS, compute_s=2 * MS), Bottleneck.HOST,
    ),
    "captured already": (
        World(
            captured=True, host_s=0.05 * MS, compute_s=4 * MS, memory_s=MS,
            left_out=frozenset({ExperimentKind.BACKWARD}),
        ),
        Bottleneck.COMPUTE,
    ),
    "a loader that is not the limit": (
        World(produce_s=8 * MS, workers=1, host_s=MS, compute_s=10 * MS), Bottleneck.COMPUTE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_machine_whose_shares_are_known(case: str) -> None:
    world, verdict = CASES[case]
    for seed in range(5):
        noisy = replace(world, noise=0.02, seed=seed)
        found = explained(noisy)
        assert found.bottleneck is verdict, (found.bottleneck, off(found, noisy))
        assert all(abs(points) <= POINTS for points in off(found, noisy).values()), off(found, noisy)
        assert verdict_sentence(found)


def random_world(seed: int) -> World:
    dice = random.Random(seed)

    def size() -> float:
        return math.exp(dice.uniform(math.log(0.05), math.log(20.0))) * MS

    asynchronous = dice.random() < 0.5
    fed = dice.random() < 0.4
    return World(
        asynchronous=asynchronous, training=dice.random() < 0.7, host_s=size(), compute_s=size(), memory_s=size(),
        fixed_s=size() / 4 if asynchronous and dice.random() < 0.5 else 0.0,
        optimizer_s=size() if dice.random() < 0.5 else 0.0,
        produce_s=size() if fed else 0.0, workers=dice.choice((0, 1, 2)), place_s=size() / 4 if fed else 0.0,
        waits=asynchronous and not fed and dice.random() < 0.3,
        crowded=1.0 if asynchronous or dice.random() < 0.8 else dice.uniform(1.1, 3.0),
        efficiency=dice.uniform(0.4, 1.0), noise=0.01, seed=seed,
    )  # fmt: skip


def sensible(world: World) -> World:
    return world if world.training else replace(world, optimizer_s=0.0)


@pytest.mark.parametrize("left_out", [frozenset(), frozenset({ExperimentKind.CAPTURED})], ids=["CUDA", "Metal"])
def test_many_machines(left_out: frozenset[ExperimentKind]) -> None:
    """Nearly all shares are within 10 points; what is not has a cost on the device that no counted work explains."""
    wrong, far = [], []
    for seed in range(400):
        world = replace(sensible(random_world(seed)), left_out=left_out)
        found = explained(world)
        worst = max((abs(points) for points in off(found, world).values()), default=0.0)
        if worst > POINTS:
            far.append((off(found, world), world))
        if found.bottleneck is not true_verdict(world) and worst > 0.03:
            wrong.append((found.bottleneck, true_verdict(world), world))
    assert len(far) <= 4, far
    assert all(world.fixed_s > 0 for _, world in far), far
    assert len(wrong) <= 4, wrong


@pytest.mark.parametrize("border", [0.38, 0.42, 0.48, 0.52, 0.58])
def test_near_the_border_of_a_verdict(border: float) -> None:
    """A host that is just, or just not, what a step is bound by: the share is right, whatever the verdict."""
    whole_s = 10 * MS
    rest_s = whole_s * (1 - border) / 2
    world = World(asynchronous=False, host_s=border * whole_s, compute_s=rest_s, memory_s=rest_s, noise=0.01)
    found = explained(world)
    assert abs(found.share(Cause.HOST) - border) < 0.06
    assert found.bottleneck in (Bottleneck.HOST, Bottleneck.BALANCED)
    if abs(border - 0.5) > 0.06:
        assert found.bottleneck is true_verdict(world)


def test_a_host_and_a_device_that_need_the_same() -> None:
    """The device is never idle, so it is not the host's."""
    found = explained(World(host_s=6 * MS, compute_s=5 * MS, memory_s=MS))
    assert found.share(Cause.HOST) < 0.05
    assert found.bottleneck is Bottleneck.COMPUTE


# What is missing.


def test_without_other_batch_sizes_the_fixed_cost_is_not_guessed() -> None:
    found = explained(World(asynchronous=False, host_s=8 * MS, left_out=frozenset({ExperimentKind.BATCH})))
    assert found.share(Cause.HOST) == 0
    assert found.share(Cause.UNEXPLAINED) > 0.7
    assert found.bottleneck is Bottleneck.UNKNOWN
    assert "the framework refused it" in evidence(found, Cause.UNEXPLAINED)


def test_without_enqueueing_who_waits_is_not_guessed() -> None:
    kinds = frozenset({ExperimentKind.ENQUEUE, ExperimentKind.CAPTURED})
    found = explained(World(host_s=9 * MS, left_out=kinds))
    assert found.share(Cause.HOST) == 0
    assert found.share(Cause.UNEXPLAINED) > 0.5
    found = explained(World(host_s=9 * MS, left_out=kinds | {ExperimentKind.BATCH}))
    assert found.share(Cause.HOST) == 0
    assert found.share(Cause.UNEXPLAINED) > 0.5


def test_a_device_that_is_well_ahead_of_the_host_needs_no_other_experiment() -> None:
    kinds = frozenset({ExperimentKind.CAPTURED, ExperimentKind.BATCH})
    found = explained(World(host_s=MS, compute_s=9 * MS, left_out=kinds))
    assert found.share(Cause.COMPUTE) > 0.8
    assert found.bottleneck is Bottleneck.COMPUTE


def test_a_host_that_needs_the_whole_step_is_open_without_the_device_s_own_time() -> None:
    kinds = frozenset({ExperimentKind.CAPTURED, ExperimentKind.BATCH})
    found = explained(World(host_s=9 * MS, compute_s=MS, memory_s=MS, left_out=kinds))
    assert found.bottleneck is Bottleneck.UNKNOWN
    assert found.share(Cause.COMPUTE) + found.share(Cause.MEMORY) == pytest.approx(0.7 * 2 / 9, abs=0.01)


def test_a_profiler_of_the_device_tells_its_time() -> None:
    world = World(host_s=9 * MS, compute_s=2 * MS, memory_s=MS, left_out=frozenset({ExperimentKind.CAPTURED}))
    operations = (
        OperationCost(name="mm", calls=3, seconds=2 * MS, share=2 / 3),
        OperationCost(name="add", calls=3, seconds=MS, share=1 / 3),
    )
    profile = Profile(source="torch.profiler", operations=operations, total_s=3 * MS)
    lines = [Profiled(profile=profile) if isinstance(line, Profiled) else line for line in world.lines()]
    found = explain_lines(lines, world.plan(), QUIET, (), ())
    assert found.share(Cause.HOST) == pytest.approx(6 / 9, abs=0.02)
    assert found.share(Cause.COMPUTE) == pytest.approx(2 / 9, abs=0.02)
    assert found.profile is profile


def test_without_counted_work_arithmetic_and_memory_are_not_told_apart() -> None:
    world = World(compute_s=9 * MS)
    lines = [line for line in world.lines() if not isinstance(line, Counted)]
    found = explain_lines(lines, world.plan(), QUIET, (), ())
    assert found.share(Cause.COMPUTE) == found.share(Cause.MEMORY) == 0
    assert "arithmetic or memory" in evidence(found, Cause.UNEXPLAINED)
    assert isinstance(found.roofline, Absent)
    told = [msgspec.structs.replace(line, flops_per_step=5e9) if isinstance(line, Opened) else line for line in lines]
    found = explain_lines(told, world.plan(), QUIET, (), ())
    assert found.share(Cause.COMPUTE) == pytest.approx(0.5, abs=0.01)


def test_without_ceilings_there_is_no_roofline() -> None:
    world = World(compute_s=9 * MS)
    lines = [line for line in world.lines() if not isinstance(line, Ceiling)]
    found = explain_lines(lines, world.plan(), QUIET, (), ())
    assert isinstance(found.roofline, Absent)
    assert found.share(Cause.UNEXPLAINED) > 0.9
    refused = [*lines, Ceiling(flops_per_s=None, bytes_per_s=None, absent="out of memory")]
    assert explain_lines(refused, world.plan(), QUIET, (), ()).roofline == Absent("out of memory")


def test_a_roofline() -> None:
    roofline = explained(World(compute_s=9 * MS, memory_s=MS)).roofline
    assert isinstance(roofline, Roofline)
    assert roofline.flops == pytest.approx(9 * MS * 0.7 * 1e12)
    assert roofline.achieved_flops_per_s < roofline.reachable_flops_per_s
    assert roofline.intensity > roofline.ridge


def test_a_step_of_one_s_own_has_no_optimiser_apart() -> None:
    found = explained(
        World(asynchronous=False, host_s=3 * MS, optimizer_s=3 * MS, left_out=frozenset({ExperimentKind.BACKWARD}))
    )
    assert not any(share.cause in (Cause.OPTIMIZER, Cause.HOST) for share in found.shares)
    assert found.share(Cause.UNEXPLAINED) == pytest.approx(6 / 8, abs=0.02)
    assert "the host's or the optimiser's" in evidence(found, Cause.UNEXPLAINED)


def test_a_share_that_may_as_well_be_small_is_no_verdict() -> None:
    def share(cause: Cause, seconds: float, error_s: float) -> StepShare:
        return StepShare(cause=cause, seconds=seconds, error_s=error_s, evidence="It was timed")

    sure = (share(Cause.OPTIMIZER, 0.8, 0.3), share(Cause.COMPUTE, 0.2, 0.2))
    unsure = (share(Cause.OPTIMIZER, 0.8, 0.6), share(Cause.COMPUTE, 0.2, 0.2))
    assert verdict_of(sure) is Bottleneck.OPTIMIZER
    assert verdict_of(unsure) is Bottleneck.UNKNOWN
    told = verdict_sentence(
        msgspec.structs.replace(samples.explained(), bottleneck=Bottleneck.UNKNOWN, step_s=1.0, shares=unsure)
    )
    assert told.startswith("Not told: optimiser seems to be 80% ± 60% of a step of 1"), told
    assert "while nothing else runs" in told


@pytest.mark.parametrize(
    ("cause", "bottleneck", "work", "words"),
    [
        (Cause.MEMORY, Bottleneck.MEMORY, 0.2, "reads and writes its memory, at 20% of the rate of a large copy"),
        (Cause.COMPUTE, Bottleneck.COMPUTE, 0.3, "arithmetic, at 30% of the rate of a large matrix product"),
        (Cause.MEMORY, Bottleneck.MEMORY, 0.8, "reads and writes its memory."),
    ],
)
def test_a_device_that_is_not_filled_is_told(cause: Cause, bottleneck: Bottleneck, work: float, words: str) -> None:
    """Half of a step of 2 s is this cause's, and its work would take `work` seconds at the best rate."""
    roofline = Roofline(
        flops=work * 1e12, bytes=work * 1e9, step_s=2, peak_flops_per_s=1e12, peak_bytes_per_s=1e9, source=""
    )
    shares = tuple(StepShare(cause=each, seconds=1.0, error_s=0.0, evidence="") for each in (cause, Cause.HOST))
    found = samples.explained(bottleneck=bottleneck, step_s=2.0, shares=shares, roofline=roofline, proposals=())
    told = verdict_sentence(found)
    assert words in told
    assert ("rate" in told) == (work < 0.4)


def test_nothing_was_timed() -> None:
    found = explain_lines([], samples.plan(), QUIET, (), ())
    assert (found.bottleneck, found.step_s, found.shares) == (Bottleneck.UNKNOWN, 0, ())
    assert not found.complete
    assert verdict_sentence(found) == "Not told: no step was timed."


def test_weights_that_every_step_reads_are_not_the_host_s() -> None:
    """A batch of few samples on wide layers: the time does not depend on the batch, and memory is the limit."""
    world = World(asynchronous=False, host_s=0.2 * MS, compute_s=0.1 * MS, memory_s=10 * MS, efficiency=1.0)
    lines: list[Line] = []
    for line in world.lines():
        if isinstance(line, Tried) and line.experiment.kind is ExperimentKind.BATCH:
            lines.append(Tried(experiment=msgspec.structs.replace(line.experiment, seconds=world.resident_s())))
        else:
            lines.append(line)
    found = explain_lines(lines, world.plan(), QUIET, (), ())
    assert found.bottleneck is Bottleneck.MEMORY
    assert found.share(Cause.HOST) < 0.1


# Flags, fallbacks and threads.


def evidence(found: Explained, cause: Cause) -> str:
    return next(share.evidence for share in found.shares if share.cause is cause)


@pytest.mark.parametrize(("name", "verdict"), [("swapping", Bottleneck.SWAP), ("throttled", Bottleneck.HEAT)])
def test_the_machine_comes_first(name: str, verdict: Bottleneck) -> None:
    world = World(host_s=9 * MS)
    lines = [
        Tried(experiment=msgspec.structs.replace(line.experiment, baseline_s=4.5 * MS))
        if isinstance(line, Tried) and line.experiment.kind is ExperimentKind.BATCH
        else line
        for line in world.lines()
    ]
    found = explain_lines(lines, world.plan(), QUIET, (Flag(name=name, evidence="it was seen"),), ())
    assert found.bottleneck is verdict
    assert found.share(Cause.CONTENTION) == pytest.approx(0.5, abs=0.01)
    assert "It was seen." in found.notes
    assert verdict_sentence(found).startswith(verdict.value.capitalize())


def test_a_few_pages_of_others_are_not_swapping() -> None:
    little = Telemetry(
        hz=5.0, series=(Series(name="system_swap_out", unit="B", source="-", at_s=(0, 1), values=(0, 2 << 20)),)
    )
    world, flag = World(host_s=9 * MS), (Flag(name="swapping", evidence="a little"),)
    assert explain_lines(world.lines(), world.plan(), little, flag, ()).bottleneck is Bottleneck.HOST


def test_operations_on_the_cpu() -> None:
    world = World(host_s=MS, compute_s=2 * MS, memory_s=8 * MS, left_out=frozenset({ExperimentKind.CAPTURED}))
    operations = (OperationCost(name="aten::foo", calls=1, seconds=7 * MS, share=0.7),)
    profile = Profile(source="each operation timed by itself", operations=operations, total_s=10 * MS)
    lines = [Profiled(profile=profile) if isinstance(line, Profiled) else line for line in world.lines()]
    found = explain_lines(lines, world.plan(), QUIET, (), ("aten::foo.out",))
    assert found.bottleneck is Bottleneck.FALLBACK
    assert found.share(Cause.FALLBACK) == pytest.approx(0.7, abs=0.02)
    assert "aten::foo.out" in found.proposals[0].written
    untold = explain_lines(world.lines(), world.plan(), QUIET, (), ("aten::foo.out",))
    assert "aten::foo.out ran on the CPU" in evidence(untold, Cause.UNEXPLAINED)


def test_too_few_threads_are_not_contention() -> None:
    world = World(asynchronous=False, compute_s=9 * MS)
    more = Experiment(
        kind=ExperimentKind.THREADS, change=PlanChange(settings={"threads": 8}), seconds=world.resident_s() / 3
    )
    found = explain_lines([*world.lines(), Tried(experiment=more)], world.plan(), QUIET, (), ())
    assert found.bottleneck is Bottleneck.COMPUTE
    assert found.proposals[0].typed == "--threads 8"


def test_the_published_experiment_is_explained_beside_its_workload() -> None:
    world = World()
    plan = msgspec.structs.replace(world.plan(), workload="mobilenet-cifar10")
    notes = " ".join(explain_lines(world.lines(), plan, QUIET, (), ()).notes)
    assert "one file" in notes
    assert "-1 to 1" in notes
    assert "two of its three settings" in notes
    assert not any("published" in note for note in explained(world).notes)


# Any lines at all.

SECONDS = st.one_of(st.none(), st.floats(0, 100, allow_nan=False), st.just(0.0), st.floats(1e-9, 1e-3))
CHANGES = st.sampled_from(
    [
        PlanChange(),
        PlanChange(params={"batch_size": 16}),
        PlanChange(params={"batch_size": 64}),
        PlanChange(params={"batch_size": 4096}),
        PlanChange(settings={"threads": 1}),
        PlanChange(settings={"graph": True}),
        PlanChange(settings={"compile": True}),
        PlanChange(settings={"dtype": "bfloat16"}),
        PlanChange(loader={"workers": 4, "prefetch": 2}),
    ]
)


@st.composite
def experiment_lines(draw: st.DrawFn) -> Tried:
    seconds = draw(SECONDS)
    return Tried(
        experiment=Experiment(
            kind=draw(st.sampled_from(ExperimentKind)),
            change=draw(CHANGES),
            seconds=seconds,
            error_s=draw(st.floats(0, 10)),
            baseline_s=draw(SECONDS),
            waited_s=draw(SECONDS),
            absent="" if seconds is not None else "refused.",
        )
    )


OTHER_LINES = st.one_of(
    st.builds(
        Opened, placed_on=st.sampled_from(["cpu", "cuda:0", "mps:0"]), device_name=st.just("x"),
        asynchronous=st.booleans(), samples_per_step=st.just(BATCH), flops_per_step=st.one_of(st.none(), st.just(1e9)),
        parameters=st.just(1), trainable_parameters=st.just(1), threads=st.sampled_from([None, 4]),
        usable_cores=st.sampled_from([None, 2]), first_step_s=st.just(1.0), sync_s=st.just(0.0),
    ),
    st.builds(
        Counted,
        work=st.one_of(
            st.just(Absent("not counted")),
            st.tuples(
                st.builds(
                    OperationWork, name=st.just("mm"), calls=st.integers(0, 1000), flops=st.floats(0, 1e12),
                    bytes=st.floats(0, 1e12), part=st.sampled_from(["", "optimizer"]),
                )
            ),
        ),
    ),
    st.builds(
        Ceiling, flops_per_s=st.one_of(st.none(), st.floats(1e6, 1e15)),
        bytes_per_s=st.one_of(st.none(), st.floats(1e6, 1e13)),
    ),
    st.just(SyncSeen(where="a.py:1", call=".item()", count=1, seconds=1e-3)),
    st.just(
        Profiled(
            profile=Profile(
                source="torch.profiler", total_s=0.01,
                operations=(OperationCost(name="mm", calls=1, seconds=0.01, share=1.0),),
            )
        )
    ),
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(
    lines=st.lists(st.one_of(experiment_lines(), OTHER_LINES), max_size=25),
    mode=st.sampled_from(Mode),
    fed=st.booleans(),
    fallbacks=st.sampled_from([(), ("aten::mm",)]),
    flags=st.sampled_from([(), (Flag(name="throttled", evidence="hot"),)]),
)
def test_whatever_was_measured_the_shares_add_up(
    lines: list[Line], mode: Mode, fed: bool, fallbacks: tuple[str, ...], flags: tuple[Flag, ...]
) -> None:
    changes = {"feed": Feed.PIPELINE, "loader": Loader()} if fed else {}
    plan = samples.plan(mode=mode, **changes)
    found = explain_lines(lines, plan, QUIET, flags, fallbacks)
    assert sum(share.seconds for share in found.shares) == pytest.approx(found.step_s, rel=1e-9, abs=1e-15)
    for share in found.shares:
        assert share.seconds >= 0
        assert 0 <= share.error_s < math.inf
        assert share.evidence
    assert len({share.cause for share in found.shares}) == len(found.shares)
    assert explain_lines(lines, plan, QUIET, flags, fallbacks) == found
    gains = [proposal.gain for proposal in found.proposals if proposal.gain is not None]
    assert gains == sorted(gains, reverse=True)
    assert all(gain >= 1.03 for gain in gains)
    assert all(each.low is None or each.high is None or each.low <= each.high for each in found.proposals)
    assert verdict_sentence(found).endswith(".")
    assert msgspec.json.decode(msgspec.json.encode(found), type=Explained) == found


def test_what_is_too_much_is_taken_from_all_alike() -> None:
    parts = [SharePart(Cause.HOST, 2.0, 0.1, "a"), SharePart(Cause.INPUT, 6.0, 0.1, "b")]
    host, rest = (next(s for s in added_up(4.0, 0.0, parts) if s.cause is c) for c in (Cause.HOST, Cause.UNEXPLAINED))
    assert host.seconds == 1.0
    assert host.error_s > 1.0
    assert rest.seconds == 0.0


# Fixed and marginal cost, and two devices.


def test_a_line_and_a_floor() -> None:
    points = [BatchTime(float(b), max(10.0, 2 + 0.1 * b), 0.01) for b in (16, 32, 64, 256, 512)]
    cost = fit(32.0, points)
    assert cost is not None
    assert cost.floor_s == pytest.approx(10, rel=0.01)
    assert cost.marginal_s == pytest.approx(0.1, rel=0.01)
    assert cost.line_s(32) == pytest.approx(5.2, rel=0.05)
    assert not cost.reached


def test_one_point_beyond_the_floor_leaves_a_range() -> None:
    points = [BatchTime(16.0, 10.0, 0.1), BatchTime(32.0, 10.0, 0.1), BatchTime(512.0, 40.0, 0.1)]
    cost = fit(32.0, points)
    assert cost is not None
    low_s, high_s = 40 * 32 / 512, 10.0
    assert low_s < cost.line_s(32) < high_s
    assert cost.line_s(32) - cost.error_s <= low_s + 0.3
    assert cost.line_s(32) + cost.error_s >= high_s - 0.5


def test_one_batch_size_is_no_line() -> None:
    assert fit(32.0, [BatchTime(32.0, 1.0, 0.0)]) is None


def test_which_device_is_faster_from_which_batch_size_on() -> None:
    cpu = explained(World(asynchronous=False, host_s=3 * MS, compute_s=2 * MS, memory_s=0.88 * MS))
    gpu = explained(World(host_s=11 * MS, compute_s=0.04 * MS, memory_s=0.024 * MS))
    sentence = device_sentence(cpu, gpu)
    assert sentence.startswith("cpu needs 3 ms + 90 µs per sample, cuda:0 11 ms + ")
    assert "cuda:0 is faster from a batch of about 89" in sentence
    assert device_sentence(gpu, cpu).endswith(sentence.rpartition(":")[2])
    alone = explained(World(asynchronous=False, left_out=frozenset({ExperimentKind.BATCH})))
    assert "can't be said" in device_sentence(alone, gpu)
    slow = explained(World(asynchronous=False, host_s=30 * MS, compute_s=20 * MS))
    assert device_sentence(cpu, slow).endswith("is faster at every batch size.")


def test_two_lines_that_never_cross() -> None:
    first, second = (fit(1.0, [BatchTime(1.0, s, 0.0), BatchTime(2.0, 2 * s, 0.0)]) for s in (1.0, 2.0))
    assert first is not None
    assert second is not None
    assert crossing_of(first, second) is None


def test_a_sentence_for_every_verdict() -> None:
    found = explained(World(produce_s=16.2 * MS, workers=1, host_s=MS, compute_s=4 * MS))
    sentence = verdict_sentence(found)
    assert sentence == (
        "Input-bound: 69% of each step waits for the loader; 4 loader workers should bring 16.2 ms to about 5 ms."
    )
    for bottleneck in Bottleneck:
        said = verdict_sentence(msgspec.structs.replace(found, bottleneck=bottleneck))
        assert said.endswith(".")
        assert said[0].isupper()
        assert "  " not in said
        assert ".." not in said

"""The search on landscapes whose best is known, and the climb of batch sizes."""

from __future__ import annotations

import math
import random
from itertools import product

import pytest
from msgspec.structs import replace

from metalmark.backends.fake_landscape import landscape_gain
from metalmark.model.plan import Dtype, PlanChange, Settings
from metalmark.model.run import Gpu, Machine
from metalmark.tune.batches import BatchClimb, batch_option, expected_bytes, memory_limit
from metalmark.tune.search import BASELINE, Candidate, Search, TuningOption, expected_improvement, simplest


def option(
    name: str, axis: str = "", expected: float = 0.1, needs: tuple[str, ...] = (), **settings: object
) -> TuningOption:
    change = PlanChange(settings=settings or {name: True})  # type: ignore[arg-type]
    return TuningOption(name=name, axis=axis or name, change=change, expected=expected, needs=needs)


OPTIONS = (
    option("tf32", "dtype", 0.4, dtype="tf32"),
    option("bfloat16", "dtype", 0.7, dtype="bfloat16"),
    option("compile", expected=0.3),
    option("fused"),
    option("channels_last", expected=0.05),
)
EVERY: list[Candidate] = [
    frozenset(name for name in names if name)
    for names in product(("", "tf32", "bfloat16"), ("", "compile"), ("", "fused"), ("", "channels_last"))
]


def settings_of(candidate: Candidate) -> Settings:
    dtype = next((Dtype(name) for name in ("tf32", "bfloat16") if name in candidate), Dtype.FLOAT32)
    return Settings(dtype=dtype, **{name: True for name in candidate if name in ("compile", "fused", "channels_last")})


def searched(seed: int, noise: float = 0.02) -> tuple[Search, dict[Candidate, float | None]]:
    """Search a landscape to the end, each trial measured with some noise."""
    rng = random.Random(seed)
    gains = {candidate: landscape_gain(seed, settings_of(candidate)) for candidate in EVERY}
    search = Search(OPTIONS)
    while (candidate := search.propose()) is not None:
        gain = gains[candidate]
        search.tell(candidate, None if gain is None else math.exp(rng.gauss(0, noise)) / gain)
    return search, gains


def test_nearly_every_landscape_is_searched_to_its_best() -> None:
    missed, trials = [], []
    for seed in range(1, 201):
        search, gains = searched(seed)
        best = max(gain for gain in gains.values() if gain is not None)
        close = [gains[each] or 0.0 for each in search.ranking()[:2]]
        trials.append(len(search.values))
        if max(close) < best / 1.05:
            missed.append(seed)
    assert len(missed) <= 6
    assert sum(trials) / len(trials) < 10  # of 24


def test_the_strongest_is_tried_first_and_on_top_of_what_helped() -> None:
    search = Search(OPTIONS)
    proposed = []
    for value in (1.0, 0.5, 0.3, 0.31, 0.29):
        candidate = search.propose()
        assert candidate is not None
        proposed.append(set(candidate))
        search.tell(candidate, value)
    assert proposed == [
        set(), {"bfloat16"}, {"bfloat16", "compile"}, {"bfloat16", "compile", "fused"},
        {"bfloat16", "compile", "channels_last"},
    ]  # fmt: skip
    assert search.best == {"bfloat16", "compile", "channels_last"}
    assert search.path(search.best) == [BASELINE, {"bfloat16"}, {"bfloat16", "compile"}, search.best]
    assert search.change(search.best).settings == {"dtype": "bfloat16", "compile": True, "channels_last": True}


def test_what_takes_long_to_try_comes_last_whatever_it_should_gain() -> None:
    options = [replace(option("compile", expected=0.5), cost=2.0), option("half", expected=0.9), option("fused")]
    search = Search(options)
    proposed = []
    for value in (1.0, 0.9, 0.8, 0.7):
        candidate = search.propose()
        assert candidate is not None
        proposed.append(set(candidate))
        search.tell(candidate, value)
    assert proposed == [set(), {"half"}, {"half", "fused"}, {"half", "fused", "compile"}]


def test_in_a_short_time_a_search_gets_further_without_compiling_first() -> None:
    """Compiling takes as long as eight trials, and the time ends after twelve: the mean of 100 landscapes."""
    costly = [replace(each, cost=2.0) if each.name == "compile" else each for each in OPTIONS]
    reached: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(1, 101):
        gains = {candidate: landscape_gain(seed, settings_of(candidate)) for candidate in EVERY}
        best = max(gain for gain in gains.values() if gain is not None)
        for is_known, options in ((True, costly), (False, OPTIONS)):
            search, spent = Search(options), 0
            while (candidate := search.propose()) is not None:
                spent += 8 if "compile" in candidate else 1
                if spent > 12:
                    break
                gain = gains[candidate]
                search.tell(candidate, None if gain is None else 1 / gain)
            reached[is_known].append((gains[search.best] or 1.0) / best)
    later, earlier = (sum(reached[is_known]) / 100 for is_known in (True, False))
    assert later > earlier + 0.05


def test_what_contains_a_failure_is_not_tried() -> None:
    search = Search(OPTIONS)
    while (candidate := search.propose()) is not None:
        assert not (candidate > {"bfloat16"})
        search.tell(candidate, None if candidate == {"bfloat16"} else 1.0)
    assert search.best == BASELINE
    assert search.ranking()[0] == BASELINE


def test_an_option_that_needs_another_is_never_alone() -> None:
    search = Search([option("compile"), option("autotune", expected=0.2, needs=("compile",))])
    seen = []
    while (candidate := search.propose()) is not None:
        seen.append(candidate)
        search.tell(candidate, 1 - 0.1 * len(candidate))
    assert frozenset({"autotune"}) not in seen
    assert search.best == {"compile", "autotune"}


@pytest.mark.parametrize("refused", [False, True])
def test_an_option_that_needs_two_is_never_without_them(refused: bool) -> None:
    search = Search([option("joined", expected=0.2, needs=("compile", "layout")), option("compile"), option("layout")])
    seen = []
    while (candidate := search.propose()) is not None:
        seen.append(candidate)
        search.tell(candidate, None if refused and "layout" in candidate else 1 - 0.1 * len(candidate))
        if refused and candidate & {"layout"}:
            search.leave_out("layout")
    joined = [candidate for candidate in seen if "joined" in candidate]
    assert joined == ([] if refused else [{"joined", "compile", "layout"}])


@pytest.mark.parametrize(
    ("host_ms", "trials"),
    [pytest.param(24.0, 3, id="it gained, so tf32 waits"), pytest.param(36.0, 5, id="it gets a second chance")],
)
def test_a_strong_option_is_kept_or_tried_again_when_others_have_helped(host_ms: float, trials: int) -> None:
    """A GPU that waits for its host: bfloat16 gains little or nothing until the step is captured."""
    device = {"": 33.0, "tf32": 10.5, "bfloat16": 8.0}
    host = {"": 18.0, "tf32": 18.0, "bfloat16": host_ms}

    def step_ms(candidate: Candidate) -> float:
        (dtype,) = candidate & device.keys() or {""}
        compiled = 0.7 if "compile" in candidate else 1.0
        return max(device[dtype] * compiled, 0.3 if "graph" in candidate else host[dtype] * compiled)

    options = [
        option("tf32", "dtype", 0.6), option("bfloat16", "dtype", 0.9), option("graph", expected=0.4),
        option("compile", expected=0.35), option("fused", expected=0.1), option("channels_last", expected=0.08),
    ]  # fmt: skip
    search = Search(options)
    seen = []
    while (candidate := search.propose()) is not None:
        seen.append(candidate)
        search.tell(candidate, step_ms(candidate))
    assert search.best == {"bfloat16", "graph", "compile"}
    assert seen.index(search.best) == trials


def test_what_a_stronger_option_of_its_axis_has_surpassed_by_far_is_not_tried() -> None:
    """A large batch on an H200. Below bfloat16, tf32 would be compiled anew, for half a minute and in vain."""
    factors = {"bfloat16": 1 / 6, "tf32": 1 / 3, "compile": 0.8, "fused": 0.98, "graph": 1.0, "channels_last": 1.0}
    search = Search([
        option("tf32", "dtype", 0.6), option("bfloat16", "dtype", 0.9), option("graph", expected=0.4),
        option("compile", expected=0.35), option("fused", expected=0.1), option("channels_last", expected=0.45),
    ])  # fmt: skip
    seen: list[Candidate] = []
    while (candidate := search.propose()) is not None:
        seen.append(candidate)
        search.tell(candidate, 386.0 * math.prod(factors[name] for name in candidate))
    assert search.best == {"bfloat16", "compile", "fused"}
    assert not any("tf32" in candidate for candidate in seen)


def test_what_is_left_out_is_not_proposed_again() -> None:
    options = [option("quick", expected=0.3), replace(option("costly", needs=("quick",)), cost=4.0)]
    search = Search(options)
    search.tell(BASELINE, 1.0)
    search.tell(frozenset({"quick"}), 0.5)
    proposed = search.propose()
    assert proposed == {"quick", "costly"}
    assert (search.cost(proposed), search.cost(BASELINE), search.costliest(proposed)) == (4.0, 1.0, "costly")
    search.leave_out("costly")
    assert search.propose() is None


def test_what_makes_compiled_code_useless_costs_as_much_as_compiling() -> None:
    compiler, layout = replace(option("compile"), cost=2.0), replace(option("layout"), recompiles=True)
    search = Search([compiler, layout, option("graph")])
    search.tell(BASELINE, 1.0)
    search.tell(frozenset({"compile"}), 0.5)
    for name, cost in (("layout", 2.0), ("graph", 1.0)):
        assert search.cost(search.added(frozenset({"compile", name}))) == cost
    assert search.cost(search.added(frozenset({"layout"}))) == 1.0, "nothing is compiled there"


def test_what_gains_next_to_nothing_is_no_part_of_the_answer() -> None:
    half, both = frozenset({"half"}), frozenset({"half", "layout"})
    assert simplest({both: 1.0, half: 1.005, BASELINE: 2.0}) == half
    assert simplest({both: 1.0, half: 1.02, BASELINE: 2.0}) == both
    assert simplest({both: 1.0, half: 1.005, BASELINE: 1.009}) == BASELINE
    assert simplest({both: 1.0, frozenset({"other"}): 1.001}) == both, "only a part of the fastest is simpler"
    assert simplest({both: 1.005, half: 1.0}) == half


def test_an_improvement_that_is_sure_is_the_difference() -> None:
    assert expected_improvement(0.3, 1e-6, 0.1) == pytest.approx(0.2)
    assert expected_improvement(0.1, 1e-6, 0.3) == pytest.approx(0.0)
    assert expected_improvement(0.0, 1.0, 0.0) == pytest.approx(1 / math.sqrt(2 * math.pi))


def test_what_gained_nothing_on_a_small_batch_is_tried_on_a_large_one() -> None:
    """A step of the small batch waits for its host, so that only compiling helps; one of a large batch waits for its
    device, so that only half the precision does."""

    def value(candidate: Candidate) -> float:
        batch = max((int(name.split()[1]) for name in candidate if name.startswith("batch")), default=1)
        gains = {"compile": 0.3} if batch == 1 else {"bfloat16": 0.6, "tf32": 0.2}
        return math.exp(-sum(gains.get(name, 0.0) for name in candidate)) / batch

    search = Search(OPTIONS)
    while (candidate := search.propose()) is not None:
        search.tell(candidate, value(candidate))
    assert search.best == {"compile"}
    tried = len(search.values)
    for batch in (32, 64):
        search.grow(batch_option(batch), value(frozenset({"compile", f"batch {batch}"})))
    on_64 = frozenset({"compile", "batch 64"})
    assert search.best == on_64
    assert search.path(on_64) == [BASELINE, {"compile"}, on_64], "32 is on the way to 64"
    while (candidate := search.propose()) is not None:
        assert "batch 32" not in candidate, "a batch that has been outgrown is proposed no more"
        search.tell(candidate, value(candidate))
    assert search.best >= {"bfloat16", "batch 64"}
    assert len(search.values) - tried <= tried + 2
    on_128 = (search.best - {"batch 64"}) | {"batch 128"}
    search.grow(batch_option(128), value(on_128))
    assert search.best == on_128
    values = [search.values[each] or 0.0 for each in search.path(on_128)]
    assert values == sorted(values, reverse=True)
    assert search.path(on_128)[-1] == on_128


def test_what_was_no_better_than_before_is_not_on_the_way_to_the_best() -> None:
    search = Search(OPTIONS)
    for candidate, value in (((), 1.0), (("fused",), 1.0), (("compile",), 0.8), (("fused", "compile"), 0.5)):
        search.tell(frozenset(candidate), value)
    assert search.path(search.best) == [BASELINE, {"compile"}, {"fused", "compile"}]
    search.tell(frozenset({"fused", "compile", "tf32"}), 0.499)
    assert search.path(frozenset({"fused", "compile", "tf32"})) == [
        BASELINE, {"compile"}, {"fused", "compile"}, {"fused", "compile", "tf32"},
    ]  # fmt: skip
    search.tell(frozenset({"channels_last"}), 1.1)
    assert search.path(frozenset({"channels_last"})) == [BASELINE, {"channels_last"}]
    assert search.path(BASELINE) == [BASELINE]
    assert search.path(frozenset({"fused", "bfloat16"})) == [BASELINE, {"fused", "bfloat16"}], "it was not measured"


def climbed(climb: BatchClimb, times: dict[int, float | None], held: dict[int, int] | None = None) -> int:
    first = min(times)
    climb.tell(first, times[first], (held or {}).get(first))
    while (batch := climb.propose()) is not None:
        climb.tell(batch, times[batch], (held or {}).get(batch))
    return climb.best


def test_the_batch_grows_while_a_doubling_pays() -> None:
    climb = BatchClimb(16)
    assert climbed(climb, {16: 1.0, 32: 0.6, 64: 0.5, 128: 0.495, 256: 0.1}) == 64
    assert climb.ended == "a batch of 128 gains less than 3% over 64"
    assert climbed(BatchClimb(16), {16: 1.0, 32: 1.2}) == 16
    assert climbed(failing := BatchClimb(16), {16: 1.0, 32: None}) == 16
    assert failing.ended == "a batch of 32 failed"


def test_the_batch_stops_before_memory_does() -> None:
    gib = 2**30
    climb = BatchClimb(16, limit_bytes=10 * gib)
    halving: dict[int, float | None] = {16 * 2**n: 0.5**n for n in range(8)}
    assert climbed(climb, halving, {16: 2 * gib, 32: 3 * gib, 64: 5 * gib, 128: 9 * gib}) == 128
    assert climb.ended == "a batch of 256 should need 17.0 GiB, and 10.0 GiB is the limit"
    swapping = BatchClimb(16)
    swapping.tell(16, 1.0, None)
    swapping.tell(32, 0.5, None, spoilt="a batch of 32 made the machine swap")
    assert (swapping.propose(), swapping.best) == (None, 16)
    assert expected_bytes({}, 32) is None
    assert expected_bytes({16: gib}, 32) == 2 * gib


def test_the_limit_is_the_devices_own_memory() -> None:
    gib = 2**30
    machine = Machine(
        chip="a chip", architecture="x86_64", physical_cores=4, logical_cores=8, usable_cores=8,
        memory_bytes=100 * gib, os="Linux", gpus=(Gpu(name="a GPU", memory_bytes=10 * gib),),
    )  # fmt: skip
    assert memory_limit(machine, "cuda", None) == 8.5 * gib
    # Apple's GPU has the machine's memory.
    assert memory_limit(machine, "mps", None) == memory_limit(machine, "cpu", None) == 85 * gib
    assert memory_limit(machine, "cuda", gib) == gib

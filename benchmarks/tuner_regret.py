"""How far from the best a search ends, and what it costs, against a sweep of everything.

On the software device: landscapes of 24 points (dtype, compile, fused, channels-last) whose gains are known, with
settings that act on each other, combinations that fail, and noise within and between processes. `--real` does the
same once with PyTorch on the CPU, where the sweep itself says what is best; if the search chose something else, both
are measured in turn, six processes each, which decides. `--optuna` weighs Optuna's sampler against
the search on the same landscapes, with as many trials, in simulation.

The sweep measures every point as finalists are measured, in as many processes: a best that rests on one process each
would be luck.
"""

import argparse
import math
import random
import statistics
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

import metalmark as mm
from metalmark.backends.fake_landscape import landscape_gain
from metalmark.machine.identity import identify
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.plan import Dtype, Plan, PlanChange, Settings, word
from metalmark.model.tuning import Tuned, TuningGoal, TuningRun
from metalmark.results.cells import cells_of
from metalmark.stats.difference import difference, typical
from metalmark.tune.search import Candidate, Search, TuningOption

REGRET, COST = 0.05, 0.35
NOISE, PROCESS_NOISE = 0.03, 0.02
DTYPES = ("float32", "tf32", "bfloat16")
SWITCHES = ("compile", "fused", "channels_last")
KEPT = "batch_size,threads,compile_mode"
KEPT_FOR_REAL = "batch_size,compile_mode,channels_last,environment"
PROCESSES_IN_TURN = 6
FIRST = 5001
"""Landscapes that nothing was chosen by: the search was made on others."""


def points() -> list[Settings]:
    return [
        Settings(dtype=Dtype(dtype), **dict(zip(SWITCHES, switches, strict=True)))
        for dtype in DTYPES
        for switches in product((False, True), repeat=len(SWITCHES))
    ]


def tuned(**options: Any) -> tuple[TuningRun, float]:
    begin_s = time.monotonic()
    (run,) = mm.tune(gate=False, progress=False, **options)
    assert isinstance(run, TuningRun)
    return run, time.monotonic() - begin_s


def settings_of(run: TuningRun) -> Settings:
    assert isinstance(run.outcome, Tuned), run.outcome
    return run.outcome.best.change.applied(run.plan).settings


def on_the_software_device(count: int, seconds: float, repeats: int, store: Path) -> tuple[float, float]:
    """Return the worst regret and the mean share of a sweep's cost."""
    noisy: dict[str, Any] = {"noise": NOISE, "process_noise": PROCESS_NOISE}
    options: dict[str, Any] = {"framework": "fake", "device": "gpu", "store": store, "seconds": seconds, **noisy}
    begin_s = time.monotonic()
    mm.bench(
        "fake", landscape=FIRST, dtype=",".join(DTYPES), compile="off,on", fused="off,on", channels_last="off,on",
        repeat=repeats, progress=False, **options,
    )  # fmt: skip
    sweep_s = time.monotonic() - begin_s
    print(f"sweep_seconds: {sweep_s:.1f}")
    regrets, costs = [], []
    for seed in range(FIRST, FIRST + count):
        known = {settings: landscape_gain(seed, settings) for settings in points()}
        best = max(gain for gain in known.values() if gain is not None)
        run, cost_s = tuned(workload="fake", landscape=seed, keep=KEPT, repeat=repeats, time="10m", **options)
        reached = known[settings_of(run)]
        assert reached is not None
        regrets.append(best / reached - 1)
        costs.append(cost_s / sweep_s)
        print(f"landscape_{seed}: regret {regrets[-1]:.4f}, cost {costs[-1]:.3f}", flush=True)
    print(f"landscapes: {count}")
    print(f"mean_regret: {statistics.fmean(regrets):.4f}")
    print(f"mean_cost: {statistics.fmean(costs):.3f}")
    print(f"worst_cost: {max(costs):.3f}")
    print(f"worst_regret: {max(regrets):.4f}")
    return max(regrets), statistics.fmean(costs)


def for_real(seconds: float, repeats: int, store: Path) -> tuple[float, float]:
    """The same with PyTorch on the CPU: the sweep's own figures say what is best. Every point of it can run."""
    workload: dict[str, Any] = {"framework": "torch", "device": "cpu", "store": store, "seconds": seconds}
    size: dict[str, Any] = {"size": "mini", "batch_size": 8, "seq_len": 64}
    machine = identify()
    cores = machine.usable_cores or 1
    threads = sorted({cores, min(cores, machine.physical_cores or cores), max(1, cores // 2)})
    begin_s = time.monotonic()
    swept = mm.bench(
        "bert", dtype="float32,bfloat16", compile="off,on", fused="off,on", threads=threads, repeat=repeats,
        **workload, **size,
    )  # fmt: skip
    sweep_s = time.monotonic() - begin_s
    run, cost_s = tuned(workload="bert", keep=KEPT_FOR_REAL, repeat=repeats, time="20m", **workload, **size)
    cells = cells_of(each for each in swept if isinstance(each, BenchRun))
    steps = {cell.plan.settings: cell.step_s for cell in cells if cell.failure is None}
    best, chosen = min(steps, key=lambda each: steps[each]), settings_of(run)
    # Without a number of threads PyTorch takes every core.
    chosen = msgspec.structs.replace(chosen, threads=chosen.threads or cores)
    print(f"real_points: {len(steps)}")
    print(f"real_best: {_words(run.plan, best)} {steps[best] * 1e3:.3f} ms")
    print(f"real_chosen: {_words(run.plan, chosen)} {steps[chosen] * 1e3:.3f} ms")
    print(f"real_sweep_seconds: {sweep_s:.0f}")
    print(f"real_cost: {cost_s / sweep_s:.3f}")
    print(f"real_regret_by_the_sweep: {steps[chosen] / steps[best] - 1:.4f}")
    regret = 0.0 if chosen == best else in_turn(chosen, best, workload, size) - 1
    print(f"real_regret: {regret:.4f}")
    return regret, cost_s / sweep_s


def in_turn(chosen: Settings, best: Settings, workload: dict[str, Any], size: dict[str, Any]) -> float:
    """Return how many times as long a step takes with what was chosen as with what the sweep calls best, which of three
    processes each may be luck: both are measured in turn, in processes of their own."""
    times: dict[Settings, list[list[float]]] = {chosen: [], best: []}
    for _ in range(PROCESSES_IN_TURN):
        for settings, found in times.items():
            options = {name: word(value) for name, value in settings.changed().items()}
            (run,) = mm.bench("bert", **workload, **size, **options, progress=False)
            assert isinstance(run, BenchRun)
            assert isinstance(run.outcome, Completed)
            found.append([block.elapsed_s / block.steps for block in run.outcome.measurement.blocks])
    compared = difference(times[chosen], times[best])
    print(f"real_steps_in_turn: {typical(times[chosen]) * 1e3:.3f} and {typical(times[best]) * 1e3:.3f} ms")
    print(f"real_speed_of_best_over_chosen: {compared.ratio:.4f} ({compared.verdict.value})")
    return typical(times[chosen]) / typical(times[best])


def against_optuna(count: int) -> None:
    """Simulate both on landscapes, Optuna with as many different trials as the search took."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found: dict[str, list[float]] = {"search": [], "optuna_tpe": []}
    for seed in range(FIRST, FIRST + count):
        known = {settings: landscape_gain(seed, settings) for settings in points()}
        best = max(gain for gain in known.values() if gain is not None)
        rng = random.Random(seed)
        search = Search(_options())
        while (candidate := search.propose()) is not None:
            gain = known[_settings(candidate)]
            search.tell(candidate, None if gain is None else math.exp(rng.gauss(0, PROCESS_NOISE)) / gain)
        found["search"].append(best / (known[_settings(search.ranking()[0])] or 1.0) - 1)
        seen: dict[Settings, float] = {}

        def measure(trial: Any, seen: dict[Settings, float] = seen, known: Any = known, rng: Any = rng) -> float:
            settings = Settings(
                dtype=Dtype(trial.suggest_categorical("dtype", DTYPES)),
                **{name: trial.suggest_categorical(name, (False, True)) for name in SWITCHES},
            )
            if settings not in seen:
                gain = known[settings]
                seen[settings] = 10.0 if gain is None else math.exp(rng.gauss(0, PROCESS_NOISE)) / gain
            return seen[settings]

        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=4, multivariate=True)
        study = optuna.create_study(sampler=sampler)
        study.enqueue_trial({"dtype": "float32", **dict.fromkeys(SWITCHES, False)})
        for _ in range(20 * len(known)):  # what it proposes again costs nothing
            if len(seen) >= len(search.values):
                break
            study.optimize(measure, n_trials=1)
        found["optuna_tpe"].append(best / (known[min(seen, key=lambda each: seen[each])] or 1.0) - 1)
    for name, regrets in found.items():
        over = sum(regret > REGRET for regret in regrets)
        print(f"{name}: mean regret {statistics.fmean(regrets):.4f}, {over} of {count} over {REGRET:.0%}")


def _options() -> list[TuningOption]:
    from metalmark.tune.space import entries

    chosen = [entry for entry in entries() if "fake" in entry.frameworks and TuningGoal.THROUGHPUT in entry.goals]
    return [
        TuningOption(
            name=entry.name, axis=entry.axis, change=PlanChange(settings=entry.settings),
            expected=entry.expected["fake"], cost=entry.cost,
        )
        for entry in chosen
    ]  # fmt: skip


def _settings(candidate: Candidate) -> Settings:
    dtype = next((name for name in DTYPES if name in candidate), "float32")
    return Settings(dtype=Dtype(dtype), **{name: name in candidate for name in SWITCHES})


def _words(plan: Plan, settings: Settings) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.changed().items()) or f"{plan.framework} as it is"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscapes", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0.6, help="how long a finalist is measured")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--real", action="store_true", help="only PyTorch on the CPU")
    parser.add_argument("--optuna", action="store_true", help="only the simulation against Optuna")
    given = parser.parse_args()
    if given.optuna:
        against_optuna(given.landscapes)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store.sqlite3")
        if given.real:
            regret, cost = for_real(1.5, given.repeats, store)
        else:
            regret, cost = on_the_software_device(given.landscapes, given.seconds, given.repeats, store)
    print(f"bounds: regret {REGRET}, cost {COST}")
    print(f"within_bounds: {regret <= REGRET and cost <= COST}")
    return 0 if regret <= REGRET and cost <= COST else 1


if __name__ == "__main__":
    sys.exit(main())

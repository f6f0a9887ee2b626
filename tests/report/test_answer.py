"""The sentences that a page begins with: what the runs say, and nothing that they can't."""

from __future__ import annotations

from typing import Any

import msgspec

from metalmark.model.measurement import BenchRun
from metalmark.model.run import FailureKind, Flag
from metalmark.model.training import TrainingRun
from metalmark.report.answer import answer
from metalmark.report.content import Content
from tests.report.contents import training, watched
from tests.samples import completed, failed, plan, record


def cell(framework: str, step_s: float, *, repeats: int = 5, batch: int = 32, **changes: Any) -> list[BenchRun]:
    """Processes that differ by half a percent."""
    return [
        record(
            completed(step_s * (1 + 0.005 * (repeat % 2))), repeat=repeat, cell=batch + 1000 * len(framework),
            plan=plan(framework=framework, params={"batch_size": batch}), **changes,
        )
        for repeat in range(repeats)
    ]  # fmt: skip


def said(*runs: Any) -> str:
    return " ".join(answer(Content(runs=runs)))


def test_the_slower_framework_is_named_with_its_interval() -> None:
    text = said(*cell("torch", 0.018), *cell("tensorflow", 0.010))
    assert text.startswith("mnist-mlp training, batch 32, cpu: torch is 1.80x slower than tensorflow")
    assert "95% interval 1." in text
    assert "`" not in text, "nothing is left to do"


def test_the_same_is_said_whichever_comes_first() -> None:
    assert said(*cell("torch", 0.018), *cell("jax", 0.010)) == said(*cell("jax", 0.010), *cell("torch", 0.018))


def test_one_process_per_side_tells_nothing_and_the_command_measures_both_in_turns() -> None:
    text = said(*cell("torch", 0.018, repeats=1), *cell("jax", 0.010, repeats=1))
    assert "Can't tell whether torch is faster than jax" in text
    assert "slower than" not in text
    assert "-f jax,torch -d cpu --mode training --repeat 5`" in text


def test_a_difference_inside_of_the_noise_is_no_difference() -> None:
    text = said(*cell("torch", 0.0100), *cell("jax", 0.0100))
    assert "as fast as" in text


def test_a_busy_machine_is_a_reason_to_measure_again() -> None:
    busy = (Flag(name="busy_machine", evidence="others used half of it"),)
    text = said(*cell("torch", 0.018, flags=busy), *cell("jax", 0.010))
    assert "1.80x slower" in text
    assert "The machine was busy, so measure again: `metalmark bench mnist-mlp -f" in text
    leaking = (Flag(name="leaking", evidence="1 MiB per step"),)
    assert "measure again" not in said(*cell("torch", 0.018, flags=leaking), *cell("jax", 0.010))


def test_one_cell_is_a_figure_with_its_interval() -> None:
    text = said(*cell("torch", 0.010))
    assert text.startswith("mnist-mlp training on torch cpu, batch 32 takes 10.0 ms per step, 3,194 samples per second")
    assert "over 5 processes" in text
    few = said(*cell("torch", 0.010, repeats=1))
    assert "1 process can't show how processes differ, so measure again: `metalmark bench" in few


def test_of_several_sizes_the_fastest_is_named_unless_it_can_not_be_told() -> None:
    text = said(*cell("torch", 0.010), *cell("torch", 0.030, batch=64))
    assert text.startswith("Highest throughput: mnist-mlp training on torch cpu, batch 32 with 10.0 ms per step")
    assert "can't be told" not in text
    assert "can't be told from it" in said(*cell("torch", 0.010), *cell("torch", 0.01002, batch=64))


def test_what_failed_is_counted() -> None:
    lost = record(failed(FailureKind.OUT_OF_MEMORY), cell=9, plan=plan(framework="mlx"))
    text = said(*cell("torch", 0.010), lost)
    assert "1 of 2 cells did not complete, the first mnist-mlp training on mlx cpu (out of memory)." in text
    assert said(lost) == "1 of 1 cell did not complete, the first mnist-mlp training on mlx cpu (out of memory)."


def trained(identifier: str, framework: str, *, slower: float = 1.0, seed: int = 0, epochs: int = 6) -> TrainingRun:
    run = training(identifier, framework=framework, epochs=epochs)
    paced = tuple(msgspec.structs.replace(epoch, compute_s=epoch.compute_s * slower) for epoch in run.epochs)
    return msgspec.structs.replace(run, epochs=paced, plan=plan(framework=framework, seed=seed))


def test_trainings_say_who_reached_the_target_first() -> None:
    both = [trained("trained0001", "torch", slower=2.0), trained("trained0002", "jax")]
    text = said(*both)
    assert text.startswith("90.00% validation accuracy: first jax cpu after 20 s, then torch cpu after 35 s.")
    assert "one seed per side" in text
    short = said(trained("trained0001", "torch", epochs=2), trained("trained0002", "jax"))
    assert "Not reached by torch cpu" in short


def test_one_training_says_what_it_reached() -> None:
    text = said(trained("trained0001", "torch", epochs=3))
    assert text.startswith("torch cpu reached a validation accuracy of 83.33% in epoch 3 of 3, which took 12 s in all.")
    assert text.endswith("The target of 90.00% was not reached.")
    assert "no training came to the end of an epoch" in said(training(epochs=0))


def test_a_watched_run_says_its_step_and_its_wait() -> None:
    assert "400 ms per step by the host's clock over 5 steps, 25.0% of it waiting for input (failed)" in said(watched())
    none = msgspec.structs.replace(watched(), stretches={})
    assert "no loop of it was watched" in said(none)


def test_many_workloads_are_cut() -> None:
    runs = [record(cell=number, plan=plan(workload=f"net{number}")) for number in range(5)]
    lines = answer(Content(runs=tuple(runs)))
    assert len(lines) == 4
    assert lines[-1] == "The tables below have 2 more."

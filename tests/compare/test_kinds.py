"""Trainings over seeds and watched loops: figures, verdicts, and what may not be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from metalmark.errors import UsageError
from metalmark.model.plan import Dtype, Settings
from metalmark.model.run import Absent, Failed, FailureKind, RunKind, Series, Software, Telemetry
from metalmark.model.training import Ending, Goal, TrainingRun
from metalmark.model.watch import Stretch, WatchedRun, WatchEnding
from metalmark.report.compare_answer import comparison_answer
from metalmark.report.compare_page import comparison_documents, comparison_table
from metalmark.results.command import train_command
from metalmark.results.comparison import CellComparison, Comparison, compare_runs
from metalmark.results.derived import flags_of
from metalmark.results.measured import measured_of
from metalmark.results.pairing import Side
from metalmark.stats.difference import Difference, Gap, Verdict
from tests.compare.sides import repeats
from tests.report.test_training_compare import epoch, record
from tests.samples import MACHINE, plan

replace = msgspec.structs.replace


def training(
    accuracy: float, seed: int = 0, *, compute_s: float = 6.0, device: str = "cpu", **changes: Any
) -> TrainingRun:
    """Three epochs that rise to `accuracy` and end 2 points below it."""
    curve = (accuracy - 0.1, accuracy, accuracy - 0.02)
    epochs = tuple(epoch(number, value, compute_s=compute_s) for number, value in enumerate(curve, start=1))
    fields: dict[str, Any] = {"goal": Goal(epochs=3), "epochs": epochs, **changes}
    run = record(device, id=f"train{device}{seed:04d}{len(TAKEN):04d}", **fields)
    TAKEN.append(run.id)
    return replace(run, plan=replace(run.plan, seed=seed))


TAKEN: list[str] = []


def seeds(*accuracies: float, **changes: Any) -> list[TrainingRun]:
    return [training(accuracy, seed, **changes) for seed, accuracy in enumerate(accuracies)]


def compared(a: Sequence[Any], b: Sequence[Any], **options: Any) -> Comparison:
    (found,), _ = compare_runs([Side.of_runs("old", a), Side.of_runs("new", b)], **options)
    return found


def only(found: Comparison) -> CellComparison:
    (row,) = found.rows
    return row


def test_accuracy_is_compared_over_seeds_and_speed_over_trainings() -> None:
    found = compared(seeds(0.850, 0.852, 0.848), seeds(0.880, 0.882, 0.878, device="any", compute_s=3.0))
    row = only(found)
    assert found.kind is RunKind.TRAINING
    assert row.trained is not None
    best, final = row.trained.accuracy, row.trained.final_accuracy
    assert isinstance(best, Gap)
    assert isinstance(final, Gap)
    assert best.value == pytest.approx(0.03)
    assert final.value == pytest.approx(0.03)
    assert best.verdict is Verdict.BETTER
    assert best.low is not None
    # Welch's interval of two samples of three with a standard deviation of 0.002: t95(4) * 0.002 * sqrt(2 / 3).
    assert best.value - best.low == pytest.approx(2.776 * 0.002 * (2 / 3) ** 0.5, rel=1e-3)
    assert isinstance(row.speed, Difference)
    assert row.speed.ratio == pytest.approx(7 / 4)
    assert row.verdict is Verdict.FASTER
    assert comparison_answer(found).startswith(
        "new is more accurate than old: 88.00% against 85.00%, +3.00 points (95% interval +2.55 to +3.45 points). "
        "new is 1.75x faster than old"
    )


def test_one_training_per_side_shows_its_figures_and_what_to_type() -> None:
    found = compared([training(0.85)], [training(0.88, device="any")])
    row = only(found)
    assert row.trained is not None
    assert isinstance(row.trained.accuracy, Gap)
    assert row.trained.accuracy.verdict is row.verdict is Verdict.CANT_TELL
    assert row.command.startswith("metalmark train mnist-mlp -f torch -d cpu --epochs 3 --repeat 3 && metalmark train")
    answer = comparison_answer(found)
    assert "88.00% against 85.00%" in answer
    assert "one seed per side does not show how seeds differ; train with --repeat 3." in answer


def test_trainings_of_one_seed_are_one_sample_of_accuracy() -> None:
    """On a CPU the same seed gives the same weights: three of them are no spread, and no certainty."""
    again = [training(0.85) for _ in range(3)]
    row = only(compared(again, [training(0.88, device="any") for _ in range(3)]))
    assert row.trained is not None
    assert isinstance(row.trained.accuracy, Gap)
    assert row.trained.accuracy.repeats == (1, 1)
    assert row.trained.accuracy.verdict is Verdict.CANT_TELL
    assert isinstance(row.speed, Difference)
    assert row.speed.repeats == (3, 3), "their times are three"


def test_time_to_a_target_is_of_those_that_reached_it_all() -> None:
    quick = seeds(0.86, 0.87, 0.88, compute_s=3.0, device="any")
    row = only(compared(seeds(0.86, 0.87, 0.88), quick, target_accuracy=0.85))
    assert row.trained is not None
    reached = row.trained.to_target
    assert isinstance(reached, Difference)
    assert reached.ratio == pytest.approx(18 / 12), "two epochs of 1 + 6 + 2 s, and of 1 + 3 + 2 s"
    assert reached.verdict is Verdict.FASTER


def test_what_never_reached_the_target_is_no_time() -> None:
    found = compared(seeds(0.86, 0.87, 0.88), seeds(0.80, 0.87, 0.81, device="any"), target_accuracy=0.85)
    row = only(found)
    assert row.trained is not None
    assert isinstance(row.trained.to_target, Absent)
    assert "2 of 3 trainings of mnist-mlp training on torch any never reached it" in row.trained.to_target.reason
    assert row.b.trained is not None
    assert (len(row.b.trained.target_s), row.b.trained.missed) == (1, 2)
    table = comparison_table(found)
    (line,) = [cells for cells in table.rows if cells[0] == "time to 85.00%"]
    assert line[2] == "18.0 s (1 of 3 reached it)"
    assert line[-1] == "can't tell"


def test_the_trainings_own_target_is_taken_and_their_accuracy_is_then_not_judged() -> None:
    goal = Goal(epochs=3, target_accuracy=0.85)
    options: dict[str, Any] = {"goal": goal, "ending": Ending.TARGET}
    found = compared(seeds(0.86, 0.87, **options), seeds(0.88, 0.89, device="any", **options))
    assert found.target_accuracy == 0.85
    trained = only(found).trained
    assert trained is not None
    assert isinstance(trained.to_target, Difference)
    assert isinstance(trained.accuracy, Absent)
    assert "stopped when they reached their target" in trained.accuracy.reason


def test_what_did_not_come_to_its_end_is_left_out_and_said() -> None:
    stopped = training(0.2, 7, ending=Ending.INTERRUPTED)
    found = compared([*seeds(0.85, 0.86), stopped], seeds(0.85, 0.86, device="any"))
    assert only(found).a.processes == 2
    assert any("1 of 3 trainings of torch cpu left out: interrupted" in note for note in comparison_table(found).notes)


def test_a_training_that_failed_leaves_no_verdict() -> None:
    why = Failed(kind=FailureKind.CRASHED, message="it fell")
    broken = training(0.85, 9, device="any", ending=Ending.FAILED, failure=why)
    row = only(compared(seeds(0.85, 0.86), [*seeds(0.85, 0.86, device="any"), broken]))
    assert row.b.failure == "crashed: it fell"
    assert isinstance(row.speed, Absent)
    assert row.trained is not None
    assert isinstance(row.trained.accuracy, Absent)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"goal": Goal(epochs=9)}, "epochs 3 against 9"),
        ({"goal": Goal(epochs=3, patience=2)}, "patience none against 2"),
        ({"plan": {"data": "cifar10"}}, "data synthetic against cifar10"),
        ({"plan": {"workload": "conv256"}}, "workload mnist-mlp against conv256"),
        ({"plan": {"params": {"batch_size": 64}}}, "batch size 32 against 64"),
        ({"plan": {"settings": Settings(dtype=Dtype.BFLOAT16)}}, "dtype float32 against bfloat16"),
        ({"setting": "x" * 64}, "samples trained on dddddddddddd against xxxxxxxxxxxx with seed 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_training_is_not_like_for_like(change: dict[str, Any], said: str) -> None:
    other = [_changed(run, change) for run in seeds(0.88, 0.89)]
    with pytest.raises(UsageError, match="not like for like") as caught:
        compared(seeds(0.85, 0.86), other)
    assert said in caught.value.message
    found = compared(seeds(0.85, 0.86), other, anyway=True)
    assert comparison_answer(found).startswith("These are not like for like")
    assert all("not like for like" in cells[-1] for cells in comparison_table(found).rows if cells[-1])


def _changed(run: TrainingRun, change: dict[str, Any]) -> TrainingRun:
    if "plan" in change:
        return replace(run, plan=replace(run.plan, **change["plan"]))
    if "setting" in change:
        assert run.setting is not None
        return replace(run, setting=replace(run.setting, data_digest=change["setting"]))
    return replace(run, **change)


def with_samples(runs: Sequence[TrainingRun], *digests: str) -> list[TrainingRun]:
    return [_changed(run, {"setting": digest * 12}) for run, digest in zip(runs, digests, strict=True)]


def test_seeds_with_samples_of_their_own_are_compared_seed_by_seed() -> None:
    """The samples move both sides alike, by much more than B differs from A."""
    a = with_samples(seeds(0.70, 0.80, 0.90), "a", "b", "c")
    b = with_samples(seeds(0.72, 0.82, 0.92, device="any"), "a", "b", "c")
    trained = only(compared(a, b)).trained
    assert trained is not None
    assert trained.paired
    assert isinstance(trained.accuracy, Gap)
    assert trained.accuracy.value == pytest.approx(0.02)
    assert trained.accuracy.verdict is Verdict.BETTER
    fixed = only(compared(with_samples(a, "a", "a", "a"), with_samples(b, "a", "a", "a"))).trained
    assert fixed is not None
    assert not fixed.paired
    assert isinstance(fixed.accuracy, Gap)
    assert fixed.accuracy.verdict is Verdict.CANT_TELL, "what moves with the seed alone need not be shared"


def test_other_seeds_may_have_other_samples() -> None:
    later = [replace(run, plan=replace(run.plan, seed=run.plan.seed + 5)) for run in seeds(0.86, 0.87, device="any")]
    found = compared(with_samples(seeds(0.85, 0.86), "a", "b"), with_samples(later, "c", "d"))
    assert not found.unlike


def test_no_thousand_trainings_are_asked_for() -> None:
    row = only(compared(seeds(0.70, 0.90), seeds(0.71, 0.91, device="any")))
    assert row.command == ""


def test_a_parameter_of_trainings_is_compared_by_who_says_so() -> None:
    larger = [_changed(run, {"plan": {"params": {"batch_size": 64}}}) for run in seeds(0.88, 0.89)]
    with pytest.raises(UsageError) as caught:
        compared(seeds(0.85, 0.86), larger)
    assert "--by batch_size" in caught.value.hint
    found = compared(seeds(0.85, 0.86), larger, by=["batch_size"])
    assert not found.unlike
    longer = [replace(run, goal=Goal(epochs=9)) for run in larger]
    with pytest.raises(UsageError, match="epochs"):
        compared(seeds(0.85, 0.86), longer, by=["batch_size", "epochs"])


def test_a_training_as_the_command_that_trains_it() -> None:
    goal = Goal(epochs=4, target_accuracy=0.9, patience=2, workers=0)
    assert train_command(plan(data="cifar10"), goal) == (
        "metalmark train mnist-mlp -f torch -d cpu --data cifar10 --epochs 4 --target-accuracy 0.9 --patience 2 "
        "--workers 0"
    )


def watched(name: str, number: int, *, step_s: float = 0.1, wait: float = 0.3, **changes: Any) -> WatchedRun:
    """A loop whose host runs ahead: nine steps of ten take no time, the tenth waits for the device."""
    times = [step_s * 0.1 if place % 10 else step_s * 9.1 for place in range(200)]
    stretches = tuple(Stretch(steps=1, at_s=0.0, elapsed_s=each, waited_s=each * wait) for each in times)
    fields: dict[str, Any] = {
        "id": f"{name}{number:08d}", "started_at": "2026-11-15T08:00:00Z", "name": name, "elapsed_s": 20.0,
        "ended": WatchEnding.COMPLETED, "machine": MACHINE, "software": Software(metalmark="0", python="3"),
        "stretches": {"train": stretches}, "telemetry": Telemetry(hz=None),
        "params": {"batch_size": 32, "seed": number},
    }  # fmt: skip
    return WatchedRun(**{**fields, **changes})


def several(name: str, **changes: Any) -> list[WatchedRun]:
    return [
        watched(name, number, **{**changes, "step_s": changes.get("step_s", 0.1) * factor})
        for number, factor in enumerate((0.999, 1.0, 1.001))
    ]


def test_watched_runs_are_compared_by_step_and_input_wait() -> None:
    found = compared(several("old"), several("new", step_s=0.05, wait=0.1))
    row = only(found)
    assert found.kind is RunKind.WATCH
    assert row.a.step_s == pytest.approx(0.1, rel=1e-3), "the mean step, not the median of those the host only queued"
    assert isinstance(row.speed, Difference)
    assert row.speed.ratio == pytest.approx(2.0)
    assert row.speed.repeats == (3, 3), "runs are the sample, not their 200 steps"
    assert isinstance(row.input_wait, Gap)
    assert row.input_wait.value == pytest.approx(-0.2)
    assert row.input_wait.verdict is Verdict.BETTER
    answer = comparison_answer(found)
    assert answer.startswith("new is 2.00x faster than old (95% interval 2.0")
    assert "It waits less for its input: 10.0% of the time, not 30.0%" in answer


def test_one_watched_run_per_side_can_not_tell() -> None:
    found = compared(several("old")[:1], several("new", step_s=0.05)[:1])
    assert only(found).verdict is Verdict.CANT_TELL
    assert "one run per side does not show how runs differ" in comparison_answer(found)
    assert any("Run each side again, under the same name" in note for note in comparison_table(found).notes)


def test_watched_runs_with_another_batch_size_or_loop_are_not_like_for_like() -> None:
    other = [replace(run, params={"batch_size": 64}) for run in several("new")]
    with pytest.raises(UsageError, match="batch size 32 against 64"):
        compared(several("old"), other)
    renamed = [replace(run, stretches={"fit": run.stretches["train"]}) for run in several("new")]
    with pytest.raises(UsageError, match="loop train against fit"):
        compared(several("old"), renamed)


def test_what_a_watched_run_ended_with_and_its_flags_are_said() -> None:
    busy = Series(name="on_battery", unit="", source="test", at_s=(1.0,), values=(1.0,))
    runs = [replace(run, telemetry=Telemetry(hz=1.0, series=(busy,)), error="ValueError") for run in several("new")]
    (cell,) = measured_of(runs)
    assert list(cell.flags) == ["on_battery"] == [flag.name for flag in flags_of(runs[0])]
    assert cell.notes[0].startswith("new (new00000000)")


def test_runs_of_two_kinds_are_one_sentence() -> None:
    with pytest.raises(UsageError) as caught:
        compared(repeats(), seeds(0.8, 0.9))
    message = "Only runs of one kind can be compared: old holds bench runs, new holds trainings."
    assert caught.value.message == message
    with pytest.raises(UsageError, match="A target accuracy is of trainings, and these are bench runs"):
        compared(repeats(), repeats(plan(framework="jax")), target_accuracy=0.9)


def test_the_document_begins_with_the_answer() -> None:
    found = compared(seeds(0.850, 0.852), seeds(0.880, 0.882, device="any"))
    (document,) = comparison_documents([found])
    assert next(iter(document)) == "answer"
    assert document["rows"][0]["trained"]["accuracy"]["verdict"] == "better"
    assert document["kind"] == "training"
    assert comparison_table(found).caption.startswith(document["answer"])


@pytest.mark.parametrize(
    ("step_s", "said"),
    [
        (0.05, "b is 2.00x faster than a (95% interval 1.99 to 2.01)."),
        (0.2, "b is 2.00x slower than a (95% interval 1.99 to 2.01)."),
        (0.1, "b is as fast as a (95% interval of the ratio 0.998 to 1.002)."),
    ],
)
def test_the_answer_of_a_bench(step_s: float, said: str) -> None:
    sides = [Side.of_runs("a", repeats()), Side.of_runs("b", repeats(plan(framework="jax"), step_s))]
    (found,), _ = compare_runs(sides)
    answer = comparison_answer(found)
    assert answer.split(" (95%")[0] == said.split(" (95%")[0]
    assert answer.count("95% interval") == 1


def test_the_answer_over_several_cells_says_where_it_is_otherwise() -> None:
    sizes = [plan(params={"batch_size": size}) for size in (16, 32)]
    a = [*repeats(sizes[0], 0.1), *repeats(sizes[1], 0.1)]
    b = [*repeats(sizes[0], 0.02), *repeats(sizes[1], 0.2)]
    answer = comparison_answer(compared(a, b))
    assert answer.startswith("new is 1.58x faster than old (geometric mean of 2 cells; 95% interval 1.5")
    assert answer.endswith("By cell: faster in 1, slower in 1.")

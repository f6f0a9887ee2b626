"""A cell has one step time and one interval, whoever shows them: the table, its notes, `compare`, CSV, the answer."""

from __future__ import annotations

import csv
import io
import math
import random
from pathlib import Path

import pytest

from metalmark.app.results import Runs
from metalmark.model.measurement import BenchRun, Block, Completed, Measurement
from metalmark.model.plan import Plan
from metalmark.model.run import Flag
from metalmark.report.answer import answer
from metalmark.report.compare_page import comparison_table
from metalmark.report.text.exports import comma_separated
from metalmark.report.text.run_page import run_facts
from metalmark.report.text.tables import Table, sweep_table
from metalmark.results.cells import cells_of
from metalmark.results.comparison import compare
from metalmark.results.leaderboard import board_of
from metalmark.results.pairing import Side
from metalmark.runner.flags import flags_of
from metalmark.stats.difference import Difference
from tests.samples import MACHINE, completed, plan, record

SKEWED = (1.0, 1.01, 1.3)
"""How long the processes take: their median, their mean and their geometric mean differ."""


def blocks_of(step_s: float, seed: int) -> Completed:
    """Blocks whose median, mean and trimmed mean differ."""
    noise = random.Random(seed)
    times = [step_s * (1 + noise.expovariate(6)) for _ in range(15)]
    blocks = tuple(Block(steps=10, elapsed_s=10 * time, at_s=n, proof=1.0, drain_s=0.0) for n, time in enumerate(times))
    measured = Measurement(first_step_s=1.0, warmup=blocks[:1], steady=True, blocks=blocks, sync_s=1e-6)
    return completed(measurement=measured)


def noisy(asked: Plan, step_s: float, sweep: str) -> list[BenchRun]:
    return [
        record(blocks_of(step_s * factor, number), plan=asked, repeat=number, sweep=sweep)
        for number, factor in enumerate(SKEWED)
    ]


def shown(table: Table, header: str) -> str:
    return table.rows[0][table.headers.index(header)]


def test_several_processes() -> None:
    torch, jax = noisy(plan(), 0.1, "aaaaaaaaaa"), noisy(plan(framework="jax"), 0.2, "bbbbbbbbbb")
    (cell,) = cells_of(torch)
    step, table = cell.step_s, sweep_table([cell])
    found = compare(Side.of_runs("torch", torch), Side.of_runs("jax", jax))
    (row,) = found.rows
    assert shown(comparison_table(found), "A step") == shown(table, "step")
    assert row.a.step_s == pytest.approx(step)
    assert isinstance(row.speed, Difference)
    assert row.speed.ratio == pytest.approx(step / cells_of(jax)[0].step_s), "what a reader gets by dividing"
    assert cell.interval is not None
    assert math.sqrt(cell.interval.low * cell.interval.high) == pytest.approx(step), "the interval is around it"
    (line,) = csv.DictReader(io.StringIO(comma_separated([cell])))
    assert float(line["step_s"]) == step
    (question,) = board_of([torch]).questions["mnist-mlp"]
    assert question.entries[0].samples_s == pytest.approx(cell.samples_s)
    said = answer(Runs(torch, store=Path("x")).content())
    assert any(f"takes {shown(table, 'step')} per step" in text for text in said)


def test_one_process_and_what_its_flag_says() -> None:
    outcome = blocks_of(0.1, 3)
    run = record(outcome, flags=(Flag(name="unsteady", evidence="the median step is known to ±9% only"),))
    (cell,) = cells_of([run])
    table = sweep_table([cell])
    step, width = shown(table, "step"), shown(table, "±95%")
    (note,) = (note for note in table.notes if note.startswith("unsteady"))
    assert f"the median step is known to ±{width} only" in note, "also of a run that was stored with another rounding"
    facts = {fact.name: fact.value for fact in run_facts(run)}
    assert facts["step"].startswith(f"{step} ±{width};")
    (flag,) = (flag for flag in flags_of(outcome, run.telemetry, MACHINE, {}) if flag.name == "unsteady")
    assert flag.evidence == f"the median step is known to ±{width} only"


def test_of_several_processes_the_flag_says_whose_interval_it_is() -> None:
    runs = noisy(plan(), 0.1, "aaaaaaaaaa")
    flagged = [record(run.outcome, repeat=run.repeat, flags=(Flag(name="unsteady", evidence="old"),)) for run in runs]
    (cell,) = cells_of(flagged)
    assert "the median step of one process is known to ±" in cell.flags["unsteady"]

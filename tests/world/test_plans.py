"""A plan for several processes, the part of a batch that each takes, and which of them is said to have failed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from metalmark.errors import UnsupportedError
from metalmark.feeds.share import RANK, WORLD_SIZE, Share, for_all, for_one, share_here
from metalmark.machine.durable import write_struct
from metalmark.model.measurement import RankTimes, WorldTimes
from metalmark.model.plan import Plan, Scaling, World
from metalmark.model.run import Absent, Failed, FailureKind
from metalmark.results.command import bench_command
from metalmark.results.scaling import world_figures
from metalmark.runner.events import RankExits, RankReport, rank_report_path
from metalmark.runner.world import EXITS, first_failure

MakePlan = Callable[..., Plan]
OTHERWISE = Failed(kind=FailureKind.CRASHED, message="no trace")


def test_a_plan_for_one_process_is_written_as_ever(fake_plan: MakePlan) -> None:
    plan = fake_plan()
    assert "world" not in json.loads(msgspec.json.encode(plan))
    several = replace(plan, world=World(nproc=2))
    assert msgspec.json.decode(msgspec.json.encode(several), type=Plan) == several
    assert plan.label in several.label
    assert several.label.endswith(", 2 processes")


@pytest.mark.parametrize("rows", [8, 7, 3, 2, 1])
@pytest.mark.parametrize("count", [2, 3])
def test_the_parts_of_a_batch_are_the_batch(rows: int, count: int) -> None:
    batch = (np.arange(rows), np.arange(rows * 2).reshape(rows, 2), np.array(7))
    parts = [Share(number, count).part(batch) for number in range(count)]
    held = np.concatenate([part[0] for part, weight in parts if weight])
    np.testing.assert_array_equal(held, batch[0])
    assert all(len(part[0]) == len(part[1]) >= 1 and part[2] == 7 for part, _ in parts)
    # The mean over processes of their weighted means is the mean over the batch.
    means = [weight * part[0].mean() for part, weight in parts]
    assert np.mean(means) == pytest.approx(batch[0].mean())


def test_arrays_of_other_lengths_can_not_be_split() -> None:
    with pytest.raises(UnsupportedError, match="lengths"):
        Share(0, 2).part((np.zeros(4), np.zeros(3)))


def test_weak_scaling_multiplies_the_batch(fake_plan: MakePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(fake_plan(), params={"batch_size": 32}, world=World(nproc=2, scaling=Scaling.WEAK))
    assert plan.samples_per_step == 64
    assert for_all(plan).params["batch_size"] == 64
    assert for_all(plan).samples_per_step == 64
    assert for_one(for_all(plan)).params["batch_size"] == 32
    with pytest.raises(UnsupportedError, match="and here is one"):
        share_here(plan)
    monkeypatch.setenv(RANK, "1")
    monkeypatch.setenv(WORLD_SIZE, "2")
    assert share_here(plan) == Share(1, 2)
    assert bench_command(plan).endswith("--nproc 2 --scaling weak --steps 20")


def reported(folder: Path, number: int, at_s: float, message: str) -> None:
    failure = Failed(kind=FailureKind.CRASHED, message=message) if message else None
    write_struct(rank_report_path(folder, number), RankReport(number=number, at_s=at_s, failure=failure))


def failure_in(folder: Path, plan: Plan, printed: str = "") -> Failed:
    (folder / "output.txt").write_text(printed)
    return first_failure(replace(plan, world=World(nproc=2)), folder, folder / "output.txt", OTHERWISE)


def test_the_first_rank_to_fail_is_named_and_not_who_waited_for_it(fake_plan: MakePlan, tmp_path: Path) -> None:
    reported(tmp_path, 0, 11.0, "Connection closed by peer")
    reported(tmp_path, 1, 10.0, "ZeroDivisionError: division by zero")
    assert failure_in(tmp_path, fake_plan()).message == "Rank 1 failed: ZeroDivisionError: division by zero"


def test_a_rank_that_is_killed_leaves_no_report(fake_plan: MakePlan, tmp_path: Path) -> None:
    reported(tmp_path, 0, 11.0, "Connection closed by peer")
    printed = """Root Cause (first observed failure):
[0]:
  time      : 2026-11-18_06:00:00
  host      : a.b
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 5)
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 6)
"""
    found = failure_in(tmp_path, fake_plan(), printed)
    assert "Rank 1 of 2 was ended by SIGKILL" in found.message
    assert found.signal == "SIGKILL"
    assert "out-of-memory" in found.hint


def test_what_our_own_launcher_ended_is_not_the_cause(fake_plan: MakePlan, tmp_path: Path) -> None:
    write_struct(tmp_path / EXITS, RankExits(exits=((1, 5), (0, -signal.SIGTERM))))
    assert "Rank 1 of 2 ended with exit code 5" in failure_in(tmp_path, fake_plan()).message


def test_what_all_say_is_said_once(fake_plan: MakePlan, tmp_path: Path) -> None:
    for number in range(2):
        reported(tmp_path, number, 10.0 + number, "the same everywhere")
    assert failure_in(tmp_path, fake_plan()).message == "the same everywhere"


def test_machines_that_do_not_come_are_counted(fake_plan: MakePlan, tmp_path: Path) -> None:
    printed = "torch.distributed.DistStoreError: Timed out after 4 seconds waiting for clients. 1/2 clients joined."
    assert "Only 1 of 2 machines" in failure_in(tmp_path, fake_plan(), printed).message
    assert failure_in(tmp_path, fake_plan()) == OTHERWISE


def test_the_slowest_rank_computes_longest_and_the_rest_of_a_step_is_communication() -> None:
    # In lockstep, all steps are as long as the slowest: only without the exchange they differ.
    times = WorldTimes(
        ranks=(
            RankTimes(number=0, step_s=(1.0, 1.0), together_s=(1.0, 2.0), alone_s=(0.5, 1.0)),
            RankTimes(number=1, step_s=(1.0, 1.0), together_s=(1.0, 2.0), alone_s=(0.8, 1.6)),
        )
    )
    found = world_figures(times)
    assert found.slowest == 1
    assert found.communication_share == pytest.approx(0.2)
    unknown = world_figures(WorldTimes(ranks=(RankTimes(number=0, step_s=(1.0,)),), not_alone="it can't"))
    assert unknown.communication_share == Absent(reason="it can't")

"""Spare processes on the software device: workers take them, they run one job each, and nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec

import psutil
import pytest
from msgspec.structs import replace

from metalmark.machine.identity import identify
from metalmark.model.measurement import Completed
from metalmark.model.plan import Plan
from metalmark.model.run import Failed, FailureKind, Machine
from metalmark.runner import launch, spares
from metalmark.runner.launch import run_cell
from metalmark.runner.spare import modules_of
from metalmark.runner.spares import kept_ready, spare_count
from metalmark.runner.world import WorkerStart
from metalmark.workloads.catalog import shown_names
from tests.processes import PATIENCE_S

Plans = Callable[..., Plan]
GIB = 1 << 30


def waiting() -> list[psutil.Process]:
    """The spare processes that this process has."""
    children = psutil.Process().children()
    return [child for child in children if "metalmark.runner.spare" in child.cmdline()]


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many spares waited after each time that some were started."""
    counts: list[int] = []
    fill = spares.Spares._fill

    def counted(self: spares.Spares, variables: spares.Variables, count: int) -> None:
        fill(self, variables, count)
        counts.append(len(waiting()))

    monkeypatch.setattr(spares.Spares, "_fill", counted)
    yield counts
    assert not waiting()


def test_workers_take_them_and_more_are_started_when_none_waits(fake_plan: Plans, fills: list[int]) -> None:
    plan = fake_plan()
    with kept_ready(plan, count=2):
        assert not waiting(), "none is started before one is needed"
        left = []
        for repeat in range(3):
            outcome = run_cell(plan, repeat=repeat).outcome
            assert isinstance(outcome, Completed)
            left.append(len(waiting()))
    assert left == [1, 0, 1]
    assert fills == [2, 2]
    run_cell(plan)
    assert fills == [2, 2], "afterwards a worker starts by itself"


def test_it_is_told_its_repeat_and_prints_into_the_workers_file(
    fake_plan: Plans, fills: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch.Worker, "module", "tests.runner.says_its_repeat")
    with kept_ready(fake_plan(), count=2):
        outcomes = [run_cell(fake_plan(), repeat=repeat).outcome for repeat in (1, 2)]
    assert [outcome.detail.strip() for outcome in outcomes if isinstance(outcome, Failed)] == ["repeat 1", "repeat 2"]
    assert fills == [2]


@pytest.mark.parametrize(("fault", "kind"), [("crash", FailureKind.CRASHED), ("hang", FailureKind.TIMED_OUT)])
def test_how_a_worker_ended_is_known_and_the_next_one_completes(
    fake_plan: Plans, fills: list[int], fault: str, kind: FailureKind
) -> None:
    plan = fake_plan()
    broken = fake_plan(fault=fault)
    broken = replace(broken, budget=replace(broken.budget, stall_s=1.0))
    with kept_ready(plan, count=2):
        outcome = run_cell(broken).outcome
        assert isinstance(outcome, Failed)
        assert outcome.kind is kind
        assert isinstance(run_cell(plan).outcome, Completed)
    assert fills == [2]


def test_a_plan_that_needs_another_process_gets_one(fake_plan: Plans, fills: list[int]) -> None:
    with kept_ready(replace(fake_plan(), framework="mlx"), count=2):
        assert isinstance(run_cell(fake_plan()).outcome, Completed)
    assert fills == []


def test_an_inner_block_takes_those_of_the_outer_one(fake_plan: Plans, fills: list[int]) -> None:
    plan = fake_plan()
    with kept_ready(plan, count=3) as outer:
        outer.prepare()
        for _ in range(2):
            with kept_ready(fake_plan(step_ms=1.0)) as inner:
                assert inner is outer
                assert isinstance(run_cell(plan).outcome, Completed)
        assert len(waiting()) == 1
        with kept_ready(replace(plan, framework="mlx"), count=2) as other:
            assert other is not outer
    assert fills == [3]


def with_threads(plan: Plan, threads: int) -> Plan:
    return replace(plan, settings=replace(plan.settings, threads=threads))


def test_a_plan_with_other_variables_takes_others_of_which_there_are_fewer(
    fake_plan: Plans, fills: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "variables_of", lambda plan: (("THREADS", str(plan.settings.threads)),))
    plan = fake_plan()
    with kept_ready(plan, count=8):
        assert isinstance(run_cell(plan).outcome, Completed)
        assert isinstance(run_cell(with_threads(plan, 2)).outcome, Completed)
        assert fills == [8, 7 + 2], "those of the first plan wait on"
        told = {child.environ()["THREADS"] for child in waiting()}
        assert told == {"None", "2"}
        assert isinstance(run_cell(with_threads(plan, 1)).outcome, Completed)
        assert fills == [8, 7 + 2, 7 + 2], "those with other variables end when a third kind is needed"
        assert {child.environ()["THREADS"] for child in waiting()} == {"None", "1"}


def test_where_there_is_room_for_few_all_have_the_same_variables(
    fake_plan: Plans, fills: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "variables_of", lambda plan: (("THREADS", str(plan.settings.threads)),))
    with kept_ready(fake_plan(), count=4):
        assert isinstance(run_cell(with_threads(fake_plan(), 2)).outcome, Completed)
    assert fills == []


def test_one_that_was_killed_while_it_waited_is_not_taken(fake_plan: Plans, fills: list[int]) -> None:
    plan = fake_plan()
    with kept_ready(plan, count=2):
        assert isinstance(run_cell(plan).outcome, Completed)
        (idle,) = waiting()
        idle.kill()
        while idle.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        time.sleep(0.2)  # its second thread may hold the pipe for a moment longer
        assert isinstance(run_cell(plan).outcome, Completed)
    assert len(fills) == 2


def test_where_none_can_be_started_a_worker_says_why(
    fake_plan: Plans, fills: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    start_alone, commands = spares.start_alone, []

    def start_nothing(module: Sequence[str]) -> WorkerStart:
        commands.append(module)
        return start_alone(["metalmark.nothing", *module[1:]])

    monkeypatch.setattr(spares, "start_alone", start_nothing)
    with kept_ready(fake_plan(), count=2):
        for _ in range(2):
            assert isinstance(run_cell(fake_plan()).outcome, Completed)
    assert set(fills) == {0}
    assert len(commands) == 2, "it is not tried again"


def test_they_end_with_a_command_that_was_killed() -> None:
    code = (
        "import time; from metalmark.model.plan import *; from metalmark.runner import spares\n"
        "from metalmark.workloads.catalog import load\n"
        "params = {param.name: param.default for param in load('fake').params}\n"
        "plan = Plan(workload='fake', params=params, mode=Mode.TRAINING, framework='fake', "
        "device=Device(kind=DeviceKind.GPU))\n"
        "with spares.kept_ready(plan, count=2):\n"
        "    print(spares.take(plan).pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline().strip().isdecimal()
        idle = [each for each in psutil.Process(command.pid).children() if "metalmark.runner.spare" in each.cmdline()]
        assert len(idle) == 2
        os.kill(command.pid, signal.SIGKILL)
        command.wait()
    _, alive = psutil.wait_procs(idle, timeout=PATIENCE_S)
    assert not alive


def test_no_descriptor_is_left_open(fake_plan: Plans) -> None:
    with kept_ready(fake_plan(), count=2):
        run_cell(fake_plan())
    before = len(os.listdir("/dev/fd"))
    with kept_ready(fake_plan(), count=2):
        run_cell(fake_plan())
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize(
    ("cores", "memory_gib", "count"), [(16, 128, 16), (64, 512, 16), (10, 32, 4), (8, 16, 2), (8, 8, 0), (1, 64, 0)]
)
def test_as_many_as_there_is_room_for(cores: int, memory_gib: int, count: int) -> None:
    machine: Machine = replace(identify(), usable_cores=cores, memory_bytes=memory_gib * GIB)
    assert spare_count(machine) == count


def test_what_it_prints_is_read_as_a_workers(fake_plan: Plans) -> None:
    with kept_ready(fake_plan(), count=2):
        outcome = run_cell(fake_plan(fault="metal-oom")).outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.OUT_OF_MEMORY, "Metal's words are in its output"


@pytest.mark.parametrize("workload", shown_names())
def test_it_imports_what_builds_the_network(workload: str) -> None:
    """Of BERT that is transformers, which takes longer to import than PyTorch."""
    (module,) = modules_of("torch", workload)
    assert module.endswith(".on_torch")
    assert find_spec(module) is not None


def test_it_runs_no_file_of_a_user() -> None:
    assert modules_of("torch", "my_net.py:my_net") == []

"""Spare processes, kept ready for workers: a search of many short trials imports its framework for several at once.

    with kept_ready(plan):     while this lasts, workers of plans like this one take a spare process where one waits
    take(plan)                 a process that has imported the plan's framework and waits for its job; or None

A spare is a fresh process as any worker's is, and runs one job. Spares are started together, as many as the machine has
cores and memory for, and nothing is measured before all of them wait: those that wait take no time from the others.
A plan with other variables of the environment needs processes of its own, of which fewer are kept.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.machine.identity import identify
from metalmark.machine.orphans import scratch_folder
from metalmark.machine.processes import signal_group
from metalmark.model.plan import DeviceKind, Plan
from metalmark.model.run import Machine
from metalmark.runner.child import Child
from metalmark.runner.events import SPARE_IS_READY, SpareJob
from metalmark.runner.world import start_alone

MOST_SPARES = 16
SPARE_BYTES, MEMORY_SHARE = 1 << 30, 1 / 8
"""About what a process with PyTorch, its compiler and transformers holds, and how much of the memory all may hold."""
LEAST_SPARES = 2
"""One by itself would be imported no earlier than the worker that takes it."""
OTHER_SHARE = 1 / 4
"""Of the spares that there is room for, how many more may have other variables: few trials of a search need them."""
READY_S = 180.0
"""The first import of a framework on a Mac is scanned by the system, which takes a minute."""


def spare_count(machine: Machine) -> int:
    """Return how many spares a machine has room for; 0 where it is not worth it."""
    by_memory = int(MEMORY_SHARE * (machine.memory_bytes or 0) / SPARE_BYTES)
    count = min(MOST_SPARES, machine.usable_cores or machine.logical_cores or 1, by_memory)
    return count if count >= LEAST_SPARES else 0


Variables = tuple[tuple[str, str], ...]
"""What is set before a framework is imported, sorted: what tells spares of one framework apart."""


def variables_of(plan: Plan) -> Variables:
    return tuple(sorted(FRAMEWORKS[plan.framework].environment(plan.settings).items()))


class Spares:
    """Processes that wait, all with one framework: most with the variables of one plan, some with those of another."""

    def __init__(self, plan: Plan, count: int, folder: Path) -> None:
        self._plan, self._count, self._folder = plan, count, folder
        self._variables = variables_of(plan)
        self._waiting: dict[Variables, list[Child]] = {}
        self._unable: set[Variables] = set()
        """With which none could be started: whatever keeps them from it, the worker itself says it better."""
        self._started = 0

    def suits(self, plan: Plan) -> bool:
        """Whether its processes can be workers of a plan."""
        return plan.framework == self._plan.framework and not plan.world

    def take(self, plan: Plan) -> Child | None:
        """Return a spare for a plan, starting several where none waits; None where the plan needs another process."""
        if not self.suits(plan):
            return None
        variables = variables_of(plan)
        self.prepare(variables)
        waiting = self._waiting.get(variables)
        return waiting.pop(0) if waiting else None

    def prepare(self, variables: Variables | None = None) -> None:
        """Start several where none waits; without variables, with those that most spares have."""
        variables = self._variables if variables is None else variables
        self._end_gone()
        if self._waiting.get(variables) or variables in self._unable:
            return
        if variables == self._variables:
            self._fill(variables, self._count)
        elif (count := int(OTHER_SHARE * self._count)) >= LEAST_SPARES:
            self._end_others()
            self._fill(variables, count)

    def close(self) -> None:
        for waiting in self._waiting.values():
            _end_all(waiting)
        self._waiting.clear()

    @property
    def room(self) -> int:
        """How many can wait at once."""
        return self._count

    def _fill(self, variables: Variables, count: int) -> None:
        """Start some, and wait until each of them waits."""
        framework = FRAMEWORKS[self._plan.framework]
        modules = list(framework.first_step_modules)
        if self._plan.device.kind is not DeviceKind.CPU:
            # Of a process on the CPU all that it holds counts as its memory, and only compiled trials need these.
            modules += framework.compile_modules
        command = ["metalmark.runner.spare", framework.name, self._plan.workload, *modules]
        starting: list[Child] = []
        try:
            for _ in range(count):
                self._started += 1
                output = self._folder / f"spare-{self._started}.txt"
                start = start_alone(command)
                starting.append(Child(start, variables=dict(variables), output=output, stdin=subprocess.PIPE))
            self._waiting[variables] = _ready_in_time(starting)
        finally:  # after Ctrl-C, all of them
            _end_all([child for child in starting if child not in self._waiting.get(variables, ())])
        if not self._waiting[variables]:
            self._unable.add(variables)

    def _end_gone(self) -> None:
        for variables, waiting in self._waiting.items():
            # Asked by its pipe, which has nothing to read but its end: polling would collect its status.
            gone = _readable(waiting, 0.0)
            self._waiting[variables] = [child for child in waiting if child not in gone]
            _end_all(gone)

    def _end_others(self) -> None:
        """End those with other variables than most have: the search has gone on to something else."""
        for variables in self._waiting.keys() - {self._variables}:
            _end_all(self._waiting.pop(variables))


def begin(child: Child, job: SpareJob) -> None:
    """Give a spare its job: it is a worker from now on."""
    assert child.process.stdin is not None
    # One that was ended in this moment is a worker that gave no outcome.
    with suppress(BrokenPipeError), child.process.stdin:
        child.process.stdin.write(msgspec.json.encode(job) + b"\n")


def _ready_in_time(children: list[Child]) -> list[Child]:
    """Return those that say that they wait, once all have said so, have ended, or have had their time."""
    ready: list[Child] = []
    asked, until_s = list(children), time.monotonic() + READY_S
    while asked and (left_s := until_s - time.monotonic()) > 0:
        heard = _readable(asked, left_s)
        asked = [child for child in asked if child not in heard]
        ready += [child for child in heard if os.read(child.progress, len(SPARE_IS_READY)) == SPARE_IS_READY]
    return ready


def _readable(children: list[Child], wait_s: float) -> list[Child]:
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.progress, selectors.EVENT_READ, child)
        return [key.data for key, _ in selector.select(wait_s)]


def _end(child: Child) -> None:
    if child.process.stdin is not None:
        with suppress(BrokenPipeError):
            child.process.stdin.close()
    # Not collected yet, so its group can't be anyone else's.
    signal_group(child.pid, signal.SIGKILL)
    child.collect()
    child.close()


def _end_all(children: list[Child]) -> None:
    for child in children:
        _end(child)


_open: list[Spares] = []
"""The spares of this command, the innermost last."""


def take(plan: Plan) -> Child | None:
    return _open[-1].take(plan) if _open else None


@contextmanager
def kept_ready(plan: Plan, count: int | None = None) -> Iterator[Spares]:
    """Keep processes ready for plans of this framework. `count`: how many; None: what the machine has room for. Inside
    of another such block whose processes suit the plan, they are the same ones."""
    if _open and _open[-1].suits(plan):
        yield _open[-1]
        return
    with scratch_folder() as folder:
        spares = Spares(plan, spare_count(identify()) if count is None else count, folder)
        _open.append(spares)
        try:
            yield spares
        finally:
            _open.remove(spares)
            spares.close()

"""Scheduler: which cell runs on which node next. It starts nothing and waits for nothing, so any cluster can be tried.

One cell runs on a node at a time, whatever devices the node has: two would share its cores, its memory and its power,
and each would be measured with the other as noise. The repeats of a cell stay on the node that ran the first, since a
cell is the figure of one machine. When a node is lost, the cells that it had begun begin anew elsewhere.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_LOSSES = 3
"""How often a cell may lose its node before the cell itself counts as the reason."""


class Need(NamedTuple):
    """What a cell asks of a node. Two cells that the same nodes can run have the same need."""

    ability: int = 0
    """Which nodes can run it: those that have this number among theirs."""
    machine: str = ""
    """The kind of machine that it is for; empty: any."""
    node: str = ""
    """The node that it is for; empty: any."""


class CellTask(NamedTuple):
    """A cell that is to be run: the repeats from `first` on."""

    cell: int
    need: Need
    first: int = 0


class CellRepeat(NamedTuple):
    """What a node does at a time: one repeat of a cell."""

    cell: int
    repeat: int


@dataclass(kw_only=True)
class _NodeState:
    needs: list[Need]
    """What it can do, of all that is asked for."""
    running: CellRepeat | None = None
    begun: deque[CellRepeat] = field(default_factory=deque)
    """The next repeat of each cell that it has begun."""


class Scheduler:
    def __init__(self, tasks: Iterable[CellTask], *, repeats: int = 1) -> None:
        self._repeats = repeats
        self._needs: dict[int, Need] = {}
        self._queues: dict[Need, deque[CellRepeat]] = {}
        self._targets: dict[tuple[str, str], list[Need]] = {}
        """The needs that are for any node, for a kind of machine, or for one node."""
        self._nodes: dict[str, _NodeState] = {}
        self._idle: dict[str, None] = {}
        """Nodes that may find something to do: a dictionary keeps them in their order."""
        self._resting: dict[Need, dict[str, None]] = {}
        """Nodes that found nothing to do, by each need that they could serve."""
        self._losses: dict[int, int] = {}
        for task in tasks:
            self._needs[task.cell] = task.need
            if task.need not in self._queues:
                self._queues[task.need] = deque()
                self._targets.setdefault(task.need[1:], []).append(task.need)
            self._queues[task.need].append(CellRepeat(task.cell, task.first))
        self.open = set(self._needs)
        """Cells that have not come to their end."""
        self.given_up: dict[int, str] = {}
        """Cells that were lost too often, with the last reason."""

    @property
    def running(self) -> dict[str, CellRepeat]:
        """What each busy node does."""
        return {node: state.running for node, state in self._nodes.items() if state.running is not None}

    def running_on(self, node: str) -> CellRepeat | None:
        """Return what a node does."""
        state = self._nodes.get(node)
        return None if state is None else state.running

    def add_node(self, node: str, *, machine: str, abilities: frozenset[int]) -> None:
        """Take a node in, which is of a kind of machine and can run some of what is asked for."""
        targets = (("", ""), (machine, ""), ("", node), (machine, node))
        needs = [need for target in targets for need in self._targets.get(target, ()) if need.ability in abilities]
        self._nodes[node] = _NodeState(needs=needs)
        self._idle[node] = None

    def assign(self) -> Iterator[tuple[str, CellRepeat]]:
        """Give idle nodes something to do, and yield what each of them is to begin now."""
        waiting, self._idle = self._idle, {}
        for node in waiting:
            state = self._nodes.get(node)
            if state is None or state.running is not None:
                continue
            state.running = self._next(state)
            if state.running is not None:
                yield node, state.running
                continue
            for need in state.needs:
                self._resting.setdefault(need, {})[node] = None

    def done(self, node: str, *, again: bool = True) -> None:
        """Note that a node has done what it was given. `again` is False where further repeats would tell no more."""
        state = self._nodes[node]
        assert state.running is not None
        unit, state.running = state.running, None
        if again and unit.repeat + 1 < self._repeats:
            state.begun.append(CellRepeat(unit.cell, unit.repeat + 1))
        else:
            self.open.discard(unit.cell)
        self._idle[node] = None

    def fail(self, node: str, reason: str) -> None:
        """Note that a node, which is still there, could not do what it was given: another one may try."""
        state = self._nodes[node]
        assert state.running is not None
        unit, state.running = state.running, None
        self._return(unit.cell, reason=reason)
        self._idle[node] = None

    def lose(self, node: str, reason: str) -> None:
        """Note that a node is gone: what it had begun is for others."""
        state = self._nodes.pop(node, None)
        if state is None:
            return
        for unit in reversed(state.begun):
            self._return(unit.cell)
        if state.running is not None:
            self._return(state.running.cell, reason=reason)

    def _next(self, state: _NodeState) -> CellRepeat | None:
        """Return the earliest cell that nobody has begun, else the next repeat of one that this node has."""
        waiting = [self._queues[need] for need in state.needs if self._queues[need]]
        if waiting:
            return min(waiting, key=lambda queue: (queue[0].repeat, queue[0].cell)).popleft()
        return state.begun.popleft() if state.begun else None

    def _return(self, cell: int, *, reason: str = "") -> None:
        """Put a cell back, to be begun anew; `reason` counts against the cell, which may be the cause of it."""
        if reason:
            self._losses[cell] = self._losses.get(cell, 0) + 1
            if self._losses[cell] >= MOST_LOSSES:
                self.given_up[cell] = reason
                self.open.discard(cell)
                return
        need = self._needs[cell]
        self._queues[need].appendleft(CellRepeat(cell, 0))
        # One node that rests is enough for one cell.
        resting = self._resting.get(need, {})
        while resting:
            node = next(iter(resting))
            del resting[node]
            if node in self._nodes and self._nodes[node].running is None and node not in self._idle:
                self._idle[node] = None
                break

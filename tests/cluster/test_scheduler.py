"""However nodes come and go, every cell ends exactly once, on a node that can run it, and its repeats on one node."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from metalmark.cluster.scheduler import MOST_LOSSES, CellRepeat, CellTask, Need, Scheduler

ANY = Need()


def test_cells_go_in_turn_and_repeats_stay_on_their_node() -> None:
    scheduler = Scheduler([CellTask(cell, ANY) for cell in range(4)], repeats=2)
    for node in "ab":
        scheduler.add_node(node, machine="chip", abilities=frozenset({0}))
    ran: list[tuple[str, CellRepeat]] = []
    while scheduler.open:
        for node, unit in list(scheduler.assign()):
            ran.append((node, unit))
            scheduler.done(node)
    assert [unit for _, unit in ran][:4] == [CellRepeat(0, 0), CellRepeat(1, 0), CellRepeat(2, 0), CellRepeat(3, 0)]
    homes = {unit.cell: node for node, unit in ran}
    assert Counter(unit.cell for _, unit in ran) == dict.fromkeys(range(4), 2)
    assert all(homes[unit.cell] == node for node, unit in ran)


def test_one_cell_at_a_time_on_a_node() -> None:
    scheduler = Scheduler([CellTask(cell, ANY) for cell in range(3)])
    scheduler.add_node("a", machine="chip", abilities=frozenset({0}))
    assert list(scheduler.assign()) == [("a", CellRepeat(0, 0))]
    assert list(scheduler.assign()) == []
    assert scheduler.running == {"a": CellRepeat(0, 0)}


def test_a_cell_goes_only_where_it_is_meant_to_and_can_run() -> None:
    wanted = {0: Need(1), 1: Need(0, machine="M4"), 2: Need(0, node="c"), 3: Need(0, machine="M9")}
    scheduler = Scheduler([CellTask(cell, need) for cell, need in wanted.items()])
    scheduler.add_node("a", machine="M1", abilities=frozenset({0, 1}))
    scheduler.add_node("b", machine="M4", abilities=frozenset({0}))
    scheduler.add_node("c", machine="M1", abilities=frozenset({0}))
    assert dict(scheduler.assign()) == {"a": CellRepeat(0, 0), "b": CellRepeat(1, 0), "c": CellRepeat(2, 0)}
    for node in "abc":
        scheduler.done(node)
    assert (list(scheduler.assign()), scheduler.open) == ([], {3})


def test_what_a_lost_node_had_begun_begins_anew_elsewhere() -> None:
    scheduler = Scheduler([CellTask(0, ANY), CellTask(1, ANY)], repeats=3)
    scheduler.add_node("a", machine="chip", abilities=frozenset({0}))
    (_,) = scheduler.assign()
    scheduler.done("a")
    (_,) = scheduler.assign()
    scheduler.lose("a", "gone")
    assert list(scheduler.assign()) == []
    scheduler.add_node("b", machine="chip", abilities=frozenset({0}))
    ran = []
    while scheduler.open:
        ((_, unit),) = scheduler.assign()
        ran.append(unit)
        scheduler.done("b")
    assert Counter(ran) == Counter(CellRepeat(cell, repeat) for cell in (0, 1) for repeat in range(3))


def test_a_cell_that_loses_its_node_too_often_is_given_up() -> None:
    scheduler = Scheduler([CellTask(0, ANY), CellTask(1, ANY)])
    for number in range(MOST_LOSSES):
        scheduler.add_node(str(number), machine="chip", abilities=frozenset({0}))
        assert list(scheduler.assign()) == [(str(number), CellRepeat(0, 0))]
        scheduler.lose(str(number), f"gone {number}")
    assert scheduler.given_up == {0: f"gone {MOST_LOSSES - 1}"}
    assert scheduler.open == {1}


def test_a_cell_whose_node_could_not_run_it_is_tried_again() -> None:
    scheduler = Scheduler([CellTask(0, ANY)])
    scheduler.add_node("a", machine="chip", abilities=frozenset({0}))
    for _ in range(MOST_LOSSES):
        assert list(scheduler.assign()) == [("a", CellRepeat(0, 0))]
        scheduler.fail("a", "its disk is full")
    assert (scheduler.open, scheduler.given_up) == (set(), {0: "its disk is full"})


def test_a_failed_cell_has_no_further_repeats_and_a_resumed_one_only_what_is_missing() -> None:
    scheduler = Scheduler([CellTask(0, ANY), CellTask(1, ANY, first=2)], repeats=3)
    scheduler.add_node("a", machine="chip", abilities=frozenset({0}))
    ran = []
    while scheduler.open:
        ((_, unit),) = scheduler.assign()
        ran.append(unit)
        scheduler.done("a", again=unit.cell != 0)
    assert ran == [CellRepeat(0, 0), CellRepeat(1, 2)]


@settings(max_examples=200, deadline=None)
@given(
    cells=st.integers(1, 25),
    repeats=st.integers(1, 3),
    kinds=st.integers(1, 3),
    abilities=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_every_cell_ends_exactly_once_however_nodes_come_and_go(
    cells: int, repeats: int, kinds: int, abilities: int, seed: int
) -> None:
    chance = random.Random(seed)
    needs = [
        Need(chance.randrange(abilities), machine=chance.choice(["", *(f"kind {kind}" for kind in range(kinds))]))
        for _ in range(cells)
    ]
    scheduler = Scheduler([CellTask(cell, need) for cell, need in enumerate(needs)], repeats=repeats)
    nodes: dict[str, tuple[str, frozenset[int]]] = {}
    ended: dict[int, list[tuple[str, int]]] = {cell: [] for cell in range(cells)}
    losses = Counter[int]()
    made = 0

    def add(machine: str, able: frozenset[int]) -> None:
        nonlocal made
        made += 1
        nodes[f"node {made}"] = (machine, able)
        scheduler.add_node(f"node {made}", machine=machine, abilities=able)

    while scheduler.open:
        if len(nodes) < 3 or chance.random() < 0.1:
            # Whatever is still open can be run by someone: else it would wait for ever, which is the engine's to see.
            add(chance.choice([f"kind {kind}" for kind in range(kinds)]), frozenset(range(abilities)))
        for node, unit in scheduler.assign():
            machine, able = nodes[node]
            need = needs[unit.cell]
            assert need.ability in able
            assert need.machine in ("", machine)
        running = scheduler.running
        assert len(set(running.values())) == len(running)
        assert not {unit.cell for unit in running.values()} & set(scheduler.given_up)
        for node, unit in running.items():
            if chance.random() < 0.15:
                losses[unit.cell] += 1
                scheduler.lose(node, "gone")
                del nodes[node]
            elif chance.random() < 0.7:
                ended[unit.cell].append((node, unit.repeat))
                scheduler.done(node)
        for node in [node for node in nodes if node not in scheduler.running and chance.random() < 0.05]:
            scheduler.lose(node, "gone")
            del nodes[node]
    assert all(losses[cell] >= MOST_LOSSES for cell in scheduler.given_up)
    for cell, runs in ended.items():
        if cell in scheduler.given_up:
            continue
        # The last time that it was begun it was run to its end, on one node, each repeat once and in order.
        last = runs[-repeats:]
        assert [repeat for _, repeat in last] == list(range(repeats))
        assert len({node for node, _ in last}) == 1
        assert all(repeat < repeats - 1 for _, repeat in runs[:-repeats])

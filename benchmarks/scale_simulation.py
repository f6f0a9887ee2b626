"""Scheduler, store and tables at 100 and at 10,000 machines, without the machines.

python benchmarks/scale_simulation.py

Nodes are simulated: each takes what the scheduler gives it, and answers after a simulated time with a run that the
software device really made once, under a new id. Ten nodes in a hundred are lost in the middle and come back. The
rest is real: the scheduler, the decoding of what a node sends, the store on disk, one commit per run, and the table.
Time is that of this machine: what one command needs to feed so many nodes.
"""

from __future__ import annotations

import heapq
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

from metalmark.backends.base import DeviceReport, Probe
from metalmark.cluster.abilities import Abilities
from metalmark.cluster.engine import ClusterNode
from metalmark.cluster.messages import RunReply, SeenReply, decode_reply, encode_line
from metalmark.cluster.scheduler import CellTask, Need, Scheduler
from metalmark.model.codec import decode, encode
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Budget, CellTarget, Device, DeviceKind, Mode, Plan, Sweep
from metalmark.model.run import new_id, now_utc
from metalmark.report.text.tables import sweep_table
from metalmark.results.cells import cells_of
from metalmark.results.machine_titles import machine_title
from metalmark.runner.sweeping import run_sweep
from metalmark.store.store import Store
from metalmark.workloads.catalog import load

SIZES = (100, 10_000)
CELL_S = 30.0
LOST_SHARE = 0.1
LEAST_CELLS_S = 33.0
"""Cells per second that one command must take in: as many as there are with 10,000 nodes and cells of five minutes."""


def one_run() -> BenchRun:
    """Return a run that the software device made, with its telemetry."""
    params = {param.name: param.default for param in load("fake").params}
    plan = Plan(
        workload="fake", params=params, mode=Mode.TRAINING, framework="fake", device=Device(kind=DeviceKind.GPU),
        budget=Budget(seconds=2.0),
    )  # fmt: skip
    kept: list[BenchRun] = []
    run_sweep(Sweep(id=new_id(), created_at=now_utc(), plans=(plan,)), previous=[], keep=kept.append)
    return kept[0]


def node_of(number: int, run: BenchRun) -> ClusterNode:
    """Return a simulated node: four chips and two memory sizes."""
    chip, memory = f"Chip {number % 4}", (16 << 30) << (number // 4 % 2)
    machine = msgspec.structs.replace(run.machine, chip=chip, memory_bytes=memory)
    probe = Probe(framework="fake", versions={}, devices=(DeviceReport(word="gpu", name="software", present=True),))
    seen = SeenReply(machine=machine, installed=("fake",), probes={"fake": probe})
    return ClusterNode(id=f"{number:06}", number=number + 1, host=None, seen=seen, ready=True)


def simulate(size: int, run: BenchRun, path: Path) -> dict[str, float]:
    chance = random.Random(size)
    begin_s = time.perf_counter()
    nodes = {node.id: node for node in (node_of(number, run) for number in range(size))}
    plan, able = run.plan, Abilities(list(nodes.values()))
    sweep = Sweep(
        id=new_id(), created_at=now_utc(), plans=(plan,) * size,
        targets=tuple(CellTarget(node=node.id, title=node.title) for node in nodes.values()),
    )  # fmt: skip
    # Half of the cells are for one node, the others for a kind of machine.
    ability = able.number(plan)
    needs = [
        Need(ability, node=node.id) if number % 2 else Need(ability, machine=machine_title(node.machine))
        for number, node in enumerate(nodes.values())
    ]
    scheduler = Scheduler(CellTask(cell, need) for cell, need in enumerate(needs))
    for node in nodes.values():
        scheduler.add_node(node.id, machine=machine_title(node.machine), abilities=able.of(node))
    planned_s = time.perf_counter() - begin_s
    lost = set(chance.sample(sorted(nodes), int(size * LOST_SHARE)))
    events: list[tuple[float, str, bool]] = []
    bodies = {
        title: msgspec.structs.replace(run, machine=node.machine, sweep=sweep.id)
        for node in nodes.values()
        for title in [machine_title(node.machine)]
    }
    ended = Counter[int]()
    scheduling_s = storing_s = 0.0
    with Store(path) as store:
        store.add_sweep(sweep)
        empty_bytes = size_of(path)
        now_s = 0.0
        while scheduler.open:
            begin_s = time.perf_counter()
            begun = list(scheduler.assign())
            scheduling_s += time.perf_counter() - begin_s
            for identifier, _ in begun:
                dies = identifier in lost
                lost.discard(identifier)
                heapq.heappush(events, (now_s + CELL_S * chance.uniform(0.5, 1.5), identifier, dies))
            now_s, identifier, dies = heapq.heappop(events)
            begin_s = time.perf_counter()
            if dies:
                scheduler.lose(identifier, "gone")
                node = nodes[identifier]
                scheduler.add_node(identifier, machine=machine_title(node.machine), abilities=able.of(node))
                scheduling_s += time.perf_counter() - begin_s
                continue
            unit = scheduler.running_on(identifier)
            assert unit is not None
            scheduler.done(identifier)
            scheduling_s += time.perf_counter() - begin_s
            # What a node sends, as bytes; they are read as the command reads them.
            made = msgspec.structs.replace(
                bodies[machine_title(nodes[identifier].machine)], id=new_id(), cell=unit.cell, started_at=now_utc()
            )
            line = encode_line(RunReply(run=msgspec.Raw(encode(made))))
            begin_s = time.perf_counter()
            reply = decode_reply(line)
            assert isinstance(reply, RunReply)
            store.add(decode(reply.run))
            storing_s += time.perf_counter() - begin_s
            ended[unit.cell] += 1
        grown_bytes = size_of(path) - empty_bytes
        begin_s = time.perf_counter()
        runs = [each for each in store.load(store.rows_of_sweep(sweep.id)) if isinstance(each, BenchRun)]
        table = sweep_table(cells_of(runs), plans=sweep.plans, targets=sweep.targets)
        table_s = time.perf_counter() - begin_s
    assert ended == dict.fromkeys(range(size), 1), "a cell did not end exactly once"
    assert len(table.rows) == size
    return {
        "plan s": planned_s,
        "scheduler per cell us": scheduling_s / size * 1e6,
        "store per run ms": storing_s / size * 1e3,
        "store growth per run KiB": grown_bytes / size / 1024,
        "store MiB": size_of(path) / 2**20,
        "time to the table s": table_s,
        "cells per s": size / (scheduling_s + storing_s),
    }


def size_of(path: Path) -> int:
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))


def main() -> int:
    run = one_run()
    figures: dict[str, float] = {}
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            for name, value in simulate(size, run, Path(folder, "store.sqlite3")).items():
                figures[f"{size} nodes, {name}"] = value
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    figures["memory at most MiB"] = peak / 2**20
    deciding = [f"{size} nodes, cells per s" for size in SIZES]
    for name in [*(name for name in figures if name not in deciding), *deciding]:
        print(f"{name}: {figures[name]:.3f}")
    return 1 if any(figures[name] < LEAST_CELLS_S for name in deciding) else 0


if __name__ == "__main__":
    sys.exit(main())

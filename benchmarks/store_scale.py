"""How long `compare`, `report` and the pages of `serve` take on a store of 100,000 records against one of 1,000.

python benchmarks/store_scale.py [--quick]
python benchmarks/store_scale.py --store postgresql://me@127.0.0.1/empty [--size 20000]

Both stores hold the same 50 runs (two sweeps of five cells with five processes each); the rest are other runs of the
same size, of many workloads, sweeps and days, ceilings among them. Each question is asked of both in turn, in this
process, so that neither an interpreter's start nor an import hides what the store costs. A figure is the fastest of its
rounds: whatever else the machine does can only add. `report` writes its whole page, most of which is drawing;
`report_reading` is what comes before that. A page's drawings are kept by the server, so its ratio is that of reading
and of setting out. The bounds are 2, 3 and 3 times. --quick: 200 against 2,000 records, to see that it runs.

--store fills one empty store, a file or a database on a server, with --size records, and prints what the same questions
take there, what it takes to add a run as a sweep does, and to send all of them to an empty file.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from metalmark.app.compare import compare as compare_runs
from metalmark.app.report import gather, render
from metalmark.app.sync import sync_runs
from metalmark.model.codec import decode_as, encode
from metalmark.model.measurement import BenchRun, Block, Completed, Measurement, Phases, Proof
from metalmark.model.plan import Device, DeviceKind, Dtype, Mode, Plan, Settings
from metalmark.model.run import DIGITS, Absent, DeviceMemory, Machine, Series, Software, Telemetry
from metalmark.report.content import Content
from metalmark.store.address import Address, store_address
from metalmark.store.store import Store
from metalmark.workloads.ceiling import COPY, MATMUL

BOUNDS = {"compare": 2.0, "report": 3.0, "serve": 3.0}
A, B = "scalea0000", "scaleb0000"
CELLS, REPEATS = 5, 5
TOGETHER = 2_000
"""Records of one transaction."""
WORKLOADS = ("mnist-mlp", "conv256", "bert", "resnet50-transfer", "mobilenet-cifar10", "vgg16-flowers")
CEILINGS = 0.002
"""The share of records that are ceilings."""
ROUNDS, QUICK_ROUNDS = 9, 3
ADDED = 200
SLOW_S, SLOW_ROUNDS = 2.0, 3
"""What takes so long is asked less often: its noise is a smaller share."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--store", metavar="FILE|URL")
    parser.add_argument("--size", type=int, default=20_000)
    chosen = parser.parse_args()
    if chosen.store:
        return measure_one(store_address(chosen.store), chosen.size)
    quick = chosen.quick
    sizes = (200, 2_000) if quick else (1_000, 100_000)
    with tempfile.TemporaryDirectory(prefix="metalmark-") as folder:
        stores = [Path(folder, f"{size}.sqlite3") for size in sizes]
        for size, path in zip(sizes, stores, strict=True):
            begin_s = time.perf_counter()
            fill(path, size)
            print(f"store_{size}_mb: {path.stat().st_size / 1e6:.0f}")
            print(f"store_{size}_built_s: {time.perf_counter() - begin_s:.1f}")
        return measure(stores, rounds=QUICK_ROUNDS if quick else ROUNDS, judged=not quick)


def measure_one(address: Address, size: int) -> int:
    with Store(address) as store:
        if store.count():
            print(f"{address} is not empty.", file=sys.stderr)
            return 2
    begin_s = time.perf_counter()
    fill(address, size)
    print(f"filled_s: {time.perf_counter() - begin_s:.1f}")
    numbers = random.Random(8)
    template = make_record(numbers)
    adding = []
    with Store(address) as store:
        for run in others(template, ADDED, numbers):
            begin_s = time.perf_counter()
            store.add(run)
            adding.append(time.perf_counter() - begin_s)
    print(f"add_median_ms: {statistics.median(adding) * 1e3:.2f}")
    with Store(address, readonly=True) as store:
        opening = timed(lambda: Store(address, readonly=True).__exit__())
        print(f"open_ms: {opening * 1e3:.2f}")
        print(f"list_40_ms: {timed(lambda: store.rows(limit=40)) * 1e3:.2f}")
        print(f"page_of_a_search_ms: {timed(lambda: store.page(['torch', '128'])) * 1e3:.2f}")
        print(f"search_without_a_hit_ms: {timed(lambda: store.page(['no such word'])) * 1e3:.2f}")
    for name, ask in questions([address]).items():
        ask(address)  # imports and drawings
        print(f"{name}_ms: {timed(lambda ask=ask: ask(address)) * 1e3:.2f}")
    with tempfile.TemporaryDirectory(prefix="metalmark-") as folder:
        begin_s = time.perf_counter()
        sync_runs(address, store=Path(folder, "copy.sqlite3"))
        print(f"sync_to_an_empty_file_s: {time.perf_counter() - begin_s:.1f}")
        begin_s = time.perf_counter()
        sync_runs(address, store=Path(folder, "copy.sqlite3"))
        print(f"sync_again_s: {time.perf_counter() - begin_s:.1f}")
    return 0


def timed(ask: Callable[[], object]) -> float:
    """Return the seconds of the fastest of a few rounds."""
    times = []
    for _ in range(QUICK_ROUNDS):
        begin_s = time.perf_counter()
        ask()
        times.append(time.perf_counter() - begin_s)
    return min(times)


def measure(stores: list[Path], *, rounds: int, judged: bool) -> int:
    shares: dict[str, float] = {}
    for name, ask in questions(stores).items():
        times: list[list[float]] = [[], []]
        ask(stores[0])  # imports and drawings
        begin_s = time.perf_counter()
        ask(stores[1])  # the system's own cache
        slow = time.perf_counter() - begin_s > SLOW_S
        for round_ in range(min(rounds, SLOW_ROUNDS) if slow else rounds):
            for which in (0, 1) if round_ % 2 else (1, 0):
                begin_s = time.perf_counter()
                ask(stores[which])
                times[which].append(time.perf_counter() - begin_s)
        small_s, large_s = map(min, times)
        print(f"{name}_small_ms: {small_s * 1e3:.2f}")
        print(f"{name}_large_ms: {large_s * 1e3:.2f}")
        print(f"{name}_ratio: {large_s / small_s:.3f}")
        shares[name] = large_s / small_s / BOUNDS[name.partition("_")[0]]
    missed = [name for name, share in shares.items() if share > 1]
    for name in missed:
        print(f"missed: {name}", file=sys.stderr)
    print(f"worst: {max(shares, key=lambda name: shares[name])}")
    print(f"worst_share_of_its_bound: {max(shares.values()):.3f}")
    return 1 if missed and judged else 0


def questions(stores: Sequence[Address]) -> dict[str, Callable[[Address], object]]:
    """What a user asks, as functions of a store."""
    from starlette.testclient import TestClient

    from metalmark.web.app import make_app
    from metalmark.web.guard import Rules

    clients = {path: TestClient(make_app(path, Rules()), base_url="http://127.0.0.1") for path in stores}
    runs = [identifier(sweep, cell, 0) for sweep in (A, B) for cell in range(CELLS)]

    def page(address: str) -> Callable[[Address], None]:
        def get(path: Address) -> None:
            answer = clients[path].get(address)
            assert answer.status_code == 200, answer.text

        return get

    def compare(path: Address) -> None:
        assert len(compare_runs(A, B, store=path)) == 1

    def read(path: Address) -> Content:
        content = gather([A, B], path)
        assert len(content.runs) == 2 * CELLS * REPEATS
        return content

    def report(path: Address) -> None:
        assert render(read(path), "html")

    return {
        "compare": compare,
        "report": report,
        "report_reading": read,
        "serve_list": page("/"),
        "serve_search": page("/?q=torch"),
        "serve_run": page(f"/run/{runs[0]}"),
        "serve_sweep": page(f"/sweep/{A}"),
        "serve_compare": page(f"/compare?run={A}&run={B}"),
        "serve_compare_10_cells": page("/compare?anyway=1&" + "&".join(f"run={run}" for run in runs)),
    }


def fill(path: Address, size: int) -> None:
    numbers = random.Random(7)
    template = make_record(numbers)
    asked = [
        made(template, identifier(sweep, cell, repeat), sweep=sweep, cell=cell, repeat=repeat, at=repeat + 60 * which,
             plan=make_plan("mnist-mlp", ("torch", "jax")[which], 2 ** (cell + 3)))
        for which, sweep in enumerate((A, B)) for cell in range(CELLS) for repeat in range(REPEATS)
    ]  # fmt: skip
    with Store(path) as store:
        store.add_all(asked)
        for batch in batched(others(template, size - len(asked), numbers)):
            store.add_all(batch)
        assert store.count() == size


def others(template: BenchRun, count: int, numbers: random.Random) -> Iterator[BenchRun]:
    for number in range(count):
        sweep = f"s{number // 20:09d}"
        ceiling = numbers.random() < CEILINGS
        workload = numbers.choice((MATMUL, COPY)) if ceiling else numbers.choice(WORKLOADS)
        plan = make_plan(workload, numbers.choice(("torch", "jax", "tensorflow", "mlx")), numbers.choice((8, 32, 128)))
        name = "".join(numbers.choices(DIGITS, k=10))
        yield made(template, name, sweep=sweep, cell=number % 20, repeat=0, at=-60 * (number + 2), plan=plan)


def made(template: BenchRun, name: str, *, sweep: str, cell: int, repeat: int, at: int, plan: Plan) -> BenchRun:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_790_000_000 + at))
    return msgspec.structs.replace(
        template, id=name, sweep=sweep, cell=cell, repeat=repeat, started_at=moment, plan=plan
    )


def identifier(sweep: str, cell: int, repeat: int) -> str:
    return f"{sweep[5]}cell{cell}rep{repeat}0"


def make_plan(workload: str, framework: str, batch: int) -> Plan:
    params: dict[str, int | float | str | bool] = {"batch_size": batch}
    if workload in (MATMUL, COPY):
        params = {"megafloats": 64} if workload == COPY else {"size": 2048}
    return Plan(
        workload=workload, params=params, mode=Mode.TRAINING, framework=framework,
        device=Device(kind=DeviceKind.CPU), settings=Settings(dtype=Dtype.FLOAT32),
    )  # fmt: skip


def make_record(numbers: random.Random) -> BenchRun:
    """Of the size of a real one: three seconds in 30 blocks, seven sensors at 5 Hz over a ten seconds' life."""

    def block(number: int) -> Block:
        elapsed_s = 0.1 * numbers.uniform(0.97, 1.03)
        return Block(steps=25, elapsed_s=elapsed_s, at_s=6 + number / 10, proof=numbers.random(), drain_s=2e-5)

    names = {"process_memory": "bytes", "process_cpu": "%", "system_cpu": "%", "system_memory_available": "bytes",
             "system_swap_used": "bytes", "gpu0_power": "W", "gpu0_utilisation": "%"}  # fmt: skip
    series = tuple(
        Series(
            name=name,
            unit=unit,
            source="psutil",
            at_s=tuple(round(tick / 5, 4) for tick in range(50)),
            values=tuple(round(numbers.uniform(1e9, 2e9) if unit == "bytes" else numbers.uniform(10, 90), 3)
                         for _ in range(50)),
        )
        for name, unit in names.items()
    )  # fmt: skip
    unknown = Absent(reason="on the CPU the process's memory is the device's; see telemetry")
    outcome = Completed(
        placed_on="cpu",
        device_name="CPU",
        measurement=Measurement(
            first_step_s=0.8,
            warmup=tuple(block(n) for n in range(6)),
            steady=True,
            blocks=tuple(block(n) for n in range(30)),
            sync_s=1e-6,
        ),
        proof=Proof(first=2.3, last=0.1, extra_steps=0, moved="4 of 4", statement="loss 2.3 → 0.1"),
        phases=Phases(import_s=0, build_s=3, first_step_s=4, warmup_s=5, measure_s=6, end_s=10),
        memory=DeviceMemory(live_bytes=unknown, driver_bytes=unknown, peak_bytes=unknown),
        samples_per_step=32,
        parameters=101_770,
        trainable_parameters=101_770,
        flops_per_sample=610_000.0,
    )
    record = BenchRun(
        id="template00",
        sweep="template00",
        cell=0,
        repeat=0,
        started_at="2026-11-15T08:00:00Z",
        plan=make_plan("mnist-mlp", "torch", 32),
        machine=Machine(chip="A chip", architecture="x86_64", physical_cores=8, logical_cores=16, usable_cores=16,
                        memory_bytes=2**35, os="Linux 6.1"),
        software=Software(metalmark="0.1.0", python="3.12.4", versions={"torch": "2.13.0", "jax": "0.10.2"}),
        outcome=outcome,
        telemetry=Telemetry(hz=5.0, series=series),
    )  # fmt: skip
    return decode_as(encode(record), BenchRun, source="template")


def batched(records: Iterator[BenchRun]) -> Iterator[list[BenchRun]]:
    batch: list[BenchRun] = []
    for record in records:
        batch.append(record)
        if len(batch) == TOGETHER:
            yield batch
            batch = []
    if batch:
        yield batch


if __name__ == "__main__":
    sys.exit(main())

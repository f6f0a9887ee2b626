"""Faults of a device that `parity` must find and name, and faultless runs in which it must find nothing.

python benchmarks/parity_faults.py [--only found|faultless] [--seeds 25] [--rows FILE.tsv]

Each of eleven faults is injected alone: into the kernels of the simulated PyTorch accelerator (tests/simulated), and
into the network of the software device. A check against the CPU must find it, and the first difference that it names
must be the quantity and the layer or parameter that the fault is in. Then 200 runs without a fault on the simulated
accelerator against the CPU: 25 seeds of four workloads in float32 and bfloat16, each with weights and data of its own.
Each line gives the worst quantity's distance as a share of its limit; `--rows` writes every comparison, which limits
are set by. The deciding figures are the faults that were found and named, and the false alarms.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.simulated.build import environment

from metalmark.model.parity import Checked, Compared, Quantity
from metalmark.model.plan import Budget, Device, DeviceKind, Dtype, Mode, Plan, Scalar, Settings
from metalmark.model.run import Failed
from metalmark.parity.confirm import examine_twice
from metalmark.parity.examine import Examined, examine_all
from metalmark.parity.job import Options
from metalmark.workloads.catalog import load

PERCEPTRON = ("mnist-mlp", {"batch_size": 32})
CONVOLUTION = ("conv256", {"batch_size": 16, "pixels": 32})
BERT = ("bert", {"batch_size": 4, "seq_len": 32, "size": "tiny"})
GPT = ("gpt", {"batch_size": 4, "seq_len": 32, "size": "nano"})
MOBILENET = ("mobilenet-cifar10", {"batch_size": 8, "pixels": 32, "train": "all"})
SOFTWARE = ("fake", {"batch_size": 32})
FAULTLESS = (PERCEPTRON, CONVOLUTION, BERT, MOBILENET)
SEEDS, FIRST_SEED = 25, 100
"""Other seeds than 0 to 24, whose distances the limits were set by."""

Chosen = tuple[str, dict[str, Scalar]]


class Fault(NamedTuple):
    """Where a fault is: the workload that shows it, and what must be named first on each of the two devices."""

    workload: Chosen
    quantity: Quantity
    is_named: Callable[[str], bool]
    """Whether this is the right layer or parameter of the workload."""
    on_software: Callable[[str], bool]
    """The same of the software device's network."""


def one_of(*names: str) -> Callable[[str], bool]:
    return lambda name: name in names


def ending(suffix: str) -> Callable[[str], bool]:
    return lambda name: name.endswith(suffix)


def anywhere(_: str) -> bool:
    return True


FIRST_NORM = "backbone.features.0.1"
FAULTS = {
    "batch-statistics-in-eval": Fault(MOBILENET, Quantity.EVAL_OUTPUT, one_of(FIRST_NORM), one_of("norm")),
    "conv-batch-9": Fault(CONVOLUTION, Quantity.EVAL_OUTPUT, one_of("0"), one_of("dense")),
    # Every parameter's update is wrong, so the first that is named is the network's first.
    "adam-epsilon": Fault(PERCEPTRON, Quantity.OPTIMIZER, one_of("0.weight"), one_of("dense.weight")),
    "gradient-scale": Fault(
        PERCEPTRON, Quantity.GRADIENT, one_of("2.weight", "2.bias"), one_of("head.weight", "head.bias")
    ),
    "no-dropout": Fault(BERT, Quantity.DROPOUT, one_of("model.bert.embeddings.dropout"), one_of("dropout")),
    "stale-variance": Fault(
        MOBILENET, Quantity.STATISTIC, one_of(f"{FIRST_NORM}.running_var"), one_of("norm.running_var")
    ),
    "float16-sums": Fault(PERCEPTRON, Quantity.EVAL_OUTPUT, one_of("0"), one_of("dense")),
    "shifted-labels": Fault(PERCEPTRON, Quantity.LOSS, anywhere, anywhere),
    "norm-epsilon": Fault(GPT, Quantity.EVAL_OUTPUT, one_of("h.0.ln_1"), one_of("norm")),
    "decay-biases": Fault(GPT, Quantity.OPTIMIZER, ending(".bias"), ending(".bias")),
    "race": Fault(PERCEPTRON, Quantity.REPEAT, one_of("2"), one_of("head")),
}
BRIEF = Options(repeats=50, repeat_s=0.5, curve_s=0.5)
REPEATED = Options(repeats=5000, repeat_s=600.0, curve_s=0.5)
"""Until the race has surely happened, in the forward pass of single layers too; on an idle machine in some seconds."""


class Rows:
    """Writes every comparison to a file, where one is asked for."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file

    def add(self, fault: str, what: str, dtype: Dtype, seed: int, compared: Iterable[Compared]) -> None:
        for row in compared if self._file is not None else ():
            cells = (
                fault, what, dtype.value, seed, row.quantity.value, row.name, row.steps, row.statistic.value,
                f"{row.sigmas:.4g}", row.limit, f"{share(row):.4g}",
            )  # fmt: skip
            print(*cells, sep="\t", file=self._file, flush=True)


def pair(chosen: Chosen, *, dtype: Dtype = Dtype.FLOAT32, seed: int = 0, fault: str = "") -> tuple[Plan, Plan]:
    """The device's plan and the reference's."""
    name, given = chosen
    params = {param.name: param.default for param in load(name).params} | given
    if fault:
        params["fault"] = fault
    plan = Plan(
        workload=name, params=params, mode=Mode.TRAINING, framework="fake" if name == "fake" else "torch",
        device=Device(kind=DeviceKind.GPU), settings=Settings(dtype=dtype), budget=Budget(), seed=seed,
    )  # fmt: skip
    reference = msgspec.structs.replace(plan, device=Device(kind=DeviceKind.CPU), settings=Settings())
    return plan, reference


@contextmanager
def simulated(fault: str) -> Iterator[None]:
    """Processes that are started meanwhile have the simulated accelerator, with this fault."""
    before = dict(os.environ)
    os.environ.update(environment(fault=fault))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def checked(examined: Examined) -> Checked:
    if isinstance(examined.outcome, Failed):
        raise SystemExit(f"A check ended by itself: {examined.outcome.message}")
    return examined.outcome


def share(row: Compared) -> float:
    """How far a quantity is off, as a share of what is allowed."""
    return row.sigmas / row.limit


def described(row: Compared) -> str:
    where = f"{row.quantity.value} of {row.name}" if row.name else row.quantity.value
    return f"{where}, {row.statistic.value} {share(row):.3g} of its limit"


def find(device: str, name: str, found: Checked, quantity: Quantity, is_named: Callable[[str], bool]) -> bool:
    """Print what a check of a faulty device named, and return whether that was right."""
    differences = found.differences
    if not differences:
        worst = max(found.compared, key=share)
        print(f"{device} {name}: not found; the worst was {described(worst)}", flush=True)
        return False
    first = differences[0]
    right = first.quantity is quantity and is_named(first.name)
    print(
        f"{device} {name}: {'found and named' if right else 'NAMED WRONGLY'}: {described(first)}; "
        f"{len(differences)} of {len(found.compared)} differ",
        flush=True,
    )
    return right


def find_faults(rows: Rows) -> int:
    """Return how many of the faults were found and named, on both devices."""
    right = 0
    for name, fault in FAULTS.items():
        options = REPEATED if name == "race" else BRIEF
        with simulated(name):
            found = checked(examine_twice(*pair(fault.workload), options=options))
        rows.add(name, fault.workload[0], Dtype.FLOAT32, 0, found.compared)
        right += find("simulated accelerator", name, found, fault.quantity, fault.is_named)
        found = checked(examine_twice(*pair(SOFTWARE, fault=f"parity-{name}"), options=options))
        rows.add(name, "fake", Dtype.FLOAT32, 0, found.compared)
        right += find("software device", name, found, fault.quantity, fault.on_software)
    return right


def count_false_alarms(rows: Rows, seeds: int) -> tuple[int, int]:
    """Return the false alarms and the runs."""
    alarms = runs = 0
    furthest: dict[Quantity, Compared] = {}
    for chosen in FAULTLESS:
        for dtype in (Dtype.FLOAT32, Dtype.BFLOAT16):
            begin = time.monotonic()
            with simulated(""):
                pairs = [pair(chosen, dtype=dtype, seed=seed) for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
                found = [checked(each) for each in examine_all(pairs, options=[BRIEF] * len(pairs))]
            for seed, each in enumerate(found, start=FIRST_SEED):
                rows.add("none", chosen[0], dtype, seed, each.compared)
                for row in each.compared:
                    furthest[row.quantity] = max(furthest.get(row.quantity, row), row, key=share)
            worst = max((row for each in found for row in each.compared), key=share)
            wrong = sum(bool(each.differences) for each in found)
            print(
                f"faultless {chosen[0]} {dtype.value}: {wrong} of {len(found)} differ; at most {described(worst)}; "
                f"{(time.monotonic() - begin) / len(found):.1f} s per run",
                flush=True,
            )
            for number, each in enumerate(found, start=FIRST_SEED):
                if each.differences:
                    print(f"false alarm {chosen[0]} {dtype.value} seed {number}: {described(each.differences[0])}")
            alarms, runs = alarms + wrong, runs + len(found)
    for quantity, row in furthest.items():
        print(f"faultless {quantity.value}: at most {row.sigmas:.3g} sigmas, of {row.limit:g}")
    return alarms, runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("found", "faultless"))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--rows", type=Path)
    asked = parser.parse_args()
    rows = Rows(asked.rows.open("a", encoding="utf-8") if asked.rows else None)
    missed = False
    if asked.only != "faultless":
        right, wanted = find_faults(rows), 2 * len(FAULTS)
        print(f"faults found and named: {right} of {wanted}")
        missed |= right < wanted
    if asked.only != "found":
        alarms, runs = count_false_alarms(rows, asked.seeds)
        print(f"false alarms: {alarms} of {runs}")
        missed |= alarms > 0
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

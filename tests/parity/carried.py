"""The same weights in every framework: `python -m tests.parity.carried FRAMEWORK FOLDER [WORKLOAD...]`. PyTorch writes
what its networks give, the others must give the same."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np

from metalmark.feeds.leaves import Arrays, leaves_of
from metalmark.model.plan import Device, DeviceKind, Mode, Plan, Scalar
from metalmark.parity.base import Named, ParityBackend, Subject
from metalmark.parity.carry import pair
from metalmark.parity.conventions import KERAS
from metalmark.workloads.catalog import load

CASES: dict[str, tuple[str, dict[str, Scalar]]] = {
    "perceptron": ("mnist-mlp", {"batch_size": 8}),
    "flattened": ("conv256", {"batch_size": 2, "pixels": 16}),
    "encoder": ("bert", {"batch_size": 2, "size": "tiny", "seq_len": 16}),
    "decoder with adapters": ("gpt", {"batch_size": 2, "size": "nano", "seq_len": 16, "lora": 4}),
    "depthwise": ("mobilenet-cifar10", {"batch_size": 2, "pixels": 32}),
    "shortcuts": ("resnet50-transfer", {"batch_size": 2, "pixels": 32}),
}
TRAINED = ("perceptron", "flattened", "decoder with adapters")
CANDIDATES = ("mlx", "tensorflow")
"""Two conventions of Adam, which PyTorch's follows."""
STEPS = 3
LOGITS, UPDATES = 1e-5, 1e-3
"""Root mean square of the differences, as a share of that of PyTorch's. A parameter whose gradient is nearly zero goes
either way in Adam, hence the second."""


@contextmanager
def opened(case: str, framework: str) -> Iterator[tuple[Subject, Arrays]]:
    name, sizes = CASES[case]
    workload = load(name)
    params = {param.name: param.default for param in workload.params} | sizes
    mode = Mode.TRAINING if case in TRAINED else Mode.INFERENCE
    plan = Plan(workload=name, params=params, framework=framework, device=Device(kind=DeviceKind.CPU), mode=mode)
    side: ParityBackend = import_module(f"metalmark.parity.{framework}").SIDE
    with side.open(plan, workload) as subject:
        yield subject, leaves_of(subject.recipe.prepare(workload.batch(params, np.random.default_rng(1))))[0]


def given(subject: Subject, arrays: Arrays, values: Named, known_as: dict[str, str], *, trained: bool) -> Named:
    """Return the outputs and, where it is trained, what steps made of each parameter, by the reference's names."""
    subject.load(values)
    found = {f"output {name}": array for name, array in subject.predict(arrays)}
    if trained:
        subject.load(values)
        for _ in range(STEPS):
            subject.read([subject.train_batch(arrays)])
        now = subject.values()
        names = [slot.name for slot in subject.slots() if slot.trainable]
        found |= {f"change {known_as[name]}": np.asarray(now[name] - values[name], np.float64) for name in names}
    return found


def moved(values: Named) -> Named:
    """Biases begin at 0 and gains at 1, so that two of them could be taken for each other."""
    rng = np.random.default_rng(0)
    noise = {name: rng.normal(0, 0.05, array.shape) for name, array in values.items()}
    return {
        name: (array + (np.abs(noise[name]) if name.endswith("running_var") else noise[name])).astype(np.float32)
        for name, array in values.items()
    }


def write(folder: Path) -> None:
    for case, candidate in product(CASES, CANDIDATES):
        if case not in TRAINED and candidate != CANDIDATES[0]:
            continue
        with opened(case, "torch") as (subject, arrays):
            subject.follow(candidate)
            values = moved(subject.values())
            np.savez(folder / f"{case}.npz", **values)  # type: ignore[arg-type]
            found = given(subject, arrays, values, {name: name for name in values}, trained=case in TRAINED)
            np.savez(_given_file(folder, case, candidate), **found)  # type: ignore[arg-type]


def compare(folder: Path, framework: str, cases: list[str]) -> None:
    for case in cases:
        with opened(case, framework) as (subject, arrays):
            values = dict(np.load(folder / f"{case}.npz"))
            known_as, _ = pair(subject.slots(), {name: array.shape for name, array in values.items()})
            own = {mine: values[theirs] for mine, theirs in known_as.items()}
            found = given(subject, arrays, own, known_as, trained=case in TRAINED)
        expected = dict(np.load(_given_file(folder, case, framework)))
        assert found.keys() == expected.keys(), (case, found.keys() ^ expected.keys())
        for name, array in expected.items():
            off = np.sqrt(np.mean(np.square(found[name] - array)) / np.mean(np.square(array)))
            assert off < (LOGITS if name.startswith("output") else UPDATES), (case, name, off)


def _given_file(folder: Path, case: str, framework: str) -> Path:
    family = "keras" if framework in KERAS and case in TRAINED else "all"
    return folder / f"{case}, for {family}.npz"


if __name__ == "__main__":
    _, framework, folder, *cases = sys.argv
    if framework == "torch":
        write(Path(folder))
    else:
        compare(Path(folder), framework, cases or list(CASES))
    sys.stdout.write("good")

"""Runs the files of docs/own.md on one framework, in this process: `python -m tests.own.blocks FRAMEWORK FOLDER`.

Each workload takes steps as `bench` has them; one that trains also goes on from its own checkpoint to the same weights.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.data.catalog import OWN, SYNTHETIC
from metalmark.feeds.source import with_data
from metalmark.model.plan import Device, DeviceKind, Mode, Plan
from metalmark.model.workload import FAMILIES, Workload
from metalmark.training import samples
from metalmark.workloads.catalog import load_file

PAGE = Path(__file__).parents[2] / "docs" / "own.md"
STEPS = 3


def blocks() -> dict[str, tuple[str, str]]:
    """File name → what its first line says of it, and its source."""
    found = re.findall(r"```python\n# (\w+\.py)([^\n]*)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return {name: (words, source) for name, words, source in found}


def names_in(source: str) -> list[str]:
    return re.findall(r"^(\w+) = Workload\(", source, re.MULTILINE)


def plan_of(workload: Workload, framework: str, mode: Mode = Mode.TRAINING) -> Plan:
    params = {param.name: param.default for param in workload.params}
    device, data = Device(kind=DeviceKind.CPU), OWN if workload.data is not None else SYNTHETIC
    return Plan(workload=workload.name, params=params, mode=mode, framework=framework, device=device, data=data)


def benched(workload: Workload, framework: str) -> dict[str, Any]:
    """Step through the resident batches."""
    plan = plan_of(workload, framework)
    fed, _ = with_data(workload, plan)
    with FRAMEWORKS[framework].backend().open(plan, fed) as session:
        before = session.fingerprint()
        losses = []
        for _ in range(STEPS):
            session.step()
            session.synchronize()
            losses.append(session.proof())
        moved = sum(a != b for a, b in zip(before, session.fingerprint(), strict=True))
        names = session.fingerprint_names()
    return {"losses": losses, "moved": moved, "arrays": len(before), "named": len(names)}


def trained(workload: Workload, framework: str) -> dict[str, Any]:
    """Train six batches in one piece, and again from the state after three."""
    plan = plan_of(workload, framework)
    training = import_module(f"metalmark.training.{framework}").TRAINING
    dataset = samples.dataset_of(workload, plan)
    states = []
    validation = 0.0
    half: dict[str, np.ndarray] = {}
    for piece in ((0, 6), (3, 6)):
        if "keras" in sys.modules:
            # Keras numbers the layers of a process, and a resumed training has a process of its own.
            sys.modules["keras"].utils.clear_session()
        with training.open(plan, samples.light(workload, dataset)) as trainer:
            if piece[0]:
                trainer.load_state(half)
            with samples.open_pass(workload, trainer.recipe, plan, dataset.train, 1, 0) as batches:
                arrays = list(batches)
            for number in range(*piece):
                trainer.read([trainer.train_batch(arrays[number % len(arrays)])])
                if number == 2 and not piece[0]:
                    half = trainer.state()
            validation, _ = trainer.evaluate(arrays[0])
            states.append(trainer.state())
    same = all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    return {"same": same and set(states[0]) == set(states[1]), "validation": validation}


def main(framework: str, folder: str) -> None:
    family = next(name for name, members in FAMILIES.items() if framework in members)
    told: dict[str, Any] = {}
    for file, (words, source) in blocks().items():
        meant = words.strip(", ").split(":")[0].split(",")[0].strip()
        if meant not in (framework, family) or not names_in(source):
            continue
        path = Path(folder, file)
        path.write_text(source, encoding="utf-8")
        for name in names_in(source):
            told[f"{file}:{name}"] = benched(load_file(path, name), framework)
            if "train" in words:
                told[f"{file}:{name}"] |= trained(load_file(path, name), framework)
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

"""A question about a network that a worker answers: the network is opened on its device, and not compiled."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from metalmark.feeds.leaves import Arrays, leaves_of
from metalmark.machine.durable import write_struct
from metalmark.model.codec import read_json
from metalmark.model.nest import flatten
from metalmark.model.plan import Settings
from metalmark.parity.base import ParityBackend, Subject
from metalmark.parity.networks import ParameterPart, PartJob, TensorPart
from metalmark.parity.worker import the_same_workload
from metalmark.runner.ask import NoAnswer, in_one_line, traceback_of
from metalmark.runner.worker import here

S = TypeVar("S", bound=Subject)


class Network(NamedTuple, Generic[S]):
    """A subject with its first batch."""

    subject: S
    arrays: Arrays
    settings: Settings

    @property
    def targets(self) -> list[Any]:
        return flatten(self.subject.layout.rebuild(self.arrays).get("targets"))[0]


@contextmanager
def opened(job: PartJob) -> Iterator[Network[Any]]:
    """Yield the network of a check, not compiled: of a compiled one, only parts are compiled, later."""
    plan = here(job.plan, job.paths)
    eager = replace(plan, settings=replace(plan.settings, compile=False, compile_mode="", graph=False))
    workload = the_same_workload(plan, job.paths.get(plan.workload, ""))
    side = cast("ParityBackend", import_module(f"metalmark.parity.{plan.framework}").SIDE)
    with side.open(eager, workload) as subject:
        rng = np.random.default_rng([plan.seed, 0])
        arrays = leaves_of(subject.recipe.prepare(workload.batch(plan.params, rng)))[0]
        yield Network(subject, arrays, plan.settings)


def answer(question: Callable[[Network[Any], PartJob], Struct], job_path: str, answer_path: str) -> None:
    """Write what a function finds out about the network of a job."""
    job = read_json(Path(job_path).read_bytes(), PartJob, source=job_path)
    found: Struct
    try:
        with opened(job) as network:
            found = question(network, job)
    except BaseException as error:  # noqa: BLE001  whatever a compiler throws is the answer
        found = NoAnswer(reason=in_one_line(error), detail=traceback_of(error))
    write_struct(Path(answer_path), found)


def array_part(array: Any) -> TensorPart:
    """Describe an array of NumPy, Keras or MLX."""
    values = np.asarray(array)
    integer = values.dtype.kind in "iub"
    return TensorPart(
        shape=tuple(int(size) for size in values.shape),
        dtype="int32" if integer else "float32",
        high=int(values.max()) + 1 if integer and values.size else 0,
    )


def parameter_part(network: Network[Any], name: str, optimizer: str) -> ParameterPart | None:
    """Describe a parameter and the optimiser that the given call makes; None where there is no such call."""
    value = network.subject.values().get(name)
    if value is None or not optimizer:
        return None
    _, gradients = network.subject.loss_and_gradients(network.arrays)
    gradient = gradients.get(name)
    return ParameterPart(
        shape=tuple(value.shape),
        size=_root_mean_square(value),
        gradient_size=1.0 if gradient is None else _root_mean_square(gradient),
        optimizer=optimizer,
    )


def _root_mean_square(array: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(array.astype(np.float64)))))

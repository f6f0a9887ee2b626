"""A checkpoint as a model that others can load: what goes in, what comes out, an example, and the loader MLflow calls.

    mlflow.pyfunc.load_model("models:/MODEL").predict(array)

builds the network with Metalmark and the framework it was trained with, on the CPU, and gives its outputs. Nothing is
pickled: the folder holds best.safetensors and model.json.
"""

from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from metalmark.data.catalog import PIXELS, YOURS
from metalmark.data.synthetic import shape_of
from metalmark.errors import FormatError, UsageError
from metalmark.feeds.leaves import as_numpy, leaves_of
from metalmark.model.codec import decode_versioned
from metalmark.model.nest import flatten, map_leaves
from metalmark.model.plan import Device, DeviceKind, Plan, Settings
from metalmark.model.workload import Batch, Workload
from metalmark.scrub import scrub
from metalmark.track.queue import AttachedModel
from metalmark.training.folder import BEST, load_checkpoint, share_file
from metalmark.workloads.catalog import is_file, load

SCHEMA = 1
DESCRIPTION = "model.json"


class Tensor(Struct, frozen=True, kw_only=True):
    """One sample's array; the first dimension, the batch, is left out."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Description(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    plan: Plan
    epoch: int
    inputs: tuple[Tensor, ...] = ()
    """As the workload makes them: images as NHWC, scaled. The loader turns them into each framework's own layout."""
    output: Tensor | None
    """None: only the network itself knows what it returns."""
    note: str = ""
    """Why there are no inputs."""


def describe(model: AttachedModel) -> tuple[Description, list[np.ndarray]]:
    """Return the inputs and one sample of them, made up: no framework is needed, and nobody's data is shown."""
    plan = model.plan
    output = Tensor(name="outputs", dtype="float32", shape=(model.classes,)) if model.classes else None
    try:
        inputs_made = _sample(load(plan.workload, source=model.source), plan).inputs
        arrays = [as_numpy(leaf, "an input") for leaf in flatten(inputs_made)[0]]
    except Exception as error:  # noqa: BLE001  a user's own file may do anything; the checkpoint is kept all the same
        note = scrub(f"its inputs are not known: {type(error).__name__}: {error}")[:300]
        return Description(plan=plan, epoch=model.epoch, output=output, note=note), []
    inputs = tuple(
        Tensor(name=f"input_{number}", dtype=array.dtype.name, shape=array.shape[1:])
        for number, array in enumerate(arrays)
    )
    return Description(plan=plan, epoch=model.epoch, inputs=inputs, output=output), arrays


def _sample(workload: Workload, plan: Plan) -> Batch:
    """Return noise in the shape of the data set's images, prepared as in the training."""
    params, rng = {**plan.params, "batch_size": 1}, np.random.default_rng(0)
    if workload.sample is None or not workload.datasets or workload.datasets[0] in YOURS:
        return workload.batch(params, rng)
    shape = shape_of(workload.datasets[0], int(plan.params.get("pixels", PIXELS))).image
    return workload.sample(params, rng.integers(0, 256, (1, *shape), np.uint8), np.zeros(1, np.int32))


def lay_out(folder: Path, weights: Path, description: Description) -> None:
    folder.mkdir(parents=True)
    share_file(weights, folder / BEST)
    (folder / DESCRIPTION).write_bytes(msgspec.json.format(msgspec.json.encode(description), indent=2))


class Loaded:
    """A model in inference mode. Its framework is imported in the process that loads it."""

    def __init__(self, folder: Path, source: str = "") -> None:
        self.description = _read(folder / DESCRIPTION)
        plan = self.description.plan
        if is_file(plan.workload) and not source:
            raise UsageError(
                f"This model is of your own workload {plan.workload}, whose file is not kept with it.",
                hint='Give it: mlflow.pyfunc.load_model(URI, model_config={"source": "my_net.py"})',
            )
        # The device and the settings decide how fast it trained, not what it computes; weights come from the file.
        params = {**plan.params, **({"weights": "none"} if "weights" in plan.params else {})}
        self._plan = msgspec.structs.replace(
            plan, device=Device(kind=DeviceKind.CPU), settings=Settings(dtype=plan.settings.dtype), params=params
        )
        training = import_module(f"metalmark.training.{plan.framework}").TRAINING
        self._workload = workload = load(plan.workload, source=source)
        # A session keeps some batches on the device for `bench`; here one sample per batch will do.
        small = replace(workload, batch=lambda params, rng: workload.batch({**params, "batch_size": 1}, rng))
        object.__setattr__(small, "origin", workload.origin)
        # Held as long as the model is: a session may undo what it set when it is left.
        self._stack = ExitStack()
        self._trainer = self._stack.enter_context(training.open(self._plan, small))
        self._trainer.load_state(load_checkpoint(folder / BEST)[1])

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> Any:  # noqa: ARG002  MLflow passes it
        arrays = [np.asarray(value) for value in data.values()] if isinstance(data, dict) else [np.asarray(data)]
        # The loss is computed too and thrown away, so that targets of the right form will do.
        made = self._workload.batch({**self._plan.params, "batch_size": len(arrays[0])}, np.random.default_rng(0))
        inputs, targets = flatten(made.inputs)[1].rebuild(arrays), map_leaves(np.zeros_like, made.targets)
        batch = self._trainer.recipe.prepare(Batch(inputs=inputs, targets=targets))
        return self._trainer.evaluate(leaves_of(batch)[0])[1]


def _read(path: Path) -> Description:
    try:
        return decode_versioned(path.read_bytes(), Description, newest=SCHEMA, source=path.name)
    except OSError as error:
        raise FormatError(f"{path.name} can't be read: {error.strerror}.") from error


def _load_pyfunc(path: str, model_config: dict[str, Any] | None = None) -> Loaded:
    """Called by MLflow, which looks for this name."""
    return Loaded(Path(path), source=str((model_config or {}).get("source", "")))

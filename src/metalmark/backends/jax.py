"""JAX through Keras 3: the whole step is one jitted function of its state, so `--compile` is what it always does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import jax
import jaxlib
import keras
import numpy as np
from jax import numpy as jnp

from metalmark.backends import base
from metalmark.backends.base import HOST_MEMORY, DeviceReport, Placement, Probe
from metalmark.backends.catalog import FRAMEWORKS, UNKNOWN, version_of
from metalmark.backends.keras_common import build, call_arguments, count, count_weights, make_optimizer, total_loss
from metalmark.backends.session import Placed, fingerprint_of, make_feeder
from metalmark.feeds.source import thread_loader
from metalmark.model.plan import Device, DeviceKind, Dtype, Mode, Plan, Settings
from metalmark.model.run import Absent, DeviceMemory
from metalmark.model.workload import Recipe, Workload

TITLE = "JAX"
PLATFORMS = {DeviceKind.CPU: "cpu", DeviceKind.GPU: "gpu", DeviceKind.CUDA: "cuda", DeviceKind.MPS: "METAL"}
DEVICE_TYPES = {"gpu": "cuda", "METAL": "mps"}
"""A device's own `platform` as the type of device that a Limit names; others keep their name."""

Work = Callable[[Any, Any, Any, Any], tuple[Any, Any]]
"""work(state, fixed, inputs, targets) -> (state, output); the state it is given is gone afterwards."""


class JaxSession:
    def __init__(self, plan: Plan, workload: Workload, device: Any | None) -> None:
        """Build the model. A device of None leaves placement to JAX."""
        self._training = plan.mode is Mode.TRAINING
        recipe = self.recipe = build(plan, workload, "jax")
        model = recipe.model
        self.parameters = count_weights(model)
        self.trainable_parameters = count(model.trainable_variables)
        threads = plan.settings.threads
        # Seen on Linux with --threads 1: 1.2 cores busy.
        extra = f"XLA's pool has the {threads} threads asked for; the thread that runs the step computes beside them."
        self.notes = (extra,) if threads else ()
        work, state, fixed = self._make_work(recipe, plan.settings)
        # The state is donated: without that, weights that a step only hands on would be copied in each step.
        self._work = jax.jit(work, donate_argnums=0)
        self._state, self._fixed = jax.device_put((state, fixed), device)

        def place(arrays: Any) -> Placed:
            *inputs, targets = jax.device_put(tuple(arrays), device)
            return tuple(inputs), targets

        self.feeder = make_feeder(plan, workload, recipe, place=place, loader=thread_loader)
        self._output: Any = ()
        (self._device,) = self._trainable()[0].devices()
        self.placement = Placement(device=str(self._device), name=_name(self._device, threads))

    def step(self) -> None:
        inputs, targets = self.feeder.take()
        self._state, self._output = self._work(self._state, self._fixed, inputs, targets)

    def settle(self) -> None:
        """XLA compiles in this process."""

    def synchronize(self) -> None:
        # Each step takes the state of the one before, so the last one's is the end of the queue.
        jax.block_until_ready((self._state, self._output))

    def proof(self) -> float:
        output = self._output.astype(jnp.float32)
        return float(jnp.mean(output if self._training else jnp.square(output)))

    def fingerprint(self) -> tuple[float, ...]:
        return fingerprint_of(np.asarray(array) for array in self._trainable())

    def memory(self) -> DeviceMemory:
        if self._device.platform == "cpu":
            return HOST_MEMORY
        stats = self._device.memory_stats()
        if not stats:
            return base.unknown_memory(f"JAX has no memory counters for {self._device}")
        return DeviceMemory(
            live_bytes=stats["bytes_in_use"],
            driver_bytes=stats.get("pool_bytes", Absent(reason="this JAX does not tell what it has reserved")),
            peak_bytes=stats["peak_bytes_in_use"],
        )

    def _trainable(self) -> list[Any]:
        return (self._state if self._training else self._fixed)[0]  # type: ignore[no-any-return]

    def _make_work(self, recipe: Recipe, settings: Settings) -> tuple[Work, Any, Any]:
        """Return one step, what it changes and what it only reads."""
        model = recipe.model
        trainable = [v.value for v in model.trainable_variables]
        others = [v.value for v in model.non_trainable_variables]

        if not self._training:

            def infer(ticket: Any, weights: Any, inputs: Any, _: Any) -> tuple[Any, Any]:
                outputs, _others = model.stateless_call(*weights, call_arguments(inputs), training=False)
                return ticket + 1, outputs

            # Calls that share no result may overlap: the ticket makes a queue of them, as a training state does.
            return infer, jnp.zeros((), jnp.int32), (trainable, others)

        optimizer = self._optimizer = make_optimizer(recipe, settings.dtype, model.trainable_variables)

        def compute_loss(trainable: Any, others: Any, slots: Any, inputs: Any, targets: Any) -> Any:
            outputs, others, penalties = model.stateless_call(
                trainable, others, call_arguments(inputs), training=True, return_losses=True
            )
            loss = total_loss(recipe, targets, outputs, penalties)
            # The scale of float16 is one of the optimiser's variables, and its value now is in `slots`.
            with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, slots, strict=True))):
                return optimizer.scale_loss(loss), (loss, others)

        gradients_of = jax.grad(compute_loss, has_aux=True)

        def train(state: Any, _: Any, inputs: Any, targets: Any) -> tuple[Any, Any]:
            trainable, others, slots = state
            gradients, (loss, others) = gradients_of(trainable, others, slots, inputs, targets)
            trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
            return (trainable, others, slots), loss

        return train, (trainable, others, [v.value for v in optimizer.variables]), ()


class JaxBackend:
    name = "jax"
    session = JaxSession

    def probe(self) -> Probe:
        versions = {
            "jax": jax.__version__,
            "jaxlib": version_of("jaxlib", jaxlib) or UNKNOWN,
            "keras": keras.__version__,
        }
        return Probe(framework=self.name, versions=versions, devices=_reports())

    @contextmanager
    def open(self, plan: Plan, workload: Workload) -> Iterator[JaxSession]:
        device = _resolve(plan.device)
        device_type = DEVICE_TYPES.get(device.platform, device.platform)
        FRAMEWORKS[self.name].check(plan.settings, device_type, plan.loader)
        # On NVIDIA JAX computes float32 in TensorFloat-32 unless told not to: float32 here means float32.
        precision = "tensorfloat32" if plan.settings.dtype is Dtype.TF32 else "highest"
        jax.config.update("jax_default_matmul_precision", precision)
        home = None if plan.device.kind is DeviceKind.ANY else device
        with jax.default_device(home):
            yield self.session(plan, workload, home)

    def is_out_of_memory(self, error: BaseException) -> bool:
        text = str(error)
        return "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()


def _devices(platform_name: str) -> list[Any]:
    try:
        return list(jax.devices(platform_name))
    except RuntimeError:  # JAX's way to say that it has none; the reports below say why
        return []


def _resolve(word: Device) -> Any:
    """Return JAX's device for a device word; raise with the reason where it is absent."""
    if word.kind is DeviceKind.ANY:
        return jax.devices()[0]
    devices = _devices(PLATFORMS[word.kind])
    if not devices:
        raise base.absent_device(TITLE, word, _reports())
    return devices[base.device_index(TITLE, word, len(devices))]


def _reports() -> tuple[DeviceReport, ...]:
    no_cuda = "this JAX has no CUDA plug-in.", 'With an NVIDIA GPU on Linux: pip install "jax[cuda13]"'
    if any(find_spec(f"jax_cuda{major}_plugin") for major in (12, 13)):
        no_cuda = (
            "JAX has its CUDA plug-in, but finds no usable NVIDIA GPU or driver.",
            "Check `nvidia-smi`: it must list a GPU. JAX_PLATFORMS, if set, must name cuda.",
        )
    no_metal = (
        "on a Mac, JAX is a CPU framework: jax-metal ended with 0.1.1 in 2024 and breaks from jax 0.5.1 on.",
        "For the GPU of a Mac use --framework mlx or torch.",
    )
    no_cpu = "JAX_PLATFORMS leaves the CPU out.", "Unset JAX_PLATFORMS."
    reports = []
    for kind, why in ((DeviceKind.CPU, no_cpu), (DeviceKind.CUDA, no_cuda), (DeviceKind.MPS, no_metal)):
        devices = _devices(PLATFORMS[kind])
        reports.append(base.report_device(TITLE, kind.value, _name(devices[0], None) if devices else "", why))
    return tuple(reports)


def _name(device: Any, threads: int | None) -> str:
    if device.platform != "cpu":
        return str(device.device_kind)
    return f"CPU, {threads} threads" if threads else "CPU"


BACKEND = JaxBackend()

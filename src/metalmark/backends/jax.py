"""JAX through Keras 3: the whole step is one jitted function of its state, so `--compile` is what it always does."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from metalmark.backends.jax_world import shared_placing
from metalmark.backends.keras_common import (
    build,
    call_arguments,
    count,
    count_weights,
    loss_of,
    make_optimizer,
    models_of,
    refuse_own_float16,
)
from metalmark.backends.outputs import require_number, scores, total
from metalmark.backends.session import Placed, fingerprint_of, make_feeder, resident_batches
from metalmark.errors import UnsupportedError, counted
from metalmark.feeds.source import thread_loader
from metalmark.model.nest import flatten
from metalmark.model.plan import Device, DeviceKind, Dtype, Mode, Plan, Settings
from metalmark.model.run import Absent, DeviceMemory
from metalmark.model.workload import Recipe, Workload

TITLE = "JAX"
PLATFORMS = {DeviceKind.CPU: "cpu", DeviceKind.GPU: "gpu", DeviceKind.CUDA: "cuda", DeviceKind.MPS: "METAL"}
DEVICE_TYPES = {"gpu": "cuda", "METAL": "mps"}
"""A device's own `platform` as the type of device that a Limit names; others keep their name."""

Work = Callable[[Any, Any, Any], tuple[Any, Any]]
"""work(state, fixed, leaves) -> (state, output); the state it is given is gone afterwards."""
PURE_STEP = "Recipe(model=the first state, step=function), with step(state, inputs, targets) returning (state, loss)."


class JaxSession:
    double = False
    """Whether it computes in float64, whatever the plan says."""

    def __init__(self, plan: Plan, workload: Workload, device: Any | None) -> None:
        """Build the model. A device of None leaves placement to JAX."""
        self._training = plan.mode is Mode.TRAINING
        recipe = self.recipe = build(plan, workload, "jax", double=self.double)
        batches = resident_batches(plan, workload, recipe)
        self.layout, self.batch_shown = batches.layout, batches.shown
        threads = plan.settings.threads
        # Seen on Linux with --threads 1: 1.2 cores busy.
        extra = f"XLA's pool has the {threads} threads asked for; the thread that runs the step computes beside them."
        self.notes: tuple[str, ...] = (extra,) if threads else ()
        self._optimizer: Any = None
        self._compute_loss: Callable[..., Any] | None = None
        """compute_loss(trainable, others, slots, leaves) -> (the loss to differentiate, (the loss, others)); None where
        a step is the user's own, and in inference."""
        if recipe.step is not None:
            work, state, fixed = self._own_work(recipe, plan)
        else:
            (model,) = models_of(recipe, batches.layout.rebuild(batches.leaves[0]))
            self.parameters = count_weights(model)
            self.trainable_parameters = count(model.trainable_variables)
            self._names_of = tuple(variable.path for variable in model.trainable_variables)
            work, state, fixed = self._make_work(recipe, plan.settings)
        # The state is donated: without that, weights that a step only hands on would be copied in each step.
        self._work = jax.jit(work, donate_argnums=0)
        shared = self._shared = shared_placing(plan, recipe, device)
        self._state, self._fixed = (
            jax.device_put((state, fixed), device) if shared is None else shared.state((state, fixed))
        )

        def place(arrays: Any) -> Placed:
            return tuple(jax.device_put(tuple(arrays), device)) if shared is None else shared.part(arrays)

        self.feeder = make_feeder(plan, workload, recipe, batches, place=place, loader=thread_loader)
        self._output: Any = ()
        held = next((leaf for leaf in jax.tree.leaves((self._state, self._fixed)) if hasattr(leaf, "devices")), None)
        found = (
            [each for each in held.devices() if each.process_index == jax.process_index()] if held is not None else []
        )
        (self._device,) = found or (device or jax.local_devices()[0],)
        self.placement = Placement(device=str(self._device), name=_name(self._device, threads))

    def step(self) -> None:
        self._state, self._output = self._work(self._state, self._fixed, self.feeder.take())

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Let the steps of one of several processes exchange nothing: they run on this one's parts alone."""
        assert self._shared is not None
        state, ring = self._state, self.feeder.ring
        self._state, self.feeder.ring = self._shared.here(state), self._shared.here(ring)
        try:
            self.step()  # compiles the first time
            self.synchronize()
            yield
        finally:
            self._state, self.feeder.ring = state, ring
            self.step()
            self.synchronize()

    def settle(self) -> None:
        """XLA compiles in this process."""

    def observed(self) -> AbstractContextManager[dict[str, str]]:
        """No setting here depends on what a network is made of."""
        return nullcontext({})

    def synchronize(self) -> None:
        # Each step takes the state of the one before, so the last one's is the end of the queue.
        jax.block_until_ready((self._state, self._output))

    def proof(self) -> float:
        output = self._output if self._shared is None else self._shared.here(self._output)
        parts = [part.astype(jnp.float32) for part in jax.tree.leaves(output)]
        means = [float(jnp.mean(part if self._training else jnp.square(part))) for part in parts]
        return sum(means) / max(1, len(means))

    def fingerprint(self) -> tuple[float, ...]:
        return fingerprint_of(np.asarray(array) for array in self._trainable())

    def fingerprint_names(self) -> tuple[str, ...]:
        return self._names_of

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
        if self.recipe.step is not None:
            return list(jax.tree.leaves(self._state))
        return (self._state if self._training else self._fixed)[0]  # type: ignore[no-any-return]

    def _own_work(self, recipe: Recipe, plan: Plan) -> tuple[Work, Any, Any]:
        """The user's own step, which must be a pure function here."""
        step, rebuild, state = recipe.step, self.layout.rebuild, recipe.model
        if step is None or isinstance(state, keras.Model) or not self._training:
            raise UnsupportedError("On jax a step of your own must be a pure function, in training.", hint=PURE_STEP)
        refuse_own_float16(plan.settings.dtype)
        paths = jax.tree_util.tree_flatten_with_path(state)[0]
        self._names_of = tuple(jax.tree_util.keystr(path) for path, _ in paths)
        self.parameters = self.trainable_parameters = sum(int(np.size(leaf)) for _, leaf in paths)

        def train(state: Any, _: Any, leaves: Any) -> tuple[Any, Any]:
            batch = rebuild(leaves)
            try:
                state, loss = step(state, batch["inputs"], batch["targets"])
            except (TypeError, ValueError) as error:
                if not isinstance(error, jax.errors.JAXTypeError):
                    raise UnsupportedError(f"Your own step failed: {error}", hint=PURE_STEP) from error
                raise
            loss = total(loss)
            require_number(loss)
            return state, loss

        return train, state, ()

    def _make_work(self, recipe: Recipe, settings: Settings) -> tuple[Work, Any, Any]:
        """Return one step, what it changes and what it only reads."""
        model, rebuild = recipe.model, self.layout.rebuild
        trainable = [v.value for v in model.trainable_variables]
        others = [v.value for v in model.non_trainable_variables]

        if not self._training:

            def infer(state: Any, fixed: Any, leaves: Any) -> tuple[Any, Any]:
                (ticket, others), (trainable,) = state, fixed
                inputs = call_arguments(rebuild(leaves)["inputs"])
                outputs, others = model.stateless_call(trainable, others, inputs, training=False)
                return (ticket + 1, others), flatten(scores(outputs))[0]

            # Calls that share no result may overlap: the ticket makes a queue of them, as a training state does. What
            # a call changes, such as a cache of keys and values, is handed on to the next.
            return infer, (jnp.zeros((), jnp.int32), others), (trainable,)

        loss_function = loss_of(recipe)
        optimizer = self._optimizer = make_optimizer(recipe, settings.dtype, model.trainable_variables)

        def compute_loss(trainable: Any, others: Any, slots: Any, leaves: Any) -> Any:
            batch = rebuild(leaves)
            inputs = call_arguments(batch["inputs"])
            outputs, others, penalties = model.stateless_call(
                trainable, others, inputs, training=True, return_losses=True
            )
            loss = loss_function(batch["targets"], scores(outputs), penalties)
            require_number(loss)
            # The scale of float16 is one of the optimiser's variables, and its value now is in `slots`.
            with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, slots, strict=True))):
                return optimizer.scale_loss(loss), (loss, others)

        self._compute_loss = compute_loss
        gradients_of = jax.grad(compute_loss, has_aux=True)

        def train(state: Any, _: Any, leaves: Any) -> tuple[Any, Any]:
            trainable, others, slots = state
            gradients, (loss, others) = gradients_of(trainable, others, slots, leaves)
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
        return list(jax.local_devices(backend=platform_name))
    except RuntimeError:  # JAX's way to say that it has none; the reports below say why
        return []


def _resolve(word: Device) -> Any:
    """Return JAX's device for a device word; raise with the reason where it is absent."""
    if word.kind is DeviceKind.ANY:
        return jax.local_devices()[0]
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
        name = _name(devices[0], None) if devices else ""
        reports.append(base.report_device(TITLE, kind.value, name, why, count=max(1, len(devices))))
    return tuple(reports)


def _name(device: Any, threads: int | None) -> str:
    if device.platform != "cpu":
        return str(device.device_kind)
    return f"CPU, {counted(threads, 'thread')}" if threads else "CPU"


BACKEND = JaxBackend()

"""MLX: lazy, so each step ends with the evaluation of all that it changed; `--compile` is mx.compile of the step."""

import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
from mlx import core as mx
from mlx import nn, optimizers
from mlx.utils import tree_flatten, tree_map

from metalmark.backends import mlx_world
from metalmark.backends.base import DeviceReport, Placement, Probe, absent_device, device_index, report_device
from metalmark.backends.catalog import FRAMEWORKS, UNKNOWN, version_of
from metalmark.backends.outputs import call, given_loss, require_number, scores, total
from metalmark.backends.session import Placed, fingerprint_of, make_feeder, require_images, resident_batches
from metalmark.errors import UnsupportedError
from metalmark.feeds.source import thread_loader
from metalmark.machine.tools import run_tool
from metalmark.model.nest import flatten, map_leaves
from metalmark.model.plan import Device, DeviceKind, Dtype, Mode, Plan, Settings
from metalmark.model.run import Absent, DeviceMemory
from metalmark.model.workload import Recipe, Workload

HALF = {Dtype.BFLOAT16: mx.bfloat16, Dtype.FLOAT16: mx.float16}
TOOL_S = 5.0
LOSS_SCALE = 1024.0
"""Small gradients are zero in float16 unless the loss is scaled up. Fixed: MLX has no dynamic scaler."""
CPU_KERNELS = "MLX keeps the CPU kernels it compiles in a folder: only the first run's first step makes them."
NOT_ITS_SPEED = "MLX's CPU build for Linux computes with reference kernels: this is not MLX's speed on Apple Silicon."


class MlxSession:
    def __init__(self, plan: Plan, workload: Workload) -> None:
        settings = plan.settings
        self._training = plan.mode is Mode.TRAINING
        recipe = self.recipe = workload.recipe("mlx", plan.params)
        self._models = _models_of(recipe)
        for model in self._models:
            model.train(self._training)
        if settings.channels_last:
            require_images(array.ndim for model in self._models for _, array in tree_flatten(model.parameters()))
        statistics = sum(_count(statistics_of(model, lambda _: True)) for model in self._models)
        self.parameters = sum(_count(model.parameters()) for model in self._models) - statistics
        self.trainable_parameters = sum(_count(model.trainable_parameters()) for model in self._models)
        on_cpu = mx.default_device().type == mx.DeviceType.cpu
        foreign = (NOT_ITS_SPEED,) if platform.system() == "Linux" else ()
        self.notes = (CPU_KERNELS, *foreign) if on_cpu else ()
        half = HALF.get(settings.dtype)
        if half is not None:
            for model in self._models:
                _cast_constants(model, half, training=self._training)

        def place(arrays: Any) -> Placed:
            return tuple(mx.array(array) for array in arrays)

        batches = resident_batches(plan, workload, recipe)
        self.layout, self.batch_shown = batches.layout, batches.shown
        self.feeder = make_feeder(plan, workload, recipe, batches, place=place, loader=thread_loader)
        self._output: Any = None
        # Arrays of MLX live in memory that all devices share and know no device; the work goes to the default one.
        device = mx.default_device()
        word = "cpu" if on_cpu else f"gpu:{getattr(device, 'index', 0)}"
        self.placement = Placement(device=word, name=_name(device))
        self._exchanges, self._weight = plan.processes > 1, 1.0
        if self._exchanges:
            mlx_world.refuse(recipe)
            self.notes = (*self.notes, *mlx_world.notes_on(recipe.model))
        self._optimizers: list[Any] = []
        self._compute_loss: Callable[[Any], Any] | None = None
        """compute_loss(leaves) -> the loss to differentiate; None where a step is the user's own, and in inference."""
        self._work, self._state = self._make_work(recipe, settings, half)
        mx.eval([model.parameters() for model in self._models], self.feeder.ring, self._state)
        mx.reset_peak_memory()

    def step(self) -> None:
        self._output = self._work(self.feeder.take())
        # Nothing has run until here: without this, steps would pile up as one ever longer graph.
        mx.eval(self._output, self._state)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Let the steps of one of several processes exchange nothing."""
        self._exchanges = False
        try:
            yield
        finally:
            self._exchanges = True

    def settle(self) -> None:
        """Kernels are compiled in this process."""

    def observed(self) -> AbstractContextManager[dict[str, str]]:
        """No setting here depends on what a network is made of."""
        return nullcontext({})

    def synchronize(self) -> None:
        mx.synchronize()

    def proof(self) -> float:
        parts = [part.astype(mx.float32) for part in self._output]
        means: list[Any] = [(part if self._training else mx.square(part)).mean() for part in parts]
        return sum(float(mean.item()) for mean in means) / len(means)

    def fingerprint(self) -> tuple[float, ...]:
        return fingerprint_of(np.array(array.astype(mx.float32)) for _, array in self._trainable())

    def fingerprint_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._trainable())

    def _trainable(self) -> list[tuple[str, Any]]:
        return [pair for model in self._models for pair in tree_flatten(model.trainable_parameters())]

    def memory(self) -> DeviceMemory:
        live_bytes = mx.get_active_memory()
        return DeviceMemory(
            live_bytes=live_bytes, driver_bytes=live_bytes + mx.get_cache_memory(), peak_bytes=mx.get_peak_memory()
        )

    def _make_work(
        self, recipe: Recipe, settings: Settings, half: Any | None
    ) -> tuple[Callable[[Any], list[Any]], list[Any]]:
        """Return one step, a function of a batch's leaves that gives its loss or outputs in a list, and the state it
        changes, which the caller evaluates with its result."""
        model, rebuild = recipe.model, self.layout.rebuild
        scale = LOSS_SCALE if settings.dtype is Dtype.FLOAT16 else 1.0

        if not self._training:

            def infer(leaves: Any) -> list[Any]:
                outputs = scores(call(model, rebuild(cast(leaves, half))["inputs"]))
                return flatten(outputs)[0]

            # Of both ends: a call may change what the model holds, such as a cache of keys and values.
            held = [model.state]
            return (mx.compile(infer, inputs=held, outputs=held) if settings.compile else infer), []

        if recipe.step is not None:
            return self._own_work(recipe, settings)
        if not self.trainable_parameters:
            raise UnsupportedError(
                f"The {type(model).__name__} has no trainable parameters: there is nothing to train.",
                hint="Measure it with --mode inference, or unfreeze() a part of it.",
            )
        optimizer = _optimizer_of(recipe)
        self._optimizers = [optimizer]
        optimizer.init(model.trainable_parameters())
        state = [model.state, optimizer.state, mx.random.state]

        def compute_loss(leaves: Any) -> Any:
            if half is None:
                batch = rebuild(leaves)
                loss = given_loss(recipe, call(model, batch["inputs"]), batch["targets"])
            else:
                masters = model.trainable_parameters()
                # Weights stay float32 and the gradient flows through the cast: MLX has no autocast.
                model.update(cast(masters, half))
                outputs = call(model, rebuild(cast(leaves, half))["inputs"])
                model.update(masters)
                loss = given_loss(recipe, as_float32(outputs), rebuild(leaves)["targets"]) * scale
            require_number(loss)
            return loss

        self._compute_loss = compute_loss
        loss_and_gradients = nn.value_and_grad(model, compute_loss)

        def train(leaves: Any) -> list[Any]:
            loss, gradients = loss_and_gradients(leaves)
            if scale != 1.0:
                loss, gradients = tree_map(lambda array: array / scale, (loss, gradients))
            if self._exchanges:
                gradients = mlx_world.mean_gradients(gradients, self._weight)
            optimizer.update(model, gradients)
            return [loss]

        return (mx.compile(train, inputs=state, outputs=state) if settings.compile else train), state

    def _own_work(self, recipe: Recipe, settings: Settings) -> tuple[Callable[[Any], list[Any]], list[Any]]:
        """The user's function does everything, in the dtypes that it has."""
        step, rebuild = recipe.step, self.layout.rebuild
        assert step is not None
        if settings.dtype in HALF:
            raise UnsupportedError(
                f"--dtype {settings.dtype.value} does not reach into a step of your own on mlx, which has no autocast.",
                hint="Cast inside the step, or leave --dtype out.",
            )
        self._optimizers = _values(recipe.optimizer)
        state = [*(model.state for model in self._models), *(each.state for each in self._optimizers), mx.random.state]

        def train(leaves: Any) -> list[Any]:
            loss = total(step(**rebuild(leaves)))
            require_number(loss)
            return [loss]

        return (mx.compile(train, inputs=state, outputs=state) if settings.compile else train), state


class MlxBackend:
    name = "mlx"
    session = MlxSession

    def probe(self) -> Probe:
        return Probe(framework=self.name, versions={"mlx": version_of("mlx", mx) or UNKNOWN}, devices=_reports())

    @contextmanager
    def open(self, plan: Plan, workload: Workload) -> Iterator[MlxSession]:
        device, device_type = _resolve(plan.device)
        FRAMEWORKS[self.name].check(plan.settings, device_type, plan.loader)
        if plan.settings.compile:
            _require_compiler(device_type)
        before = mx.default_device()
        mx.set_default_device(device)
        mx.random.seed(plan.seed)
        try:
            yield self.session(plan, workload)
        finally:
            mx.set_default_device(before)

    def is_out_of_memory(self, error: BaseException) -> bool:
        marks = ("[malloc", "[metal::malloc]", "unable to allocate", "insufficient memory", "out of memory")
        return any(mark in str(error).lower() for mark in marks)


def _resolve(word: Device) -> tuple[Any, str]:
    """Return MLX's device for a device word, and its type; raise with the reason where it is absent."""
    gpu_type = _gpu_type()
    if word.kind is DeviceKind.CPU:
        return mx.Device(mx.cpu), "cpu"
    if word.kind is DeviceKind.ANY:
        default = mx.default_device()
        return default, gpu_type if gpu_type and default.type == mx.DeviceType.gpu else "cpu"
    if gpu_type is None or word.kind not in (DeviceKind.GPU, DeviceKind(gpu_type)):
        raise absent_device("MLX", word, _reports())
    gpus = mx.device_count(mx.gpu) if hasattr(mx, "device_count") else 1
    return mx.Device(mx.gpu, device_index("MLX", word, gpus)), gpu_type


def _gpu_type() -> str | None:
    """Return the type of its accelerator, which MLX calls gpu; its build decides which one that is."""
    if mx.metal.is_available():
        return "mps"
    # Builds before CUDA came have no module for it.
    return "cuda" if hasattr(mx, "cuda") and mx.cuda.is_available() else None


def _reports() -> tuple[DeviceReport, ...]:
    gpu_type = _gpu_type()
    reports = [DeviceReport(word="cpu", name=_name(mx.Device(mx.cpu)), present=True)]
    no_cuda = (
        "this MLX is its CPU build, or finds no usable NVIDIA GPU or driver.",
        'With an NVIDIA GPU on Linux: pip install "mlx[cuda13]" (or cuda12), and check `nvidia-smi`.',
    )
    no_metal = "MLX finds no Metal GPU: this Mac is a virtual machine, or its macOS is too old.", "MLX needs macOS 14."
    for word, why in (("cuda", no_cuda), ("mps", no_metal)):
        reports.append(report_device("MLX", word, _name(mx.Device(mx.gpu)) if word == gpu_type else "", why))
    return tuple(reports)


def _name(device: Any) -> str:
    if device.type == mx.DeviceType.cpu:
        return "CPU"
    info = mx.device_info(device) if hasattr(mx, "device_info") else mx.metal.device_info()
    return str(info.get("device_name", "gpu"))


def as_float32(outputs: Any) -> Any:
    return map_leaves(lambda array: array.astype(mx.float32), outputs)


def _models_of(recipe: Recipe) -> list[Any]:
    """Return the recipe's model, or all of its models."""
    found = [recipe.model] if isinstance(recipe.model, (nn.Module, type)) else _values(recipe.model)
    for model in found:
        if isinstance(model, type):
            raise UnsupportedError(
                f"Recipe(model={model.__name__}) is a class, not a model.",
                hint=f"Make one: model={model.__name__}(...).",
            )
        if not isinstance(model, nn.Module):
            raise UnsupportedError(f"The recipe's model is a {type(model).__name__}, not a mlx.nn.Module.")
    return found


def _values(some: Any) -> list[Any]:
    """Return the parts of a dict, tuple or list. MLX's own modules are dicts themselves, so this is no nest."""
    if some is None:
        return []
    return list(some.values()) if type(some) is dict else list(some) if isinstance(some, (tuple, list)) else [some]


def _optimizer_of(recipe: Recipe) -> Any:
    given = recipe.optimizer
    made = given() if callable(given) and not isinstance(given, optimizers.Optimizer) else given
    if not isinstance(made, optimizers.Optimizer):
        what = "none" if made is None else f"a {type(made).__name__}"
        raise UnsupportedError(
            f"The recipe needs an optimiser and has {what}.",
            hint="Recipe(..., optimizer=mlx.optimizers.Adam(learning_rate=1e-3))",
        )
    return made


def cast(tree: Any, dtype: Any | None) -> Any:
    """Return the tree with its floating arrays in that dtype; None leaves them."""
    if dtype is None:
        return tree
    return tree_map(lambda array: array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array, tree)


def _cast_constants(model: Any, dtype: Any, *, training: bool) -> None:
    """Cast once what no step changes. One float32 array left among them would make all after it float32 again."""
    keep = statistics_of(model, lambda module: module.training)
    if training:
        keep |= dict(tree_flatten(model.trainable_parameters()))
    constants = [(name, array) for name, array in tree_flatten(model.parameters()) if name not in keep]
    model.load_weights([(name, cast(array, dtype)) for name, array in constants], strict=False)


def statistics_of(model: Any, wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """Return running means and variances: MLX lists them among the parameters, PyTorch does not."""
    return {
        f"{name}.{key}": module[key]
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm) and module.track_running_stats and wanted(module)
        for key in ("running_mean", "running_var")
    }


def _count(arrays: Any) -> int:
    return sum(array.size for _, array in tree_flatten(arrays))


def _require_compiler(device_type: str) -> None:
    """Refuse where MLX can't compile: it would run the plain function and say nothing."""
    if device_type == "cpu":
        compiler = shutil.which("g++")
        if platform.system() == "Darwin" and compiler == "/usr/bin/g++":
            # Every Mac has this one; without the developer tools, all it does is ask to install them.
            compiler = None if isinstance(run_tool(["/usr/bin/xcode-select", "-p"], TOOL_S), Absent) else compiler
        if compiler is None:
            raise UnsupportedError(
                "--compile on mlx, cpu: MLX compiles for the CPU with g++, which is not here.",
                hint="Install g++; on a Mac: xcode-select --install",
            )
    mx.enable_compile()  # else a MLX_DISABLE_COMPILE of any value would undo the setting


BACKEND = MlxBackend()

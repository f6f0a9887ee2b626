"""TensorFlow through Keras 3: the whole step is one tf.function, and `--compile` hands it to XLA."""

import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import keras
import tensorflow as tf

from metalmark.backends import base, tensorflow_world
from metalmark.backends.base import HOST_MEMORY, DeviceReport, Placement, Probe
from metalmark.backends.catalog import FRAMEWORKS, version_of
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
from metalmark.backends.session import Placed, fingerprint_of, make_feeder, resident_batches, threads_of
from metalmark.errors import UnsupportedError, counted
from metalmark.feeds.on_tensorflow import tensorflow_loader
from metalmark.feeds.share import local_rank
from metalmark.model.nest import flatten
from metalmark.model.plan import Device, DeviceKind, Dtype, Mode, Plan, Settings
from metalmark.model.run import Absent, DeviceMemory
from metalmark.model.workload import Recipe, Workload

TITLE = "TensorFlow"
NO_RESERVED = Absent(reason="TensorFlow tells what its tensors use, not what its allocator has reserved")
METAL_FIX = 'On Python 3.12 or older: pip install "tensorflow==2.19.*" tensorflow-metal==1.2.0'
CUDA_FIX = 'With an NVIDIA GPU on Linux: pip uninstall tensorflow-cpu; pip install "tensorflow[and-cuda]"'


class TensorflowSession:
    double = False
    """Whether it computes in float64, whatever the plan says."""
    shares_loss = False
    """Whether the loss of a step is that of all processes, for which they have to exchange one number more."""

    def __init__(self, plan: Plan, workload: Workload) -> None:
        self._training = plan.mode is Mode.TRAINING
        self._processes, self._weight = plan.processes, 1.0
        recipe = self.recipe = build(plan, workload, "tensorflow", double=self.double)
        batches = resident_batches(plan, workload, recipe)
        self.layout, self.batch_shown = batches.layout, batches.shown
        self._models = models_of(recipe, batches.layout.rebuild(batches.leaves[0]))
        self._trainable = [variable for model in self._models for variable in model.trainable_variables]
        variables = [variable for model in self._models for variable in model.variables]
        home = variables[0].value.device if variables else tf.zeros(()).device

        def place(arrays: Any) -> Placed:
            with tf.device(home):
                return tuple(tf.identity(array) for array in arrays)

        self.feeder = make_feeder(plan, workload, recipe, batches, place=place, loader=tensorflow_loader)
        with tf.device(home):
            self._output: Any = [tf.zeros(())]
        self._home = home
        self.placement = Placement(device=_short(home), name=_name(_short(home)))
        self.parameters = sum(map(count_weights, self._models))
        self.trainable_parameters = count(self._trainable)
        self.notes: tuple[str, ...] = tensorflow_world.notes_on(self._models) if self._processes > 1 else ()
        self._optimizers: list[Any] = []
        self._compute_loss: Callable[[Any], Any] | None = None
        """compute_loss(leaves) -> the loss; None where a step is the user's own, and in inference."""
        self._work = self._make_work(recipe, plan.settings)
        self._weights_sum = tf.function(self._sum_of_weights)
        with suppress(ValueError, tf.errors.OpError):  # not every device keeps a peak; memory() says which
            tf.config.experimental.reset_memory_stats(self.placement.device)

    def step(self) -> None:
        self._output = self._work(*self.feeder.take())

    def settle(self) -> None:
        """Graphs are traced and compiled in this process."""

    def observed(self) -> AbstractContextManager[dict[str, str]]:
        """No setting here depends on what a network is made of."""
        return nullcontext({})

    def synchronize(self) -> None:
        # tf.test.experimental.sync_devices() runs an op whose kernel waits only in CUDA builds: on Metal, and on any
        # other plug-in, it is empty and returns at once. A value on the host is proof everywhere that its inputs are
        # done: so fetch one that needs the last output and, in training, the update of every weight.
        for output in self._output:
            tf.reshape(output, [-1])[:1].numpy()
        if self._training and self._trainable:
            self._weights_sum().numpy()

    def proof(self) -> float:
        parts = [tf.cast(output, tf.float32) for output in self._output]
        means = [tf.reduce_mean(part if self._training else tf.square(part)) for part in parts]
        return sum(float(mean.numpy()) for mean in means) / len(means)

    def fingerprint(self) -> tuple[float, ...]:
        return fingerprint_of(v.value.numpy() for v in self._trainable)

    def fingerprint_names(self) -> tuple[str, ...]:
        return tuple(variable.path for variable in self._trainable)

    def memory(self) -> DeviceMemory:
        if self.placement.device.startswith("CPU"):
            return HOST_MEMORY
        try:
            info = tf.config.experimental.get_memory_info(self.placement.device)
        except (ValueError, tf.errors.OpError) as error:
            return base.unknown_memory(f"TensorFlow has no counters for {self.placement.device}: {error}")
        if not info["peak"]:
            # The weights are there, so something is held: tensorflow-metal's allocator counts nothing and says 0.
            return base.unknown_memory(f"{self.placement.device} counts no memory in TensorFlow: it says 0 bytes")
        return DeviceMemory(live_bytes=info["current"], driver_bytes=NO_RESERVED, peak_bytes=info["peak"])

    def _make_work(self, recipe: Recipe, settings: Settings) -> Callable[..., Any]:
        """Return one step, a function of a batch's leaves (a call with a tuple takes longer) that gives the loss, or
        the leaves of the outputs, in a list."""
        model, trainable, rebuild = recipe.model, self._trainable, self.layout.rebuild

        if not self._training:

            def infer(*leaves: Any) -> Any:
                return flatten(scores(model(call_arguments(rebuild(leaves)["inputs"]), training=False)))[0]

            return tf.function(infer, jit_compile=settings.compile)  # type: ignore[no-any-return]

        if recipe.step is not None:
            step = recipe.step
            refuse_own_float16(settings.dtype)
            self._optimizers = flatten(recipe.optimizer)[0]

            def own(*leaves: Any) -> Any:
                loss = tf.convert_to_tensor(total(step(**rebuild(leaves))))
                require_number(loss)
                return [loss]

            return tf.function(own, jit_compile=settings.compile)  # type: ignore[no-any-return]

        loss_function = loss_of(recipe, self._processes)
        optimizer = make_optimizer(recipe, settings.dtype, trainable)
        self._optimizers = [optimizer]
        if self._processes > 1:
            tensorflow_world.refuse(recipe, settings, optimizer)

        def compute_loss(leaves: Any) -> Any:
            batch = rebuild(leaves)
            outputs = model(call_arguments(batch["inputs"]), training=True)
            loss = loss_function(batch["targets"], scores(outputs), model.losses)
            require_number(loss)
            return loss

        self._compute_loss = compute_loss

        def train(*leaves: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = compute_loss(leaves)
                scaled = optimizer.scale_loss(loss)
            optimizer.apply(tape.gradient(scaled, trainable), trainable)
            return [loss]

        if self._processes > 1:
            return self._shared_work(compute_loss, optimizer)
        return tf.function(train, jit_compile=settings.compile)  # type: ignore[no-any-return]

    def _shared_work(self, compute_loss: Callable[[Any], Any], optimizer: Any) -> Callable[..., Any]:
        """Return the step of one of several processes, whose gradients Keras sums over all of them."""
        trainable = self._trainable

        def train(share: Any, *leaves: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = compute_loss(leaves)
                part = loss * tf.cast(share, loss.dtype)
            optimizer.apply(tape.gradient(part, trainable), trainable)
            return [tensorflow_world.mean_loss(loss, share) if self.shares_loss else loss]

        together = tf.function(tensorflow_world.in_all(train))
        return lambda *leaves: together(tf.constant(self._weight / self._processes), *leaves)

    def _sum_of_weights(self) -> Any:
        return tf.add_n([tf.cast(tf.reshape(v.value, [-1])[0], tf.float32) for v in self._trainable])


class TensorflowBackend:
    name = "tensorflow"
    session = TensorflowSession

    def probe(self) -> Probe:
        versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
        built = tf.sysconfig.get_build_info()
        versions |= {name: built[f"{name}_version"] for name in ("cuda", "cudnn") if f"{name}_version" in built}
        if plugin := version_of("tensorflow-metal"):
            versions["tensorflow-metal"] = plugin
        return Probe(framework=self.name, versions=versions, devices=_reports())

    @contextmanager
    def open(self, plan: Plan, workload: Workload) -> Iterator[TensorflowSession]:
        configure(plan)
        with tensorflow_world.scope():
            yield self.session(plan, workload)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, tf.errors.ResourceExhaustedError) or "out of memory" in str(error).lower()


def configure(plan: Plan) -> None:
    """Set what is fixed once TensorFlow's runtime is up: which devices it sees, and the number of threads."""
    device_type, gpus = _resolve(plan.device)
    FRAMEWORKS["tensorflow"].check(plan.settings, device_type, plan.loader)
    if plan.world and gpus:
        if plan.world.nproc > len(gpus):
            raise UnsupportedError(
                f"--nproc {plan.world.nproc} on tensorflow, {device_type}: each process needs a device, and there is "
                f"{len(gpus)}."
            )
        gpus = [tf.config.list_physical_devices("GPU")[local_rank()]]
    tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        # Otherwise it takes the whole GPU at once, and a reading of its memory would say nothing.
        tf.config.experimental.set_memory_growth(gpu, True)
    threads = threads_of(plan, device_type)
    if threads is not None:
        # Operations side by side have a pool of their own: one of them at a time keeps the sum at `threads`. The
        # exchange between processes needs a second, or it would wait for what it is to exchange.
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(2 if plan.world else 1)
    # TensorFlow uses TensorFloat-32 unless told not to: float32 here means float32.
    tf.config.experimental.enable_tensor_float_32_execution(plan.settings.dtype is Dtype.TF32)


def _resolve(word: Device) -> tuple[str, list[Any]]:
    """Return the type of the device asked for and the GPUs that are to be visible; raise where it is absent."""
    gpus = tf.config.list_physical_devices("GPU")
    gpu_type = _gpu_type()
    if word.kind is DeviceKind.CPU:
        return "cpu", []
    if word.kind is DeviceKind.ANY:
        return gpu_type if gpus else "cpu", gpus
    if not gpus or word.kind not in (DeviceKind.GPU, DeviceKind(gpu_type)):
        raise base.absent_device(TITLE, word, _reports())
    return gpu_type, [gpus[base.device_index(TITLE, word, len(gpus))]]


def _gpu_type() -> str:
    """TensorFlow calls every accelerator GPU; on a Mac it can only come from tensorflow-metal."""
    return "mps" if platform.system() == "Darwin" else "cuda"


def _reports() -> tuple[DeviceReport, ...]:
    gpus = tf.config.list_physical_devices("GPU")
    no_cuda = "this TensorFlow is built for the CPU only.", CUDA_FIX
    if tf.test.is_built_with_cuda():
        no_cuda = (
            "TensorFlow has CUDA, but finds no usable NVIDIA GPU, driver or CUDA library.",
            'Check `nvidia-smi`: it must list a GPU. Then: pip install "tensorflow[and-cuda]"',
        )
    if platform.machine() != "arm64":
        no_metal = "this Python is x86_64 (an Intel Mac, or Rosetta).", f"Install an arm64 Python. {METAL_FIX}"
    elif plugin := version_of("tensorflow-metal"):
        no_metal = f"tensorflow-metal {plugin} gives TensorFlow {tf.__version__} no GPU.", METAL_FIX
    else:
        no_metal = "TensorFlow reaches Metal through tensorflow-metal, which is not installed.", METAL_FIX
    reports = [DeviceReport(word="cpu", name=_name("CPU:0"), present=True)]
    for word, why in (("cuda", no_cuda), ("mps", no_metal)):
        name = _name("GPU:0") if gpus and word == _gpu_type() else ""
        reports.append(base.report_device(TITLE, word, name, why, count=max(1, len(gpus))))
    return tuple(sorted(reports, key=lambda report: not report.present))


def _short(device: str) -> str:
    """'/job:localhost/replica:0/task:0/device:GPU:0' as 'GPU:0'."""
    spec = tf.DeviceSpec.from_string(device)
    return f"{spec.device_type}:{spec.device_index}"


def _name(device: str) -> str:
    if device.startswith("CPU"):
        threads = tf.config.threading.get_intra_op_parallelism_threads()
        return f"CPU, {counted(threads, 'thread')}" if threads else "CPU"
    if _gpu_type() == "mps":
        return "Apple GPU (Metal)"
    gpus = tf.config.get_visible_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[int(device.partition(":")[2])])
    return str(details.get("device_name", device))


BACKEND = TensorflowBackend()

"""Scripts that import Keras, with TensorFlow or JAX below it, and NumPy."""

from collections.abc import Sequence
from typing import NamedTuple

from metalmark.backends.environment import python_lines
from metalmark.model.parity import Quantity
from metalmark.model.plan import Dtype
from metalmark.parity.networks import LayerPart, NetworkParts, ParameterPart
from metalmark.parity.scripts import FORWARD_ONLY, IN_EVALUATION, REPEATS, Setting, in_numpy, packed, where

POLICIES = {Dtype.BFLOAT16: "mixed_bfloat16", Dtype.FLOAT16: "mixed_float16"}
FEW_LAYERS = 2
"""Scripts of Keras need more lines than others, so more layers share one."""
AS_NUMPY = 'np.array(keras.ops.convert_to_numpy({}), "float64")'


class KerasBackend(NamedTuple):
    """What is below Keras."""

    title: str
    imported: str
    precisions: dict[bool, str]
    """How TensorFloat-32 is switched off and on: both use it on GPUs that have it unless they are told not to."""
    compiles: str
    """The argument of `compile` for a step that is compiled or not. JAX always compiles, whatever is asked for."""


BACKENDS = {
    "tensorflow": KerasBackend(
        title="TensorFlow",
        imported="import tensorflow as tf",
        precisions={on: f"tf.config.experimental.enable_tensor_float_32_execution({on})" for on in (False, True)},
        compiles=", jit_compile={}",
    ),
    "jax": KerasBackend(
        title="JAX",
        imported="import jax",
        precisions={
            False: 'jax.config.update("jax_default_matmul_precision", "highest")',
            True: 'jax.config.update("jax_default_matmul_precision", "tensorfloat32")',
        },
        compiles="",
    ),
}


class KerasWriter:
    identity = "keras.layers.Identity()"
    total, difference, ending = in_numpy.TOTAL, in_numpy.DIFFERENCE, in_numpy.ENDING

    def __init__(self, name: str) -> None:
        self._name, self._backend = name, BACKENDS[name]
        self.title = self._backend.title

    def imports(self, setting: Setting, body: str) -> str:  # noqa: ARG002
        modules = "\n".join(sorted([self._backend.imported, "import keras", "import numpy as np"]))
        usual = f'os.environ |= {{"KERAS_BACKEND": "{self._name}", "TF_CPP_MIN_LOG_LEVEL": "2"}}'
        variables = "\n".join([usual, *python_lines(setting.plan.settings.environment)])
        return f"""import os

{variables}
{modules}

{self._backend.precisions[setting.plan.settings.dtype is Dtype.TF32]}"""

    def device(self, placed_on: str) -> str:
        """Return what Keras calls TensorFlow's "CPU:0" and "GPU:1", and JAX' "TFRT_CPU_0" and "cuda:0"."""
        word = placed_on.lower().removeprefix("tfrt_").replace("_", ":").replace("cuda", "gpu")
        return f'"{word}"'

    def dropout_body(self, layer: LayerPart) -> str:
        assert layer.given is not None
        return f"""def measure(device, as_checked):
    keras.utils.set_random_seed(0)
    with keras.device(device):
        layer = {layer.text}
        outputs = {AS_NUMPY.format(f'layer(np.ones({layer.given.shape}, "float32"), training=True)')}
    return {{"share dropped": np.mean(outputs == 0)}}
"""

    def repeating_body(self, setting: Setting, layer: LayerPart) -> str:
        assert layer.given is not None
        policy = POLICIES.get(setting.plan.settings.dtype)
        lines = [
            "def measure(device, as_checked):",
            f'    """Return the first output; `as_checked`: of {REPEATS} more, the one that is furthest from it."""',
            "    keras.utils.set_random_seed(0)",
            *where(policy is not None, f'    keras.config.set_dtype_policy("{policy}")'),
            f"    inputs = {in_numpy.random(layer.given)}",
            "    with keras.device(device):",
            f"        layer = {layer.text}",
            f"        first = worst = {AS_NUMPY.format('layer(inputs)')}",
            f"        for _ in range({REPEATS} if as_checked else 0):",
            f"            again = {AS_NUMPY.format('layer(inputs)')}",
            "            worst = max(worst, again, key=lambda each: np.abs(each - first).max())",
            '    return {"outputs": worst}',
        ]
        return "\n".join(lines) + "\n"

    def optimizer_body(self, part: ParameterPart) -> str:
        return f"""def measure(device, as_checked):
    keras.utils.set_random_seed(0)
    before = {in_numpy.normal(part.shape, part.size)}
    with keras.device(device):
        parameter = keras.Variable(before)
        optimizer = {part.optimizer}
        for _ in range(5):
            gradient = {in_numpy.normal(part.shape, part.gradient_size)}
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [parameter])
    return {{"change": {AS_NUMPY.format("parameter.value")} - before}}
"""

    def network_body(self, setting: Setting, parts: NetworkParts, layers: Sequence[LayerPart], loss: str) -> str:
        settings, quantity, given = setting.plan.settings, setting.suspect.quantity, layers[0].given
        assert given is not None
        forward_only = quantity in FORWARD_ONLY
        compiles = self._backend.compiles.format("as_checked" if settings.compile else False)
        if loss and parts.targets is not None:
            name, value, number = "TARGETS", in_numpy.random(parts.targets), loss
        else:
            name, value = "DIRECTION", in_numpy.direction("make_model().output_shape")
            number = 'lambda direction, outputs: keras.ops.sum(keras.ops.cast(outputs, "float32") * direction)'
            # Keras would scale this sum up until it is infinite in float16.
            compiles += ", auto_scale_loss=False" if settings.dtype is Dtype.FLOAT16 else ""
        policy = POLICIES.get(settings.dtype)
        alone = len(layers) == 1
        each_layer = "for layer in model.layers" if alone else "for number, layer in enumerate(model.layers)"
        name_of = "each.name" if alone else 'f"{number}.{each.name}"'
        gradient_of = 'f"gradient of {each.name}"' if alone else 'f"gradient of {number}.{each.name}"'
        lines = [
            "keras.utils.set_random_seed(0)",
            f"INPUTS = {in_numpy.random(given)}",
            "",
            "",
            "def make_model():",
            "    return keras.Sequential([",
            "        keras.Input(batch_shape=INPUTS.shape, dtype=INPUTS.dtype),",
            *packed([layer.text for layer in layers], FEW_LAYERS),
            "    ])",
            "",
            "",
            "WEIGHTS = make_model().get_weights()",
            *where(not forward_only, f"{name} = {value}"),
            "",
            "",
            "def measure(device, as_checked):",
            *where(policy is not None, f'    keras.config.set_dtype_policy("{policy}" if as_checked else "float32")'),
            "    with keras.device(device):",
            "        model = make_model()",
            "        model.set_weights(WEIGHTS)",
            *where(
                quantity is Quantity.PREDICTION,
                f"        model.compile({compiles.removeprefix(', ')})",
                '        found = {"outputs": model.predict_on_batch(INPUTS)}',
            ),
            *where(
                quantity is not Quantity.PREDICTION,
                f'        found = {{"outputs": model(INPUTS, training={quantity not in IN_EVALUATION})}}',
            ),
            *where(
                quantity is Quantity.STATISTIC,
                f"        {each_layer}:",
                f"            found |= {{{name_of}: each for each in layer.non_trainable_variables}}",
            ),
            *where(
                not forward_only,
                "        optimizer = keras.optimizers.SGD()  # leaves each gradient in the place of its variable:",
                "        optimizer.update_step = lambda gradient, variable, _: variable.assign(gradient)",
                f"        loss = {number}",
                f"        model.compile(optimizer, loss=loss{compiles})",
                f'        found["loss"] = model.train_on_batch(INPUTS, {name})',
                f"        {each_layer}:",
                f"            found |= {{{gradient_of}: each for each in layer.trainable_variables}}",
            ),
            f"    return {{name: {AS_NUMPY.format('each')} for name, each in found.items()}}",
        ]
        return "\n".join(lines) + "\n"

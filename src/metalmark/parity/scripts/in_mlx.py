"""Scripts that import MLX and NumPy."""

from collections.abc import Sequence

from metalmark.model.parity import Quantity
from metalmark.model.plan import Dtype, Settings
from metalmark.parity.networks import LayerPart, NetworkParts, ParameterPart
from metalmark.parity.scripts import FORWARD_ONLY, IN_EVALUATION, REPEATS, Setting, in_numpy, packed, where

FEW_LAYERS = 3
"""More layers share lines, so that scripts with a cast and a compiler are short enough."""
HALF = (Dtype.BFLOAT16, Dtype.FLOAT16)
AS_NUMPY = 'np.array({}.astype(mx.float32), "float64")'


class MlxWriter:
    title = "MLX"
    identity = "nn.Identity()"
    total, difference, ending = in_numpy.TOTAL, in_numpy.DIFFERENCE, in_numpy.ENDING

    def imports(self, setting: Setting, body: str) -> str:
        trees = ", ".join(name for name in ("tree_flatten", "tree_map") if name in body)
        lines = [
            # Read when MLX is imported. It has no such mode on the CPU.
            *where(
                not setting.device.startswith("cpu"),
                "import os",
                f'os.environ["MLX_ENABLE_TF32"] = "{int(setting.plan.settings.dtype is Dtype.TF32)}"',
            ),
            *where("partial(" in body, "from functools import partial"),
            "import mlx.core as mx",
            "import numpy as np",
            f"from mlx import {', '.join(name for name in ('nn', 'optimizers') if f'{name}.' in body)}",
            *where(bool(trees), f"from mlx.utils import {trees}"),
        ]
        return "\n".join(lines)

    def device(self, placed_on: str) -> str:
        kind, _, index = placed_on.partition(":")
        return f"mx.Device(mx.{kind}, {index or 0})"

    def dropout_body(self, layer: LayerPart) -> str:
        assert layer.given is not None
        return f"""def measure(device, as_checked):
    mx.set_default_device(device)
    mx.random.seed(0)
    layer = {layer.text}
    return {{"share dropped": np.mean(np.array(layer(mx.ones({layer.given.shape}))) == 0)}}
"""

    def repeating_body(self, setting: Setting, layer: LayerPart) -> str:
        assert layer.given is not None
        dtype = setting.plan.settings.dtype
        low = f".astype(mx.{dtype})" if dtype in HALF and layer.given.is_floating else ""
        lines = [
            "def measure(device, as_checked):",
            f'    """Return the first output; `as_checked`: of {REPEATS} more, the one that is furthest from it."""',
            "    mx.set_default_device(device)",
            "    mx.random.seed(0)",
            "    np.random.seed(0)",
            f"    layer = {layer.text}",
            *where(bool(low), f"    layer.update(tree_map(lambda each: each{low}, layer.trainable_parameters()))"),
            f"    inputs = mx.array({in_numpy.random(layer.given)}){low}",
            f"    first = worst = {AS_NUMPY.format('layer(inputs)')}",
            f"    for _ in range({REPEATS} if as_checked else 0):",
            f"        again = {AS_NUMPY.format('layer(inputs)')}",
            "        worst = max(worst, again, key=lambda each: np.abs(each - first).max())",
            '    return {"outputs": worst}',
        ]
        return "\n".join(lines) + "\n"

    def optimizer_body(self, part: ParameterPart) -> str:
        return f"""def measure(device, as_checked):
    mx.set_default_device(device)
    np.random.seed(0)
    before = {in_numpy.normal(part.shape, part.size)}
    parameters = {{"parameter": mx.array(before)}}
    optimizer = {part.optimizer}
    for _ in range(5):
        gradient = {in_numpy.normal(part.shape, part.gradient_size)}
        parameters = optimizer.apply_gradients({{"parameter": mx.array(gradient)}}, parameters)
        mx.eval(parameters, optimizer.state)
    return {{"change": np.array(parameters["parameter"]).astype("float64") - before}}
"""

    def network_body(self, setting: Setting, parts: NetworkParts, layers: Sequence[LayerPart], loss: str) -> str:
        settings, quantity, given = setting.plan.settings, setting.suspect.quantity, layers[0].given
        assert given is not None
        forward_only, has_gradients = quantity in FORWARD_ONLY, quantity not in (*FORWARD_ONLY, Quantity.LOSS)
        if forward_only:
            other, number = "", "outputs.square().mean()"
        elif loss and parts.targets is not None:
            other, number = f"targets = {in_numpy.random(parts.targets)}", f"{loss}(outputs, targets).mean()"
        else:
            direction = in_numpy.direction("make_model()(mx.array(INPUTS)).shape")
            other, number = f"direction = {direction}", "(outputs * direction).sum()"
        name, _, value = other.partition(" = ")
        compiled = settings.compile and quantity is not Quantity.EVAL_OUTPUT and quantity is not Quantity.TRAIN_OUTPUT
        others = "dict(tree_flatten(model.parameters()))"
        if has_gradients:
            others = '{f"gradient of {name}": each for name, each in tree_flatten(gradients)}'
        lines = [
            *_make_model(layers),
            "",
            "",
            "np.random.seed(0)",
            f"INPUTS = {in_numpy.random(given)}",
            *where(not forward_only, f"{name.upper()} = {value}"),
            "",
            "",
            "def measure(device, as_checked):",
            "    model = make_model()",
            *where(quantity in IN_EVALUATION, "    model.eval()"),
            "    mx.set_default_device(device)",
            "    inputs = mx.array(INPUTS)"
            if forward_only
            else f"    inputs, {name} = mx.array(INPUTS), mx.array({name.upper()})",
            "    def work(inputs):",
            *_forward(settings, given.is_floating),
            f"        return {number}, outputs",
            "    step = nn.value_and_grad(model, work)" if has_gradients else "    step = work",
            *where(
                compiled,
                "    if as_checked:",
                "        step = mx.compile(step, inputs=[model.state], outputs=[model.state])",
            ),
            "    (loss, outputs), gradients = step(inputs)" if has_gradients else "    loss, outputs = step(inputs)",
            f'    found = {{"loss": loss, "outputs": outputs}} | {others}',
            f"    return {{name.replace('layers.', ''): {AS_NUMPY.format('each')} for name, each in found.items()}}",
        ]
        return "\n".join(lines) + "\n"


def _make_model(layers: Sequence[LayerPart]) -> list[str]:
    head = ["def make_model():", "    mx.set_default_device(mx.cpu)", "    mx.random.seed(0)"]
    if len(layers) == 1:
        return [*head, f"    return {layers[0].text}"]
    return [*head, "    return nn.Sequential(", *packed([layer.text for layer in layers], FEW_LAYERS), "    )"]


def _forward(settings: Settings, floating: bool) -> list[str]:
    """MLX has no autocast: weights stay float32, and the gradient flows through the cast."""
    if settings.dtype not in HALF:
        return ["        outputs = model(inputs)"]
    return [
        f"        low = lambda each: each.astype(mx.{settings.dtype}) if as_checked else each",
        "        model.update(tree_map(low, model.trainable_parameters()))",
        f"        outputs = model({'low(inputs)' if floating else 'inputs'}).astype(mx.float32)",
    ]

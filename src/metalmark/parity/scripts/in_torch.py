"""Scripts that import PyTorch alone."""

from collections.abc import Sequence

from metalmark.backends.environment import python_lines
from metalmark.model.plan import Dtype
from metalmark.parity.networks import LayerPart, NetworkParts, ParameterPart, TensorPart
from metalmark.parity.scripts import FORWARD_ONLY, IN_EVALUATION, REPEATS, Setting, packed, where


class TorchWriter:
    title = "PyTorch"
    identity = "nn.Identity()"
    total = "each[name].abs().sum()"
    difference = "(found - wanted).square().mean().sqrt() / wanted.square().mean().sqrt().clamp(min=1e-30)"
    ending = """# Python's own exit may abort in a thread of PyTorch's: https://github.com/pytorch/pytorch/issues/38228
os._exit(int(differs))"""

    def imports(self, setting: Setting, body: str) -> str:  # noqa: ARG002
        variables = python_lines(setting.plan.settings.environment)
        return "\n".join(["import os", "", *variables, "import torch", "from torch import nn"])

    def device(self, placed_on: str) -> str:
        return f'"{placed_on}"'

    def dropout_body(self, layer: LayerPart) -> str:
        assert layer.given is not None
        return f"""def measure(device, as_checked):
    torch.manual_seed(0)
    layer = {layer.text}.to(device).train()
    outputs = layer(torch.ones{layer.given.shape}.to(device))
    return {{"share dropped": (outputs == 0).cpu().double().mean()}}
"""

    def repeating_body(self, setting: Setting, layer: LayerPart) -> str:  # noqa: ARG002
        assert layer.given is not None
        return f'''def measure(device, as_checked):
    """Return the first output; `as_checked`: of {REPEATS} more, the one that is furthest from it."""
    torch.manual_seed(0)
    layer = {layer.text}.to(device)
    inputs = {_random(layer.given)}.to(device)
    with torch.no_grad():
        first = worst = layer(inputs)
        for _ in range({REPEATS} if as_checked else 0):
            worst = max(worst, layer(inputs), key=lambda each: float((each - first).abs().max()))
    return {{"outputs": worst.cpu().double()}}
'''

    def optimizer_body(self, part: ParameterPart) -> str:
        shape = ", ".join(map(str, part.shape))
        return f"""def measure(device, as_checked):
    torch.manual_seed(0)
    parameter = nn.Parameter((torch.randn({shape}) * {part.size:.6g}).to(device))
    optimizer = {part.optimizer}
    before = parameter.detach().cpu().double()
    for _ in range(5):
        parameter.grad = (torch.randn({shape}) * {part.gradient_size:.6g}).to(device)
        optimizer.step()
    return {{"change": parameter.detach().cpu().double() - before}}
"""

    def network_body(self, setting: Setting, parts: NetworkParts, layers: Sequence[LayerPart], loss: str) -> str:
        settings, quantity, given = setting.plan.settings, setting.suspect.quantity, layers[0].given
        assert given is not None
        forward_only = quantity in FORWARD_ONLY
        if forward_only:
            other, number = "", "outputs.square().mean()"
        elif loss and parts.targets is not None:
            other, number = f"targets = {_random(parts.targets)}", f"{loss}(outputs.float(), targets)"
        else:
            # The sum along a random direction: a plain sum has the same gradient for all outputs, which hides faults.
            other, number = "direction = torch.randn_like(model(INPUTS))", "(outputs * direction).sum()"
        name, _, value = other.partition(" = ")
        lines = [
            *_make_model(layers),
            "",
            "",
            "model = make_model()",
            f"INPUTS = {_random(given)}",
            *where(not forward_only, f"{name.upper()} = {value}"),
            "",
            "",
            "def measure(device, as_checked):",
            *where(
                settings.dtype is Dtype.TF32,
                "    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = as_checked",
            ),
            *where(settings.conv_search, "    torch.backends.cudnn.benchmark = as_checked"),
            f"    model = make_model().to(device).{'eval' if quantity in IN_EVALUATION else 'train'}()",
            "    inputs = INPUTS.to(device)"
            if forward_only
            else f"    inputs, {name} = INPUTS.to(device), {name.upper()}.to(device)",
            *where(
                settings.channels_last and len(given.shape) == 4,
                "    if as_checked:",
                "        model, inputs = (each.to(memory_format=torch.channels_last) for each in (model, inputs))",
            ),
            *where(given.needs_gradient and not forward_only, "    inputs.requires_grad_()"),
            "",
            "    def work(inputs):",
            *_forward(settings.dtype),
            f"        return outputs, {number}",
            "",
            *where(settings.compile, "    if as_checked:", f"        work = torch.compile(work{parts.compile})"),
            *where(forward_only, "    with torch.no_grad():", "        outputs, loss = work(inputs)"),
            *where(not forward_only, "    outputs, loss = work(inputs)", "    loss.backward()"),
            '    found = {"outputs": outputs, "loss": loss, **dict(model.named_buffers())}',
            *where(
                not forward_only,
                '    found |= {f"gradient of {name}": each.grad for name, each in model.named_parameters()}',
            ),
            "    return {name: each.detach().cpu().double() for name, each in found.items()}",
        ]
        return "\n".join(lines) + "\n"


def _random(part: TensorPart) -> str:
    if part.is_floating:
        return f"torch.randn({', '.join(map(str, part.shape))})"
    return f"torch.randint(0, {max(1, part.high)}, {part.shape})"


def _make_model(layers: Sequence[LayerPart]) -> list[str]:
    head = ["def make_model():", "    torch.manual_seed(0)"]
    if len(layers) == 1:
        return [*head, f"    return {layers[0].text}"]
    return [*head, "    return nn.Sequential(", *packed([layer.text for layer in layers]), "    )"]


def _forward(dtype: Dtype) -> list[str]:
    if dtype not in (Dtype.BFLOAT16, Dtype.FLOAT16):
        return ["        outputs = model(inputs)"]
    return [
        f"        with torch.autocast(inputs.device.type, dtype=torch.{dtype}, enabled=as_checked):",
        "            outputs = model(inputs)",
    ]

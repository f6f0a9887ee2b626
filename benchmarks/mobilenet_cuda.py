"""What is left in a step of MobileNetV2 on an NVIDIA GPU: 32 px, batch 32, all layers trained, the fast settings.

python benchmarks/mobilenet_cuda.py [OUT.json] [--device cpu]

Changes of the network's own code, which no setting of Metalmark makes, alone and together: the gradient of the weights
of depthwise convolutions as sums of products, or the whole convolution as a sum of shifted products, which a compiler
can join with what is before and after it; convolutions of single places as matrix products; and one Adam over all
weights as one array instead of one array per layer.
Each is the workload `variants` below with other parameters, so everything else is as in `metalmark bench`. Before
anything is timed, a change must give the losses and the gradients of the plain network. Prints the step of each, and
the best gain over float32, eager; exit 1 where it is below 20. OUT.json gets the runs. With --device cpu only the
checks are made.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import metalmark as mm
from metalmark import Param, Recipe
from metalmark.workloads.catalog import load

Forward = Callable[[Any, Any], Any]
LEAST_GAIN = 20.0
SMALL = {"batch_size": 32, "pixels": 32, "train": "all"}
FAST = {
    "dtype": "bfloat16", "compile": True, "graph": True, "fused": True, "channels_last": True, "conv_search": True,
}  # fmt: skip
MODES = ("default", "combo-kernels")
PLAIN = {"depthwise": "convolution", "pointwise": "convolution", "update": "each"}
CHANGES = (
    {"update": "flat"},
    {"depthwise": "sums", "update": "flat"},
    {"pointwise": "products", "update": "flat"},
    {"depthwise": "sums", "pointwise": "products", "update": "flat"},
    {"depthwise": "shifts", "update": "flat"},
)
RATE = 5e-4
TOLERANCE = 1e-6
"""How far losses and gradients of a change may be from the plain network's in float64, as a share of the largest."""
NOTHING = 1e-9
"""Of the largest gradient. What is smaller is rounding: a BatchNorm takes away what was added before it."""


def on_torch(params: dict[str, Any]) -> Recipe:
    import torch

    recipe = load("mobilenet-cifar10").recipe("torch", params)
    replace_depthwise(recipe.model, DEPTHWISE[params["depthwise"]]())
    if params["pointwise"] == "products":
        replace_pointwise(recipe.model)
    optimizer = partial(torch.optim.Adam, lr=RATE)
    if params["update"] == "flat":
        optimizer = partial(flat_adam, lr=RATE)
    return Recipe(model=recipe.model, loss=recipe.loss, optimizer=optimizer, prepare=recipe.prepare)


_published = load("mobilenet-cifar10")
variants = mm.Workload(
    name="mobilenet-variants",
    title="MobileNetV2 with other code for the same arithmetic",
    params=(
        *_published.params,
        Param("depthwise", "convolution", choices=("convolution", "sums", "shifts")),
        Param("pointwise", "convolution", choices=("convolution", "products")),
        Param("update", "each", choices=("each", "flat")),
    ),
    build={"torch": on_torch},
    batch=_published.batch,
    flops=_published.flops,
    training_factor=_published.training_factor,
)


def replace_depthwise(model: Any, forward: Forward) -> None:
    """Let each depthwise convolution be computed by `forward(module, features)`. It has no bias here."""
    from torch import nn

    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.groups == module.in_channels == module.out_channels > 1:
            module.forward = partial(forward, module)


def replace_pointwise(model: Any) -> None:
    """Let each convolution of single places be a matrix product of places and channels. It has no bias here."""
    from torch import nn
    from torch.nn import functional

    def forward(module: Any, features: Any) -> Any:
        return functional.linear(features.permute(0, 2, 3, 1), module.weight.flatten(1)).permute(0, 3, 1, 2)

    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1:
            assert module.stride == (1, 1)
            module.forward = partial(forward, module)


def in_dtype(features: Any, weight: Any) -> tuple[Any, Any]:
    """Return both as autocast would give them to a convolution."""
    import torch

    device, dtype = features.device.type, features.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    return features.to(dtype), weight.to(dtype)


def pieces(module: Any, features: Any) -> Iterator[tuple[int, int, Any]]:
    """Yield what each tap of the kernel sees of the images: its row, its column and that part."""
    from torch.nn import functional

    (pad_y, pad_x), (down, right) = module.padding, module.stride
    padded = functional.pad(features, (pad_x, pad_x, pad_y, pad_y))
    (high, wide), (height, width) = module.kernel_size, padded.shape[2:]
    rows, columns = (height - high) // down, (width - wide) // right
    for y in range(high):
        for x in range(wide):
            yield y, x, padded[:, :, y : y + down * rows + 1 : down, x : x + right * columns + 1 : right]


def by_shifts(module: Any, features: Any) -> Any:
    """Compute the convolution as a sum of shifted products, in float32 or better, and its gradients with it."""
    import torch

    features, weight = in_dtype(features, module.weight)
    exact = torch.promote_types(features.dtype, torch.float32)
    total = torch.zeros((), device=features.device, dtype=exact)
    for y, x, piece in pieces(module, features):
        total = total + piece.to(exact) * weight[:, 0, y, x].to(exact).view(1, -1, 1, 1)
    return total.to(features.dtype)


def by_sums() -> Forward:
    """Return a forward pass whose weights get their gradient as sums of products, over images and places."""
    import torch

    class Depthwise(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, features: Any, weight: Any, module: Any) -> Any:
            ctx.save_for_backward(features, weight)
            ctx.module = module
            return torch.nn.functional.conv2d(
                features, weight, stride=module.stride, padding=module.padding, groups=module.groups
            )

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            features, weight = ctx.saved_tensors
            module = ctx.module
            exact = torch.promote_types(features.dtype, torch.float32)
            of_features, _, _ = torch.ops.aten.convolution_backward(
                gradient, features, weight, None, module.stride, module.padding, module.dilation, False, [0, 0],
                module.groups, [True, False, False],
            )  # fmt: skip
            sums = [(piece.to(exact) * gradient.to(exact)).sum((0, 2, 3)) for _, _, piece in pieces(module, features)]
            return of_features, torch.stack(sums, dim=1).view(weight.shape).to(weight.dtype), None

    return lambda module, features: Depthwise.apply(*in_dtype(features, module.weight), module)


def by_convolution() -> Forward:
    return lambda module, features: type(module).forward(module, features)


DEPTHWISE: dict[str, Callable[[], Forward]] = {
    "convolution": by_convolution, "sums": by_sums, "shifts": lambda: by_shifts,
}  # fmt: skip


def flat_adam(parameters: Iterable[Any], **options: Any) -> Any:
    """Make an Adam that has all weights as one array, of which each parameter becomes a part."""
    import torch

    each = list(parameters)
    whole = torch.nn.Parameter(torch.empty(sum(p.numel() for p in each), device=each[0].device, dtype=each[0].dtype))
    begin = 0
    for parameter in each:
        # In the order in which they lie in memory, whatever their layout.
        part = whole.data.as_strided(parameter.size(), parameter.stride(), begin)
        part.copy_(parameter.data)
        parameter.data = part
        begin += parameter.numel()

    class FlatAdam(torch.optim.Adam):
        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none)
            for parameter in each:
                parameter.grad = None

        def step(self, closure: Callable[[], float] | None = None) -> Any:
            whole.grad = torch.cat([in_memory_order(parameter) for parameter in each])
            return super().step(closure)

    return FlatAdam([whole], **options)


def in_memory_order(parameter: Any) -> Any:
    """Return a gradient as one row, in the order of its parameter."""
    import torch

    gradient = parameter.grad
    if gradient.stride() != parameter.stride():
        gradient = torch.empty_like(parameter).copy_(gradient)
    return gradient.as_strided((parameter.numel(),), (1,))


def difference(change: dict[str, str], device: str) -> float:
    """Return how far three steps with a change are from those without: the largest share of an array's largest number.

    In float64, where no rounding looks like a difference.
    """
    plain, changed = (trained({**PLAIN, **asked}, device) for asked in ({}, change))
    least = NOTHING * max(float(numbers.abs().max()) for numbers in plain)
    return max(
        float((one - other).abs().max()) / max(float(one.abs().max()), least)
        for one, other in zip(plain, changed, strict=True)
        if float(one.abs().max()) > least
    )


def trained(change: dict[str, str], device: str) -> list[Any]:
    """Return the first gradients and the losses of three steps."""
    import numpy as np
    import torch

    params = {param.name: param.default for param in variants.params} | SMALL | change
    torch.manual_seed(0)
    recipe = on_torch(params)
    model = recipe.model.to(device=device, dtype=torch.float64, memory_format=torch.channels_last).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # its numbers would be drawn in another order by other code
    optimizer = recipe.optimizer(list(model.parameters()))
    batch = recipe.prepare(variants.batch(params, np.random.default_rng(0)))
    images = torch.from_numpy(batch.inputs[0]).to(device=device, dtype=torch.float64)
    targets = torch.from_numpy(batch.targets).long().to(device)
    numbers = []
    for step in range(3):
        optimizer.zero_grad()
        loss = recipe.loss(model(images), targets)
        loss.backward()
        if step == 0:
            numbers += [parameter.grad.cpu().flatten() for parameter in model.parameters()]
        optimizer.step()
        numbers.append(loss.detach().cpu().view(1))
    return numbers


def warm(changes: Iterable[dict[str, str]], device: str) -> None:
    """Compile every step that is timed, all at once, so that each finds its code in PyTorch's cache."""
    flags = [f"--{name.replace('_', '-')}" if value is True else f"--{name}={value}" for name, value in FAST.items()]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "metalmark", "bench", f"{__file__}:variants", "-f", "torch", "-d", device,
            "--steps", "1", "--proof", "off", *flags,
        ]  # fmt: skip
        started = [
            subprocess.Popen(
                [*command, *(f"-p{name}={value}" for name, value in {**SMALL, **change}.items()),
                 "--compile-mode", mode, "--store", str(Path(folder, f"{number}{mode}.sqlite3"))],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for number, change in enumerate(changes) for mode in MODES
        ]  # fmt: skip
        for process in started:
            if process.wait():
                print(f"# not compiled beforehand: {' '.join(map(str, process.args))}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="file for the runs")
    parser.add_argument("--device", default="cuda", help="cpu makes the checks only")
    given = parser.parse_args()
    for change in CHANGES:
        off = difference(change, given.device)
        print(f"difference_{'_'.join(change.values())}: {off:.2g}", flush=True)
        if off > TOLERANCE:
            return 1
    if given.device == "cpu":
        return 0

    from metalmark.model.codec import encode_export
    from metalmark.model.measurement import BenchRun, Completed
    from metalmark.results.cells import cells_of

    changes = ({}, *CHANGES)
    warm(changes, given.device)
    runs: list[BenchRun] = []

    def step_ms(change: dict[str, str], **settings: Any) -> float:
        with tempfile.TemporaryDirectory() as folder:
            (run,) = mm.bench(
                f"{__file__}:variants", framework="torch", device=given.device, store=Path(folder, "s.sqlite3"),
                progress=False, params={**SMALL, **change}, seconds=2, **settings,
            )  # fmt: skip
        assert isinstance(run, BenchRun)
        runs.append(run)
        if not isinstance(run.outcome, Completed):
            print(f"# {run.plan.label}: {run.outcome.message}", flush=True)
            return float("inf")
        return (cells_of([run])[0].step_s or float("inf")) * 1e3

    eager = [step_ms({})]
    best = float("inf")
    for change in changes:
        for mode in MODES:
            took = step_ms(change, **FAST, compile_mode=mode)
            best = min(best, took)
            print(f"{'_'.join(change.values()) or 'plain'}_{mode}_ms: {took:.3f}", flush=True)
    eager.append(step_ms({}))
    if given.out is not None:
        given.out.write_bytes(encode_export(runs))
    print(f"eager_ms: {eager[0]:.2f} and {eager[1]:.2f}")
    print(f"best_ms: {best:.3f}")
    gain = min(eager) / best
    print(f"gain: {gain:.2f}")
    return 0 if gain >= LEAST_GAIN else 1


if __name__ == "__main__":
    sys.exit(main())

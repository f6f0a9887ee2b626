"""What is left in a step of MobileNetV2 on an NVIDIA GPU: 32 px, batch 32, all layers trained, the fast settings.

python benchmarks/mobilenet_cuda.py [OUT.json] [--device cpu]

Two changes of the network's own code, which no setting of Metalmark makes, alone and together: depthwise convolutions
as sums of shifted products, which a compiler can join with what is before and after them, and one Adam over all weights
as one array instead of one array per layer. Each is the workload `variants` below with other parameters, so everything
else is as in `metalmark bench`. Before anything is timed, the change must give the loss and the gradients of the plain
network. Prints the step of each, and the best gain over float32, eager; exit 1 where it is below 20. OUT.json gets the
runs. With --device cpu only the checks are made.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import metalmark as mm
from metalmark import Param, Recipe
from metalmark.workloads.catalog import load

LEAST_GAIN = 20.0
SMALL = {"batch_size": 32, "pixels": 32, "train": "all"}
FAST = {
    "dtype": "bfloat16", "compile": True, "graph": True, "fused": True, "channels_last": True, "conv_search": True,
}  # fmt: skip
RATE = 5e-4
TOLERANCE = 1e-6
"""How far losses and gradients of a change may be from the plain network's in float64, as a share of the largest."""
NOTHING = 1e-9
"""Of the largest gradient. What is smaller is rounding: a BatchNorm takes away what was added before it."""


def on_torch(params: dict[str, Any]) -> Recipe:
    import torch

    recipe = load("mobilenet-cifar10").recipe("torch", params)
    if params["depthwise"] == "shifts":
        use_shifts(recipe.model)
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
        Param("depthwise", "convolution", choices=("convolution", "shifts")),
        Param("update", "each", choices=("each", "flat")),
    ),
    build={"torch": on_torch},
    batch=_published.batch,
    flops=_published.flops,
    training_factor=_published.training_factor,
)


def use_shifts(model: Any) -> None:
    """Compute each depthwise convolution as a sum of shifted products, in float32 or better."""
    from torch import nn

    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.groups == module.in_channels == module.out_channels > 1:
            module.forward = partial(shifted, module)


def shifted(module: Any, features: Any) -> Any:
    """Return what a depthwise convolution without a bias does."""
    import torch
    from torch.nn import functional

    dtype = features.dtype
    if torch.is_autocast_enabled(features.device.type):
        dtype = torch.get_autocast_dtype(features.device.type)
    (high, wide), (down, right) = module.kernel_size, module.stride
    pad_y, pad_x = module.padding
    padded = functional.pad(features.to(dtype), (pad_x, pad_x, pad_y, pad_y))
    rows, columns = ((size - kernel) // stride + 1 for size, kernel, stride in
                     zip(padded.shape[2:], module.kernel_size, module.stride, strict=True))  # fmt: skip
    exact = torch.promote_types(dtype, torch.float32)
    weight = module.weight.to(dtype).to(exact)
    total = torch.zeros((), device=features.device, dtype=exact)
    for y in range(high):
        for x in range(wide):
            piece = padded[:, :, y : y + down * (rows - 1) + 1 : down, x : x + right * (columns - 1) + 1 : right]
            total = total + piece.to(exact) * weight[:, 0, y, x].view(1, -1, 1, 1)
    return total.to(dtype)


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
    plain, changed = (trained(asked, device) for asked in ({"depthwise": "convolution", "update": "each"}, change))
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="file for the runs")
    parser.add_argument("--device", default="cuda", help="cpu makes the checks only")
    given = parser.parse_args()
    changes = [
        {"depthwise": depthwise, "update": update}
        for depthwise in ("convolution", "shifts") for update in ("each", "flat")
    ]  # fmt: skip
    for change in changes[1:]:
        off = difference(change, given.device)
        print(f"difference_{change['depthwise']}_{change['update']}: {off:.2g}", flush=True)
        if off > TOLERANCE:
            return 1
    if given.device == "cpu":
        return 0

    from metalmark.model.codec import encode_export
    from metalmark.model.measurement import BenchRun, Completed
    from metalmark.results.cells import cells_of

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
        for mode in ("default", "combo-kernels"):
            took = step_ms(change, **FAST, compile_mode=mode)
            best = min(best, took)
            print(f"{change['depthwise']}_{change['update']}_{mode}_ms: {took:.3f}", flush=True)
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

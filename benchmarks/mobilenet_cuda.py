"""What is left in a step of MobileNetV2 on an NVIDIA GPU: 32 px, batch 32, all layers trained, the fast settings.

python benchmarks/mobilenet_cuda.py [OUT.json] [--device cpu]

Changes that no setting of Metalmark makes, alone and together: all weights as one array, which is cast and updated at
once (`flat_weights.py`), and a pass of PyTorch's compiler for small kernels (`small_kernels.py`), which makes
convolutions of single places matrix products and depthwise convolutions of very small images sums, and computes the
gradients of weights on streams beside the others.
Each is the workload `variants` below with other parameters, so everything else is as in `metalmark bench`. Before
anything is timed, a change must give the losses and the gradients of the plain network. Prints the step of each, and
the best gain over float32, eager; exit 1 where it is below 20. OUT.json gets the runs. With --device cpu only the
checks are made.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import metalmark as mm
from metalmark import Param, Recipe
from metalmark.workloads.catalog import load

HERE = Path(__file__).parent
LEAST_GAIN = 20.0
SMALL = {"batch_size": 32, "pixels": 32, "train": "all"}
FAST = {
    "dtype": "bfloat16", "compile": True, "graph": True, "fused": True, "channels_last": True, "conv_search": True,
}  # fmt: skip
MODES = ("default", "combo-kernels")
PLAIN: dict[str, Any] = {"weights_in": "layers", "small_kernels": "off", "most_pixels": 4, "lanes": 2}
CHANGES: tuple[dict[str, Any], ...] = (
    {"weights_in": "one-array"},
    {"small_kernels": "on"},
    {"weights_in": "one-array", "small_kernels": "on"},
    {"weights_in": "one-array", "small_kernels": "on", "lanes": 0},
    {"weights_in": "one-array", "small_kernels": "on", "lanes": 4},
    {"weights_in": "one-array", "small_kernels": "on", "most_pixels": 16},
)
RATE = 5e-4
TOLERANCE = 1e-6
"""How far losses and gradients of a change may be from the plain network's in float64, as a share of the largest."""
NOTHING = 1e-9
"""Of the largest gradient. What is smaller is rounding: a BatchNorm takes away what was added before it."""


def on_torch(params: dict[str, Any]) -> Recipe:
    import torch

    # The benchmark's own modules are beside this file, which a worker is given by its path.
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    from flat_weights import FlatModel

    recipe = load("mobilenet-cifar10").recipe("torch", params)
    set_compiler_pass(params)
    model = FlatModel(recipe.model) if params["weights_in"] == "one-array" else recipe.model
    return Recipe(model=model, loss=recipe.loss, optimizer=partial(torch.optim.Adam, lr=RATE), prepare=recipe.prepare)


def set_compiler_pass(params: dict[str, Any]) -> None:
    """Let PyTorch's compiler rewrite small kernels in this process, or let it not."""
    import torch._inductor.config as inductor
    from small_kernels import small_kernel_options

    options = small_kernel_options(params["most_pixels"], params["lanes"])
    del options["combo_kernels"]  # that is what MODES say
    plain = {"post_grad_custom_pre_pass": None, "allow_buffer_reuse": True, "inplace_buffers": True}
    for name, value in (plain | (options if params["small_kernels"] == "on" else {})).items():
        setattr(inductor, name, value)


_published = load("mobilenet-cifar10")
variants = mm.Workload(
    name="mobilenet-variants",
    title="MobileNetV2 with other code for the same arithmetic",
    params=(
        *_published.params,
        Param("weights_in", "layers", choices=("layers", "one-array")),
        Param("small_kernels", "off", choices=("off", "on")),
        Param("most_pixels", 4),
        Param("lanes", 2),
    ),
    build={"torch": on_torch},
    batch=_published.batch,
    flops=_published.flops,
    training_factor=_published.training_factor,
)


def difference(change: dict[str, Any], device: str) -> float:
    """Return how far three steps with a change are from those without: the largest share of an array's largest number.

    In float64, where no rounding looks like a difference.
    """
    plain, changed = (trained({**PLAIN, **asked}, device) for asked in ({}, change))
    assert plain.keys() == changed.keys()
    least = NOTHING * max(float(numbers.abs().max()) for numbers in plain.values())
    return max(
        float((changed[name] - numbers).abs().max()) / max(float(numbers.abs().max()), least)
        for name, numbers in plain.items()
        if float(numbers.abs().max()) > least
    )


def trained(change: dict[str, Any], device: str) -> dict[str, Any]:
    """Return the first gradients and the losses of three steps. What the compiler changes is compiled."""
    import numpy as np
    import torch

    torch._dynamo.reset()
    params = {param.name: param.default for param in variants.params} | SMALL | change
    torch.manual_seed(0)
    recipe = on_torch(params)
    model = recipe.model.to(device=device, dtype=torch.float64, memory_format=torch.channels_last).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # its numbers would be drawn in another order by other code
    optimizer = recipe.optimizer([each for each in model.parameters() if each.requires_grad])
    batch = recipe.prepare(variants.batch(params, np.random.default_rng(0)))
    images = torch.from_numpy(batch.inputs[0]).to(device=device, dtype=torch.float64)
    images = images.contiguous(memory_format=torch.channels_last)
    targets = torch.from_numpy(batch.targets).long().to(device)

    def loss_of(images: Any, targets: Any) -> Any:
        return recipe.loss(model(images), targets)

    compute = torch.compile(loss_of, dynamic=False) if params["small_kernels"] == "on" else loss_of
    numbers: dict[str, Any] = {}
    for step in range(3):
        optimizer.zero_grad()
        loss = compute(images, targets)
        loss.backward()
        if step == 0:
            numbers |= {name: gradient.cpu().flatten() for name, gradient in gradients(model).items()}
        optimizer.step()
        numbers[f"loss {step}"] = loss.detach().cpu().view(1)
    return numbers


def gradients(model: Any) -> dict[str, Any]:
    """Return the gradient of each weight by its name in the network itself."""
    from flat_weights import FlatModel, shaped

    if isinstance(model, FlatModel):
        return shaped(model._pieces, model.whole.grad)
    return {name: weight.grad for name, weight in model.named_parameters()}


def title(change: dict[str, Any]) -> str:
    """Return a change as a part of a figure's name."""
    return "_".join(f"{name}_{value}" for name, value in change.items()).replace("-", "_") or "plain"


def warm(changes: Iterable[dict[str, Any]], device: str) -> None:
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
        print(f"difference_{title(change)}: {off:.2g}", flush=True)
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

    def step_ms(change: dict[str, Any], **settings: Any) -> float:
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
            print(f"{title(change)}_{mode}_ms: {took:.3f}", flush=True)
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

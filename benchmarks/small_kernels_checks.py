"""The compiler pass for small kernels computes what the compiler computes without it, checked on the CPU.

python benchmarks/small_kernels_checks.py

On a CPU nothing is computed beside anything else. So the operations that a GPU runs on other streams are replaced by
ones that return NaN, and compute only when their results are waited for, from the very arrays that they were given.
What was used too early is NaN then, and what was written over too early is wrong. Prints a line for each check; exit 1
where one fails.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import flat_weights
import small_kernels as small
import torch
from torch import nn
from torch.nn import functional

EXACT = 1e-11
HALF = 0.1
"""How far an array may be off, of its largest number, in float64 and in bfloat16."""
LEAST = 0.01
"""Of the largest gradient: smaller ones are judged as if they were so large."""
waiting: list[Callable[[], None]] = []
lanes_used: list[int] = []


def delay() -> torch.library.Library:
    """Let operations of the pass be computed as late as a stream may compute them."""
    library = torch.library.Library("small_kernels", "IMPL")

    def later(compute: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def delayed(*args: Any) -> torch.Tensor:
            *given, lane = args
            lanes_used.append(lane)
            now = compute(*given, 0)
            held = torch.full_like(now, float("nan"))
            waiting.append(lambda: held.copy_(compute(*given, 0)))
            return held

        return delayed

    def wait(_parts: list[torch.Tensor]) -> None:
        for compute in waiting:
            compute()
        waiting.clear()

    library.impl("product", later(small._product), "CPU")
    library.impl("gradient", later(small._gradient), "CPU")
    library.impl("wait", wait, "CPU")
    return library


class Net(nn.Module):
    """Convolutions of each kind that the pass tells apart, a residual sum, and a head with few columns."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.expand, self.expand_norm = nn.Conv2d(8, 24, 1, bias=False), nn.BatchNorm2d(24)
        self.deep = nn.ModuleList(
            nn.Conv2d(24, 24, 3, stride=stride, padding=1, groups=24, bias=False) for stride in (2, 2, 1, 2, 1)
        )
        self.deep_norms = nn.ModuleList(nn.BatchNorm2d(24) for _ in self.deep)
        self.even = nn.Conv2d(24, 24, 2, padding=1, groups=24, bias=False)
        self.biased = nn.Conv2d(24, 24, 1)
        self.grouped = nn.Conv2d(24, 24, 1, groups=2, bias=False)
        self.hidden, self.head = nn.Linear(24, 32), nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = functional.relu6(self.stem_norm(self.stem(images)))
        features = functional.relu6(self.expand_norm(self.expand(features)))
        for conv, norm in zip(self.deep, self.deep_norms, strict=True):
            made = functional.relu6(norm(conv(features)))
            features = made + features if made.shape == features.shape else made
        features = self.even(features)
        features = self.grouped(torch.tanh(self.biased(features)))
        return self.head(torch.tanh(self.hidden(features.mean((2, 3)))))


def data(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    images = torch.randn(6, 3, 16, 16, dtype=dtype).to(memory_format=torch.channels_last)
    return images, torch.randint(0, 10, (6,))


def network(dtype: torch.dtype = torch.float64) -> Net:
    torch.manual_seed(0)
    return Net().to(dtype=dtype, memory_format=torch.channels_last)


def compiled(work: Callable[..., Any], **options: int) -> Callable[..., Any]:
    torch._dynamo.reset()
    asked = small.small_kernel_options(**options)
    del asked["combo_kernels"]  # of Triton's kernels only
    made: Callable[..., Any] = torch.compile(work, dynamic=False, options={"layout_optimization": True, **asked})
    return made


def gradients(model: Net, work: Callable[..., Any], dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss = work(*data(dtype))
    loss.backward()
    found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return {"loss": loss.detach().clone(), **found}


def require_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    # What a BatchNorm makes nearly zero is a difference of larger numbers, and mostly rounding.
    least = LEAST * max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        off = float((found[name] - value).abs().max() / value.abs().max().clamp_min(least))
        assert off <= tolerance, f"{name} is {off:.3g} off"


def check_it_computes_the_same() -> None:
    library = delay()
    try:
        for options in ({}, {"most_pixels": 64}, {"most_pixels": 0, "lanes": 3}, {"lanes": 0}):
            model = network()

            def loss(images: torch.Tensor, targets: torch.Tensor, model: Net = model) -> torch.Tensor:
                return functional.cross_entropy(model(images), targets)

            expected = gradients(model, loss)
            lanes_used.clear()
            require_close(gradients(model, compiled(loss, **options)), expected, EXACT)
            lanes = options.get("lanes", small.LANES)
            assert set(lanes_used) == set(range(lanes)), lanes_used
            assert len(lanes_used) >= 8 * bool(lanes), "not all gradients of weights are computed beside the others"
            assert not waiting, "what was begun is waited for"
    finally:
        library._destroy()


def check_it_computes_the_same_under_autocast_and_in_one_array() -> None:
    library = delay()
    try:

        def loss(model: nn.Module) -> Callable[..., torch.Tensor]:
            def compute(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    return functional.cross_entropy(model(images), targets)

            return compute

        model = network(torch.float32)
        expected = gradients(model, compiled(loss(model), most_pixels=0, lanes=0), torch.float32)
        require_close(gradients(model, compiled(loss(model)), torch.float32), expected, HALF)
        flat = flat_weights.FlatModel(model)
        lanes_used.clear()
        value = compiled(loss(flat))(*data(torch.float32))
        value.backward()
        assert flat.whole.grad is not None
        found = flat_weights.shaped(flat._pieces, flat.whole.grad)
        require_close({"loss": value.detach(), **found}, expected, HALF)
        assert lanes_used
        assert not waiting
    finally:
        library._destroy()


def targets_of(work: Callable[..., Any], model: nn.Module, *args: torch.Tensor) -> list[str]:
    """Return the names of the calls in all graphs that the pass was given, after it."""
    seen: list[str] = []

    class Noted(small.SmallKernels):
        def __call__(self, graph: torch.fx.Graph) -> None:
            super().__call__(graph)
            seen.extend(str(node.target) for node in graph.nodes if node.op == "call_function")

        def uuid(self) -> None:
            return None

    torch._dynamo.reset()
    options = {"post_grad_custom_pre_pass": Noted(small.MOST_PIXELS, small.LANES)}
    torch.compile(work, dynamic=False, options=options)(model, *args).backward()
    return seen


def check_what_is_rewritten() -> None:
    def total(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return model(inputs).square().mean()

    def calls(model: nn.Module, *shape: int) -> list[str]:
        model = model.to(memory_format=torch.channels_last) if len(shape) == 4 else model
        inputs = torch.randn(*shape, requires_grad=True)
        return targets_of(total, model, inputs)

    def count(seen: list[str], word: str) -> int:
        return sum(word in each for each in seen)

    def convolution(inputs: int, size: int, **options: Any) -> nn.Conv2d:
        return nn.Conv2d(inputs, inputs, size, bias=False, **options)

    seen = calls(convolution(32, 1), 4, 32, 8, 8)
    assert (count(seen, "convolution"), count(seen, "aten.mm"), count(seen, "small_kernels.product")) == (0, 1, 2)
    seen = calls(convolution(32, 3, padding=1, groups=32), 4, 32, 2, 2)
    assert (count(seen, "convolution"), count(seen, "small_kernels.gradient")) == (0, 1)
    seen = calls(convolution(32, 3, padding=1, groups=32), 4, 32, 8, 8)
    assert (count(seen, "convolution"), count(seen, "small_kernels.gradient")) == (2, 1), (
        "images of 64 places are large"
    )
    seen = calls(convolution(32, 3, padding=1), 4, 32, 2, 2)
    assert (count(seen, "convolution"), count(seen, "small_kernels.gradient")) == (2, 1)
    seen = calls(convolution(32, 1, stride=2), 4, 32, 8, 8)
    assert (count(seen, "aten.mm"), count(seen, "small_kernels.gradient")) == (0, 1), "a stride leaves places out"
    seen = calls(nn.Conv2d(32, 32, 3), 4, 32, 8, 8)
    assert count(seen, "small_kernels") == 0, "a bias is left to the library, and so are its gradients"
    seen = calls(nn.Linear(64, 10, bias=False), 8, 64)
    assert (count(seen, "mm"), count(seen, "small_kernels.product")) == (0, 0)
    assert count(seen, "sum.dim_IntList") >= 2
    seen = calls(nn.Linear(64, 64, bias=False), 32, 64)
    assert (count(seen, "aten.mm"), count(seen, "small_kernels.product"), count(seen, "wait")) == (1, 2, 1)
    seen = calls(nn.Linear(4096, 8, bias=False), 512, 4096)
    assert (count(seen, "aten.mm"), count(seen, "small_kernels.product")) == (1, 2), (
        "many terms are left to the library"
    )


def check_the_cache_knows_the_pass_by_its_text() -> None:
    one, other = small.SmallKernels(4, 2), small.SmallKernels(4, 3)
    assert one.uuid() == small.SmallKernels(4, 2).uuid() != other.uuid()


def main() -> int:
    failed = 0
    for name, check in list(globals().items()):
        if not name.startswith("check_"):
            continue
        try:
            check()
            print(f"{name.removeprefix('check_')}: agrees", flush=True)
        except Exception:  # noqa: BLE001  a check's failure is the answer
            failed += 1
            print(f"{name.removeprefix('check_')}: {traceback.format_exc()}", flush=True)
    print(f"failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

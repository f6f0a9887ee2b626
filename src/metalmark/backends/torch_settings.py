"""What settings ask of PyTorch: a kernel for attention, a batch in parts, recomputed blocks, convolutions."""

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from metalmark.backends.session import NO_IMAGES, has_images
from metalmark.backends.torch_compiler import captures_graphs
from metalmark.errors import UnsupportedError
from metalmark.model.plan import Mode, Plan, Settings
from metalmark.model.workload import Recipe

Tensors = tuple[torch.Tensor, ...]
KERNELS = {
    "math": "MATH",
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}
"""PyTorch's names, as text: not every version has all of them."""
NO_KERNEL = "No available kernel"
"""PyTorch's words for inputs that none of the allowed kernels takes."""
WITH_STATISTICS = torch.nn.modules.batchnorm._NormBase
CONVOLUTION = torch.nn.modules.conv._ConvNd
FEWEST_BLOCKS = 2
NO_CONVOLUTION = "this model has no nn.Conv or nn.ConvTranspose layer, so cuDNN has no convolution to time."
NO_ATTENTION = (
    "this network never calls torch.nn.functional.scaled_dot_product_attention, so there is no kernel to choose."
)
NO_BLOCKS = (
    "this model has no nn.ModuleList or nn.Sequential with two blocks or more that have parameters, so there is "
    "nothing to compute again."
)
NO_PARTS = "it does not reach into a step of your own, which runs forward, backward and update itself."
NOT_IN_OWN_STEP = "it does not reach the optimisers of a step of your own."


def refuse_combinations(plan: Plan, recipe: Recipe) -> None:
    """Refuse settings that exclude each other, and those that mean nothing for what is run."""
    settings, mode = plan.settings, f"--compile-mode {plan.settings.compile_mode}"
    training = plan.mode is Mode.TRAINING
    if captures_graphs(settings) and settings.graph:
        raise UnsupportedError(
            f"{mode} captures CUDA graphs itself, and --graph captures the whole step.",
            hint="Leave one of the two out, or use --compile-mode max-autotune-no-cudagraphs.",
        )
    if captures_graphs(settings) and settings.accumulate > 1:
        raise UnsupportedError(
            f"{mode} with --accumulate: the gradients of one part lie in the memory of a CUDA graph, which the next "
            "part writes over (pytorch#169545).",
            hint="Use --compile-mode max-autotune-no-cudagraphs, or leave one of the two out.",
        )
    if settings.accumulate > 1 and not training:
        raise UnsupportedError(
            "--accumulate is for training: inference has no gradients to accumulate.", hint="Leave --accumulate out."
        )
    if settings.accumulate > 1 and recipe.step is not None:
        raise UnsupportedError(
            f"--accumulate: {NO_PARTS}", hint="Split the batch inside the step, or leave --accumulate out."
        )
    if settings.recompute and not training:
        raise UnsupportedError(
            "--recompute is for training: inference keeps no activations.", hint="Leave --recompute out."
        )
    if settings.recompute and settings.graph:
        raise UnsupportedError(
            "--recompute with --graph: the second pass restores the GPU's random numbers, whose state a captured graph "
            "can't read.",
            hint="Leave one of the two out.",
        )


def require_convolutions(model: torch.nn.Module) -> None:
    """Refuse --conv-search for a model without a layer that is a convolution."""
    if not has_layer(model, CONVOLUTION):
        raise UnsupportedError(f"--conv-search: {NO_CONVOLUTION}", hint="Leave --conv-search out.")


def compiles_itself() -> bool:
    """Whether a network, or a step of the user's own, was compiled in this process: it would be compiled anew for who
    looks at its calls."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


def has_layer(model: torch.nn.Module, kind: type[torch.nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in model.modules())


@contextmanager
def observed_steps(model: torch.nn.Module, *, own_step: bool) -> Iterator[dict[str, str]]:
    """Look at the eager steps that are taken meanwhile; the dictionary then names the settings that would change
    nothing of them, each with the reason."""
    idle: dict[str, str] = {}
    if not has_images(parameter.ndim for parameter in model.parameters()):
        idle["channels_last"] = NO_IMAGES
    if not has_layer(model, CONVOLUTION):
        idle["conv_search"] = NO_CONVOLUTION
    if len(repeated_blocks(model)) < FEWEST_BLOCKS:
        idle["recompute"] = NO_BLOCKS
    if own_step:
        idle["fused"], idle["accumulate"] = NOT_IN_OWN_STEP, NO_PARTS
    if compiles_itself():
        yield idle
        return
    with AttentionCalls() as calls:
        yield idle
    if calls.any and not calls.seen and not has_layer(model, torch.nn.MultiheadAttention):
        idle["attention_kernel"] = NO_ATTENTION


# A batch in parts.


class BatchParts:
    """Splits the leaves of a batch into equal parts. The last batch of an epoch may be smaller, and have fewer."""

    def __init__(self, count: int, names: Sequence[str], batch_size: object) -> None:
        """`batch_size`: of a full batch, where the workload has a parameter for it."""
        self._count, self._names = count, names
        self._full = batch_size if isinstance(batch_size, int) else 0
        self._require_equal(self._full)

    def __call__(self, leaves: Tensors) -> Iterator[tuple[Tensors, float]]:
        """Give each part and its share of the samples."""
        rows = self._rows(leaves)
        self._full = max(self._full, rows)
        if rows == self._full:
            self._require_equal(rows)
        size = self._full // self._count if rows % self._count else rows // self._count
        split = [leaf.split(size) if leaf.ndim else None for leaf in leaves]
        for number in range(-(-rows // size)):
            part = tuple(leaf if pieces is None else pieces[number] for leaf, pieces in zip(leaves, split, strict=True))
            yield part, min(size, rows - number * size) / rows

    def _rows(self, leaves: Tensors) -> int:
        """Return the number of samples. An array without dimensions belongs to every part."""
        lengths = {name: leaf.shape[0] for name, leaf in zip(self._names, leaves, strict=True) if leaf.ndim}
        if len(set(lengths.values())) != 1:
            shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise UnsupportedError(
                f"--accumulate {self._count} can't split this batch, whose arrays are not of one length: {shown}.",
                hint="Give every array of a batch its samples along the first dimension, or leave --accumulate out.",
            )
        return int(next(iter(lengths.values())))

    def _require_equal(self, rows: int) -> None:
        if rows % self._count:
            best = next(number for number in range(min(self._count, rows), 0, -1) if rows % number == 0)
            raise UnsupportedError(
                f"--accumulate {self._count} does not divide a batch of {rows}.",
                hint=f"Use --accumulate {best}, or another batch size.",
            )


# Attention.


def attention(kernel: str) -> AbstractContextManager[Any]:
    """Let PyTorch compute attention with one kernel only. The switch is the process's: it holds in the threads that run
    backward passes, and when a step is compiled or captured."""
    if not kernel:
        return nullcontext()
    found = getattr(SDPBackend, KERNELS[kernel], None)
    if found is None:
        raise UnsupportedError(
            f"--attention-kernel {kernel}: PyTorch {torch.__version__} does not have this kernel.",
            hint="Install a newer PyTorch, or leave --attention-kernel out.",
        )
    chosen: AbstractContextManager[Any] = sdpa_kernel(found)
    return chosen


@contextmanager
def attention_errors(settings: Settings, device_type: str) -> Iterator[None]:
    """Say in a sentence that the kernel which was asked for does not take these inputs."""
    try:
        yield
    except RuntimeError as error:
        if not settings.attention_kernel or NO_KERNEL not in str(error):
            raise
        raise UnsupportedError(
            f"--attention-kernel {settings.attention_kernel} on torch, {device_type}: PyTorch's kernel does not take "
            "attention of this dtype, mask, dropout or size.",
            hint="Flash and cudnn want --dtype bfloat16 or float16 on a GPU; math takes everything.",
        ) from error


def require_attention(model: torch.nn.Module, run: Callable[[torch.nn.Module], Any]) -> None:
    """Refuse a kernel for attention where a forward pass computes none by PyTorch's function for it."""
    if has_layer(model, torch.nn.MultiheadAttention):
        return  # in inference it calls a kernel of its own, which heeds the switch
    calls = AttentionCalls()
    # A copy: a pass may change what the model holds, such as a cache of keys and values.
    with calls, torch.no_grad():
        run(copy.deepcopy(model).eval())
    if not calls.seen:
        raise UnsupportedError(f"--attention-kernel: {NO_ATTENTION}", hint="Leave --attention-kernel out.")


class AttentionCalls(TorchFunctionMode):  # type: ignore[misc]
    """Notes whether attention is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.any = self.seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.any = True
        self.seen = self.seen or func is torch.nn.functional.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


# Recomputed blocks.


def recompute_blocks(model: torch.nn.Module, *, compiled: bool) -> None:
    """Let the repeated blocks of a model keep their inputs only, and compute the rest again in the backward pass."""
    blocks = repeated_blocks(model)
    if len(blocks) < FEWEST_BLOCKS:
        raise UnsupportedError(f"--recompute: {NO_BLOCKS}", hint="Leave --recompute out.")
    for block in dict.fromkeys(blocks):  # one that shares its weights may stand in the list several times
        block.forward = _recomputed(block, compiled=compiled)


def repeated_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the children that have parameters of the list with the most of them; of several, of the largest."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList | torch.nn.Sequential)]
    found = [[child for child in module if _weights(child)] for module in lists]
    return max(found, key=lambda blocks: (len(blocks), sum(map(_weights, blocks))), default=[])


def _weights(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _recomputed(block: torch.nn.Module, *, compiled: bool) -> Callable[..., Any]:
    forward = block.forward

    def recomputed(*args: Any, **options: Any) -> Any:
        if not (block.training and torch.is_grad_enabled()):
            return forward(*args, **options)
        names = tuple(options)

        def run(*given: Any) -> Any:
            return forward(*given[: len(args)], **dict(zip(names, given[len(args) :], strict=True)))

        # By position: PyTorch looks there for the device whose random numbers it has to keep.
        given = (*args, *options.values())
        if compiled:
            # The compiler computes again only what gradients need, which no statistics are, and takes no contexts.
            return checkpoint(run, *given, use_reentrant=False)
        contexts = (nullcontext(), _statistics_kept(block))
        return checkpoint(run, *given, use_reentrant=False, context_fn=lambda: contexts)

    return recomputed


@contextmanager
def _statistics_kept(block: torch.nn.Module) -> Iterator[None]:
    """Leave running statistics as they are: the first pass has counted this batch already. The second one counts in
    copies, since it must keep as many tensors for the backward pass as the first."""
    counting = [module for module in block.modules() if isinstance(module, WITH_STATISTICS)]
    before = [dict(module._buffers) for module in counting]
    for module in counting:
        module._buffers.update({name: None if each is None else each.clone() for name, each in module._buffers.items()})
    try:
        yield
    finally:
        for module, buffers in zip(counting, before, strict=True):
            module._buffers.update(buffers)

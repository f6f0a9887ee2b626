"""A whole step as one CUDA graph."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from metalmark.errors import UnsupportedError

Tensors = tuple[torch.Tensor, ...]
Step = Callable[[Tensors], Any]
WARMUP_STEPS = 3
MAKE_IT_CAPTURABLE = (
    "Make its optimisers with capturable=True, and let nothing in it wait for the GPU, as .item() and LBFGS do; or "
    "leave --graph out."
)


def captured(
    work: Step,
    *,
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    device: torch.device,
    is_own: bool = False,
) -> Step:
    """Return a step that is captured at its first call, so that the first step's time and the peak of memory have the
    capture in them. `is_own`: it is the user's, and may hold what can't be captured."""
    replay: Step | None = None

    def step(leaves: Tensors) -> Any:
        nonlocal replay
        if replay is None:
            try:
                replay = _capture(work, leaves, model=model, optimizers=optimizers, device=device)
            except RuntimeError as error:
                if not is_own:
                    raise
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise UnsupportedError(
                    f"--graph: your own step can't be captured: {reason}", hint=MAKE_IT_CAPTURABLE
                ) from error
        return replay(leaves)

    return step


def _capture(
    work: Step,
    leaves: Tensors,
    *,
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    device: torch.device,
) -> Step:
    """Return a step that copies each batch, of the same shapes, into the graph's own buffers and replays it."""
    held = tuple(tensor.clone() for tensor in leaves)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rates = _rates(optimizers)
    first_rates = [rate.clone() for rate in rates]
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARMUP_STEPS):
            work(held)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = work(held)
    # The warm-up trained a little; begin where every other session begins, so that the proof starts there.
    model.load_state_dict(before)
    for optimizer in optimizers:
        forget_steps(optimizer)
    for rate, first in zip(rates, first_rates, strict=True):
        rate.copy_(first)

    def replay(leaves: Tensors) -> Any:
        for mine, given in zip(held, leaves, strict=True):
            mine.copy_(given, non_blocking=True)
        graph.replay()
        return output

    return replay


def _rates(optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Return the learning rates that live on the device, as a schedule inside a graph needs them."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return [group["lr"] for group in groups if isinstance(group["lr"], torch.Tensor)]


def forget_steps(optimizer: torch.optim.Optimizer) -> None:
    """Reset its state, in place since the graph uses these tensors: in PyTorch all but one begin at 0."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                value.fill_(1.0 if name == "mu_product" else 0.0)

"""Finds the shortest beginning of a PyTorch network that differs when it is compiled by itself.

What was fused is never opened: PyTorch's captured graph is cut off after a layer, and what is left is compiled anew.
`python -m metalmark.parity.prefixes.on_torch JOB ANSWER`.
"""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx, nn

from metalmark.backends.outputs import call, given_loss, scores
from metalmark.backends.torch_compiler import compiled_work
from metalmark.model.parity import Quantity
from metalmark.model.plan import Settings
from metalmark.parity.base import Named
from metalmark.parity.distance import ROUNDING
from metalmark.parity.networks import PartJob
from metalmark.parity.networks.question import Network, answer
from metalmark.parity.prefixes import CompiledPart
from metalmark.parity.prefixes.beginning import DRAWS, LOSS, NONE_DIFFERS, outside, shortest
from metalmark.parity.torch import TorchSubject

MOST_ELEMENTS = 2**28
"""A larger intermediate result is not projected on."""
EXIT_AUTOCAST = "_exit_autocast"


class Part(NamedTuple):
    """A piece of a captured graph, with the arguments that it was called with."""

    module: fx.GraphModule
    arguments: Sequence[Any]


def find_compiled_part(network: Network[TorchSubject], job: PartJob) -> CompiledPart:
    evaluates = job.quantity is Quantity.PREDICTION
    captured = _capture(network, evaluates=evaluates)
    names = {str(id(module)): name for name, module in network.subject._model.named_modules()}
    for number, part in enumerate(captured):
        ends = _ends(part.module, names)
        compare = partial(_differs, part, settings=network.settings, evaluates=evaluates)
        found = shortest([cut for cut, _ in ends], compare)
        if found is None:
            continue
        note = (
            ""
            if len(captured) == 1
            else f"PyTorch compiles it as {len(captured)} graphs; this is in number {number + 1}."
        )
        return CompiledPart(until=ends[found][1], note=note)
    return CompiledPart(until="", note=NONE_DIFFERS)


def _capture(network: Network[TorchSubject], *, evaluates: bool) -> list[Part]:
    """Return the graphs that PyTorch would compile, with copies of what they are called with."""
    subject = network.subject
    batch = subject.layout.rebuild(subject.feeder.place(network.arrays))
    model, recipe, cast_to = subject._model, subject.recipe, subject._cast
    parts: list[Part] = []

    def forward(inputs: Any) -> Any:
        with cast_to():
            return scores(call(model, inputs))

    def loss(inputs: Any, targets: Any) -> Any:
        with cast_to():
            return given_loss(recipe, call(model, inputs), targets)

    def backend(module: fx.GraphModule, _: Any) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            parts.append(Part(module, [_fresh(each) for each in arguments]))
            return module(*arguments)

        return run

    if evaluates:
        model.eval()
        with torch.no_grad():
            torch.compile(forward, backend=backend, dynamic=False)(batch["inputs"])
    else:
        torch.compile(loss, backend=backend, dynamic=False)(**batch)
    return parts


def _ends(module: fx.GraphModule, names: dict[str, str]) -> list[tuple[int, str]]:
    """Return the number of each node after which another layer begins, with the layer's name."""
    found: list[tuple[int, str]] = []
    for number, node in enumerate(module.graph.nodes):
        if not node.op.startswith("call_") or not _is_number_array(node):
            continue
        stack = [names.get(key.partition("@")[0]) for key in node.meta.get("nn_module_stack") or {}]
        layer = next((name for name in reversed(stack) if name), "")
        if found and found[-1][1] == (layer or LOSS):
            found.pop()
        found.append((number, layer or LOSS))
    return found


def _is_number_array(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() <= MOST_ELEMENTS


def _cut(module: fx.GraphModule, last: int) -> fx.GraphModule:
    """Return the graph up to a node, with all that later nodes would use as its outputs."""
    nodes = list(module.graph.nodes)
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in nodes[: last + 1]:
        copied[node] = graph.node_copy(node, copied.__getitem__)
    for node in nodes[last + 1 :]:
        # What was entered must be left.
        if getattr(node.target, "__name__", "") == EXIT_AUTOCAST and all(
            each in copied for each in node.all_input_nodes
        ):
            copied[node] = graph.node_copy(node, copied.__getitem__)
    live = [
        copied[node]
        for node in nodes[: last + 1]
        if node.op.startswith("call_")
        and _is_number_array(node)
        and (node is nodes[last] or any(user not in copied for user in node.users))
    ]
    graph.output(tuple(live))
    return fx.GraphModule(module, graph)


def _differs(part: Part, last: int, settings: Settings, *, evaluates: bool) -> bool:
    """Whether the graph up to a node, compiled by itself, gives other outputs or gradients than it gives eagerly."""
    module, arguments = _cut(part.module, last), part.arguments
    with torch.no_grad():
        shapes = [each.shape for each in module(*map(_fresh, arguments))]
    directions = [
        torch.from_numpy(np.random.default_rng(n).standard_normal(s, np.float32)) for n, s in enumerate(shapes)
    ]
    run = partial(_run, module, directions, evaluates=evaluates)
    plain = run(arguments)
    try:
        truth, noise = run([_as_double(each) for each in arguments]), [plain]
    except (RuntimeError, TypeError, ValueError):  # constants of a graph that stay float32; devices without float64
        truth, noise = plain, []
    noise += [run([_moved(each, ROUNDING[settings.dtype], seed) for each in arguments]) for seed in range(DRAWS)]
    torch._dynamo.reset()
    found = run(arguments, lambda work: compiled_work(work, settings))
    return any(
        outside(truth[name], [draw[name] for draw in noise], found[name], ROUNDING[settings.dtype]) for name in truth
    )


def _run(
    module: fx.GraphModule,
    directions: list[torch.Tensor],
    arguments: Sequence[Any],
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda work: work,
    *,
    evaluates: bool,
) -> Named:
    """Return the outputs, and the gradients of their sum along fixed random directions."""
    given = [_fresh(each) for each in arguments]
    device = next(each.device for each in given if isinstance(each, torch.Tensor))
    placed = [each.to(device) for each in directions]

    def work(*values: Any) -> Any:
        outputs = module(*values)
        pairs = zip(outputs, placed, strict=True)
        return outputs, sum((o if not o.ndim else (o.float() * d).sum()) for o, d in pairs)

    with torch.set_grad_enabled(not evaluates):
        outputs, total = wrap(work)(*given)
    # Metal has no float64, so the copy comes first.
    found = {f"output {number}": each.detach().cpu().double().numpy() for number, each in enumerate(outputs)}
    if not evaluates and total.requires_grad:
        total.backward()
        for number, each in enumerate(given):
            if isinstance(each, torch.Tensor) and each.grad is not None:
                found[f"gradient {number}"] = each.grad.cpu().double().numpy()
    return found


def _fresh(value: Any, change: Callable[[torch.Tensor], torch.Tensor] = torch.clone) -> Any:
    """Return a copy that is of the same kind: PyTorch compiles a parameter otherwise than it compiles an input."""
    if not isinstance(value, torch.Tensor):
        return value
    made = change(value.detach()) if value.is_floating_point() else value.detach().clone()
    if isinstance(value, nn.Parameter):
        return nn.Parameter(made, requires_grad=value.requires_grad)
    return made.requires_grad_(value.requires_grad)


def _as_double(value: Any) -> Any:
    return _fresh(value, torch.Tensor.double)


def _moved(value: Any, rounding: float, seed: int) -> Any:
    def move(tensor: torch.Tensor) -> torch.Tensor:
        share = np.random.default_rng(seed).uniform(-1, 1, tensor.shape).astype(np.float32)
        return (tensor * (1 + rounding * torch.from_numpy(share).to(tensor.device))).to(tensor.dtype)

    return _fresh(value, move)


if __name__ == "__main__":
    answer(find_compiled_part, sys.argv[1], sys.argv[2])
    os._exit(0)  # the answer is on the disk; Inductor's helpers take their time to end

"""A pass of PyTorch's compiler for networks whose steps are hundreds of kernels that take a few microseconds each.

To the compiler a convolution or a matrix product is a call of a library, which it joins with nothing and runs one after
another. On a GPU that such a call leaves mostly idle, this pass

- computes the gradients of weights beside the other gradients, on streams of their own;
- makes convolutions with a kernel of 1 x 1 matrix products of places and channels;
- makes depthwise convolutions of very small images, and products with very few columns, sums that are joined with what
  is before and after them.

    torch.compile(model, options=small_kernel_options())

It is an experiment of `mobilenet_cuda.py`, and no setting of Metalmark. `small_kernels_checks.py` checks it on the CPU;
its streams have not run on a GPU.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.inductor_prims import force_stride_order
from torch.fx import Graph, Node

aten, prims = torch.ops.aten, torch.ops.prims
CHANNELS_LAST, CHANNELS_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
MOST_PIXELS = 4
"""Depthwise convolutions of larger images are left to the library."""
FEW, MOST_TERMS = 16, 1 << 20
"""Matrix units take no fewer rows and columns; and a larger product is left to the library all the same."""
LANES = 2
"""How many gradients of weights are computed at the same time."""
CHANGES_NOTHING = {
    operator.getitem, aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.permute.default,
    aten.t.default, aten.transpose.int, aten.squeeze.dim, aten.squeeze.default, aten.unsqueeze.default,
    aten.clone.default, aten.cat.default, aten.add.Tensor, aten.constant_pad_nd.default, aten.slice_scatter.default,
    prims.convert_element_type.default, aten._to_copy.default,
}  # fmt: skip
"""What may become of the gradient of a weight before it leaves the backward pass."""


def small_kernel_options(most_pixels: int = MOST_PIXELS, lanes: int = LANES) -> dict[str, Any]:
    """Return the options of torch.compile. `lanes`: 0 runs everything one after another."""
    options: dict[str, Any] = {"post_grad_custom_pre_pass": SmallKernels(most_pixels, lanes), "combo_kernels": True}
    # What one stream still reads, the compiler must not write to in the other.
    return options | {"allow_buffer_reuse": False, "inplace_buffers": False} if lanes else options


class SmallKernels(CustomGraphPass):  # type: ignore[misc]
    """Rewrites the graph of a forward or a backward pass."""

    def __init__(self, most_pixels: int, lanes: int) -> None:
        self._most_pixels, self._lanes = most_pixels, lanes

    def __call__(self, graph: Graph) -> None:
        for target, rewrite in (
            (aten.convolution.default, rewrite_convolution),
            (aten.convolution_backward.default, rewrite_gradients),
            (aten.mm.default, rewrite_product),
            (aten.addmm.default, rewrite_product),
        ):
            for node in graph.find_nodes(op="call_function", target=target):
                with graph.inserting_before(node):
                    rewrite(Writer(graph, self._most_pixels), node)
        graph.eliminate_dead_code()
        if self._lanes and any("tangents" in node.name for node in graph.find_nodes(op="placeholder")):
            move_aside(graph, self._lanes)

    def uuid(self) -> Any:
        """Tell PyTorch's cache of compiled code by which version of this pass the code was made; None: use no cache."""
        file = globals().get("__file__")
        return get_hash_for_files((file,), f"{self._most_pixels} {self._lanes}") if file else None


class Writer:
    """Adds calls to a graph, each with a value that says what its result looks like."""

    def __init__(self, graph: Graph, most_pixels: int) -> None:
        self._graph, self.most_pixels = graph, most_pixels

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Node:
        node = self._graph.call_function(function, args, options)
        node.meta["val"] = function(*torch.fx.map_arg(args, lambda each: each.meta["val"]), **options)
        return node

    def rows(self, images: Node) -> Node:
        """Return images as a matrix: a row for each place, a column for each channel."""
        _, channels, height, width = shape(images)
        # A compiler that is free to choose might lay them out otherwise, and would have to copy them.
        strides = [height * width * channels, 1, width * channels, channels]
        laid_out = self.call(force_stride_order, images, strides)
        turned = self.call(aten.permute.default, laid_out, CHANNELS_LAST)
        return self.call(aten.reshape.default, turned, [-1, channels])

    def images(self, rows: Node, like: Node) -> Node:
        """Return such a matrix as images with as many places as others."""
        count, _, height, width = shape(like)
        made = self.call(aten.reshape.default, rows, [count, height, width, shape(rows)[1]])
        return self.call(aten.permute.default, made, CHANNELS_FIRST)

    def matrix(self, weight: Node) -> Node:
        """Return the weights of a kernel of 1 x 1: a row for each channel that comes out."""
        return self.call(aten.reshape.default, weight, list(shape(weight)[:2]))

    def transposed(self, matrix: Node) -> Node:
        return self.call(aten.permute.default, matrix, [1, 0])

    def exactly(self, node: Node) -> Node:
        """Return numbers of 16 bits as float32: sums of them need its digits."""
        dtype = node.meta["val"].dtype
        exact = torch.promote_types(dtype, torch.float32)
        return node if dtype is exact else self.call(prims.convert_element_type.default, node, exact)

    def like(self, node: Node, other: Node) -> Node:
        """Return numbers in the dtype of others."""
        dtype = other.meta["val"].dtype
        return node if node.meta["val"].dtype is dtype else self.call(prims.convert_element_type.default, node, dtype)

    def shifted(
        self, images: Node, *, kernel: Sequence[int], padding: Sequence[int], counts: Sequence[int]
    ) -> Iterator[tuple[int, int, Node]]:
        """Yield for each place of a kernel what it meets, its row and its column, but where it meets padding only."""
        sizes, (down, right) = shape(images)[2:], padding
        padded = self.call(aten.constant_pad_nd.default, images, [right, right, down, down], 0.0)
        for place in ((row, column) for row in range(kernel[0]) for column in range(kernel[1])):
            part = padded
            for axis, first in enumerate(place):
                part = self.call(aten.slice.Tensor, part, axis + 2, first, first + counts[axis], 1)
            if all(
                first + count > pad and first < pad + size
                for first, count, pad, size in zip(place, counts, padding, sizes, strict=True)
            ):
                yield *place, part


def rewrite_convolution(write: Writer, node: Node) -> None:
    features, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    if bias is not None or not is_plain(stride, dilation, transposed):
        return
    if is_product(weight, stride, padding, groups):
        product = write.call(aten.mm.default, write.rows(features), write.transposed(write.matrix(weight)))
        node.replace_all_uses_with(write.images(product, like=node))
    elif is_depthwise(weight, groups) and is_small(node, features, stride, write.most_pixels):
        node.replace_all_uses_with(depthwise(write, features, weight, padding, shape(node)[2:], turned=False))


def rewrite_gradients(write: Writer, node: Node) -> None:
    """Compute the gradients of a convolution's input and of its weights by themselves."""
    gradient, features, weight, _, stride, padding, dilation, transposed, _, groups, wanted = node.args
    if wanted[2] or not is_plain(stride, dilation, transposed):
        return
    made: list[Node | None] = [None, None]
    if is_product(weight, stride, padding, groups):
        rows = write.rows(gradient)
        if wanted[0]:
            made[0] = write.images(write.call(aten.mm.default, rows, write.matrix(weight)), like=features)
        if wanted[1]:
            matrix = write.call(aten.mm.default, write.transposed(rows), write.rows(features))
            made[1] = write.call(aten.reshape.default, matrix, list(shape(weight)))
    else:
        left = [size - 1 - pad for size, pad in zip(shape(weight)[2:], padding, strict=True)]
        small = min(left) >= 0 and is_small(gradient, features, stride, write.most_pixels)
        if wanted[0] and small and is_depthwise(weight, groups):
            made[0] = depthwise(write, gradient, weight, left, shape(features)[2:], turned=True)
        for place in (0, 1):
            if wanted[place] and made[place] is None:
                alone = [place == 0, place == 1, False]
                both = write.call(aten.convolution_backward.default, *node.args[:-1], alone)
                made[place] = write.call(operator.getitem, both, place)
    for user in list(node.users):
        if (own := made[user.args[1]]) is not None:
            user.replace_all_uses_with(own)


def rewrite_product(write: Writer, node: Node) -> None:
    """Make a product with very few rows, columns or terms a sum: libraries have no good kernel for them."""
    *bias, left, right = node.args
    (rows, terms), (_, columns) = shape(left), shape(right)
    if node.kwargs or min(rows, terms, columns) >= FEW or rows * terms * columns > MOST_TERMS:
        return
    one, other = (write.exactly(each) for each in (left, right))
    products = write.call(
        aten.mul.Tensor, write.call(aten.unsqueeze.default, one, 2), write.call(aten.unsqueeze.default, other, 0)
    )
    total = write.call(aten.sum.dim_IntList, products, [1])
    for each in bias:
        total = write.call(aten.add.Tensor, total, write.exactly(each))
    node.replace_all_uses_with(write.like(total, node))


def depthwise(
    write: Writer, images: Node, weight: Node, padding: Sequence[int], counts: Sequence[int], *, turned: bool
) -> Node:
    """Return a depthwise convolution, in steps of one, as a sum of shifted products. `turned`: with its kernel turned
    by half a turn, as the gradient of what went in needs it."""
    kernel, total = shape(weight)[2:], None
    for row, column, part in write.shifted(images, kernel=kernel, padding=padding, counts=counts):
        place = (kernel[0] - 1 - row, kernel[1] - 1 - column) if turned else (row, column)
        line = write.call(aten.select.int, weight, 2, place[0])
        own = write.call(aten.reshape.default, write.call(aten.select.int, line, 2, place[1]), [1, -1, 1, 1])
        product = write.call(aten.mul.Tensor, write.exactly(part), write.exactly(own))
        total = product if total is None else write.call(aten.add.Tensor, total, product)
    assert total is not None  # an image has a place that some place of the kernel meets
    return write.like(total, weight)


def is_plain(stride: Sequence[int], dilation: Sequence[int], transposed: bool) -> bool:
    return len(stride) == 2 and set(dilation) == {1} and not transposed


def is_product(weight: Node, stride: Sequence[int], padding: Sequence[int], groups: int) -> bool:
    return groups == 1 and shape(weight)[2:] == (1, 1) and set(stride) == {1} and set(padding) == {0}


def is_depthwise(weight: Node, groups: int) -> bool:
    """Whether each channel has a kernel of its own, and one that comes out for each that goes in."""
    return groups == shape(weight)[0] > 1 and shape(weight)[1] == 1


def is_small(outputs: Node, features: Node, stride: Sequence[int], most_pixels: int) -> bool:
    """Whether a depthwise convolution is so small that a sum of shifted products takes no longer than its start."""
    (_, _, high, wide), (_, _, height, width) = shape(outputs), shape(features)
    # One pixel has no second step.
    in_ones = set(stride) == {1} or (high, wide) == (height, width) == (1, 1)
    return in_ones and max(high * wide, height * width) <= most_pixels


def shape(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


# Streams.


def move_aside(graph: Graph, lanes: int) -> None:
    """Let gradients of weights be computed on streams beside the main one, which waits for them once, at the end."""
    moved: list[Node] = []
    for node in list(graph.nodes):
        if node.op != "call_function" or not leaves_at_once(node):
            continue
        lane = len(moved) % lanes
        with graph.inserting_after(node):
            if node.target is aten.mm.default:
                beside = graph.call_function(product_beside, (*node.args, lane))
                beside.meta["val"] = node.meta["val"]
                node.replace_all_uses_with(beside)
            elif node.target is aten.convolution_backward.default and list(node.args[-1]) == [False, True, False]:
                (gradient, features, weight, _, stride, padding, *_, groups, _) = node.args
                beside = graph.call_function(
                    gradient_beside, (gradient, features, weight, list(stride), list(padding), groups, lane)
                )
                value = weight.meta["val"]
                with value.fake_mode:
                    beside.meta["val"] = torch.empty_strided(
                        value.shape, value.stride(), dtype=value.dtype, device=value.device
                    )
                for user in list(node.users):
                    user.replace_all_uses_with(beside)
            else:
                continue
        moved.append(beside)
    if moved:
        wait_before_use(graph, moved)
    graph.eliminate_dead_code()


def leaves_at_once(node: Node) -> bool:
    """Return whether what becomes of a result is its way out of the graph."""
    waiting, seen = list(node.users), set()
    while waiting:
        user = waiting.pop()
        if user.op == "output" or user in seen:
            continue
        if user.op != "call_function" or user.target not in CHANGES_NOTHING:
            return False
        seen.add(user)
        waiting += user.users
    return bool(node.users)


def wait_before_use(graph: Graph, moved: list[Node]) -> None:
    """Put the wait after everything else, and what uses the results after the wait."""
    later: dict[Node, None] = {}
    for node in graph.nodes:
        if any(each in later or each in moved for each in node.all_input_nodes) and node.op != "output":
            later[node] = None
    end = next(iter(graph.find_nodes(op="output")))
    with graph.inserting_before(end):
        graph.call_function(wait_for, (moved,))
    for node in later:
        end.prepend(node)


_streams: dict[tuple[torch.device, int], torch.cuda.Stream] = {}


class Beside:
    """A stream on which things are computed that wait for what the current stream has been given so far."""

    def __init__(self, lane: int, *tensors: torch.Tensor) -> None:
        self._lane, self._tensors = lane, tensors
        self._context: torch.cuda.StreamContext | None = None

    def __enter__(self) -> None:
        device = self._tensors[0].device
        if device.type != "cuda":
            return
        if (device, self._lane) not in _streams:
            _streams[device, self._lane] = torch.cuda.Stream(device)
        stream = _streams[device, self._lane]
        stream.wait_stream(torch.cuda.current_stream(device))
        for tensor in self._tensors:
            tensor.record_stream(stream)  # its memory is no one else's until the stream has read it
        self._context = torch.cuda.stream(stream)
        self._context.__enter__()

    def __exit__(self, *_: object) -> None:
        if self._context is not None:
            self._context.__exit__(None, None, None)


def _product(one: torch.Tensor, other: torch.Tensor, lane: int) -> torch.Tensor:
    with Beside(lane, one, other):
        return torch.mm(one, other)


def _gradient(
    gradient: torch.Tensor, features: torch.Tensor, weight: torch.Tensor, stride: Sequence[int],
    padding: Sequence[int], groups: int, lane: int,
) -> torch.Tensor:  # fmt: skip
    with Beside(lane, gradient, features):
        _, found, _ = aten.convolution_backward(
            gradient, features, weight, None, stride, padding, [1, 1], False, [0, 0], groups, [False, True, False]
        )
        return torch.empty_strided(
            weight.shape, weight.stride(), dtype=weight.dtype, device=weight.device
        ).copy_(found) if found.stride() != weight.stride() else found  # fmt: skip


def _wait(parts: Sequence[torch.Tensor]) -> None:
    device = parts[0].device
    if device.type != "cuda":
        return
    current = torch.cuda.current_stream(device)
    for (on, _), stream in _streams.items():
        if on == device:
            current.wait_stream(stream)
    for part in parts:
        part.record_stream(current)


_library = torch.library.Library("small_kernels", "FRAGMENT")
if not hasattr(torch.ops.small_kernels, "product"):
    _library.define("product(Tensor one, Tensor other, int lane) -> Tensor")
    _library.define(
        "gradient(Tensor gradient, Tensor features, Tensor weight, int[] stride, int[] padding, int groups, int lane)"
        " -> Tensor"
    )
    _library.define("wait(Tensor(a!)[] parts) -> ()")
    for name, function in (("product", _product), ("gradient", _gradient), ("wait", _wait)):
        _library.impl(name, function, "CompositeExplicitAutograd")
product_beside = torch.ops.small_kernels.product.default
gradient_beside = torch.ops.small_kernels.gradient.default
wait_for = torch.ops.small_kernels.wait.default

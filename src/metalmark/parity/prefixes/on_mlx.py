"""Finds the shortest beginning of an MLX network that differs when it is compiled by itself.

Nothing is looked at inside of what MLX compiles: a beginning is traced until its last layer has been called, and is
then compiled as a function of its own. `python -m metalmark.parity.prefixes.on_mlx JOB ANSWER`.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from mlx import core as mx
from mlx import nn
from mlx.utils import tree_flatten

from metalmark.backends.outputs import scores
from metalmark.model.nest import flatten, map_leaves
from metalmark.parity.mlx import MlxSubject, is_floating, is_leaf
from metalmark.parity.networks import PartJob
from metalmark.parity.networks.question import Network, answer
from metalmark.parity.prefixes import CompiledPart
from metalmark.parity.prefixes.beginning import Computed, Given, Reached, find_part, open_ends
from metalmark.training.mlx import as_numpy_array

WHOLE = "the network"
"""The name of a network that is one layer by itself."""
Change = Callable[[int, Any], Any]
"""change(the number of a call, an array that it gave) returns the array that is used instead."""


def find_compiled_part(network: Network[MlxSubject], job: PartJob) -> CompiledPart:
    def called(evaluates: bool) -> list[str]:
        calls = CalledModules(network.subject, training=not evaluates)
        calls.run(network.subject.feeder.place(network.arrays))
        return calls.names

    return find_part(network, job, called, partial(MlxBeginning, network))


class CalledModules:
    """The modules of a network in the order in which one forward pass calls them, with what they gave."""

    def __init__(self, subject: MlxSubject, *, training: bool, last: int | None = None) -> None:
        """`last`: nothing is run after this call."""
        self._subject, self._training, self._last = subject, training, last
        self.names: list[str] = []
        self.outputs: list[list[Any]] = []
        """Of each call, its arrays of numbers. Calls that give none are left out."""

    def run(self, leaves: Sequence[Any], change: Change | None = None) -> None:
        def report(name: str, _module: Any, _inputs: tuple[Any, ...], output: Any) -> Any:
            if change is not None:
                number = len(self.outputs)
                output = map_leaves(lambda leaf: change(number, leaf) if is_floating(leaf) else leaf, output)
            arrays = [leaf for leaf in flatten(output)[0] if is_floating(leaf)]
            if arrays:
                self.names.append(name or WHOLE)
                self.outputs.append(arrays)
            if len(self.outputs) - 1 == self._last:
                raise Reached
            return output

        with suppress(Reached), self._subject._watched(is_leaf, report):
            self._subject._run(leaves, training=self._training)


class MlxBeginning:
    def __init__(self, network: Network[MlxSubject], last: int | None, evaluates: bool) -> None:
        """`last`: the number of its last call; None: the whole network, with its loss unless it `evaluates`."""
        self._subject, self._last, self._evaluates = network.subject, last, evaluates
        (self._model,) = self._subject._models
        self._placed = self._subject.feeder.place(network.arrays)
        self._ends = [] if last is None else open_ends(last, self._uses)
        # Nothing is computed here: MLX knows the shapes before it computes.
        self.shapes = [tuple(output.shape) for output in self._outputs(self._placed)]

    def run(self, given: Given, *, compiled: bool) -> Computed:
        subject, held = self._subject, [self._model.state, mx.random.state]
        subject.load(given.values)
        directions = [mx.array(each) for each in given.directions]

        def work(directions: list[Any], leaves: Any) -> tuple[list[Any], list[Any]]:
            """Return the outputs, and the gradients of their sum along the directions."""
            if self._evaluates:
                return self._outputs(leaves), []
            (_, outputs), gradients = nn.value_and_grad(self._model, self._total)(directions, leaves)
            return outputs, [gradient for _, gradient in tree_flatten(gradients)]

        chosen = mx.compile(work, inputs=held, outputs=held) if compiled else work
        outputs, gradients = chosen(directions, list(subject.feeder.place(given.arrays)))
        mx.eval(outputs, gradients, held)
        return Computed([*map(as_numpy_array, outputs)], [*map(as_numpy_array, gradients)])

    def _total(self, directions: list[Any], leaves: Any) -> tuple[Any, list[Any]]:
        outputs = self._outputs(leaves)
        pairs = zip(outputs, directions, strict=True)
        return sum((output.astype(mx.float32) * along).sum() for output, along in pairs), outputs

    def _outputs(self, leaves: Any) -> list[Any]:
        subject = self._subject
        if self._last is not None:
            calls = CalledModules(subject, training=not self._evaluates, last=self._last)
            calls.run(leaves)
            return [array for end in self._ends for array in calls.outputs[end]]
        if not self._evaluates:
            assert subject._compute_loss is not None
            return [subject._compute_loss(leaves)]
        return [leaf for leaf in flatten(scores(subject._run(leaves, training=False)))[0] if is_floating(leaf)]

    def _uses(self, call: int, earlier: Sequence[int]) -> list[bool]:
        """Move what each call gives along a random direction, by an amount of its own: does this call's output move?"""

        def outputs_moved_by(amounts: Any) -> list[Any]:
            def change(number: int, array: Any) -> Any:
                along = mx.random.normal(array.shape, key=mx.random.key(number)).astype(array.dtype)
                return array + amounts[number].astype(array.dtype) * along

            calls = CalledModules(self._subject, training=not self._evaluates, last=call)
            calls.run(self._placed, change)
            return [array.astype(mx.float32) for array in calls.outputs[call]]

        still = mx.zeros(call + 1)
        shapes = [array.shape for array in outputs_moved_by(still)]
        along = [mx.random.normal(shape, key=mx.random.key(call + 1)) for shape in shapes]
        slopes = as_numpy_array(mx.vjp(outputs_moved_by, [still], along)[1][0])
        return [bool(slopes[each]) for each in earlier]


if __name__ == "__main__":
    answer(find_compiled_part, sys.argv[1], sys.argv[2])

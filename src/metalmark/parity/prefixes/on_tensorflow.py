"""Finds the shortest beginning of a Keras network on TensorFlow that differs when XLA compiles it by itself.

Nothing is looked at inside of what XLA compiles: a beginning is traced until its last layer has been called, and is
then compiled as a function of its own. `python -m metalmark.parity.prefixes.on_tensorflow JOB ANSWER`.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import tensorflow as tf

from metalmark.backends.keras_common import call_arguments
from metalmark.backends.outputs import scores
from metalmark.model.nest import flatten
from metalmark.parity.keras_common import as_float, is_float, is_leaf
from metalmark.parity.networks import PartJob
from metalmark.parity.networks.question import Network, answer
from metalmark.parity.prefixes import CompiledPart
from metalmark.parity.prefixes.beginning import Computed, Given, Reached, find_part, open_ends
from metalmark.parity.tensorflow import TensorflowSubject


def find_compiled_part(network: Network[TensorflowSubject], job: PartJob) -> CompiledPart:
    def called(evaluates: bool) -> list[str]:
        calls = CalledLayers(network.subject, training=not evaluates)
        calls.run(network.subject._placed(network.arrays))
        return calls.names

    return find_part(network, job, called, partial(TensorflowBeginning, network))


class CalledLayers:
    """The layers of a network in the order in which one forward pass calls them, with what they gave."""

    def __init__(self, subject: TensorflowSubject, *, training: bool, last: int | None = None) -> None:
        """`last`: nothing is run after this call."""
        self._subject, self._training, self._last = subject, training, last
        self.names: list[str] = []
        self.outputs: list[list[Any]] = []
        """Of each call, its arrays of numbers. Calls that give none are left out."""

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def run(self, leaves: Sequence[Any], watch: Callable[[Any], None] = lambda _: None) -> None:
        """`watch` is given each array as it comes."""

        def wrapper(_: Any, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*given: Any, **options: Any) -> Any:
                output = call(*given, **options)
                arrays = [leaf for leaf in flatten(output)[0] if tf.is_tensor(leaf) and is_float(leaf)]
                for array in arrays:
                    watch(array)
                if arrays:
                    self.names.append(name)
                    self.outputs.append(arrays)
                if len(self.outputs) - 1 == self._last:
                    raise Reached
                return output

            return called

        subject = self._subject
        inputs = call_arguments(subject.layout.rebuild(leaves)["inputs"])
        with suppress(Reached), subject._wrapped(is_leaf, wrapper):
            subject.recipe.model(inputs, training=self._training)


class TensorflowBeginning:
    def __init__(self, network: Network[TensorflowSubject], last: int | None, evaluates: bool) -> None:
        """`last`: the number of its last call; None: the whole network, with its loss unless it `evaluates`."""
        self._subject, self._last, self._evaluates = network.subject, last, evaluates
        self._ends = [] if last is None else self._open_ends(network, last)
        self._works = {compiled: tf.function(self._work, jit_compile=compiled) for compiled in (False, True)}
        leaves = self._subject._placed(network.arrays)
        outputs = self._works[False].get_concrete_function(None, *leaves).structured_outputs[0]
        self.shapes = [tuple(output.shape) for output in outputs]

    def run(self, given: Given, *, compiled: bool) -> Computed:
        subject = self._subject
        subject.load(given.values)
        with tf.device(subject._home):
            directions = [tf.constant(each) for each in given.directions]
        outputs, gradients = self._works[compiled](directions, *subject._placed(given.arrays))
        return Computed([*map(as_float, outputs)], [*map(as_float, gradients)])

    def _work(self, directions: Sequence[Any] | None, *leaves: Any) -> tuple[list[Any], list[Any]]:
        """Return the outputs, and the gradients of their sum along the directions."""
        trainable = self._subject._trainable
        with tf.GradientTape() as tape:
            outputs = [tf.cast(output, tf.float32) for output in self._outputs(leaves)]
            if directions is None or self._evaluates:
                return outputs, []
            pairs = zip(outputs, directions, strict=True)
            total = tf.add_n([tf.reduce_sum(output * along) for output, along in pairs])
        gradients = tape.gradient(total, trainable)
        return outputs, [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]

    def _outputs(self, leaves: Sequence[Any]) -> list[Any]:
        subject = self._subject
        if self._last is not None:
            calls = CalledLayers(subject, training=not self._evaluates, last=self._last)
            calls.run(leaves)
            return [array for end in self._ends for array in calls.outputs[end]]
        if not self._evaluates:
            assert subject._compute_loss is not None
            return [subject._optimizers[0].scale_loss(subject._compute_loss(leaves))]
        inputs = call_arguments(subject.layout.rebuild(leaves)["inputs"])
        outputs = flatten(scores(subject.recipe.model(inputs, training=False)))[0]
        return [leaf for leaf in outputs if is_float(leaf)]

    def _open_ends(self, network: Network[TensorflowSubject], last: int) -> list[int]:
        calls = CalledLayers(self._subject, training=not self._evaluates, last=last)
        with tf.GradientTape(persistent=True) as tape:
            calls.run(self._subject._placed(network.arrays), tape.watch)

        def uses(call: int, earlier: Sequence[int]) -> list[bool]:
            slopes = tape.gradient(calls.outputs[call], [calls.outputs[each] for each in earlier])
            return [any(slope is not None for slope in each) for each in slopes]

        return open_ends(last, uses)


if __name__ == "__main__":
    answer(find_compiled_part, sys.argv[1], sys.argv[2])
    os._exit(0)  # the answer is on the disk; nothing that TensorFlow would do at its end is needed

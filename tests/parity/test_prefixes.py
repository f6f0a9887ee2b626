"""Which beginning of a compiled network is the shortest that differs: what needs no framework."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from metalmark.parity.prefixes.beginning import Computed, Given, differs, numbered, open_ends, outside, shortest

ROUNDING = 2.0**-24


@pytest.mark.parametrize("first", [0, 1, 6, 9])
def test_the_shortest_is_found_by_bisection(first: int) -> None:
    tried: list[int] = []

    def compare(cut: int) -> bool:
        tried.append(cut)
        return cut >= 10 * first

    assert shortest(range(0, 100, 10), compare) == first
    assert tried[0] == 90
    assert len(tried) <= 5


def test_where_the_whole_does_not_differ_no_part_does() -> None:
    assert shortest(range(5), lambda _: False) is None
    assert shortest([], lambda _: True) is None


def test_a_layer_that_is_called_again_is_numbered() -> None:
    assert numbered(["a", "b", "a", "a"]) == ["a", "b", "a#2", "a#3"]


def test_ends_of_other_branches_are_given_too() -> None:
    """0 → 1 → 2 and 0 → 3 → 4, which are added up as 5."""
    given = {0: set[int](), 1: {0}, 2: {0, 1}, 3: {0}, 4: {0, 3}, 5: {0, 1, 2, 3, 4}}

    def uses(call: int, earlier: Sequence[int]) -> list[bool]:
        return [each in given[call] for each in earlier]

    assert [open_ends(last, uses) for last in range(6)] == [[0], [1], [2], [3, 2], [4, 2], [5]]


def test_an_array_is_outside_by_its_size_or_by_one_element() -> None:
    truth = np.linspace(1, 2, 1000)
    noise = [truth * (1 + 1e-6), truth * (1 - 1e-6)]
    one, lost = truth.copy(), truth.copy()
    one[7] += 1e-4
    lost[7] = np.nan
    assert not outside(truth, noise, truth * (1 + 5e-6), ROUNDING)
    assert outside(truth, noise, truth * (1 + 5e-5), ROUNDING)
    assert outside(truth, noise, one, ROUNDING)
    assert outside(truth, noise, lost, ROUNDING)
    assert not outside(np.zeros(0), [], np.zeros(0), ROUNDING)
    # Two numbers of three draws have no noise by chance; a gradient that is zero but for rounding is all noise.
    pair = np.array([0.5, -0.5])
    assert not outside(pair, [pair] * 3, pair * (1 + 3e-6), ROUNDING)
    assert outside(pair, [pair] * 3, pair * (1 + 3e-5), ROUNDING)
    assert not outside(truth, [-truth], 50 * truth, ROUNDING)


class Summing:
    """A beginning that adds up a batch in float32, and when it is compiled in another order and with an error."""

    shapes = ((64,),)

    def __init__(self, error: float) -> None:
        self._error = error
        self.runs: list[tuple[Given, bool]] = []

    def run(self, given: Given, *, compiled: bool) -> Computed:
        self.runs.append((given, compiled))
        inputs, along = given.arrays[0], given.directions[0]
        weighted = inputs * along
        total = np.float32(0)
        for value in weighted[::-1] if compiled else weighted:
            total += value
        error = np.float32(1 + self._error if compiled else 1)
        return Computed([inputs * given.values["scale"]], [np.array([total]) * error])


def test_noise_is_told_from_an_error() -> None:
    rng = np.random.default_rng(0)
    values = {"scale": rng.standard_normal(64).astype(np.float32)}
    arrays = rng.standard_normal(64).astype(np.float32), np.arange(64)
    names = ("inputs", "targets")
    assert not differs(Summing(0.0), values, arrays, names, ROUNDING)
    wrong = Summing(1e-2)
    assert differs(wrong, values, arrays, names, ROUNDING)
    (plain, _), *moved, (mixed, _), (checked, _) = wrong.runs
    assert [compiled for _, compiled in wrong.runs] == [False] * 4 + [True]
    for given, _ in moved:
        assert np.array_equal(given.arrays[1], plain.arrays[1]), "targets stay"
        assert not np.array_equal(given.arrays[0], plain.arrays[0])
        assert not np.array_equal(given.values["scale"], plain.values["scale"])
    order = mixed.arrays[1]
    assert not np.array_equal(order, plain.arrays[1])
    assert np.array_equal(mixed.arrays[0], plain.arrays[0][order])
    assert np.array_equal(mixed.directions[0], plain.directions[0][order])
    assert checked is plain

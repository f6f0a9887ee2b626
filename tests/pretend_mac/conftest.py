"""Pretend Macs as fixtures: one of each kind for a whole file, or one that a test makes itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pretend_mac import Mac
from tests.simulated.build import CannotBuildError, built

MakeMac = Callable[..., Mac]


@pytest.fixture(scope="module")
def make_mac() -> Iterator[MakeMac]:
    """`make_mac("m1-8gb")`: a machine that is taken away when the file's tests are over."""
    if sys.platform != "linux":
        pytest.skip("the pretend Mac is a Linux process; here is another system")
    try:
        built()
    except CannotBuildError as error:
        pytest.skip(f"no simulated device to stand behind Metal: {error}")
    made: list[Mac] = []

    def make(name: str | Path) -> Mac:
        made.append(Mac(name))
        return made[-1]

    yield make
    for mac in made:
        mac.close()

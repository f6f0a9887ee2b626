"""The simulated device as a fixture: variables that give it to a process, with a limit of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulated.build import CannotBuildError, built, environment

Simulated = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def simulated() -> Simulated:
    """`simulated(limit_mib=16)`: the environment of a process that has the device."""
    try:
        built()
    except CannotBuildError as error:
        pytest.skip(f"no simulated device: {error}")
    return environment

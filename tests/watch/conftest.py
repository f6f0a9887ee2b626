"""The simulated device is for scripts that are watched, too."""

from tests.simulated.conftest import simulated

__all__ = ["simulated"]

"""What the trainers of TensorFlow and JAX share by sharing Keras 3: the names of variables in a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metalmark.errors import FormatError
from metalmark.training.base import State


def named(prefix: str, variables: Sequence[Any]) -> list[str]:
    """A name for each: its path in the model. A path that comes again gets its place as well."""
    names: list[str] = []
    for number, variable in enumerate(variables):
        name = f"{prefix}{variable.path}"
        names.append(f"{name}#{number}" if name in names else name)
    return names


def arrays_of(state: State, names: Sequence[str]) -> list[Any]:
    """The arrays of these names in their order."""
    missing = [name for name in names if name not in state]
    if missing:
        raise FormatError(f"The checkpoint has no {missing[0]}: it is of another network or of another Keras.")
    return [state[name] for name in names]

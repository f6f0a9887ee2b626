"""Batches as they come: tensors in dicts, lists, tuples, named tuples and dataclasses, nested as the user likes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from metalmark.kit.frameworks import owner, unwrapped


def map_leaves(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same nest with `change` applied to what is no container; the containers given are left as they are."""
    tree = unwrapped(tree)
    if owner(tree) is not None or isinstance(tree, str | bytes):
        return change(tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        # Not dataclasses.replace: it refuses fields that __init__ does not take.
        made: Any = copy.copy(tree)
        for field in dataclasses.fields(tree):
            object.__setattr__(made, field.name, map_leaves(change, getattr(tree, field.name)))
        return made
    if isinstance(tree, dict):
        made = copy.copy(tree)  # a defaultdict keeps its factory
        for key, value in tree.items():
            made[key] = map_leaves(change, value)
        return made
    if isinstance(tree, Mapping):
        return type(tree)({key: map_leaves(change, value) for key, value in tree.items()})  # type: ignore[call-arg]
    if isinstance(tree, list | tuple):
        parts = [map_leaves(change, value) for value in tree]
        return type(tree)._make(parts) if hasattr(tree, "_make") else type(tree)(parts)
    return change(tree)


def is_nest(tree: Any) -> bool:
    return isinstance(tree, Mapping | list | tuple) or (dataclasses.is_dataclass(tree) and not isinstance(tree, type))


def leaves(tree: Any) -> Iterator[Any]:
    found: list[Any] = []
    map_leaves(found.append, tree)
    return iter(found)

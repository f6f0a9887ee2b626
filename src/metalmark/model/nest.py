"""Nests: arrays in dicts, tuples, lists and dataclasses, as models take and return them.

A nest is taken apart into its leaves, which are arrays, and a Layout that puts leaves together in the same form. No
framework is imported here: a leaf is whatever is no container.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

Nest = Any


class Layout(NamedTuple):
    """The form of a nest without its arrays."""

    names: tuple[str, ...]
    """Where each leaf is, in words: `inputs["tokens"]`, `targets[0]`, `logits`."""
    join: Callable[[list[Any]], Nest]
    """Takes its leaves from the front of a list."""

    def rebuild(self, leaves: Any) -> Nest:
        return self.join(list(leaves))


def flatten(nest: Nest, name: str = "") -> tuple[list[Any], Layout]:
    """Return the leaves in order, and the layout that puts them together again."""
    if nest is None:
        return [], Layout((), lambda _: None)
    parts = _parts(nest)
    if parts is None:
        return [nest], Layout((name,), lambda leaves: leaves.pop(0))
    found = [flatten(part, f"{name}{where}".removeprefix(".")) for where, part in parts.items()]
    joins = [layout.join for _, layout in found]
    make = _maker(nest)
    names = tuple(each for _, layout in found for each in layout.names)
    leaves = [leaf for some, _ in found for leaf in some]
    return leaves, Layout(names, lambda leaves: make([join(leaves) for join in joins]))


def map_leaves(function: Callable[[Any], Any], nest: Nest) -> Nest:
    leaves, layout = flatten(nest)
    return layout.rebuild(map(function, leaves))


def first_leaf(nest: Nest) -> Any:
    """Return the first array, whose first axis counts the samples; None of an empty nest."""
    leaves, _ = flatten(nest)
    return leaves[0] if leaves else None


def is_number(value: Any) -> bool:
    """Whether it is one number of any framework: an array without axes."""
    shape = getattr(value, "shape", None)
    return shape is not None and len(shape) == 0


def _parts(nest: Nest) -> dict[str, Any] | None:
    """Return what lies in a container, by how it is written; None of a leaf."""
    if isinstance(nest, Mapping):
        return {f"[{key!r}]": value for key, value in nest.items()}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return {f".{field}": value for field, value in zip(nest._fields, nest, strict=True)}
    if isinstance(nest, (tuple, list)):
        return {f"[{number}]": value for number, value in enumerate(nest)}
    if is_dataclass(nest) and not isinstance(nest, type):
        return {f".{field.name}": getattr(nest, field.name) for field in fields(nest)}
    return None


def _maker(nest: Nest) -> Callable[[list[Any]], Nest]:
    """Return a function that makes the same kind of container from its parts. Mappings become plain dicts: the kinds
    that libraries return want more than their parts."""
    if isinstance(nest, Mapping):
        keys = list(nest)
        return lambda parts: dict(zip(keys, parts, strict=True))
    kind = type(nest)
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return lambda parts: kind(*parts)
    if isinstance(nest, (tuple, list)):
        return tuple if isinstance(nest, tuple) else list
    named = [field.name for field in fields(nest)]
    return lambda parts: kind(**dict(zip(named, parts, strict=True)))

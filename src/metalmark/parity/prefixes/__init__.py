"""Which part of a compiled network differs: one file per framework that can compile a network's beginnings."""

from msgspec import Struct


class CompiledPart(Struct, frozen=True, kw_only=True, tag="compiled-part"):
    until: str
    """Name of the last layer of the shortest part that differs; empty where none does."""
    note: str = ""

"""The sizes that make one BERT differ from another."""

from __future__ import annotations

from dataclasses import dataclass

MAX_POSITIONS = 512
TYPES = 2


@dataclass(frozen=True, kw_only=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    inner: int
    vocabulary: int = 28_996
    """Of bert-base-cased and bert-large-cased, which were published."""


SHAPES = {
    "base": Shape(layers=12, hidden=768, heads=12, inner=3072),
    "large": Shape(layers=24, hidden=1024, heads=16, inner=4096),
    "mini": Shape(layers=4, hidden=256, heads=4, inner=1024),
    "tiny": Shape(layers=2, hidden=128, heads=2, inner=512),
}

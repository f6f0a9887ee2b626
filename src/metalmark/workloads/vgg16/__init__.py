"""VGG16's features, and the pooling to 7x7 that keeps its head's shape at any image size, as torchvision has them."""

from __future__ import annotations

from collections.abc import Iterator

from metalmark.workloads.vision.backbone import Backbone, Conv

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Outputs of the convolutions between two pools, which halve the image."""
GRID = 7
FEATURES = STAGES[-1][-1] * GRID * GRID


def stages() -> Iterator[tuple[Conv, ...]]:
    inputs, place = 3, 0
    for widths in STAGES:
        convs = []
        for outputs in widths:
            convs.append(Conv(name=f"features.{place}", inputs=inputs, outputs=outputs, kernel=3))
            inputs, place = outputs, place + 2  # its ReLU has a place of its own
        yield tuple(convs)
        place += 1  # and so has the pool


def sized(pixels: int) -> Iterator[tuple[Conv, int]]:
    side = pixels
    for convs in stages():
        yield from ((conv, side) for conv in convs)
        side //= 2


BACKBONE = Backbone(name="vgg16", channels=STAGES[-1][-1], sized=sized)

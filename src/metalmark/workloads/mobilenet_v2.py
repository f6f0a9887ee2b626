"""mobilenet-cifar10: a frozen MobileNetV2 without its top, global average pool, dropout and a dense layer; Adam.

The network (width 1.0) is torchvision's: BatchNorm's epsilon is 1e-5, padding is the same on both sides.
keras.applications has 1e-3, and on a stride of 2 pads right and below only; the counts are the same.
"""

import math
import re
from collections.abc import Iterator

from metalmark.model.workload import Params
from metalmark.workloads import weights
from metalmark.workloads.vision import CENTRED, IMAGENET, Backbone, Block, Conv, Transfer, transfer_workload

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, outputs, blocks and the first block's stride."""
STEM = Conv(name="features.0.0", norm="features.0.1", inputs=3, outputs=32, kernel=3, stride=2)
TOP = Conv(name="features.18.0", norm="features.18.1", inputs=320, outputs=1280)
TRAINING_IMAGES = 50_000

_HUB_STEM = re.compile(
    r"^(?:mobilenet_v2\.)?conv_stem\.(first_conv|conv_3x3|reduce_1x1)\.(convolution|normalization)\.(.+)$"
)
_HUB_BLOCK = re.compile(
    r"^(?:mobilenet_v2\.)?layer\.(\d+)\.(expand_1x1|conv_3x3|reduce_1x1)\.(convolution|normalization)\.(.+)$"
)
_HUB_TOP = re.compile(r"^(?:mobilenet_v2\.)?conv_1x1\.(convolution|normalization)\.(.+)$")


def blocks() -> Iterator[Block]:
    yield Block(convs=(STEM,))
    inputs, number = STEM.outputs, 1
    for expansion, outputs, count, first_stride in STAGES:
        for index in range(count):
            yield _block(f"features.{number}.conv", inputs, expansion, outputs, first_stride if index == 0 else 1)
            inputs, number = outputs, number + 1
    yield Block(convs=(TOP,))


def _block(at: str, inputs: int, expansion: int, outputs: int, stride: int) -> Block:
    hidden = inputs * expansion
    convs = []
    if expansion != 1:
        convs.append(Conv(name=f"{at}.0.0", norm=f"{at}.0.1", inputs=inputs, outputs=hidden))
    place = len(convs)
    convs += [
        Conv(
            name=f"{at}.{place}.0",
            norm=f"{at}.{place}.1",
            inputs=hidden,
            outputs=hidden,
            kernel=3,
            stride=stride,
            groups=hidden,
        ),
        Conv(name=f"{at}.{place + 1}", norm=f"{at}.{place + 2}", inputs=hidden, outputs=outputs, relu=False),
    ]
    return Block(convs=tuple(convs), adds=stride == 1 and inputs == outputs)


def rename(name: str) -> str:
    """Turn a name of the hub's (transformers') MobileNetV2 into torchvision's."""
    if match := _HUB_STEM.match(name):
        layer, kind, part = match.groups()
        places = {
            "first_conv": ("features.0.0", "features.0.1"),
            "conv_3x3": ("features.1.conv.0.0", "features.1.conv.0.1"),
            "reduce_1x1": ("features.1.conv.1", "features.1.conv.2"),
        }
        return f"{places[layer][kind == 'normalization']}.{part}"
    if match := _HUB_BLOCK.match(name):
        number, layer, kind, part = match.groups()
        places = {"expand_1x1": ("0.0", "0.1"), "conv_3x3": ("1.0", "1.1"), "reduce_1x1": ("2", "3")}
        return f"features.{int(number) + 2}.conv.{places[layer][kind == 'normalization']}.{part}"
    if match := _HUB_TOP.match(name):
        kind, part = match.groups()
        return f"{TOP.name if kind == 'convolution' else TOP.norm}.{part}"
    return name


def decay(params: Params) -> tuple[float, int]:
    """The rate falls once per epoch. As published it fell once in 50,000 *steps*, which no run reached."""
    return 0.96, math.ceil(TRAINING_IMAGES / int(params["batch_size"]))


BACKBONE = Backbone(name="mobilenet_v2", blocks=tuple(blocks()), relu_max=6.0, rename=rename)
NETWORK = Transfer(backbone=BACKBONE, classes=lambda _: 10, dropout=0.4, learning_rate=lambda _: 5e-4, decay=decay)
WORKLOAD = transfer_workload(
    NETWORK,
    name="mobilenet-cifar10",
    title="MobileNetV2, frozen, + global average pool, dropout 0.4, Dense 10 on 128x128x3 images",
    batch_size=64,
    pixels=128,
    # MobileNetV2's own is [-1, 1]; torchvision trained the weights it publishes on ImageNet's mean and deviation.
    normalisation=lambda params: IMAGENET if params["weights"] == weights.IMAGENET else CENTRED,
    datasets=("cifar-10",),
)

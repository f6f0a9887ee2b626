"""resnet50-transfer: a frozen ResNet50 without its top, global average pool and a dense layer; Adam.

The network is torchvision's: a block's stride is on its 3x3 convolution ("v1.5").
keras.applications puts it on the first 1x1 instead, and gives every convolution a bias that the BatchNorm after it
takes away again. The weights that can be had for other frameworks than Keras are for this form.
"""

import re
from collections.abc import Iterator

from metalmark.workloads.vision import Backbone, Block, Conv, Transfer, is_frozen, transfer_workload

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, blocks and the first block's stride of layer1 to layer4."""
EXPANSION = 4
BRANCH_SCALE = 0.2
"""Of each branch's last BatchNorm when untrained: at 1, sixteen sums would double the signal sixteen times."""
STEM = Conv(name="conv1", norm="bn1", inputs=3, outputs=64, kernel=7, stride=2)

_HUB_STEM = re.compile(r"^(?:resnet\.)?embedder\.embedder\.(convolution|normalization)\.(.+)$")
_HUB_BRANCH = re.compile(
    r"^(?:resnet\.)?encoder\.stages\.(\d)\.layers\.(\d)\.layer\.(\d)\.(convolution|normalization)\.(.+)$"
)
_HUB_SHORTCUT = re.compile(
    r"^(?:resnet\.)?encoder\.stages\.(\d)\.layers\.(\d)\.shortcut\.(convolution|normalization)\.(.+)$"
)


def blocks() -> Iterator[Block]:
    yield Block(convs=(STEM,), pool=(3, 2))
    inputs = STEM.outputs
    for number, (width, count, first_stride) in enumerate(STAGES, 1):
        outputs = width * EXPANSION
        for index in range(count):
            stride = first_stride if index == 0 else 1
            at = f"layer{number}.{index}"
            sizes = ((inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1))
            convs = tuple(
                Conv(
                    name=f"{at}.conv{place}",
                    norm=f"{at}.bn{place}",
                    inputs=entering,
                    outputs=leaving,
                    kernel=kernel,
                    stride=step,
                    relu=place < 3,
                    scale=BRANCH_SCALE if place == 3 else 1.0,
                )
                for place, (entering, leaving, kernel, step) in enumerate(sizes, 1)
            )
            shortcut = Conv(
                name=f"{at}.downsample.0",
                norm=f"{at}.downsample.1",
                inputs=inputs,
                outputs=outputs,
                stride=stride,
                relu=False,
            )
            yield Block(convs=convs, adds=True, shortcut=shortcut if inputs != outputs else None, relu=True)
            inputs = outputs


def rename(name: str) -> str:
    """Turn a name of the hub's (transformers') ResNet into torchvision's."""
    if match := _HUB_STEM.match(name):
        kind, part = match.groups()
        return f"{'conv1' if kind == 'convolution' else 'bn1'}.{part}"
    if match := _HUB_BRANCH.match(name):
        stage, block, place, kind, part = match.groups()
        return f"layer{int(stage) + 1}.{block}.{'conv' if kind == 'convolution' else 'bn'}{int(place) + 1}.{part}"
    if match := _HUB_SHORTCUT.match(name):
        stage, block, kind, part = match.groups()
        return f"layer{int(stage) + 1}.{block}.downsample.{0 if kind == 'convolution' else 1}.{part}"
    return name


BACKBONE = Backbone(name="resnet50", blocks=tuple(blocks()), rename=rename)
NETWORK = Transfer(
    backbone=BACKBONE,
    classes=lambda _: 10,
    # Keras' default, as published; a tenth of it where the whole network is trained, as is usual there.
    learning_rate=lambda params: 1e-3 if is_frozen(params) else 1e-4,
)
WORKLOAD = transfer_workload(
    NETWORK,
    name="resnet50-transfer",
    title="ResNet50, frozen, + global average pool + Dense 10 on 224x224x3 images",
    batch_size=32,
    pixels=224,
)

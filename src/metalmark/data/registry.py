"""Where each data set is published, and the MD5 of each of its files."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Remote:
    """Files and their MD5s under one address. `instead` is as good, where it is there already."""

    address: str
    files: dict[str, str]
    instead: dict[str, str] = field(default_factory=dict)

    def md5(self, file: str) -> str:
        return {**self.files, **self.instead}[file]


REGISTRY: dict[str, Remote] = {
    "mnist": Remote(
        address="https://ossci-datasets.s3.amazonaws.com/mnist/",
        files={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": Remote(
        address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        files={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    # The binary one is fetched: it is no pickle.
    "cifar-10": Remote(
        address="https://www.cs.toronto.edu/~kriz/",
        files={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        instead={"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
    ),
    "flowers-102": Remote(
        address="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
        files={
            "102flowers.tgz": "52808999861908f626f3c1f4e79d11fa",
            "imagelabels.mat": "e0620be6f572b9609742df49c70aed4d",
            "setid.mat": "a5357ecc9cb78c4bef273ce3793fc85c",
        },
    ),
}

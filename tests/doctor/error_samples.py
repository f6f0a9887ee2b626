"""For each known error a text as users paste it, and a log that is well."""

from __future__ import annotations

import tomllib
from pathlib import Path

FOLDER = Path(__file__).with_name("samples")


def _read() -> dict[str, str]:
    """The samples of all files; a name that is in two of them would hide one."""
    samples: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        here: dict[str, str] = tomllib.loads(path.read_text(encoding="utf-8"))["samples"]
        twice = samples.keys() & here.keys()
        assert not twice, f"{path.name} repeats {sorted(twice)}"
        samples |= here
    return samples


SAMPLES = _read()

HEALTHY = """2026-11-02 10:11:12.391823: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
Using device: mps, PyTorch 2.9.0, NumPy 2.1.0, CUDA available: False
Downloading https://example.org/cifar-10.tar.gz: 100%|##########| 170M/170M [00:12<00:00, 14.1MB/s]
Epoch 1/10
1563/1563 [==============================] - 21s 13ms/step - loss: 1.8423 - accuracy: 0.3471 - val_loss: 1.6012
Epoch 2/10: error rate 0.31, out of 50000 images, memory 3.2 GB allocated
INFO: DataLoader uses 4 workers, pin_memory=False, files open: 71
Saved checkpoints/epoch-2.pt (98 MB). Killed time: 0 s. Device memory 812 MiB of 16 GiB
Finished: top-1 accuracy 0.912
"""

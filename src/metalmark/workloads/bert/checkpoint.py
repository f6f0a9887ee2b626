"""A published BERT checkpoint, in the hub's layout: config.json says how large it is, the arrays lie beside it.

The arrays keep the hub's names, without the prefix "bert." that some files have; each framework puts them where its own
modules want them. A classifier's top is left: the task is another one.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from metalmark.errors import WeightsError
from metalmark.workloads import weights
from metalmark.workloads.bert.shape import MAX_POSITIONS, TYPES, Shape

CONFIG = "config.json"
FILES = ("model.safetensors", "pytorch_model.bin")
ACTIVATION = "gelu"
EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What of config.json decides the network; the rest is left unread."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int = MAX_POSITIONS
    type_vocab_size: int = TYPES
    hidden_act: str = ACTIVATION


def arrays_file(word: str) -> Path:
    """The file with the arrays, from itself or the folder it lies in."""
    folder = Path(word).expanduser()
    if folder.is_dir():
        for name in FILES:
            if (folder / name).is_file():
                return folder / name
        raise WeightsError(
            f"--weights {folder.name}: this folder has neither {' nor '.join(FILES)}. "
            f"Give a checkpoint's own folder: one of them, and {CONFIG}."
        )
    path = weights.find(word, "bert")
    assert path is not None
    return path


def shape_of_file(word: str) -> Shape:
    path = arrays_file(word).with_name(CONFIG)
    try:
        config = msgspec.json.decode(path.read_bytes(), type=Config)
    except OSError as error:
        raise WeightsError(
            f"--weights needs the checkpoint's {CONFIG} beside its arrays, and it can't be read: {error.strerror}. "
            f"The hub has both in one folder: put them together."
        ) from error
    except msgspec.DecodeError as error:
        raise WeightsError(f"{CONFIG} beside the weights is not a BERT's: {error}.") from error
    if config.hidden_act != ACTIVATION:
        raise WeightsError(f"{CONFIG}: the activation is {config.hidden_act}; this workload's is {ACTIVATION}.")
    if config.num_attention_heads < 1 or config.hidden_size % config.num_attention_heads:
        raise WeightsError(f"{CONFIG}: {config.hidden_size} can't be shared by {config.num_attention_heads} heads.")
    if (config.max_position_embeddings, config.type_vocab_size) != (MAX_POSITIONS, TYPES):
        raise WeightsError(f"{CONFIG}: only checkpoints with {MAX_POSITIONS} positions and {TYPES} types are read.")
    return Shape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        inner=config.intermediate_size,
        vocabulary=config.vocab_size,
    )


def arrays(word: str, shape: Shape) -> dict[str, np.ndarray]:
    """Every array below the classifier, each of the shape it must have."""
    return weights.load(arrays_file(word), shapes(shape), _rename)


def shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    hidden, inner = shape.hidden, shape.inner
    found: dict[str, tuple[int, ...]] = {}

    def linear(name: str, inputs: int, outputs: int) -> None:
        found[f"{name}.weight"] = (outputs, inputs)
        found[f"{name}.bias"] = (outputs,)

    def norm(name: str) -> None:
        found[f"{name}.weight"] = found[f"{name}.bias"] = (hidden,)

    for name, rows in zip(EMBEDDINGS, (shape.vocabulary, MAX_POSITIONS, TYPES), strict=True):
        found[f"embeddings.{name}.weight"] = (rows, hidden)
    norm("embeddings.LayerNorm")
    for number in range(shape.layers):
        layer = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{part}", hidden, hidden)
        linear(f"{layer}.attention.output.dense", hidden, hidden)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", hidden, inner)
        linear(f"{layer}.output.dense", inner, hidden)
        norm(f"{layer}.output.LayerNorm")
    linear("pooler.dense", hidden, hidden)
    return found


def _rename(name: str) -> str:
    # Files from TensorFlow's first release call a norm's arrays gamma and beta.
    name = name.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")

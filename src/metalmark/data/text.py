"""A text file as tokens for language models: each byte of its UTF-8 is one, from 0 to 255.

A sample is a window of `seq_len` + 1 tokens: all but the last are its inputs, all but the first its targets. The last
tenth of the text is for validation.
"""

import codecs
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from metalmark.data.dataset import Dataset, Positions
from metalmark.data.files import damaged, unreadable
from metalmark.errors import FormatError
from metalmark.model.workload import Batch

VOCABULARY = 256
SEQ_LEN = 128
"""Where the workload has no parameter of this name."""
HELD_OUT = 10
"""One part in so many, at the end of the text, is for validation."""
HEAD_BYTES = 2**14
SYNTHETIC_BYTES = 2**18
FOLLOWERS = 4
"""Characters that may follow each one in a made-up text: whoever knows them guesses one in so many."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TextSplit:
    """Windows of a text, one behind the other: each begins with the last token of the one before."""

    tokens: npt.NDArray[np.uint8]
    seq_len: int

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.seq_len

    def take(self, positions: Positions) -> Batch:
        places = np.asarray(positions)[:, np.newaxis] * self.seq_len + np.arange(self.seq_len + 1)
        windows = self.tokens[places].astype(np.int32)
        return Batch(inputs=windows[:, :-1], targets=windows[:, 1:])


def looks_like_text(path: Path) -> bool:
    """Whether a file begins as UTF-8 text does. An empty file does not: there is nothing in it to read."""
    try:
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error
    if not head or b"\0" in head:
        return False
    try:
        # A character may be cut in two at the end of what was read.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def load_text(path: Path, *, seq_len: int | None = None) -> Dataset:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        why = f"byte {error.start:,} (0x{data[error.start]:02x}) is not UTF-8"
        raise damaged(path, "text", why, hint="Save it as UTF-8.") from error
    return _divided(data, seq_len or SEQ_LEN, name=str(path), source=f"text of {len(data):,} bytes")


def load_synthetic_text(*, seed: int, seq_len: int | None = None) -> Dataset:
    """Make a text in which each character has few followers: learnable, and the same for the same seed."""
    rng = np.random.default_rng([seed, 3])
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz .,\n", np.uint8)
    followers = rng.integers(0, len(letters), (len(letters), FOLLOWERS)).tolist()
    letter, text = 0, []
    for choice in rng.integers(0, FOLLOWERS, SYNTHETIC_BYTES).tolist():
        letter = followers[letter][choice]
        text.append(letter)
    return _divided(letters[text].tobytes(), seq_len or SEQ_LEN, name="synthetic text", source="synthetic")


def _divided(data: bytes, seq_len: int, *, name: str, source: str) -> Dataset:
    tokens = np.frombuffer(data, np.uint8)
    last = max(len(tokens) // HELD_OUT, seq_len + 1)
    if len(tokens) < 2 * (seq_len + 1):
        raise FormatError(
            f"{name} has {len(tokens):,} bytes, and samples of {seq_len:,} tokens need at least {2 * (seq_len + 1):,}: "
            "training and validation each need one.",
            hint="Give a longer text, or a smaller --seq-len.",
        )
    digest = hashlib.sha256(f"text {seq_len}\n".encode() + data).hexdigest()
    train, validation = tokens[:-last], tokens[-last:]
    return Dataset(
        name="text",
        source=source,
        train=TextSplit(tokens=train, seq_len=seq_len),
        validation=TextSplit(tokens=validation, seq_len=seq_len),
        digest=digest,
    )

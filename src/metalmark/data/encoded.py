"""Images that stay encoded (JPEG, PNG ...) until a batch asks for them; Pillow decodes, and is imported only then."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from metalmark.data.split import Pixels, Positions
from metalmark.data.trouble import damaged, unreadable
from metalmark.errors import FormatError, NotInstalledError

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
"""No others are tried: Pillow starts another program for some."""
REMOVE = "Remove it or replace it."


@dataclass(frozen=True)
class FilesIn:
    """Reads a name's bytes from a folder; small, so that a loader's processes can be handed it."""

    folder: Path

    def __call__(self, name: str) -> bytes:
        path = self.folder / name
        try:
            return path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error


@dataclass(frozen=True, eq=False)
class Held:
    """Reads a name's bytes from memory, where an archive was unpacked to."""

    contents: dict[str, bytes]

    def __call__(self, name: str) -> bytes:
        return self.contents[name]


@dataclass(frozen=True, eq=False)
class EncodedImages:
    """uint8 RGB, `pixels` x `pixels`: the shorter side resized to that, the middle cut out."""

    names: tuple[str, ...]
    read: Callable[[str], bytes]
    pixels: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.names), self.pixels, self.pixels, 3)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, positions: Positions, /) -> Pixels:
        batch = np.empty((len(positions), self.pixels, self.pixels, 3), np.uint8)
        for row, position in enumerate(positions):
            name = self.names[position]
            batch[row] = decode(self.read(name), name, self.pixels)
        return batch


def decode(data: bytes, name: str, pixels: int) -> Pixels:
    """One image as an array."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise NotInstalledError(
            "Decoding images needs Pillow, which is not installed.", hint='Install it: pip install "metalmark[images]"'
        ) from error
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.mode.startswith(("I", "F")):
                # Pillow would clip these to white without a word.
                raise damaged(name, "an image", "its pixels have more than 8 bits", hint="Convert it to 8 bits.")
            # By way of RGBA, since Pillow warns of a palette with transparency when it goes straight to RGB.
            opaque = image.convert("RGBA") if "transparency" in image.info else image
            fitted = ImageOps.fit(opaque.convert("RGB"), (pixels, pixels), Image.Resampling.BILINEAR)
            return np.asarray(fitted, np.uint8)
    except FormatError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise damaged(name, "an image", "it unpacks to a huge picture", hint=REMOVE) from error
    # What Pillow's decoders raise on damaged files.
    except (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, struct.error, zlib.error) as error:
        why = str(error) if "BytesIO" not in str(error) else "no known image format"
        raise damaged(name, "an image", f"it is damaged or no image ({why[:120]})", hint=REMOVE) from error

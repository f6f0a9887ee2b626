"""Any folder of class/image.jpg: with train/ and valid/ in it, or split here by the names of its files.

Left out without a word: hidden files, notes (README, LICENSE, .txt, .md, .csv, .json) and what file managers
leave behind. Anything else that is no image is named in an error, since it may be a damaged image.
"""

import hashlib
import io
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from metalmark.data.dataset import Dataset, ImageSplit, Pixels, Positions
from metalmark.data.files import damaged, unreadable
from metalmark.errors import FormatError, NotInstalledError
from metalmark.scrub import printable

TRAIN = "train"
VALIDATION = ("valid", "val", "validation")
TEST = "test"
VALIDATION_SHARE = 0.2
HEAD_BYTES = 2**14
SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"RIFF", b"II*\x00", b"MM\x00*", b"P5", b"P6")
NOTES = (".txt", ".md", ".csv", ".json", ".rst", ".html")
LEFT_BEHIND = {"thumbs.db", "desktop.ini", "readme", "license", "__macosx", "@eadir", "icon\r"}
WANTED = (
    "Wanted: a folder for each class with its images inside, or train/ and valid/ (or val/, test/) of such folders."
)
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
"""No others are tried: Pillow starts another program for some."""
REMOVE = "Remove it or replace it."
# What Pillow's decoders raise on damaged files; of some damage they only warn, and warnings may be errors.
DECODE_ERRORS = (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, Warning, struct.error, zlib.error)


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
    except DECODE_ERRORS as error:
        why = str(error) if "BytesIO" not in str(error) else "no known image format"
        raise damaged(name, "an image", f"it is damaged or no image ({why[:120]})", hint=REMOVE) from error


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image's file: its name below the root, and enough of its content to know a copy."""

    name: str
    label: str
    size: int
    head: str

    @property
    def key(self) -> tuple[int, str]:
        return self.size, self.head


def read_head(path: Path) -> tuple[bytes, int]:
    """Return a file's first bytes, which its fingerprint is made from, and its size."""
    with path.open("rb") as stream:
        return stream.read(HEAD_BYTES), stream.seek(0, 2)


def fingerprint(data: bytes) -> str:
    return hashlib.sha256(data[:HEAD_BYTES]).hexdigest()


def load_folder(path: Path, *, pixels: int, name: str = "folder") -> Dataset:
    parts, source = _published(path) or _own_split(path)
    labels = {label: number for number, label in enumerate(sorted({picture.label for picture in parts["train"]}))}
    digest = hashlib.sha256()
    splits: dict[str, ImageSplit] = {}
    for part, pictures in parts.items():
        for picture in pictures:
            if picture.label not in labels:
                raise FormatError(
                    f"{path} has the class {printable(picture.label)} in {part} and not in {TRAIN}/.",
                    hint="Give every class images to train on, or remove it.",
                )
            digest.update(f"{part}\0{picture.name}\0{picture.size}\0{picture.head}\n".encode())
        splits[part] = ImageSplit(
            images=EncodedImages(tuple(picture.name for picture in pictures), FilesIn(path), pixels),
            labels=np.array([labels[picture.label] for picture in pictures], np.int32),
            classes=tuple(labels),
        )
    train, validation, test = splits["train"], splits["validation"], splits.get("test")
    return Dataset(name=name, source=source, train=train, validation=validation, test=test, digest=digest.hexdigest())


def has_folders(path: Path) -> bool:
    return path.is_dir() and bool(_folders(path))


def _published(path: Path) -> tuple[dict[str, list[Picture]], str] | None:
    """The split that the folder comes with. A class may be called `train`, so it must hold folders itself."""
    if not has_folders(path / TRAIN):
        return None
    present = [name for name in (*VALIDATION, TEST) if has_folders(path / name)]
    if not present:
        return None
    chosen = present[0]
    parts = {"train": _scan(path, TRAIN), "validation": _scan(path, chosen)}
    if TEST in present and chosen != TEST:
        parts["test"] = _scan(path, TEST)
    for part in list(parts)[1:]:
        _refuse_twins(path, parts["train"], parts[part])
    return parts, f"folder: class/image, split as its {TRAIN}/ and {chosen}/"


def _own_split(path: Path) -> tuple[dict[str, list[Picture]], str]:
    """A fifth of each class for validation, chosen by the hash of each file's name: no seed, so always the same."""
    below = TRAIN if has_folders(path / TRAIN) else ""
    classes: dict[str, list[Picture]] = defaultdict(list)
    for picture in _scan(path, below):
        classes[picture.label].append(picture)
    to_validation: dict[tuple[int, str], bool] = {}
    parts: dict[str, list[Picture]] = {"train": [], "validation": []}
    for label, pictures in classes.items():
        _divide(path, label, pictures, to_validation)
        for picture in pictures:
            parts["validation" if to_validation[picture.key] else "train"].append(picture)
    return parts, "folder: class/image, split 80/20 by file name"


def _divide(path: Path, label: str, pictures: list[Picture], to_validation: dict[tuple[int, str], bool]) -> None:
    """Says for each image of a class, known by its content, where it goes: copies of an image go together."""
    ordered = sorted(pictures, key=lambda picture: hashlib.sha256(picture.name.encode()).digest())
    images = dict.fromkeys(picture.key for picture in ordered)
    wanted = max(1, round(VALIDATION_SHARE * len(images)))
    # An image that stands in another class too has its side already, and counts here.
    wanted -= sum(to_validation.get(key, False) for key in images)
    for key in images:
        if key not in to_validation:
            to_validation[key] = wanted > 0
            wanted -= 1
    if len({to_validation[key] for key in images}) < 2:
        found = "only one image" if len(images) == 1 else "only copies of other classes' images"
        raise FormatError(
            f"{path} has {found} in the class {printable(label)}: training and validation each need one.",
            hint=f"Add images to {printable(label)}/, or remove that folder.",
        )


def _refuse_twins(path: Path, train: list[Picture], held_out: list[Picture]) -> None:
    """The published experiment's own mistake: what is validated on was trained on."""
    known = {picture.key: picture.name for picture in train}
    read = FilesIn(path)
    for picture in held_out:
        twin = known.get(picture.key)
        if twin is not None and read(twin) == read(picture.name):
            raise FormatError(
                f"{path} has the same image twice: {printable(twin)}, trained on, is {printable(picture.name)}.",
                hint="Remove one of the two: a validation that has seen the answer proves nothing.",
            )


def _scan(root: Path, below: str) -> list[Picture]:
    """All images in class folders under `below`, by class and name."""
    top = root / below if below else root
    try:
        folders = _folders(top)
        if not folders:
            loose = any(entry.suffix.lower() in SUFFIXES for entry in top.iterdir())
            what = "has images but no class folders" if loose else "has no class folders in it"
            raise FormatError(f"{top} {what}.", hint=WANTED)
        pictures = [picture for folder in folders for picture in _class(root, folder)]
    except OSError as error:
        raise unreadable(Path(error.filename or top), error) from error
    if len(folders) == 1:
        raise FormatError(f"{top} has only one class folder, {printable(folders[0].name)}/.", hint=WANTED)
    return pictures


def _class(root: Path, folder: Path) -> list[Picture]:
    pictures = []
    for entry in sorted(folder.iterdir()):
        name = entry.relative_to(root).as_posix()
        if _ignored(entry):
            continue
        if entry.is_dir():
            raise FormatError(f"{root}: {printable(name)} is a folder inside a class folder.", hint=WANTED)
        if entry.suffix.lower() not in SUFFIXES:
            raise damaged(f"{root}: {name}", "an image", f"its name ends in none of {', '.join(SUFFIXES)}", hint=REMOVE)
        if not entry.is_file():
            raise damaged(f"{root}: {name}", "an image", "it is no regular file, or a link to none", hint=REMOVE)
        head, size = read_head(entry)
        if not head.startswith(SIGNATURES):
            why = "it is empty" if not head else f"it starts with {head[:4].hex(' ')}, as no image does"
            raise damaged(f"{root}: {name}", "an image", why, hint=REMOVE)
        pictures.append(Picture(name=name, label=folder.name, size=size, head=fingerprint(head)))
    if not pictures:
        raise FormatError(
            f"{root} has no image in its class folder {printable(folder.relative_to(root).as_posix())}/.",
            hint="Add images to it, or remove it.",
        )
    return pictures


def _folders(path: Path) -> list[Path]:
    try:
        return [entry for entry in sorted(path.iterdir()) if entry.is_dir() and not _ignored(entry)]
    except OSError as error:
        raise unreadable(path, error) from error


def _ignored(entry: Path) -> bool:
    name = entry.name.lower()
    return name.startswith(".") or name in LEFT_BEHIND or (name.endswith(NOTES) and not entry.is_dir())

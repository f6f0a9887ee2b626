"""CIFAR-10's Python batches are pickles, and a pickle may name any function to call. Here it may call none.

The three NumPy names that those files use are answered with stand-ins that only take notes; the array is
then made by us from the notes. Any other name is refused before anything happens.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any, ClassVar

import numpy as np

from metalmark.data.split import Pixels
from metalmark.data.trouble import damaged
from metalmark.errors import FormatError

KIND = "a CIFAR-10 batch"
FUNCTIONS = {
    ("numpy.core.multiarray", "_reconstruct"): "array",
    ("numpy._core.multiarray", "_reconstruct"): "array",
    ("numpy", "ndarray"): "class",
    ("numpy", "dtype"): "dtype",
}
# Lists, dictionaries, tuples, numbers, text, memo, and the call of a (refused or stand-in) name. No others:
# one of the rest reserves whatever memory it is asked for, and these make objects of classes in other ways.
MAKERS = "INST OBJ NEWOBJ NEWOBJ_EX EXT1 EXT2 EXT4 PERSID BINPERSID"
OPCODES = """
    PROTO FRAME STOP MARK POP POP_MARK DUP MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET
    EMPTY_DICT EMPTY_LIST EMPTY_TUPLE DICT LIST TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS SETITEM SETITEMS
    NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 BINFLOAT
    STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES
    GLOBAL STACK_GLOBAL REDUCE BUILD
"""
# What the unpickler raises on damaged files; it promises only UnpicklingError.
BROKEN = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError, OverflowError, struct.error,
)  # fmt: skip


class Note:
    """What the pickle asked to be made, not made."""

    __slots__ = ("arguments", "kind", "state")

    def __init__(self, kind: str, arguments: tuple[Any, ...]) -> None:
        self.kind, self.arguments, self.state = kind, arguments, ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


class StandIn:
    """In the place of a function of NumPy's."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, *arguments: Any) -> Note:
        return Note(self.kind, arguments)

    def __setstate__(self, _: Any) -> None:
        raise pickle.UnpicklingError("it changes a function")


# The version written in Python: the one in C reserves memory for as large a memo number as a file cares to name.
class BatchUnpickler(pickle._Unpickler):
    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self._name = name

    def find_class(self, module: str, name: str) -> StandIn:
        kind = FUNCTIONS.get((module, name))
        if kind is None:
            raise self._refusal(f"{module}.{name}")
        return StandIn(kind)

    def _refuse(self) -> None:
        raise self._refusal("an object of a class")

    def _refusal(self, what: str) -> FormatError:
        return damaged(
            self._name,
            KIND,
            f"it tries to run code ({what}), which none of them does; nothing of it was run",
            hint="Do not open it with anything else. Take the file from https://www.cs.toronto.edu/~kriz/cifar.html",
        )

    dispatch: ClassVar[dict[int, Any]] = {
        **dict.fromkeys((getattr(pickle, name)[0] for name in MAKERS.split()), _refuse),
        **{code: pickle._Unpickler.dispatch[code] for name in OPCODES.split() for code in getattr(pickle, name)},
    }


def read_batch(data: bytes, name: str) -> tuple[Pixels, list[int]]:
    """The rows and the labels of a pickled batch."""
    try:
        batch = BatchUnpickler(data, name).load()
    except FormatError:
        raise
    except (*BROKEN, RecursionError, MemoryError) as error:
        why = f"it is damaged or holds more than rows and labels ({type(error).__name__}: {error})"
        raise damaged(name, KIND, why[:200]) from error
    if not isinstance(batch, dict):
        raise damaged(name, KIND, f"it holds a {type(batch).__name__}, not a dictionary")
    texts = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    labels = texts.get("labels")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        fix = " (CIFAR-100 has fine_labels; CIFAR-10 is wanted)" if "fine_labels" in texts else ""
        raise damaged(name, KIND, f"it has no list of whole numbers called labels{fix}")
    return _array(texts.get("data"), name), labels


def _array(note: Any, name: str) -> Pixels:
    """The array of bytes that the notes describe, if that is what they describe."""
    if not isinstance(note, Note) or note.kind != "array":
        raise damaged(name, KIND, "it has no array called data")
    match note.state:
        case (int(), tuple() as shape, Note(kind="dtype") as dtype, bool() | int() as by_column, bytes() as raw):
            pass
        case _:
            raise damaged(name, KIND, "its array is not written as NumPy writes one")
    if dtype.arguments[:1] not in (("u1",), (b"u1",)):
        raise damaged(name, KIND, "its array is not of bytes (uint8)")
    if len(shape) != 2 or not all(type(size) is int and size >= 0 for size in shape) or shape[0] * shape[1] != len(raw):
        raise damaged(name, KIND, f"its array's shape does not fit its {len(raw):,} bytes")
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_column else "C")

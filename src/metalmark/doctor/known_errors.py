"""Every error that `metalmark doctor --for` recognises."""

from __future__ import annotations

from metalmark.doctor.known import cuda, python, tensorflow_metal, torch_mps, training
from metalmark.doctor.known.base import KnownError

KNOWN: tuple[KnownError, ...] = (
    *torch_mps.ERRORS,
    *tensorflow_metal.ERRORS,
    *cuda.ERRORS,
    *training.ERRORS,
    *python.ERRORS,
)

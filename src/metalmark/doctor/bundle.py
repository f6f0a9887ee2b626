"""DoctorBundle: what the doctor saw of a machine, and what its system tools printed, in one file without names.

An owner of a Mac sends one; it tells us what the recorded outputs did not, and becomes a new machine for the tests.
"""

from __future__ import annotations

from msgspec import Struct

from metalmark.doctor.scene import Scene

SCHEMA = 1


class ToolAnswer(Struct, frozen=True, kw_only=True):
    """What one command printed."""

    argv: tuple[str, ...]
    status: int
    """Its exit code; -1 where it could not be started or gave no answer in time, and stderr says which."""
    stdout: str = ""
    stderr: str = ""


class DoctorBundle(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    metalmark: str
    scene: Scene
    answers: tuple[ToolAnswer, ...]

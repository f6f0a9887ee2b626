"""A pretend Mac, seen from inside a process: Metalmark's own modules and its tests get macOS's answers.

`sys.platform` can't be changed for everybody, since psutil and the frameworks import what it names. So only the modules
of `metalmark` and `tests` are changed, while they are imported (`rewriting`): each import of a module that answers
otherwise on a Mac is followed by a line that puts a stand-in in its place (`modules`). What the stand-ins answer comes
from the machine's file (`machine`), a bundle as `metalmark doctor --bundle` writes it.
"""

from __future__ import annotations

import builtins
import sys


def install() -> None:
    """Change what is imported from now on. Nothing is imported here but what that needs."""
    from pretend_mac.rewriting import Finder
    from pretend_mac.stand_ins import device_type, stand_in, stand_in_from, text_of

    builtins.__pretend_module__ = stand_in  # type: ignore[attr-defined]
    builtins.__pretend_from__ = stand_in_from  # type: ignore[attr-defined]
    builtins.__pretend_type__ = device_type  # type: ignore[attr-defined]
    builtins.__pretend_str__ = text_of  # type: ignore[attr-defined]
    sys.meta_path.insert(0, Finder())

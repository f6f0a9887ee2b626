"""PYTORCH_ENABLE_MPS_FALLBACK, as PyTorch reads it: with std::stoi, which throws for what does not begin as a number.

It is read while torch is loaded, where nobody catches the exception: the process aborts.
"""

from __future__ import annotations

import re

FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"
_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]{1,20})")
_LOWEST, _HIGHEST = -(2**31), 2**31 - 1


def is_on(value: str) -> bool | None:
    """Return whether this value lets operations fall back; None where `import torch` aborts on it."""
    match = _NUMBER.match(value)
    if match is None or not _LOWEST <= int(match[1]) <= _HIGHEST:
        return None
    return int(match[1]) != 0

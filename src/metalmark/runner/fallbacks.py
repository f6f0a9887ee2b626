"""Which operations a framework says it ran on the CPU for want of a kernel, from what its worker printed."""

from __future__ import annotations

import re
from pathlib import Path

MOST_BYTES = 4 << 20

# PyTorch's, with PYTORCH_ENABLE_MPS_FALLBACK=1, once a process: of several operations it names the first.
# Vendors' backends print the same sentence with their own names, some of them for each operation.
_SENTENCE = re.compile(
    r"The operator '([\w:.]{1,100})' is not currently (?:supported|implemented) on the \w+ backend "
    r"and will fall back to run on the CPU"
)


def fallbacks(output: Path) -> tuple[str, ...]:
    """Their names, each once, in the order they were printed."""
    try:
        with output.open("rb") as file:
            text = file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(dict.fromkeys(_SENTENCE.findall(text)))

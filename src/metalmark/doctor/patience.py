"""How long a framework's first answer may take, where Linux and macOS differ."""

from __future__ import annotations

import sys

if sys.platform == "darwin":
    PROBE_S = 90.0
    WHY_SLOW = "macOS scans a large framework when it is first imported, which may take a minute"
else:
    PROBE_S = 24.0
    WHY_SLOW = "a first import from a cold disk may take that long"

LIMIT_S = PROBE_S + 6.0
"""For the whole: a framework may take most of it; in the normal case none takes ten seconds."""
REMIND_S = 10.0
"""After so long it is said what is waited for; again after twice as long, and so on."""

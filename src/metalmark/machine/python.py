"""Which Python runs us and what it was built for: a build for another processor is why Metal is not there."""

from __future__ import annotations

import platform
import re
import sys
import sysconfig

from metalmark.machine.words import to_name

_PACKAGER = re.compile(r"\| *packaged by ([^|]{1,80})\|")


def build() -> str:
    return describe(
        implementation=platform.python_implementation(),
        version=platform.python_version(),
        built_for=sysconfig.get_platform(),
        banner=sys.version,
        free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    )


def describe(*, implementation: str, version: str, built_for: str, banner: str, free_threaded: bool) -> str:
    """The banner is read for its packager only: its compiler and its date tell nobody anything."""
    packager = _PACKAGER.search(banner)
    parts = [f"{implementation} {version} for {built_for}"]
    if free_threaded:
        parts.append("free-threaded")
    if packager:
        parts.append(f"packaged by {packager[1].strip()}")
    return to_name(", ".join(parts)) or "unknown"

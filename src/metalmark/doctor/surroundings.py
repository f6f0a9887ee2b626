"""The part of a Scene that the shell decides, in a moment: no framework is asked and no GPU."""

from __future__ import annotations

import sys

from metalmark.doctor import here, macos
from metalmark.doctor.collect import lacking
from metalmark.doctor.installed import read as read_installed
from metalmark.doctor.scene import Scene


def surroundings() -> Scene:
    fields = here.read()
    if sys.platform == "darwin":
        tool = next(tool for tool in macos.TOOLS if tool.name == "sysctl")
        # Without its answer the memory is still known; only a wired limit would be missed.
        answer, _ = macos.ask(tool)
        fields |= {name: value for name, value in answer.items() if value is not None}
    return Scene(**{**fields, "frameworks": lacking(), "packages": read_installed()["packages"]})

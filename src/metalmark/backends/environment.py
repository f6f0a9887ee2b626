"""The environment variables that a plan may set: where each does something, and how they are written.

    PYTORCH_MPS_FAST_MATH=1                                one variable
    PYTORCH_MPS_FAST_MATH=1 PYTORCH_MPS_PREFER_METAL=1     several, sorted by name

Anything else is refused. Variables reach into the loader of a process (LD_PRELOAD) and beyond, and settings come from
files as well as from a command line.
"""

import json
import sys
import tomllib
from pathlib import Path

from msgspec import Struct, convert

from metalmark.errors import UsageError, did_you_mean

FLAG = "--environment"
ONE_BLANK = f'Write several as one text: {FLAG} "NAME=VALUE OTHER=VALUE"'


class EnvironmentVariable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of `environment.toml`, whose first lines describe the fields."""

    name: str
    values: tuple[str, ...]
    frameworks: tuple[str, ...]
    devices: tuple[str, ...]
    systems: tuple[str, ...] = ()
    since: str = ""
    for_compiler: bool = False
    effect: str

    def refusal(self, framework: str, device_type: str, version: str | None) -> str:
        """Return why the variable does nothing there; empty where it does something. `version`: of the framework."""
        if framework not in self.frameworks or device_type not in self.devices:
            where = f"{' and '.join(self.frameworks)} on {' and '.join(self.devices)}"
            return f"it {self.effect}, which is for {where}."
        if self.systems and sys.platform not in self.systems:
            return f"it {self.effect}, and does nothing on this system."
        if self.since and _is_older(version, self.since):
            return f"it {self.effect}, from version {self.since} on; this is {version}."
        return ""


def _is_older(version: str | None, first: str) -> bool:
    """Return whether a version is surely older than another."""
    from packaging.version import InvalidVersion, Version  # here, since few commands need it

    try:
        return version is not None and Version(version) < Version(first)
    except InvalidVersion:
        return False


_TABLE = tomllib.loads(Path(__file__).with_name("environment.toml").read_text(encoding="utf-8"))
VARIABLES = {each.name: each for each in convert(_TABLE["variables"], list[EnvironmentVariable])}
REFUSED = convert(_TABLE["refused"], dict[str, str])
"""Why some variables that people ask for are not set."""


def written() -> list[str]:
    """Return every variable with each value that it may have, as they are written."""
    return [f"{variable.name}={value}" for variable in VARIABLES.values() for value in variable.values]


def pairs(text: str) -> dict[str, str]:
    """Return the variables of a setting by name, whether or not they are known."""
    return {name: value for name, _, value in (word.partition("=") for word in text.split())}


def python_lines(text: str) -> list[str]:
    """Return the lines of a Python program that set the variables of a setting."""
    return [f"os.environ[{json.dumps(name)}] = {json.dumps(value)}" for name, value in pairs(text).items()]


def notes_without_compiler(text: str) -> tuple[str, ...]:
    """Say of each variable of a setting that nothing reads it where nothing is compiled."""
    return tuple(
        f"{name} does nothing here: it is for what --compile compiles."
        for name in pairs(text)
        if name in VARIABLES and VARIABLES[name].for_compiler
    )


def known_pairs(text: str, framework: str) -> dict[str, str]:
    """Return those variables of a setting that a framework reads, with values that they may have."""
    return {
        name: value
        for name, value in pairs(text).items()
        if name in VARIABLES and value in VARIABLES[name].values and framework in VARIABLES[name].frameworks
    }


def refusal(name: str, value: str, framework: str, device_type: str, version: str | None) -> str:
    """Return why a variable of a setting can't be set there; empty where it can."""
    if name in REFUSED:
        return f"{REFUSED[name]}."
    variable = VARIABLES.get(name)
    if variable is None or value not in variable.values:
        return "this is not one of the variables that Metalmark sets."
    return variable.refusal(framework, device_type, version)


def parse_environment(text: str) -> str:
    """Return variables as settings hold them, sorted by name; refuse those that are not known."""
    found: dict[str, str] = {}
    hint = f"It takes: {', '.join(written())}."
    for word in text.split():
        name, sign, value = word.partition("=")
        if name in REFUSED:
            raise UsageError(f"{FLAG} does not set {name}: {REFUSED[name]}.", hint=hint)
        if name not in VARIABLES:
            near = did_you_mean(name, VARIABLES)
            if not sign:
                raise UsageError(f"{FLAG} takes NAME=VALUE, not {word[:80]!r}{near}", hint=hint)
            raise UsageError(f"{FLAG} does not set {name[:80]!r}{near}", hint=hint)
        allowed = VARIABLES[name].values
        if value not in allowed:
            given = f", not {value[:80]!r}" if sign else ""
            raise UsageError(f"{FLAG} {name} takes {' or '.join(allowed)}{given}.", hint=f"Write {name}={allowed[0]}.")
        if name in found:
            raise UsageError(f"{FLAG} has {name} twice.", hint=ONE_BLANK)
        found[name] = value
    return " ".join(f"{name}={value}" for name, value in sorted(found.items()))

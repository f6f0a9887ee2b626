"""DoctorBundle: what the doctor saw on a machine and what its system tools printed, in one file without names.

The owner of a Mac can send one: it shows what no documentation does, and becomes a machine in our tests.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

import metalmark
from metalmark.doctor.readers import ASKING, normalised_name
from metalmark.doctor.scene import Scene
from metalmark.errors import UsageError
from metalmark.machine.apple import COMMANDS, DISPLAYS
from metalmark.machine.durable import write_whole
from metalmark.machine.tools import Printed, ask_tool
from metalmark.model.run import Absent, Telemetry
from metalmark.store.personal import cleaned
from metalmark.telemetry.sampler import Sampler
from metalmark.telemetry.sensors import default_sensors

SCHEMA = 1
TOOL_S = 5.0
SAMPLED_S = 3.0
HZ = 2.0
MACMON = ("macmon", "pipe")
_BATTERY_ID = re.compile(r"\(id=-?\d+\)")

Ask = Callable[[Sequence[str], float], Printed | Absent]


class ToolAnswer(Struct, frozen=True, kw_only=True):
    """What one command printed."""

    argv: tuple[str, ...]
    status: int
    """The exit code; -1 where it could not be started or gave no answer in time, and stderr says which."""
    stdout: str = ""
    stderr: str = ""


class DoctorBundle(Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    metalmark: str
    scene: Scene
    answers: tuple[ToolAnswer, ...]
    telemetry: Telemetry = Telemetry(hz=None)
    """What the sensors read in a few seconds, and why others read nothing."""


def make_bundle(scene: Scene, *, ask: Ask = ask_tool, sample: Callable[[], Telemetry] | None = None) -> DoctorBundle:
    """Ask every system tool once more, and keep its answer as it is."""
    commands = _commands() if scene.mac else {}
    answers = tuple(_answer(argv, ask(typed, TOOL_S)) for argv, typed in commands.items())
    bundle = DoctorBundle(
        metalmark=metalmark.__version__,
        scene=msgspec.structs.replace(scene, packages=_public_packages(scene)),
        answers=answers,
        telemetry=(sample or sample_sensors)(),
    )
    plain = msgspec.to_builtins(bundle)
    # The commands are our own: a path in one of them names nobody.
    own = [answer.pop("argv") for answer in plain["answers"]]
    clean = cleaned(plain)
    for answer, argv in zip(clean["answers"], own, strict=True):
        answer["argv"] = argv
    return msgspec.convert(clean, DoctorBundle)


def sample_sensors() -> Telemetry:
    sampler = Sampler(default_sensors(os.getpid()), HZ, time.monotonic())
    sampler.start()
    time.sleep(SAMPLED_S)
    return sampler.stop(1.0)


def refuse_unwritable(path: Path) -> None:
    """Raise at once what would otherwise fail after everything is collected."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder.", hint=f"Name a file in it: --bundle {path / 'doctor.json'}")
    if not path.parent.is_dir():
        raise UsageError(
            f"There is no folder {path.parent} to write the bundle into.", hint="Make it first, or name another."
        )


def bundle_bytes(bundle: DoctorBundle) -> bytes:
    return msgspec.json.format(msgspec.json.encode(bundle), indent=1)


def write_bundle(path: Path, data: bytes) -> None:
    """Write the file whole or not at all."""
    try:
        write_whole(path, data)
    except OSError as error:
        raise UsageError(
            f"The bundle can't be written to {path}: {error.strerror or error}.",
            hint="Name a file in a folder that exists and that you may write to.",
        ) from error


def _public_packages(scene: Scene) -> dict[str, str]:
    """Return the frameworks and what they require: other packages may have the name of somebody's employer."""
    asked = {re.split(r"[^\w.-]", text, maxsplit=1)[0] for texts in scene.requirements.values() for text in texts}
    known = {*ASKING, *map(normalised_name, asked)}
    return {name: version for name, version in scene.packages.items() if name in known}


def _commands() -> Mapping[tuple[str, ...], tuple[str, ...]]:
    """Return each command as Metalmark gives it, and as it is given here so that it ends."""
    found = {argv: argv for argv in COMMANDS.values()}
    if shutil.which(MACMON[0]) is not None:
        found[MACMON] = (*MACMON, "-s", "2", "-i", "500")
    return found


def _answer(argv: tuple[str, ...], printed: Printed | Absent) -> ToolAnswer:
    if isinstance(printed, Absent):
        return ToolAnswer(argv=argv, status=-1, stderr=printed.reason)
    out = _without_displays(printed.out) if argv == DISPLAYS else _BATTERY_ID.sub("(id=0)", printed.out)
    return ToolAnswer(argv=argv, status=printed.status, stdout=out, stderr=printed.err)


def _without_displays(text: str) -> str:
    """Return the GPUs' own entries. The displays below them have names and serial numbers, and are left out."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    entries = document.get(DISPLAYS[1]) if isinstance(document, dict) else None
    plain = [
        {key: value for key, value in entry.items() if isinstance(value, str)}
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict)
    ]
    return json.dumps({DISPLAYS[1]: plain}, indent=2)

"""What the shell should set here before a program starts: pure logic on a Scene. Nothing is changed by it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct

from metalmark.doctor import watermarks
from metalmark.doctor.leftovers import leftovers
from metalmark.doctor.loader_checks import raised_limit, too_few_files
from metalmark.doctor.scene import Scene
from metalmark.doctor.watermarks import DEFAULT_HIGH, DEFAULT_LOW, HIGH, LOW, LOW_SHARE, SAFE_HIGH
from metalmark.machine.tools import to_count

_GIB = 2**30
_MIB = 2**20


class Deed(StrEnum):
    LIMIT = "limit"
    SET = "set"
    UNSET = "unset"
    NOTE = "note"
    """Nothing that a line could do."""


class Step(Struct, frozen=True, kw_only=True):
    deed: Deed
    name: str
    value: str = ""
    why: str


def advise(scene: Scene) -> tuple[Step, ...]:
    """Limits first, then what to set, then what to take away."""
    return (*_open_files(scene), *_threads(scene), *_watermarks(scene), *_leftovers(scene))


def _open_files(scene: Scene) -> Iterator[Step]:
    files = scene.open_files
    if files is None or files.soft is None or not too_few_files(files.soft, scene.usable_cores):
        return
    target = raised_limit(files)
    here = f"A process may hold {files.soft} files open here, and each loader worker takes its share of them"
    if target > files.soft:
        why = f'{here}: too few end in "Too many open files".'
        yield Step(deed=Deed.LIMIT, name="open files", value=str(target), why=why)
    else:
        why = f"{here}. Only an administrator can raise the hard limit, {files.hard}: use few workers."
        yield Step(deed=Deed.NOTE, name="open files", why=why)


def _threads(scene: Scene) -> Iterator[Step]:
    seen, quota, usable = scene.visible_cores, scene.limits.cores, scene.usable_cores
    if seen is None or usable is None:
        return
    over = quota is not None and quota < seen
    why = (
        f"The container may use {usable} of the {seen} cores that programs see: more threads only wait for each other."
    )
    asked = to_count(scene.environment.get("OMP_NUM_THREADS", ""))
    if asked is not None and asked > usable:
        why_fewer = f"It is {asked} now, and {usable} cores may be used: more threads only wait for each other."
        yield Step(deed=Deed.SET, name="OMP_NUM_THREADS", value=str(usable), why=why_fewer)
    elif over and "OMP_NUM_THREADS" not in scene.environment:
        yield Step(deed=Deed.SET, name="OMP_NUM_THREADS", value=str(usable), why=why)
    # These two count the cores themselves, and know nothing of OpenMP's variable.
    own = {"tensorflow": "TF_NUM_INTRAOP_THREADS", "jax": "PJRT_NPROC"}
    for framework, name in own.items():
        if over and _installed(scene, framework) and name not in scene.environment:
            yield Step(
                deed=Deed.SET, name=name, value=str(usable), why=f"The same for {framework}, which counts for itself."
            )


def _watermarks(scene: Scene) -> Iterator[Step]:
    if not scene.apple_silicon or scene.translated or not _installed(scene, "torch"):
        return
    trouble = _watermark_trouble(scene)
    if trouble is None:
        return
    high = watermarks.read(scene).high
    chosen = high if HIGH in scene.environment and 0 < high < DEFAULT_LOW else SAFE_HIGH
    yield Step(deed=Deed.SET, name=HIGH, value=f"{chosen:g}", why=trouble)
    why = "Always together with the other: its default, 1.4, is refused above a lower high one."
    yield Step(deed=Deed.SET, name=LOW, value=f"{chosen * LOW_SHARE:g}", why=why)


def _watermark_trouble(scene: Scene) -> str | None:
    """What is wrong with PyTorch's limits on Metal's memory as they stand."""
    found = watermarks.read(scene)
    if found.out_of_range:
        return f"High {scene.environment[HIGH]} is not from 0 to {watermarks.MOST:g}: PyTorch will refuse to start."
    if found.unlimited:
        return (
            "0 takes PyTorch's limit on Metal's memory away: a job that is too large makes the Mac swap until it hangs."
        )
    if found.crossed:
        return (
            f'Low {found.low:g} is not from 0 to high {found.high:g}: PyTorch stops with "invalid low watermark ratio".'
        )
    if HIGH not in scene.environment and scene.memory_bytes:
        wired_mb = to_count(scene.sysctl.get("iogpu.wired_limit_mb")) or 0
        recommended = wired_mb * _MIB if wired_mb else watermarks.RECOMMENDED * scene.memory_bytes
        if DEFAULT_HIGH * recommended > scene.memory_bytes:
            return (
                f"PyTorch's own limit on Metal's memory, 1.7 times what Metal recommends, is about "
                f"{DEFAULT_HIGH * recommended / _GIB:.0f} GiB, and this Mac has {scene.memory_bytes / _GIB:.0f}: "
                f"a job that is too large swaps, instead of saying so."
            )
    return None


def _leftovers(scene: Scene) -> Iterator[Step]:
    for name, why in leftovers(scene):
        yield Step(deed=Deed.UNSET, name=name, why=why)


def _installed(scene: Scene, framework: str) -> bool:
    return framework in scene.frameworks and not scene.frameworks[framework]

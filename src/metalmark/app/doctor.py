"""Say what this machine can run, what is broken, and what to type to mend it."""

from collections.abc import Iterable

from metalmark.app.choices import names_in
from metalmark.app.results import Diagnosis
from metalmark.backends.base import Probe
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.doctor.bundle import bundle_bytes, make_bundle, refuse_unwritable, write_bundle
from metalmark.doctor.catalog import CHECKS, examine, find
from metalmark.doctor.collect import WAITING, WHY_SLOW, collect
from metalmark.doctor.scene import Scene
from metalmark.runner.ask import NoAnswer
from metalmark.runner.values import expanded
from metalmark.track.launch import say_nothing, say_on_stderr


def doctor(only: str | Iterable[str] = (), *, progress: bool = True) -> Diagnosis:
    """Examine this machine, its frameworks and its settings, and return what is wrong with what to type.

    `only` names checks, all by default. Nothing is changed, and no framework is imported into this process: each
    answers from one of its own.
    """
    checks = [find(name) for name in names_in(only)] or list(CHECKS.values())
    scene = look_around(progress=progress)
    return Diagnosis(scene, examine(scene, checks))


def doctor_on(on: str, only: str | Iterable[str] = (), *, progress: bool = True) -> dict[str, Diagnosis]:
    """Examine every node of a Ray cluster, all at once; return what was found by the node's title."""
    from metalmark.app.on_cluster import open_cluster
    from metalmark.app.place import ALL

    names = names_in(only)
    for name in names:
        find(name)
    say = say_on_stderr if progress else say_nothing
    with open_cluster(on, ALL, say=say) as place:
        found = place.diagnose(names)
        for sentence in place.refused:
            say(sentence)
    return {node.title: Diagnosis(reply.scene, reply.findings) for node, reply in found}


def bundle_machine(file: str | None, *, progress: bool = True) -> tuple[bytes, int]:
    """Write what was seen of this machine to a file, without names; None: only return it. Return its bytes, and the
    number of system tools whose answers it holds."""
    path = None if file is None else expanded(file)
    if path is not None:
        refuse_unwritable(path)
    scene = look_around(progress=progress)
    if progress:
        say_on_stderr("Asking the system's tools once more, and the sensors for three seconds ...")
    made = make_bundle(scene)
    data = bundle_bytes(made)
    if path is not None:
        write_bundle(path, data)
    return data, len(made.answers)


def look_around(*, progress: bool = True) -> Scene:
    """Ask the frameworks, each in a process of its own, and the system's tools."""
    if progress:
        say_on_stderr("Asking the frameworks, each in a process of its own, and the system's tools ...")
    return collect(_tell if progress else lambda *_: None)


def _tell(name: str, after_s: float, answer: object) -> None:
    """Say a line for each framework; the tools are too quick to be worth one."""
    if answer is WAITING and name in FRAMEWORKS:
        say_on_stderr(f"  still waiting for {name} after {after_s:.0f} s: {WHY_SLOW}")
    if isinstance(answer, Probe | NoAnswer):
        state = "answered" if isinstance(answer, Probe) else "failed"
        say_on_stderr(f"  {name} {state} after {after_s:.1f} s")

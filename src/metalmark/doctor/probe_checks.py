"""What the frameworks and the tools themselves said when they were asked."""

from collections.abc import Iterator

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.doctor.check import Finding, check, error, warning
from metalmark.doctor.scene import Scene
from metalmark.machine.apple import COMMANDS
from metalmark.runner.ask import NoAnswer

_DETAIL_CHARS = 300


@check("framework-import")
def framework_import(scene: Scene) -> Iterator[Finding]:
    for name, probe in scene.probes.items():
        if not isinstance(probe, NoAnswer):
            continue
        title = FRAMEWORKS[name].title if name in FRAMEWORKS else name
        last = probe.detail.strip().splitlines()[-1:] or [""]
        said = f" It printed last: {last[0][:_DETAIL_CHARS]}" if last[0] and last[0] not in probe.reason else ""
        again = f'python -c "import {FRAMEWORKS[name].packages[0]}"' if name in FRAMEWORKS else ""
        if "no answer" in probe.reason and "ended" not in probe.reason:
            yield warning(
                f"{title} gave no answer",
                evidence=f"{probe.reason}{said}",
                why="It hangs at import, or the disk is slow, or the machine is busy, or macOS still scans it: what "
                "it can do here is unknown.",
                fix=("metalmark doctor   # again: a second import is faster", again),
            )
        else:
            yield error(
                f"{title} is installed and can't be imported",
                evidence=f"{probe.reason}{said}",
                why="Nothing can be trained with it. If another finding names this framework, mend that one first.",
                fix=(again, f'pip install --force-reinstall "metalmark[{name}]"'),
            )


@check("no-framework")
def no_framework(scene: Scene) -> Finding | None:
    if not scene.frameworks or scene.any_framework:
        return None
    return warning(
        "No framework is installed",
        evidence=f"Python finds none of {', '.join(scene.frameworks)}",
        why="There is nothing to train with.",
        fix=('pip install "metalmark[torch]"',),
    )


@check("half-installed")
def half_installed(scene: Scene) -> Iterator[Finding]:
    for name, missing in scene.frameworks.items():
        packages = FRAMEWORKS[name].packages if name in FRAMEWORKS else ()
        if missing and packages and packages[0] not in missing:
            yield warning(
                f"{FRAMEWORKS[name].title} is only half installed",
                evidence=f"Python finds {packages[0]}, but not {', '.join(missing)}",
                why="Metalmark drives this framework through all of them.",
                fix=(f'pip install "metalmark[{name}]"',),
            )


@check("tools")
def tools(scene: Scene) -> Iterator[Finding]:
    by_hand = {tool: (f"{' '.join(argv[:3])}   # see what it prints",) for tool, argv in COMMANDS.items()}
    by_hand["NVML"] = ("nvidia-smi   # see what the driver says; restart after an update of the driver",)
    for failure in scene.troubles:
        yield warning(
            f"{failure.tool} gave no usable answer",
            evidence=failure.reason,
            why="The checks that need its answer report nothing. All others are complete.",
            fix=(*by_hand.get(failure.tool, ()), "metalmark doctor --only tools   # ask again"),
        )

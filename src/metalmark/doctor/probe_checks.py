"""What the frameworks and the tools themselves said when they were asked."""

from __future__ import annotations

from collections.abc import Iterator

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.doctor.check import Finding, check, error, warning
from metalmark.doctor.scene import Scene
from metalmark.runner.ask import NoAnswer

_DETAIL_CHARS = 300


@check("framework-import", "A framework crashes or hangs at import")
def framework_import(scene: Scene) -> Iterator[Finding]:
    """Each framework is imported in a short-lived process of its own, so that one that raises, crashes or hangs is a
    line here and not the end of the doctor. Causes that have their own check (tensorflow-metal-pair, package-conflicts,
    rosetta) are listed there with the command that mends them. A framework is given 24 seconds, on a Mac 90: an import
    from a cold disk may need more the first time, and macOS scans a large framework for malware when it is first
    imported."""
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
                why="It hangs at import, or the disk is cold, or the machine busy, or macOS still scans it: what it "
                "can do here is unknown.",
                fix=("metalmark doctor   # again: a second import is faster", again),
            )
        else:
            yield error(
                f"{title} is installed and can't be imported",
                evidence=f"{probe.reason}{said}",
                why="Nothing can be trained with it. If another finding names this framework, mend that one first.",
                fix=(again, f'pip install --force-reinstall "metalmark[{name}]"'),
            )


@check("no-framework", "No framework is installed")
def no_framework(scene: Scene) -> Finding | None:
    """Metalmark itself brings no framework: install the ones to compare, each as an extra. On an Apple Silicon Mac
    metalmark[torch] and metalmark[mlx] are the two that use the GPU without further ado."""
    if not scene.frameworks or any(not missing for missing in scene.frameworks.values()):
        return None
    return warning(
        "No framework is installed",
        evidence=f"Python finds none of {', '.join(scene.frameworks)}",
        why="There is nothing to train with.",
        fix=('pip install "metalmark[torch]"',),
    )


@check("half-installed", "A framework is there without a package it needs here")
def half_installed(scene: Scene) -> Iterator[Finding]:
    """Metalmark runs TensorFlow and JAX through Keras 3, so that all train the same model. A framework whose partner is
    missing is not probed."""
    for name, missing in scene.frameworks.items():
        packages = FRAMEWORKS[name].packages if name in FRAMEWORKS else ()
        if missing and packages and packages[0] not in missing:
            yield warning(
                f"{FRAMEWORKS[name].title} is only half installed",
                evidence=f"Python finds {packages[0]}, but not {', '.join(missing)}",
                why="Metalmark drives this framework through all of them.",
                fix=(f'pip install "metalmark[{name}]"',),
            )


@check(
    "tools", "A system tool gave nothing, nonsense, or no answer in time", "https://docs.nvidia.com/deploy/nvml-api/"
)
def tools(scene: Scene) -> Iterator[Finding]:
    """sysctl, system_profiler, memory_pressure and pmset on a Mac, and NVML beside an NVIDIA driver, are each asked
    once with a time limit of a few seconds. One that can't be started, hangs or prints what can't be read is named
    here, and the checks that depend on it stay silent instead of guessing. A tool of NVIDIA's that says "Driver/library
    version mismatch" wants a reboot."""
    for failure in scene.troubles:
        yield warning(
            f"{failure.tool} gave no usable answer",
            evidence=failure.reason,
            why="What it would have said is unknown, so the checks that need it say nothing. The rest is complete.",
        )

"""Which Python, and which macOS under it."""

from collections.abc import Iterator

from metalmark.doctor.check import Finding, check, error, warning
from metalmark.doctor.scene import Scene, at_least, older
from metalmark.doctor.tensorflow_checks import install_lines, plugins

# MPS of the first torch release in each line needs at least this macOS; the newest first.
TORCH_MACOS = (("2.15", "15.0"), ("2.9", "14.0"), ("2.5", "13.0"), ("1.12", "12.3"))
METAL_PLUGIN_MACOS = "12.1"
UPDATE_MACOS = "Update macOS in System Settings, General, Software Update."


@check("rosetta")
def rosetta(scene: Scene) -> Finding | None:
    if not scene.translated:
        return None
    chip = scene.sysctl.get("machdep.cpu.brand_string", "")
    translated = scene.sysctl.get("sysctl.proc_translated", "not known")
    seen = f"this Python is {scene.architecture}, sysctl.proc_translated is {translated}"
    return error(
        "Python runs under Rosetta: no framework can reach the GPU",
        evidence=f"{seen}, the processor calls itself {chip!r}" if chip else seen,
        why="An x86_64 Python installs x86_64 wheels, which have no Metal. PyTorch ends at 2.2.2 there, TensorFlow at "
        "2.16.2, tensorflow-metal at 1.0.0, and MLX has none. The CPU is emulated as well.",
        fix=(
            "/opt/homebrew/bin/brew install python@3.12",
            "/opt/homebrew/bin/python3.12 -m venv .venv",
            'python3 -c "import platform; print(platform.machine())"   # must print arm64',
        ),
    )


@check("macos-too-old")
def macos_too_old(scene: Scene) -> Iterator[Finding]:
    # 10.16 is what a newer macOS tells a Python that was built for an old one: no version at all.
    if not scene.apple_silicon or scene.macos is None or scene.macos == "10.16":
        return
    torch = scene.version("torch")
    needed = next((macos for first, macos in TORCH_MACOS if at_least(torch, first)), None)
    # The probe wins: where Metal answers, this macOS is new enough.
    if needed and older(scene.macos, needed) and not scene.present("torch", "mps"):
        yield warning(
            f"macOS is too old for PyTorch {torch} on the GPU",
            evidence=f"macOS {scene.macos}; PyTorch {torch} needs {needed} for Metal",
            why="torch.backends.mps.is_available() is False, and code that picks the device itself trains on the CPU "
            "without a message.",
            fix=(UPDATE_MACOS, *_older_torch(scene.macos)),
        )
    if scene.has("tensorflow-metal") and older(scene.macos, METAL_PLUGIN_MACOS):
        yield warning(
            "macOS is too old for tensorflow-metal",
            evidence=f"macOS {scene.macos}; tensorflow-metal needs {METAL_PLUGIN_MACOS}",
            why="The plugin does not load, and TensorFlow has no GPU.",
            fix=(UPDATE_MACOS,),
        )


@check("python-too-new")
def python_too_new(scene: Scene) -> Finding | None:
    # Only where TensorFlow is installed: nobody else needs the plugin.
    python = scene.python_release()
    newest = plugins()[-1]
    if not scene.apple_silicon or scene.translated or not scene.has("tensorflow") or python <= newest.pythons[1]:
        return None
    return warning(
        f"Python {python[0]}.{python[1]} is too new for tensorflow-metal",
        evidence=f"Python {scene.python}; the newest plugin, {newest.version}, has wheels up to "
        f"{newest.pythons[1][0]}.{newest.pythons[1][1]}",
        why="pip finds no plugin to install, so TensorFlow trains on the CPU. PyTorch and MLX have wheels.",
        fix=install_lines(python),
    )


def _older_torch(macos: str) -> tuple[str, ...]:
    """Return the pin that this macOS can run, if there is one."""
    oldest = [first for first, needed in TORCH_MACOS if older(macos, needed)][-1]
    return () if oldest == TORCH_MACOS[-1][0] else (f'pip install "torch<{oldest}"',)

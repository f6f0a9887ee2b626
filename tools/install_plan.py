"""What the installer installs on which machine, what it leaves out and why: a pure function of a Host.

It is read by Pythons that are too old for Metalmark, so that they can be refused with a sentence: Xcode's is 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass

OLDEST, NEWEST = (3, 11), (3, 14)
BEST = (3, 12)
"""The newest Python for which every framework has its fastest build on a Mac."""
FIRST_MACOS = (14, 0)
PROFILES = {"demo": ("web",), "dev": ("dev", "bert", "mlflow", "wandb", "web", "parquet", "team", "ray")}
GOALS = {"demo": "make demo", "dev": "make test"}

# How each source of Pythons gives another one; GOAL is the command that was typed.
OTHER_PYTHON = {
    "Homebrew": "brew install python@3.12 && PYTHON=python3.12 GOAL",
    "conda": "conda create -n metalmark python=3.12 && conda activate metalmark && GOAL",
    "uv": 'uv python install 3.12 && PYTHON="$(uv python find 3.12)" GOAL',
    "pyenv": "pyenv install --skip-existing 3.12 && PYENV_VERSION=3.12 GOAL",
}
# The same for an x86_64 Python on Apple Silicon, whose tools would give another x86_64 Python unless told.
ARM64_PYTHON = {
    "Homebrew": "/opt/homebrew/bin/brew install python@3.12 && PYTHON=/opt/homebrew/bin/python3.12 GOAL",
    "conda": "CONDA_SUBDIR=osx-arm64 conda create -n metalmark python=3.12 && conda activate metalmark && GOAL",
    "uv": "uv python install cpython-3.12-macos-aarch64 && "
    'PYTHON="$(uv python find cpython-3.12-macos-aarch64)" arch -arm64 GOAL',
    "pyenv": "arch -arm64 pyenv install --force 3.12 && PYENV_VERSION=3.12 arch -arm64 GOAL",
}
PYTHON_ORG = "https://www.python.org/downloads/macos/"


@dataclass(frozen=True)
class Host:
    """The machine and the Python that the installer runs on."""

    system: str
    machine: str
    """Of the Python, which is x86_64 under Rosetta although the chip is arm64."""
    python: tuple[int, int]
    macos: tuple[int, int] | None = None
    apple_silicon: bool = False
    virtual: bool = False
    nvidia: bool = False
    origin: str = ""
    """Where the Python is from: Homebrew, python.org, uv, conda, pyenv, Xcode, or "" when that is not known."""
    universal: bool = False
    """Whether the Python holds both architectures, so that `arch -arm64` runs it natively."""
    ensurepip: bool = True
    others: tuple[str, ...] = ()
    """Commands on PATH that run a Python for which every framework has a build, best first."""

    @property
    def python_name(self) -> str:
        return _dotted(self.python)


@dataclass(frozen=True)
class LeftOut:
    name: str
    reason: str
    better: str = ""
    """The line to type to have it."""


@dataclass(frozen=True)
class Plan:
    requirements: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()


def refusal(host: Host, goal: str) -> str | None:
    """Return why nothing can be installed here and what to type instead, or None."""
    if host.system == "Darwin" and host.machine != "arm64":
        return _rosetta(host, goal) if host.apple_silicon else _intel()
    if host.python < OLDEST:
        return _another_python(f"Metalmark needs Python {_dotted(OLDEST)} or newer", host, goal)
    if host.python > NEWEST:
        return _another_python(f"PyTorch 2.13 has no build for a Python newer than {_dotted(NEWEST)}", host, goal)
    if host.system == "Darwin" and host.macos is not None and host.macos < FIRST_MACOS:
        return (
            f"PyTorch 2.13 needs macOS {FIRST_MACOS[0]} or newer; this is macOS {_dotted(host.macos)}.\n"
            f"Update macOS in System Settings, General, Software Update, then type: {goal}"
        )
    if not host.ensurepip:
        package = f"python{host.python_name}-venv"
        return (
            f"This Python can't make an environment: its ensurepip module is missing.\n"
            f"Install it, then type the same again: sudo apt-get install {package}"
        )
    return None


def plan(host: Host, goal: str) -> Plan:
    """Return the builds that suit this machine; `refusal` has been asked before."""
    left_out: list[LeftOut] = []
    notes: list[str] = []
    if host.system == "Darwin":
        chosen = ["torch", *_mac_tensorflow(host, goal, left_out), "jax", "mlx", *_mac_energy(host, goal, left_out)]
        if host.virtual:
            notes.append(
                "This is a virtual machine: PyTorch can't use its GPU (mps), and those cells are skipped with the "
                f"reason. MLX can. For figures of the GPU, run this on the Mac itself: {goal}"
            )
    elif host.nvidia:
        chosen = ["torch", *_tensorflow("tensorflow[and-cuda]", host, goal, left_out), "jax[cuda12]", "mlx[cuda12]"]
    else:
        name = "tensorflow-cpu" if host.machine == "x86_64" else "tensorflow"
        chosen = ["torch", *_tensorflow(name, host, goal, left_out), "jax", "mlx[cpu]"]
    return Plan((*chosen, "keras"), tuple(left_out), tuple(notes))


def screen(host: Host, chosen: Plan, profile: str) -> str:
    """Return what is about to be installed, in words."""
    where = f"macOS {_dotted(host.macos)}" if host.macos else {"Darwin": "macOS"}.get(host.system, host.system)
    source = f" from {host.origin}" if host.origin else ""
    parts = [("installs", [", ".join(chosen.requirements), f"Metalmark with {', '.join(PROFILES[profile])}"])]
    for left in chosen.left_out:
        lines = [f"{left.name}: {left.reason}"]
        parts.append(("left out", [*lines, f"To have it, type: {left.better}"] if left.better else lines))
    parts += [("note", [note]) for note in chosen.notes]
    lines = [f"Metalmark for {where} on {host.machine} with Python {host.python_name}{source}"]
    for word, texts in parts:
        lines += [f"  {word if number == 0 else '':<9} {text}" for number, text in enumerate(texts)]
    return "\n".join(lines)


def python_origin(base_prefix: str, *, conda: bool) -> str:
    """Return who built the Python with this `sys.base_prefix`; `conda` is whether it holds a conda-meta folder."""
    if conda:
        return "conda"
    path = base_prefix + "/"
    for mark, origin in (
        ("/Cellar/python", "Homebrew"),
        ("/opt/python@", "Homebrew"),
        ("/uv/python/", "uv"),
        ("/.pyenv/", "pyenv"),
        ("/pyenv/versions/", "pyenv"),
        ("/CommandLineTools/", "Xcode"),
        ("/Xcode.app/", "Xcode"),
    ):
        if mark in path:
            return origin
    return "python.org" if path.startswith("/Library/Frameworks/Python.framework/") else ""


def parse_sysctl(text: str) -> dict[str, str]:
    """Return the values of `sysctl NAME...`, one "name: value" per line; a name it does not know is not there."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def version(text: str) -> tuple[int, int] | None:
    """Return (15, 1) for "15.1.1", and None for what is not a version."""
    numbers = (text.strip() + ".0").split(".")[:2]
    return (int(numbers[0]), int(numbers[1])) if all(number.isdigit() for number in numbers) else None


def _mac_tensorflow(host: Host, goal: str, left_out: list[LeftOut]) -> list[str]:
    if host.python <= BEST:
        return ["tensorflow==2.19.*", "tensorflow-metal==1.2.0"]
    if chosen := _tensorflow("tensorflow", host, goal, left_out):
        reason = "it has no build for Python 3.13 or newer, so TensorFlow computes on the CPU only."
        left_out.append(LeftOut("tensorflow-metal", reason, _other_python(host, goal)))
    return chosen


def _tensorflow(name: str, host: Host, goal: str, left_out: list[LeftOut]) -> list[str]:
    if host.python < (3, 14):
        return [name]
    reason = f"for Python {host.python_name} there is only a release candidate of it."
    left_out.append(LeftOut("tensorflow", reason, _other_python(host, goal)))
    return []


def _mac_energy(host: Host, goal: str, left_out: list[LeftOut]) -> list[str]:
    name = "zeus-apple-silicon"
    if host.virtual:
        left_out.append(LeftOut(name, "a virtual machine does not show the energy that the chip uses."))
    elif host.python >= (3, 14):
        reason = f"it has no build for Python {host.python_name}. Energy is measured where macmon is installed."
        left_out.append(LeftOut(name, reason, f"brew install macmon, or {_other_python(host, goal)}"))
    else:
        return [name]
    return []


def _rosetta(host: Host, goal: str) -> str:
    if host.universal and host.python >= OLDEST:
        line = f"Type: arch -arm64 {goal}"
    elif host.origin in ARM64_PYTHON:
        line = f"Type: {ARM64_PYTHON[host.origin].replace('GOAL', goal)}"
        if host.origin == "Homebrew":
            line += "\nWhere /opt/homebrew is missing, first install Homebrew for Apple Silicon: https://brew.sh"
    else:
        line = f"Install one from {PYTHON_ORG}, then type: PYTHON=python3.12 arch -arm64 {goal}"
    return (
        "This Python is x86_64 and runs under Rosetta: PyTorch 2.13, MLX and tensorflow-metal have no build for it.\n"
        f"This Mac needs an arm64 Python. {line}"
    )


def _intel() -> str:
    return (
        "This is an Intel Mac, for which PyTorch 2.13, TensorFlow 2.19 and MLX have no build: there is nothing to "
        "measure with.\nResults of other machines can be read here. Type: "
        "python3 -m venv .venv && .venv/bin/pip install -e '.[web]'"
    )


def _another_python(why: str, host: Host, goal: str) -> str:
    source = f" from {host.origin}" if host.origin else ""
    return f"{why}; this is Python {host.python_name}{source}.\nUse another one. Type: {_other_python(host, goal)}"


def _other_python(host: Host, goal: str) -> str:
    """Return the line that runs the goal with a Python for which every framework has a build."""
    if host.others:
        return f"PYTHON={host.others[0]} {goal}"
    if host.origin in OTHER_PYTHON:
        return OTHER_PYTHON[host.origin].replace("GOAL", goal)
    line = f"PYTHON=python{_dotted(BEST)} {goal}"
    return f"{line} (after installing that Python from {PYTHON_ORG})" if host.system == "Darwin" else line


def _dotted(number: tuple[int, int]) -> str:
    return f"{number[0]}.{number[1]}"

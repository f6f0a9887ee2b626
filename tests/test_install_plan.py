"""What the installer chooses for which machine and Python: a pure function, so every Mac can be asked about here."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from packaging.requirements import Requirement

from install_plan import GOALS, Host, Plan, parse_sysctl, plan, python_origin, refusal, screen, version
from tests.processes import ROOT

GOAL = GOALS["demo"]
MAC = Host(system="Darwin", machine="arm64", python=(3, 12), macos=(15, 1), apple_silicon=True)
LINUX = Host(system="Linux", machine="x86_64", python=(3, 11))

PYTHONS = {
    "Homebrew": "/opt/homebrew/opt/python@3.12/Frameworks/Python.framework/Versions/3.12",
    "python.org": "/Library/Frameworks/Python.framework/Versions/3.12",
    "uv": "/Users/someone/.local/share/uv/python/cpython-3.12.7-macos-aarch64-none",
    "conda": "/Users/someone/miniforge3",
    "pyenv": "/Users/someone/.pyenv/versions/3.12.7",
    "Xcode": "/Library/Developer/CommandLineTools/Library/Frameworks/Python3.framework/Versions/3.9",
}


def left_out(chosen: Plan) -> dict[str, str]:
    return {left.name: left.better for left in chosen.left_out}


@pytest.mark.parametrize(("origin", "base_prefix"), PYTHONS.items(), ids=PYTHONS)
def test_where_a_python_is_from(origin: str, base_prefix: str) -> None:
    assert python_origin(base_prefix, conda=origin == "conda") == origin


def test_other_pythons_have_no_known_origin() -> None:
    assert python_origin("/Users/someone/.local/share/mise/installs/python/3.12.7", conda=False) == ""
    assert python_origin("/usr", conda=False) == ""
    assert python_origin("/usr/local/Cellar/python@3.12/3.12.7/Frameworks/x", conda=False) == "Homebrew"


@pytest.mark.parametrize("origin", ["Homebrew", "python.org", "uv", "conda", "pyenv", ""])
@pytest.mark.parametrize("python", [(3, 11), (3, 12)])
def test_an_arm64_mac_gets_the_pair_that_loads(origin: str, python: tuple[int, int]) -> None:
    host = replace(MAC, origin=origin, python=python)
    assert refusal(host, GOAL) is None
    chosen = plan(host, GOAL)
    assert chosen.requirements == (
        "torch",
        "tensorflow==2.19.*",
        "tensorflow-metal==1.2.0",
        "jax",
        "mlx",
        "zeus-apple-silicon",
        "keras",
    )
    assert (chosen.left_out, chosen.notes) == ((), ())


BETTER = {
    "Homebrew": "brew install python@3.12 && PYTHON=python3.12 make demo",
    "python.org": "PYTHON=python3.12 make demo (after installing that Python from https://www.python.org/downloads/macos/)",
    "uv": 'uv python install 3.12 && PYTHON="$(uv python find 3.12)" make demo',
    "conda": "conda create -n metalmark python=3.12 && conda activate metalmark && make demo",
    "pyenv": "pyenv install --skip-existing 3.12 && PYENV_VERSION=3.12 make demo",
}


@pytest.mark.parametrize(("origin", "line"), BETTER.items(), ids=BETTER)
def test_python_313_on_a_mac_has_no_metal_plugin_and_the_line_suits_its_origin(origin: str, line: str) -> None:
    host = replace(MAC, python=(3, 13), origin=origin)
    assert refusal(host, GOAL) is None
    chosen = plan(host, GOAL)
    assert "tensorflow" in chosen.requirements
    assert "zeus-apple-silicon" in chosen.requirements
    assert left_out(chosen) == {"tensorflow-metal": line}


def test_a_better_python_that_is_there_is_named_instead() -> None:
    host = replace(MAC, python=(3, 13), origin="Homebrew", others=("python3.11",))
    assert left_out(plan(host, GOAL)) == {"tensorflow-metal": "PYTHON=python3.11 make demo"}
    assert left_out(plan(host, GOALS["dev"])) == {"tensorflow-metal": "PYTHON=python3.11 make test"}


def test_python_314_has_no_finished_tensorflow_and_no_zeus() -> None:
    chosen = plan(replace(MAC, python=(3, 14), origin="Homebrew"), GOAL)
    assert chosen.requirements == ("torch", "jax", "mlx", "keras")
    assert list(left_out(chosen)) == ["tensorflow", "zeus-apple-silicon"]
    assert "brew install macmon" in left_out(chosen)["zeus-apple-silicon"]
    for host in (LINUX, replace(LINUX, nvidia=True), replace(LINUX, machine="aarch64")):
        chosen = plan(replace(host, python=(3, 14)), GOAL)
        assert not any("tensorflow" in name for name in chosen.requirements)
        assert left_out(chosen) == {"tensorflow": "PYTHON=python3.12 make demo"}


def test_in_a_virtual_machine_mps_and_energy_are_not_promised() -> None:
    chosen = plan(replace(MAC, virtual=True), GOAL)
    assert "zeus-apple-silicon" not in chosen.requirements
    assert list(left_out(chosen)) == ["zeus-apple-silicon"]
    assert "tensorflow-metal==1.2.0" in chosen.requirements
    assert "PyTorch can't use its GPU (mps)" in chosen.notes[0]


@pytest.mark.parametrize(
    ("origin", "universal", "line"),
    [
        ("python.org", True, "arch -arm64 make demo"),
        ("", True, "arch -arm64 make demo"),
        ("Homebrew", False, "brew install python@3.12 && PYTHON=/opt/homebrew/bin/python3.12 make demo"),
        ("conda", False, "CONDA_SUBDIR=osx-arm64 conda create -n metalmark python=3.12 && conda activate metalmark"),
        ("uv", False, "uv python install cpython-3.12-macos-aarch64 && "),
        ("pyenv", False, "arch -arm64 pyenv install --force 3.12 && PYENV_VERSION=3.12 arch -arm64 make demo"),
        ("", False, "https://www.python.org/downloads/macos/, then type: PYTHON=python3.12 arch -arm64 make demo"),
    ],
)
def test_a_rosetta_python_is_refused_with_the_line_that_suits_it(origin: str, universal: bool, line: str) -> None:
    why = refusal(replace(MAC, machine="x86_64", origin=origin, universal=universal), GOAL)
    assert why is not None
    assert "runs under Rosetta" in why
    assert line in why


def test_an_intel_mac_is_refused_with_what_still_works() -> None:
    why = refusal(replace(MAC, machine="x86_64", apple_silicon=False), GOAL)
    assert why is not None
    assert "Intel Mac" in why
    assert "pip install -e '.[web]'" in why


@pytest.mark.parametrize(("macos", "refused"), [((13, 7), True), ((14, 0), False), ((26, 1), False), (None, False)])
def test_macos_14_is_the_oldest(macos: tuple[int, int] | None, refused: bool) -> None:
    why = refusal(replace(MAC, macos=macos), GOAL)
    assert (why is not None) is refused
    if why is not None:
        assert "PyTorch 2.13 needs macOS 14 or newer; this is macOS 13.7" in why
        assert why.endswith("Software Update, then type: make demo")


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (replace(MAC, python=(3, 9), origin="Xcode"), "needs Python 3.11 or newer; this is Python 3.9 from Xcode"),
        (replace(MAC, python=(3, 15), origin="Homebrew"), "no build for a Python newer than 3.14; this is Python 3.15"),
        (replace(LINUX, python=(3, 10), others=("python3.12",)), "Type: PYTHON=python3.12 make demo"),
    ],
)
def test_a_python_out_of_range_is_refused(host: Host, words: str) -> None:
    why = refusal(host, GOAL)
    assert why is not None
    assert words in why


def test_a_debian_python_without_ensurepip_is_told_its_package() -> None:
    why = refusal(replace(LINUX, ensurepip=False), GOAL)
    assert why is not None
    assert why.endswith("sudo apt-get install python3.11-venv")


def test_linux_without_and_with_nvidia() -> None:
    assert refusal(LINUX, GOAL) is None
    assert plan(LINUX, GOAL) == Plan(("torch", "tensorflow-cpu", "jax", "mlx[cpu]", "keras"))
    nvidia = plan(replace(LINUX, nvidia=True), GOAL)
    assert nvidia == Plan(("torch", "tensorflow[and-cuda]", "jax[cuda12]", "mlx[cuda12]", "keras"))
    assert plan(replace(LINUX, machine="aarch64"), GOAL).requirements[1] == "tensorflow"


def test_the_screen_says_what_comes_and_what_does_not() -> None:
    host = replace(MAC, python=(3, 13), origin="Homebrew")
    lines = screen(host, plan(host, GOAL), "demo").splitlines()
    assert lines == [
        "Metalmark for macOS 15.1 on arm64 with Python 3.13 from Homebrew",
        "  installs  torch, tensorflow, jax, mlx, zeus-apple-silicon, keras",
        "            Metalmark with web",
        "  left out  tensorflow-metal: "
        "it has no build for Python 3.13 or newer, so TensorFlow computes on the CPU only.",
        "            To have it, type: brew install python@3.12 && PYTHON=python3.12 make demo",
    ]
    hosted = replace(MAC, virtual=True, macos=None)
    text = screen(hosted, plan(hosted, GOAL), "dev")
    assert text.startswith("Metalmark for macOS on arm64 with Python 3.12\n")
    assert "\n  note      This is a virtual machine" in text


@pytest.mark.parametrize("python", [(3, 11), (3, 12), (3, 13), (3, 14)])
@pytest.mark.parametrize("host", [MAC, LINUX, replace(LINUX, machine="aarch64")], ids=["mac", "linux", "aarch64"])
def test_the_extras_of_the_package_choose_the_same(host: Host, python: tuple[int, int]) -> None:
    """`pip install "metalmark[tensorflow]"` and `make demo` must not differ."""
    words = {"sys_platform": host.system.lower(), "platform_machine": host.machine}
    words["python_version"] = f"{python[0]}.{python[1]}"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in ("torch", "tensorflow", "jax", "mlx", "apple"):
        wanted = [Requirement(text) for text in extras[extra]]
        names = {found.name for found in wanted if found.marker is None or found.marker.evaluate(words)}
        chosen = {Requirement(text).name for text in plan(replace(host, python=python), GOAL).requirements}
        assert names <= chosen, extra
        assert not chosen & ({found.name for found in wanted} - names), extra


def test_sysctl_and_versions_are_read() -> None:
    assert parse_sysctl("kern.osproductversion: 26.0.1\nsysctl: unknown oid\n\nhw.optional.arm64: 1\n") == {
        "kern.osproductversion": "26.0.1",
        "sysctl": "unknown oid",
        "hw.optional.arm64": "1",
    }
    assert [version(text) for text in ("15.1.1", "26", "", "x.y", "10.16")] == [(15, 1), (26, 0), None, None, (10, 16)]

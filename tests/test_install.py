"""Which builds `make demo` chooses, by kind of machine: the choice is a pure function."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", ROOT / "tools" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_arm64_mac_gets_the_pair_that_loads(install: ModuleType) -> None:
    chosen, notes = install.frameworks(system="Darwin", machine="arm64", nvidia=False, python=(3, 12))
    assert "tensorflow==2.19.*" in chosen
    assert "tensorflow-metal==1.2.0" in chosen
    assert "mlx" in chosen
    assert notes == []


def test_python_313_on_a_mac_has_no_metal_plugin(install: ModuleType) -> None:
    chosen, notes = install.frameworks(system="Darwin", machine="arm64", nvidia=False, python=(3, 13))
    assert not any("metal" in name for name in chosen)
    assert "3.12" in " ".join(notes)


def test_a_rosetta_python_is_told(install: ModuleType) -> None:
    chosen, notes = install.frameworks(system="Darwin", machine="x86_64", nvidia=False, python=(3, 11))
    assert "mlx" not in chosen
    assert "arm64 Python" in notes[0]


def test_linux_without_and_with_nvidia(install: ModuleType) -> None:
    plain, _ = install.frameworks(system="Linux", machine="x86_64", nvidia=False, python=(3, 11))
    assert plain == ["torch", "tensorflow-cpu", "jax", "mlx[cpu]"]
    fast, _ = install.frameworks(system="Linux", machine="x86_64", nvidia=True, python=(3, 11))
    assert "tensorflow[and-cuda]" in fast


def test_inputs_decide_whether_to_install_again(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text("one")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "install.py").write_text("one")
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(install, "STAMP", tmp_path / "stamp")
    assert not install.up_to_date("demo")
    install.STAMP.write_text(install.fingerprint("dev") + "\n")
    assert install.up_to_date("dev")
    assert install.up_to_date("demo"), "dev holds all of demo's"
    install.STAMP.write_text(install.fingerprint("demo") + "\n")
    assert not install.up_to_date("dev")
    (tmp_path / "constraints.txt").write_text("two")
    assert not install.up_to_date("demo")


def test_only_root_on_debian_gets_a_browser_installed(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.shutil, "which", lambda name: f"/bin/{name}" if name == "apt-get" else None)
    command = install.browser_command(system="Linux", root=True)
    assert command is not None
    assert "chromium" in command[-1]
    assert install.browser_command(system="Linux", root=False) is None
    assert install.browser_command(system="Darwin", root=True) is None
    monkeypatch.setattr(install.shutil, "which", lambda _: None)
    assert install.browser_command(system="Linux", root=True) is None


def test_a_browser_that_could_not_be_had_is_said(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.platform, "system", lambda: "Linux")
    monkeypatch.setattr(install.shutil, "which", lambda _: None)
    assert "apt-get install chromium" in install.need_browser()
    monkeypatch.setattr(install.shutil, "which", lambda name: f"/bin/{name}")
    assert install.need_browser() == ""

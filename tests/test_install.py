"""The installer around its plan: .venv, pip's output, progress, and how it ends."""

from __future__ import annotations

import ast
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import install
import install_plan
from tests.processes import ROOT, heed_ctrl_c, run

INSTALLER = [sys.executable, "tools/install.py"]
TRAP = """
import sys, time
sys.path.insert(0, {tools!r})
import install
from pathlib import Path
install.LOG = Path({log!r})
install.ROOT = install.LOG.parent
install.LONG_S = {long_s}
install.up_to_date = lambda profile: False
install.refusal = lambda host, goal: None
def stage(host, profile):
    install.run_stage("Pretending", [sys.executable, "-c", {code!r}], install.LOG)
install.install = stage
sys.exit(install.main(["demo"]))
"""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkout of the installer's own, so that no test touches the real .venv."""
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(install, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(install, "STAMP", tmp_path / ".venv" / "metalmark-installed")
    monkeypatch.setattr(install, "LOG", tmp_path / ".venv" / "metalmark-install.log")
    for name in install.INPUTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one")
    return tmp_path


@pytest.fixture
def python_that_says(home: Path) -> Callable[[str], None]:
    """Puts a `python` into .venv that runs this line of shell."""

    def put(line: str) -> None:
        path = home / ".venv" / "bin" / "python"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    return put


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Stands in for venv.create: what it was asked for."""
    calls: list[dict[str, object]] = []
    monkeypatch.setattr(install.venv, "create", lambda folder, **options: calls.append({"folder": folder, **options}))
    return calls


OURS = f"{sys.version_info[0]}.{sys.version_info[1]}"


def test_a_new_venv_links_its_interpreter(home: Path, created: list[dict[str, object]]) -> None:
    install.make_venv()
    assert created == [{"folder": home / ".venv", "with_pip": True, "clear": False, "symlinks": True}]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("exit 134", "does not run"),
        ("echo 3.4", f"it has Python 3.4, and this is Python {OURS}"),
        (f"echo {OURS}", None),
    ],
    ids=["aborts", "another version", "ours"],
)
def test_a_venv_counts_only_if_its_python_runs_and_is_ours(
    python_that_says: Callable[[str], None],
    created: list[dict[str, object]],
    capsys: pytest.CaptureFixture[str],
    line: str,
    reason: str | None,
) -> None:
    python_that_says(line)
    install.make_venv()
    told = capsys.readouterr().err
    if reason is None:
        assert (created, told) == ([], "")
    else:
        assert created[0]["clear"] is True
        assert "Making .venv anew: " in told
        assert reason in told


def test_a_venv_whose_interpreter_was_removed_is_made_anew(home: Path, created: list[dict[str, object]]) -> None:
    (home / ".venv" / "bin").mkdir(parents=True)
    (home / ".venv" / "bin" / "python").symlink_to(home / "Cellar" / "python3.12")
    install.make_venv()
    assert len(created) == 1


def test_a_venv_that_could_not_be_made_is_not_left_behind(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path, **_: object) -> None:
        (folder / "bin").mkdir(parents=True)
        raise subprocess.CalledProcessError(-6, ["python", "-m", "ensurepip"], output=b"Library not loaded: libpython")

    monkeypatch.setattr(install.venv, "create", fail)
    with pytest.raises(install.StageError, match="Making") as caught:
        install.make_venv()
    assert "Library not loaded" in caught.value.said
    assert not (home / ".venv").exists()


def test_inputs_decide_whether_to_install_again(home: Path, python_that_says: Callable[[str], None]) -> None:
    python_that_says(f"echo {OURS}")
    assert not install.up_to_date("demo")
    install.STAMP.write_text(install.fingerprint("dev") + "\n")
    assert install.up_to_date("dev")
    assert install.up_to_date("demo"), "dev holds all of demo's"
    install.STAMP.write_text(install.fingerprint("demo") + "\n")
    assert not install.up_to_date("dev")
    for name in install.INPUTS:
        install.STAMP.write_text(install.fingerprint("demo") + "\n")
        assert install.up_to_date("demo")
        (home / name).write_text("two")
        assert not install.up_to_date("demo"), name


def test_a_stamp_does_not_vouch_for_an_environment_that_broke(python_that_says: Callable[[str], None]) -> None:
    python_that_says(f"echo {OURS}")
    install.STAMP.write_text(install.fingerprint("demo") + "\n")
    assert install.up_to_date("demo")
    python_that_says("exit 1")
    assert not install.up_to_date("demo")


def test_torch_is_installed_first_and_by_itself(home: Path) -> None:
    (_, first), (_, second) = install.pip_commands(("torch", "jax", "keras"), "dev")
    assert first[first.index("-c") + 2 :] == ["torch"]
    assert second[second.index("-c") + 2 :] == [
        "torch",
        "jax",
        "keras",
        "-e",
        f"{home}[dev,bert,mlflow,wandb,web,parquet,team,ray]",
    ]


def test_the_screen_comes_before_pip_and_the_stamp_after_it(
    python_that_says: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    python_that_says(f'case "$*" in *pip*install*) echo "Collecting $*";; *) echo {OURS};; esac')
    host = install_plan.Host(system="Darwin", machine="arm64", python=(3, 13), macos=(15, 1))
    install.install(host, "demo")
    told = capsys.readouterr().err
    assert told.index("tensorflow-metal: it has no build") < told.index("Installing torch ...")
    assert "Collecting" not in told, "pip's own words are for the log"
    assert "Collecting" in install.LOG.read_text()
    assert install.up_to_date("demo")


def test_a_failed_pip_shows_its_end_and_leaves_no_stamp(
    python_that_says: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python_that_says(f'case "$*" in *pip*install*) seq 1 100; echo "ERROR: no space"; exit 7;; *) echo {OURS};; esac')
    monkeypatch.setattr(install, "refusal", lambda *_: None)
    install.STAMP.write_text("an older install")
    assert install.main(["demo"]) == 7
    told = capsys.readouterr().err
    assert "  82\n" in told
    assert "  81\n" not in told, "the last twenty lines are enough"
    assert "ERROR: no space" in told
    assert "Installing torch failed with exit code 7" in told
    assert "in .venv/metalmark-install.log." in told
    assert "type again: make demo" in told
    assert "Traceback" not in told
    assert not install.STAMP.exists()


def test_a_refusal_installs_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "this_host", lambda: install_plan.Host("Darwin", "arm64", (3, 12), macos=(13, 6)))
    assert install.main(["demo"]) == 2
    assert "needs macOS 14 or newer; this is macOS 13.6" in capsys.readouterr().err
    assert not (home / ".venv").exists()


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("demmo", 2), ("--nonsense", 2)])
def test_usage(argument: str, code: int) -> None:
    done = run([*INSTALLER, argument])
    assert done.returncode == code
    assert "usage: tools/install.py" in done.stdout + done.stderr
    assert "demo,dev" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def trap(folder: Path, code: str, long_s: float = 30) -> list[str]:
    words = {"tools": str(ROOT / "tools"), "log": str(folder / "log"), "code": code, "long_s": long_s}
    return [sys.executable, "-c", TRAP.format(**words)]


def test_ctrl_c_ends_pip_too_and_says_how_to_go_on(tmp_path: Path) -> None:
    code = "import os, time; print(f'pid {os.getpid()}', flush=True); time.sleep(200)"
    process = subprocess.Popen(
        trap(tmp_path, code), stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c, stdin=subprocess.DEVNULL
    )
    log = tmp_path / "log"
    while not (log.exists() and "\npid " in log.read_text() and log.read_text().endswith("\n")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    # To the installer alone, as `kill -INT` sends it: a terminal would send it to pip as well.
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "To go on, type: make demo" in told
    assert "Traceback" not in told
    child = int(log.read_text().rsplit("pid ", 1)[1])
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


SLOW_PIP = "import time; print('Collecting jax==0.10.2 (from -c x)', flush=True); time.sleep(2.5)"


def test_progress_is_plain_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    done = run(trap(tmp_path, SLOW_PIP, long_s=0))
    assert done.returncode == 0
    assert done.stdout == "", "stdout is for what make demo prints"
    assert "Pretending ...\n" in done.stderr
    assert "s: collecting jax==0.10.2\n" in done.stderr
    assert "\r" not in done.stderr
    assert "\x1b" not in done.stderr


def test_progress_is_one_changing_line_on_a_terminal(tmp_path: Path) -> None:
    here, there = pty.openpty()
    subprocess.run(trap(tmp_path, SLOW_PIP), stderr=there, stdin=subprocess.DEVNULL, check=True, timeout=60)
    told = os.read(here, 100_000).decode()
    os.close(there)
    os.close(here)
    assert re.search(r"\r\x1b\[K  \d+ s: collecting jax==0.10.2\r", told)
    assert "\r\x1b[K  done in " in told


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Collecting torch==2.13.0 (from -c /a/constraints.txt (line 2))", "collecting torch==2.13.0"),
        ("  Downloading https://files.example/ab/jax-0.10.2.whl (2.1 MB)", "downloading jax-0.10.2.whl (2.1 MB)"),
        ("  Downloading jax-0.10.2.whl.metadata (9 kB)", "downloading jax-0.10.2.whl.metadata (9 kB)"),
        ("Installing collected packages: a, b, c", "unpacking 3 packages"),
        ("  Preparing metadata (pyproject.toml): started", "Preparing metadata (pyproject.toml): started"),
        ("..........s......... [  7%]", "7% of the tests"),
        ("Requirement already satisfied: torch", ""),
        ("Collecting", ""),
        ("", ""),
    ],
)
def test_pips_lines_in_a_few_words(line: str, words: str) -> None:
    assert install.activity(line) == words


def test_the_latest_line_that_tells_something_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"Collecting \xff\n" * 20_000 + b"Collecting mlx\nRequirement already satisfied: numpy\n")
    assert install.latest_activity(log) == "collecting mlx"
    log.write_text("")
    assert install.latest_activity(log) == "starting"


SYSCTL = """#!/bin/sh
echo "kern.osproductversion: 26.1"
echo "hw.optional.arm64: 1"
echo "sysctl: unknown oid 'sysctl.proc_translated'" >&2
echo "kern.hv_vmm_present: 1"
exit 1
"""


def pretend_mac(monkeypatch: pytest.MonkeyPatch, mac_ver: str) -> None:
    answers = {"system": "Darwin", "machine": "arm64", "mac_ver": (mac_ver, ("", "", ""), "arm64")}
    pretended = {name: (lambda value=value: value) for name, value in answers.items()}
    monkeypatch.setattr(install, "platform", SimpleNamespace(**pretended))


def test_the_system_is_asked_which_macos_this_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "sysctl"
    tool.write_text(SYSCTL)
    tool.chmod(0o755)
    monkeypatch.setattr(install, "SYSCTL", str(tool))
    pretend_mac(monkeypatch, "16.0")
    host = install.this_host()
    assert (host.macos, host.virtual, host.apple_silicon) == ((26, 1), True, True)


def test_without_sysctl_the_pythons_own_answer_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "SYSCTL", "/nowhere/sysctl")
    pretend_mac(monkeypatch, "14.5")
    host = install.this_host()
    assert (host.macos, host.virtual, host.apple_silicon) == ((14, 5), False, False)


def test_a_command_that_is_there_and_does_not_run_is_not_recommended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """pyenv puts a shim on PATH for each Python that it has, and the shim of one that is not active fails."""
    for name, line in {"python3.12": "exit 127", "python3.11": "echo 3.11 arm64", "python3.13": "exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install.other_pythons("Darwin", "arm64") == ("python3.11",)
    assert install.other_pythons("Darwin", "x86_64") == (), "the other architecture does not help"


@pytest.mark.parametrize("name", ["install.py", "install_plan.py"])
def test_an_old_python_can_read_it_to_be_refused(name: str) -> None:
    """/usr/bin/python3 of a Mac is Python 3.9: it has to get as far as the sentence that refuses it."""
    text = (ROOT / "tools" / name).read_text()
    ast.parse(text, feature_version=(3, 9))
    assert "kw_only" not in text
    assert "slots" not in text


def test_only_root_on_debian_gets_packages_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.shutil, "which", lambda name: f"/bin/{name}" if name == "apt-get" else None)
    command = install.debian_command("chromium", system="Linux", root=True)
    assert command is not None
    assert "chromium" in command[-1]
    assert install.debian_command("chromium", system="Linux", root=False) is None
    assert install.debian_command("chromium", system="Darwin", root=True) is None
    monkeypatch.setattr(install.shutil, "which", lambda _: None)
    assert install.debian_command("chromium", system="Linux", root=True) is None


def test_a_package_that_could_not_be_had_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(install.platform, "system", lambda: "Linux")
    monkeypatch.setattr(install.shutil, "which", lambda _: None)
    monkeypatch.setattr(install, "DEBIAN_POSTGRESQL", tmp_path)
    assert "apt-get install chromium" in install.need_browser()
    assert "apt-get install postgresql" in install.need_postgresql()
    (tmp_path / "15" / "bin").mkdir(parents=True)
    (tmp_path / "15" / "bin" / "initdb").touch()
    assert install.need_postgresql() == ""
    monkeypatch.setattr(install.shutil, "which", lambda name: f"/bin/{name}")
    assert install.need_browser() == ""

"""Fills .venv with Metalmark and the builds of each framework that this machine can use.

python3 tools/install.py demo     core, torch, tensorflow, jax, mlx, and what the report is drawn with
python3 tools/install.py dev      the same, and what the tests need: trackers; a browser and PostgreSQL where possible

Only the standard library is used: this runs before anything is installed. Nothing is done when the inputs
(this file, install_plan.py, pyproject.toml, constraints.txt, the profile) are those of the last install.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

from install_plan import GOALS, PROFILES, Host, parse_sysctl, plan, python_origin, refusal, screen, version

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / "metalmark-installed"
LOG = VENV / "metalmark-install.log"
INPUTS = ("pyproject.toml", "constraints.txt", "tools/install.py", "tools/install_plan.py")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DEBIAN_POSTGRESQL = Path("/usr/lib/postgresql")
"""Where Debian has the server's programs, which are not on the PATH."""
SYSCTL = "/usr/sbin/sysctl"
"""By its path: it is not on the PATH of every job and service."""
LAST_LINES = 20
LONG_S = 30
"""Seconds between two lines of progress where they can't be written over each other."""


class StageError(Exception):
    """A stage of the installation that failed: its title, its exit code, and the last lines of what it said."""

    def __init__(self, title: str, code: int, said: str) -> None:
        super().__init__(title)
        self.title, self.code, self.said = title, code, said


def this_host() -> Host:
    """Return what the plan needs to know of this machine and this Python."""
    system, machine, python = platform.system(), platform.machine(), sys.version_info[:2]
    facts = sysctl_values() if system == "Darwin" else {}
    # Pythons built with an older SDK call macOS 26 "16.0"; sysctl does not.
    macos = version(facts.get("kern.osproductversion", "")) or version(platform.mac_ver()[0])
    return Host(
        system=system,
        machine=machine,
        python=python,
        macos=macos,
        apple_silicon="1" in (facts.get("hw.optional.arm64"), facts.get("sysctl.proc_translated")),
        virtual=facts.get("kern.hv_vmm_present") == "1",
        nvidia=has_nvidia(),
        origin=python_origin(sys.base_prefix, conda=Path(sys.base_prefix, "conda-meta").is_dir()),
        universal="universal2" in sysconfig.get_platform(),
        ensurepip=importlib.util.find_spec("ensurepip") is not None,
        others=other_pythons(system, machine) if not (3, 11) <= python <= (3, 12) else (),
    )


def sysctl_values() -> dict[str, str]:
    names = ["kern.osproductversion", "hw.optional.arm64", "sysctl.proc_translated", "kern.hv_vmm_present"]
    try:
        # Its exit code tells only that one of the names is not known to this macOS.
        return parse_sysctl(subprocess.run([SYSCTL, *names], capture_output=True, text=True, timeout=10).stdout)
    except (OSError, subprocess.TimeoutExpired):
        return {}


def other_pythons(system: str, machine: str) -> tuple[str, ...]:
    """Return the commands that do run a Python for which every framework has a build, best first."""
    wanted = ["3.12", "3.11"] if system == "Darwin" else ["3.12", "3.11", "3.13"]
    ask = "import platform, sys; print('%d.%d' % sys.version_info[:2], platform.machine())"
    # A command that is there may still be a pyenv shim for a Python that is not active: only running it tells.
    return tuple(f"python{number}" for number in wanted if answer(f"python{number}", ask) == f"{number} {machine}")


def answer(python: str | Path, code: str) -> str | None:
    """Return what this Python prints for this code, or None where it does not run."""
    try:
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def has_nvidia() -> bool:
    """An NVIDIA GPU with its driver, as its own tool or the kernel says."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    tool = shutil.which("nvidia-smi")
    return tool is not None and subprocess.run([tool, "-L"], capture_output=True, check=False).returncode == 0


def debian_command(package: str, *, system: str, root: bool) -> list[str] | None:
    """How this machine gets a package of Debian's that tests need; None where that is the user's to do."""
    if system != "Linux" or not root or shutil.which("apt-get") is None:
        return None
    return ["sh", "-c", f"apt-get update -qq && apt-get install -y -qq --no-install-recommends {package}"]


def need_browser() -> str:
    """Installs one where none is; what to know when it could not be. Without it those tests skip, with this reason."""
    if platform.system() == "Darwin" or any(shutil.which(name) for name in BROWSERS):
        return ""
    if install_package("chromium", "Installing Chromium for the tests of the pages"):
        return ""
    return "no Chromium was found, so the tests of the pages are skipped. Install it: sudo apt-get install chromium"


def need_postgresql() -> str:
    """The same for the server of the tests of a team's store."""
    if shutil.which("initdb") or any(DEBIAN_POSTGRESQL.glob("*/bin/initdb")):
        return ""
    title = "Installing PostgreSQL for the tests of a team's store"
    if install_package("postgresql", title):
        return ""
    line = "brew install postgresql" if platform.system() == "Darwin" else "sudo apt-get install postgresql"
    return f"no PostgreSQL was found, so the tests of a team's store are skipped. Install it: {line}"


def install_package(package: str, title: str) -> bool:
    """Install a package of Debian's where that can be done without a question; False where it can't."""
    command = debian_command(package, system=platform.system(), root=os.geteuid() == 0)
    if command is None:
        return False
    try:
        run_stage(title, command, LOG, DEBIAN_FRONTEND="noninteractive")
    except StageError as failure:
        say(failure.said)
        return False
    return True


def fingerprint(profile: str) -> str:
    digest = hashlib.sha256(f"{profile} {sys.version}".encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def up_to_date(profile: str) -> bool:
    """The dev profile holds all of demo's, so either stamp serves demo."""
    if not STAMP.exists():
        return False
    wanted = {fingerprint(name) for name in PROFILES if set(PROFILES[profile]) <= set(PROFILES[name])}
    return STAMP.read_text().strip() in wanted and not why_not_usable()


def why_not_usable() -> str:
    """Return why the .venv that is there can't be kept, or ""."""
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    theirs = answer(VENV / "bin" / "python", "import pip, sys; print('%d.%d' % sys.version_info[:2])")
    if theirs is None:
        return "its Python or its pip does not run"
    return "" if theirs == ours else f"it has Python {theirs}, and this is Python {ours}"


def make_venv() -> None:
    if VENV.exists() or VENV.is_symlink():
        why = why_not_usable()
        if not why:
            return
        say(f"Making .venv anew: {why} ...")
    else:
        say(f"Making .venv with Python {platform.python_version()} ...")
    try:
        # A copied interpreter does not find its library when it is Homebrew's, uv's, mise's or asdf's.
        venv.create(VENV, with_pip=True, clear=VENV.exists(), symlinks=True)
    except subprocess.CalledProcessError as error:
        shutil.rmtree(VENV, ignore_errors=True)
        said = error.output.decode(errors="replace") if isinstance(error.output, bytes) else str(error.output or "")
        raise StageError("Making .venv", error.returncode, last_lines(said)) from error
    except KeyboardInterrupt:
        shutil.rmtree(VENV, ignore_errors=True)
        raise


def pip_install(python: Path) -> list[str]:
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    return [str(python), "-m", "pip", "install", *quiet, "-c", str(ROOT / "constraints.txt")]


def pip_commands(requirements: tuple[str, ...], profile: str) -> list[tuple[str, list[str]]]:
    """Return the title and the command of each run of pip, in order."""
    pip = pip_install(VENV / "bin" / "python")
    rest = [name for name in requirements if name != "torch"]
    project = f"{ROOT}[{','.join(PROFILES[profile])}]"
    # torch first and by itself: other packages' looser wishes must find it there already.
    return [
        ("Installing torch", [*pip, "torch"]),
        (f"Installing {', '.join(rest)} and Metalmark", [*pip, *requirements, "-e", project]),
    ]


def install(host: Host, profile: str) -> None:
    chosen = plan(host, GOALS[profile])
    say(screen(host, chosen, profile))
    make_venv()
    STAMP.unlink(missing_ok=True)
    LOG.write_text("")
    for title, command in pip_commands(chosen.requirements, profile):
        run_stage(title, command, LOG)
    missing = [need_browser(), need_postgresql()] if profile == "dev" else []
    STAMP.write_text(fingerprint(profile) + "\n")
    for note in filter(None, missing):
        say(f"Note: {note}")


def run_stage(title: str, command: list[str], log: Path, **environment: str) -> None:
    """Run a command whose output goes to the log, and say what it does meanwhile."""
    say(f"{title} ...")
    begun = time.monotonic()
    with log.open("a") as output:
        print(f"$ {shlex.join(command)}", file=output, flush=True)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        )
        try:
            code = wait_aloud(process, log, begun)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if code != 0:
        raise StageError(title, code, last_lines(log.read_text(errors="replace")))
    say(f"  done in {time.monotonic() - begun:.0f} s")


def wait_aloud(process: subprocess.Popen[bytes], log: Path, begun: float) -> int:
    """Wait for the command to end. A terminal shows one line that changes; elsewhere a line now and then is written."""
    in_place = sys.stderr.isatty()
    said = begun
    while True:
        try:
            return process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            line = f"  {now - begun:.0f} s: {latest_activity(log)}"
            if in_place:
                width = shutil.get_terminal_size().columns
                print(f"\r\x1b[K{line[: width - 1]}", end="", file=sys.stderr, flush=True)
            elif now - said >= LONG_S:
                say(line)
                said = now


def latest_activity(log: Path) -> str:
    """Return what pip or pytest does now, by the end of its log."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 100_000))
        lines = file.read().decode(errors="replace").splitlines()
    return next((words for line in reversed(lines) if (words := activity(line))), "starting")


def activity(line: str) -> str:
    """Return a line of pip's or pytest's in a few words, or "" when it tells nothing of what they do."""
    words = line.strip().split(" ")
    if words[0] in ("Collecting", "Obtaining", "Downloading") and len(words) > 1:
        # An address or a path is as long as the terminal is wide: its last part says enough.
        size = re.search(r"\([\d.]+ [kMG]?B\)$", line.strip())
        return f"{words[0].lower()} {words[1].rsplit('/', 1)[-1]}{f' {size.group()}' if size else ''}"
    if line.startswith("Installing collected packages:"):
        return f"unpacking {line.count(',') + 1} packages"
    if percent := re.search(r"\[ *(\d+%)\]$", line):
        return f"{percent.group(1)} of the tests"
    return line.strip().rstrip(".") if words[0] in ("Building", "Preparing") else ""


def last_lines(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines()[-LAST_LINES:])


def say(text: str) -> None:
    # On a terminal a line of progress may stand where this begins.
    print(f"\r\x1b[K{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/install.py", description="Fill .venv with Metalmark and frameworks.")
    parser.add_argument("profile", nargs="?", default="demo", choices=sorted(PROFILES), help="What it is used for.")
    profile = parser.parse_args(arguments).profile
    try:
        host = this_host()
        why = refusal(host, GOALS[profile])
        if why is not None:
            say(why)
            return 2
        if not up_to_date(profile):
            install(host, profile)
    except StageError as failure:
        say(f"{failure.said}\n{failure.title} failed with exit code {failure.code}; the lines above say why.")
        if LOG.exists():
            say(f"All that was said is in {LOG.relative_to(ROOT)}.")
        say(f"What was downloaded is kept. When the cause is mended, type again: {GOALS[profile]}")
        return failure.code if failure.code > 0 else 1
    except KeyboardInterrupt:
        say(f"Stopped. What was downloaded is kept. To go on, type: {GOALS[profile]}")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Fills .venv with Metalmark and the builds of each framework that this machine can use.

python3 tools/install.py demo     core, torch, tensorflow, jax, mlx, and what the report is drawn with
python3 tools/install.py dev      the same, and what the tests need: trackers, and a browser where it can be had

Only the standard library is used: this runs before anything is installed. Nothing is done when the
inputs (this file, pyproject.toml, constraints.txt, the profile) are those of the last install.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / "metalmark-installed"
PROFILES = {"demo": ("web",), "dev": ("dev", "bert", "mlflow", "wandb", "web", "parquet")}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OLDEST = (3, 11)


def has_nvidia() -> bool:
    """An NVIDIA GPU with its driver, as its own tool or the kernel says."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    tool = shutil.which("nvidia-smi")
    return tool is not None and subprocess.run([tool, "-L"], capture_output=True, check=False).returncode == 0


def frameworks(*, system: str, machine: str, nvidia: bool, python: tuple[int, int]) -> tuple[list[str], list[str]]:
    """Requirements for this kind of machine, and what a user should know about the choice."""
    notes: list[str] = []
    if system == "Darwin" and machine == "arm64":
        if python >= (3, 13):
            notes.append("tensorflow-metal has no wheel for Python 3.13 and newer: TensorFlow runs on the CPU only.")
            notes.append("For TensorFlow on the GPU, make .venv with Python 3.12: PYTHON=python3.12 make demo")
            return ["torch", "tensorflow", "jax", "mlx"], notes
        return ["torch", "tensorflow==2.19.*", "tensorflow-metal==1.2.0", "jax", "mlx"], notes
    if system == "Darwin":
        notes.append("This Python is x86_64: on Apple Silicon use an arm64 Python. MLX and new PyTorch need it.")
        return ["torch", "tensorflow"], notes
    if nvidia:
        return ["torch", "tensorflow[and-cuda]", "jax[cuda12]", "mlx[cuda12]"], notes
    tensorflow = "tensorflow-cpu" if machine == "x86_64" else "tensorflow"
    return ["torch", tensorflow, "jax", "mlx[cpu]"], notes


def browser_command(*, system: str, root: bool) -> list[str] | None:
    """How this machine gets a Chromium for the tests of the pages; None where that is the user's to do."""
    if system != "Linux" or not root or shutil.which("apt-get") is None:
        return None
    return ["sh", "-c", "apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium"]


def need_browser() -> str:
    """Installs one where none is; what to know when it could not be. Without it those tests skip, with this reason."""
    if platform.system() == "Darwin" or any(shutil.which(name) for name in BROWSERS):
        return ""
    command = browser_command(system=platform.system(), root=os.geteuid() == 0)
    if command is not None:
        print("Installing Chromium for the tests of the pages ...", flush=True)
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        if subprocess.run(command, stdout=subprocess.DEVNULL, env=quiet, check=False).returncode == 0:
            return ""
    return "no Chromium was found, so the tests of the pages are skipped. Install it: sudo apt-get install chromium"


def fingerprint(profile: str) -> str:
    digest = hashlib.sha256(f"{profile} {sys.version}".encode())
    for name in ("pyproject.toml", "constraints.txt", "tools/install.py"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def up_to_date(profile: str) -> bool:
    """The dev profile holds all of demo's, so either stamp serves demo."""
    if not STAMP.exists():
        return False
    wanted = {fingerprint(name) for name in PROFILES if set(PROFILES[profile]) <= set(PROFILES[name])}
    return STAMP.read_text().strip() in wanted


def install(profile: str) -> None:
    if not (VENV / "bin" / "python").exists():
        print("Making .venv ...", flush=True)
        venv.create(VENV, with_pip=True, clear=VENV.exists())
    requirements, notes = frameworks(
        system=platform.system(), machine=platform.machine(), nvidia=has_nvidia(), python=sys.version_info[:2]
    )
    extras = f"[{','.join(PROFILES[profile])}]" if PROFILES[profile] else ""
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "-q"]
    constraints = ["-c", str(ROOT / "constraints.txt")]
    print(f"Installing {', '.join(requirements)} and Metalmark; minutes the first time ...", flush=True)
    # torch first and by itself: other packages' looser wishes must find it there already.
    subprocess.run([*pip, *constraints, "torch"], check=True)
    subprocess.run([*pip, *constraints, *requirements, "keras", "-e", f"{ROOT}{extras}"], check=True)
    if profile == "dev" and (missing := need_browser()):
        notes.append(missing)
    STAMP.write_text(fingerprint(profile) + "\n")
    for note in notes:
        print(f"Note: {note}")


def main(profile: str) -> int:
    if sys.version_info[:2] < OLDEST:
        print(
            f"Metalmark needs Python {OLDEST[0]}.{OLDEST[1]} or newer; this is {platform.python_version()}.",
            file=sys.stderr,
        )
        print("Name another: PYTHON=python3.12 make demo", file=sys.stderr)
        return 2
    if up_to_date(profile):
        return 0
    try:
        install(profile)
    except subprocess.CalledProcessError as error:
        print(
            f"Installing failed: pip ended with exit code {error.returncode}; its last lines say why.", file=sys.stderr
        )
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "demo"))

"""The pretend Mac: a Linux process and all its children look like a Mac to Metalmark's own code.

`Mac("m1-8gb")` makes one in a folder of its own; `mac.run(...)` runs a command on it, `mac.environment()` is for a
command that a test starts itself. What is pretended, and how, is in `path/pretend_mac`.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from metalmark.machine.apple import parse_sysctl
from tests.pretend_mac.machines import load
from tests.processes import ROOT
from tests.simulated import build

HERE = Path(__file__).parent
FILES = 256
"""A Mac's own limit on open files."""
USER = "pat"
ALWAYS = ("sysctl", "caffeinate", "xcode-select")


class Mac:
    """A machine in a folder: its tools, its home, its temporary folder behind a link. `close` takes it away."""

    def __init__(self, name: str | Path, *, simulated: bool = True) -> None:
        bundle = load(name)
        self.bundle = bundle
        # Short, since Darwin's own temporary folder is: a socket's path has to fit.
        self.folder = Path(tempfile.mkdtemp(prefix="mac"))
        self.home = self.folder / "Users" / USER
        self.home.mkdir(parents=True)
        inner = self.folder / "private" / "var" / "folders" / "zz" / "zyxvpxvq6csfxvn_n0000000000000" / "T"
        inner.mkdir(parents=True)
        (self.folder / "var").symlink_to(self.folder / "private" / "var")
        self.temporary = self.folder / "var" / inner.relative_to(self.folder / "private" / "var")
        (self.folder / "machine.json").write_bytes(msgspec.json.encode(bundle))
        (self.folder / "sysctl.json").write_text(json.dumps(self._sysctl()))
        self._lay_out_tools()
        self._lay_out_packages()
        self._simulated = simulated and any(
            device.word == "mps" and (device.present or bundle.scene.machine.virtual_machine)
            for device in getattr(bundle.scene.probes.get("torch"), "devices", ())
        )

    def __enter__(self) -> Mac:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self, **extra: str) -> dict[str, str]:
        """The variables of a process that lives on this machine."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "METALMARK_"))}
        path = [str(HERE / "path"), str(self.folder / "packages")]
        simulated: dict[str, str] = {}
        if self._simulated:
            # In a virtual machine Metal is there and has no room for anything.
            virtual = bool(self.bundle.scene.machine and self.bundle.scene.machine.virtual_machine)
            simulated = build.environment(limit_mib=0 if virtual else 1024)
            path.append(simulated.pop("PYTHONPATH").partition(os.pathsep)[0])
        return {
            **kept,
            **simulated,
            "PRETEND_MAC": str(self.folder),
            "PYTHONPATH": os.pathsep.join(path),
            "PATH": os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]]),
            "HOME": str(self.home),
            "USER": USER,
            "LOGNAME": USER,
            "TMPDIR": f"{self.temporary}/",
            **extra,
        }

    def run(
        self, *arguments: object, folder: Path = ROOT, timeout_s: float = 240, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        """`metalmark ARGUMENTS` on this machine, to its end."""
        return self.execute([sys.executable, "-m", "metalmark", *map(str, arguments)], folder, timeout_s, **extra)

    def execute(
        self, command: Sequence[str], folder: Path = ROOT, timeout_s: float = 240, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment(**extra),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            preexec_fn=few_files,
        )

    def called(self) -> list[str]:
        """The system tools that were run here, as they were typed."""
        log = self.folder / "called"
        return log.read_text().splitlines() if log.exists() else []

    def _sysctl(self) -> dict[str, str]:
        texts = [answer.stdout for answer in self.bundle.answers if Path(answer.argv[0]).name == "sysctl"]
        return {key: value for text in texts for key, value in parse_sysctl(text).items()}

    def _lay_out_tools(self) -> None:
        tools = self.folder / "bin"
        tools.mkdir()
        source = (HERE / "replay.py").read_text()
        for name in {*ALWAYS, *(Path(answer.argv[0]).name for answer in self.bundle.answers)}:
            # Not in the environment's own way: the tool is no program of Metalmark's, and has to start quickly.
            (tools / name).write_text(f"#!{sys.executable} -IS\n{source}")
            (tools / name).chmod(0o755)

    def _lay_out_packages(self) -> None:
        """What is installed there by name and version; the modules themselves are this machine's."""
        for name, version in self.bundle.scene.packages.items():
            info = self.folder / "packages" / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def few_files() -> None:
    """For `preexec_fn`: the limit that a Mac's shell sets."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

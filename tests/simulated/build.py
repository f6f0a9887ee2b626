"""Builds the simulated device, and lays it out so that PyTorch loads it in every process of `environment`."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / "build" / "simulated"
# No optimisation: compiling takes longer than the tests run, and the CPU's operations are compiled already.
FLAGS = ("-std=c++20", "-O0", "-fPIC", "-shared", "-w")


class CannotBuildError(Exception):
    """Why there is no simulated device here."""


def environment(*, limit_mib: int = 1024, fault: str = "") -> dict[str, str]:
    """Variables for a process that shall have the device, with so much memory and with these faults."""
    path = os.pathsep.join(filter(None, [str(built()), os.environ.get("PYTHONPATH")]))
    # Threads that wait for one another on a busy machine make the device look busy after it was synchronised. A process
    # has one accelerator: a real one would be it.
    quiet = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {"PYTHONPATH": path, "SIMULATED_LIMIT_MIB": str(limit_mib), "SIMULATED_FAULT": fault, **quiet}


def built() -> Path:
    """The folder with the device and its entry point; compiled at most once for each PyTorch and each source."""
    if platform.system() != "Linux":
        raise CannotBuildError("it is built on Linux; a Mac has the real thing")
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise CannotBuildError("PyTorch is not installed")
    compiler = shutil.which("c++")
    if compiler is None:
        raise CannotBuildError("there is no C++ compiler (c++)")
    digest = hashlib.sha256(importlib.metadata.version("torch").encode())
    for name in ("device.cpp", "plugin.py", "faults.py", "build.py"):
        digest.update((HERE / name).read_bytes())
    folder = CACHE / digest.hexdigest()[:16]
    if not folder.exists():
        _build(folder, compiler, Path(spec.submodule_search_locations[0]))
    return folder


def _build(folder: Path, compiler: str, torch: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch, "made")
        info = made / "simulated-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: simulated\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[torch.backends]\nsimulated = simulated_plugin:autoload\n")
        for name in ("plugin", "faults"):
            shutil.copy(HERE / f"{name}.py", made / f"simulated_{name}.py")
        includes = [f"-I{torch / 'include'}", f"-I{torch / 'include/torch/csrc/api/include'}"]
        libraries = [f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
        command = [compiler, *FLAGS, *includes, str(HERE / "device.cpp"), "-o", str(made / "libsimulated.so")]
        run = subprocess.run([*command, *libraries], capture_output=True, text=True, check=False)
        # A compiler that fails is no reason to skip: the source no longer fits this PyTorch.
        assert run.returncode == 0, run.stderr[-3000:]
        try:
            made.rename(folder)
        except OSError:
            # Another session built it meanwhile: its folder is as good as ours.
            if not folder.exists():
                raise

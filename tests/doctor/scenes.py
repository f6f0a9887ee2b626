"""Machines written down: a plain Linux container, an Apple Silicon Mac in order, a server with an NVIDIA GPU."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from metalmark.backends.base import DeviceReport, Probe
from metalmark.doctor.catalog import CHECKS
from metalmark.doctor.check import Finding
from metalmark.doctor.scene import Disk, Nvidia, NvidiaGpu, OpenFiles, Scene, Swap
from metalmark.machine.apple import Heat, PowerSource
from metalmark.runner.ask import NoAnswer

GIB = 2**30


def probe(framework: str, *present: str, absent: dict[str, str] | None = None, **versions: str) -> Probe:
    devices = [DeviceReport(word=word, name=word.upper(), present=True) for word in present]
    devices += [
        DeviceReport(word=word, present=False, reason=reason, fix="Mend it.") for word, reason in (absent or {}).items()
    ]
    return Probe(framework=framework, versions=versions, devices=tuple(devices))


def broken(reason: str = "it was ended by SIGSEGV.", detail: str = "") -> NoAnswer:
    return NoAnswer(reason=reason, detail=detail)


LINUX = Scene(
    platform="linux",
    architecture="x86_64",
    python="3.11.7",
    packages={"torch": "2.13.0+cpu", "numpy": "2.4.6", "jax": "0.10.2", "keras": "3.15.1", "tensorflow-cpu": "2.21.0"},
    requirements={"keras": ("numpy", "ml-dtypes>=0.5")},
    frameworks={"torch": (), "tensorflow": (), "jax": (), "mlx": ("mlx",)},
    probes={
        "torch": probe("torch", "cpu", absent={"cuda": "built without CUDA.", "mps": "no Mac."}, torch="2.13.0+cpu"),
        "tensorflow": probe("tensorflow", "cpu", absent={"cuda": "CPU only.", "mps": "no Mac."}, tensorflow="2.21.0"),
        "jax": probe("jax", "cpu", absent={"cuda": "no plug-in.", "mps": "no Mac."}, jax="0.10.2"),
    },
    swap=Swap(total_bytes=0, used_bytes=0),
    memory_bytes=16 * GIB,
    memory_free_percent=80,
    open_files=OpenFiles(soft=1024, hard=4096),
    shared_memory_bytes=8 * GIB,
    visible_cores=4,
    logical_cores=4,
    busy_cores=0.1,
    disks=(Disk(folders=("data sets", "temporary files"), free_bytes=100 * GIB),),
)

MAC = Scene(
    platform="darwin",
    architecture="arm64",
    macos="15.1",
    python="3.12.4",
    packages={
        "torch": "2.13.0",
        "numpy": "2.1.3",
        "tensorflow": "2.19.0",
        "tensorflow-metal": "1.2.0",
        "keras": "3.10.0",
        "mlx": "0.32.4",
    },
    frameworks={"torch": (), "tensorflow": (), "jax": ("jax",), "mlx": ()},
    probes={
        "torch": probe("torch", "cpu", "mps", absent={"cuda": "built without CUDA."}, torch="2.13.0"),
        "tensorflow": probe("tensorflow", "cpu", "mps", absent={"cuda": "no CUDA."}, tensorflow="2.19.0"),
        "mlx": probe("mlx", "cpu", "mps", absent={"cuda": "no CUDA."}, mlx="0.32.4"),
    },
    sysctl={
        "machdep.cpu.brand_string": "Apple M2 Pro",
        "sysctl.proc_translated": "0",
        "hw.memsize": str(16 * GIB),
        "iogpu.wired_limit_mb": "0",
    },
    swap=Swap(total_bytes=GIB, used_bytes=GIB // 4),
    memory_bytes=16 * GIB,
    memory_free_percent=70,
    power=PowerSource(on_battery=False, percent=100),
    low_power=False,
    heat=Heat(),
    open_files=OpenFiles(soft=4096, hard=None),
    visible_cores=12,
    logical_cores=12,
    busy_cores=0.5,
    disks=(Disk(folders=("data sets",), free_bytes=200 * GIB),),
)

NVIDIA = replace(
    LINUX,
    packages={"torch": "2.13.0", "numpy": "2.4.6"},
    frameworks={"torch": (), "tensorflow": ("tensorflow", "keras"), "jax": ("jax", "keras"), "mlx": ("mlx",)},
    probes={"torch": probe("torch", "cpu", "cuda", absent={"mps": "no Mac."}, torch="2.13.0", cuda="13.0")},
    nvidia=Nvidia(
        driver="580.65.06",
        cuda=(13, 0),
        gpus=(NvidiaGpu(name="NVIDIA H200", memory_bytes=141 * GIB, used_bytes=2**28, busy_percent=0),),
    ),
)


def change(scene: Scene, **changes: Any) -> Scene:
    """`packages` and `environment` are added to; None takes a package out."""
    for name in ("packages", "environment", "sysctl", "probes"):
        if name in changes:
            merged = {**getattr(scene, name), **changes[name]}
            changes[name] = {key: value for key, value in merged.items() if value is not None}
    return replace(scene, **changes)


def look(name: str, scene: Scene) -> list[Finding]:
    return CHECKS[name].look(scene)

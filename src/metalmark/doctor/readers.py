"""Readers of a Scene's parts that need no system tool: this process, installed packages and the NVIDIA driver."""

import os
import platform
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from metalmark.data.fetch import cache_folder
from metalmark.doctor.scene import Disk, Nvidia, NvidiaGpu, OpenFiles, OpenMp, Swap
from metalmark.errors import MetalmarkError
from metalmark.machine.apple import PowerSource
from metalmark.machine.cgroup import limits
from metalmark.machine.cpu import logical_cores, visible_cores
from metalmark.machine.nvidia import Nvml, with_nvml
from metalmark.machine.steering import steering_variables
from metalmark.machine.tools import read_text, to_count, to_name
from metalmark.model.run import Absent
from metalmark.scrub import printable, scrub
from metalmark.telemetry.system import SystemSensor

QUIET_S = 0.3
_MEMINFO = Path("/proc/meminfo")
_SHARED_MEMORY = Path("/dev/shm")
_NVIDIA_MODULE = Path("/proc/driver/nvidia/version")
ASKING = (
    "torch", "torchvision", "tensorflow", "tensorflow-cpu", "tensorflow-macos", "tensorflow-metal", "keras", "tf-keras",
    "jax", "jaxlib", "jax-metal", "mlx", "transformers", "scipy", "ml-dtypes",
)  # fmt: skip
"""The packages whose own requirements are read."""

_OPENMP = re.compile(r"/(lib(?:omp|iomp5|gomp)[\w.+-]*?\.(?:dylib|so[\w.]*))\b")
_VERSION_CHARS = 60


def read_process() -> dict[str, Any]:
    """Read what this process can see at once."""
    memory = psutil.virtual_memory()
    found: dict[str, Any] = {
        "platform": sys.platform,
        "architecture": platform.machine(),
        "macos": platform.mac_ver()[0] or None,
        "python": platform.python_version(),
        "environment": steering_variables(os.environ),
        "open_files": open_files(),
        "limits": limits(),
        "visible_cores": visible_cores(),
        "logical_cores": logical_cores(),
        "memory_bytes": memory.total,
    }
    if sys.platform == "linux":
        found["shared_memory_bytes"] = _capacity(_SHARED_MEMORY)
        found["memory_free_percent"] = round(100 * memory.available / memory.total) if memory.total else None
        found["swap"] = parse_meminfo(read_text(_MEMINFO))
        found["power"] = _battery()
    return found


def open_files() -> OpenFiles:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OpenFiles(
        soft=None if soft == resource.RLIM_INFINITY else soft, hard=None if hard == resource.RLIM_INFINITY else hard
    )


def parse_meminfo(text: str) -> Swap | None:
    fields = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = to_count(value.replace("kB", ""))
    total, free = fields.get("SwapTotal"), fields.get("SwapFree")
    if total is None or free is None:
        return None
    return Swap(total_bytes=total * 1024, used_bytes=max(total - free, 0) * 1024)


def read_disks() -> tuple[Disk, ...]:
    """Read the free space where downloads, weights and compiled kernels go, folders on one disk together."""
    folders: dict[str, Callable[[], Path]] = {
        "data sets": cache_folder,
        "PyTorch's cache": lambda: Path(os.environ.get("TORCH_HOME") or "~/.cache/torch"),
        "Hugging Face's cache": lambda: Path(os.environ.get("HF_HOME") or "~/.cache/huggingface"),
        "Keras's cache": lambda: Path(os.environ.get("KERAS_HOME") or "~/.keras"),
        "temporary files": lambda: Path(tempfile.gettempdir()),
    }
    shared: dict[int, tuple[list[str], int]] = {}
    for label, folder in folders.items():
        try:
            folder_path = folder().expanduser()
            while not folder_path.exists() and folder_path != folder_path.parent:
                folder_path = folder_path.parent
            names, _ = shared.setdefault(folder_path.stat().st_dev, ([], shutil.disk_usage(folder_path).free))
        except (OSError, RuntimeError, MetalmarkError):
            # Not visible to us, or in the home folder of a user who has none: nothing would be written there.
            continue
        names.append(label)
    return tuple(Disk(folders=tuple(names), free_bytes=free_bytes) for names, free_bytes in shared.values())


def read_busy_cores() -> float | None:
    """Measure the cores in use while we do nothing, which others use."""
    sensor = SystemSensor()
    sensor.read()
    time.sleep(QUIET_S)
    percent = next((reading.value for reading in sensor.read() if reading.name == "system_cpu"), None)
    cores = psutil.cpu_count(logical=True)
    return round(percent / 100 * cores, 2) if isinstance(percent, float) and cores else None


def _battery() -> PowerSource | None:
    try:
        battery = psutil.sensors_battery()
    except (OSError, AttributeError, ValueError):  # no such folder in a container, or an incomplete one
        return None
    if battery is None or battery.power_plugged is None:
        return None
    return PowerSource(on_battery=not battery.power_plugged, percent=round(battery.percent))


def _capacity(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).total
    except OSError:
        return None


def read_nvidia() -> Nvidia | Absent | None:
    """Return None without a driver; an Absent where there is one that does not answer."""
    found = with_nvml(describe_nvidia)
    if not isinstance(found, Absent):
        return found
    # "Driver/library version mismatch" after an update without a reboot, or a module without its library.
    return Absent(scrub(found.reason)[:200]) if _NVIDIA_MODULE.exists() else None


def describe_nvidia(nvml: Nvml) -> Nvidia:
    exact = nvml.knows("nvmlMemory_v2")
    gpus: list[NvidiaGpu] = []
    for handle in nvml.gpus():
        # This form leaves out what the driver keeps for itself, more than half a GiB on a large GPU.
        memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle, exact) if exact is not None else None
        memory = memory or nvml.ask("nvmlDeviceGetMemoryInfo", handle)
        processes = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        rates = nvml.ask("nvmlDeviceGetUtilizationRates", handle)
        gpus.append(
            NvidiaGpu(
                name=to_name(nvml.ask("nvmlDeviceGetName", handle)) or "NVIDIA GPU",
                memory_bytes=to_count(memory.total) if memory is not None else None,
                used_bytes=to_count(memory.used) if memory is not None else None,
                processes=sum(process.pid != os.getpid() for process in processes),
                busy_percent=to_count(rates.gpu) if rates is not None else None,
            )
        )
    cuda = to_count(nvml.ask("nvmlSystemGetCudaDriverVersion"))
    return Nvidia(
        driver=to_name(nvml.ask("nvmlSystemGetDriverVersion")),
        cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
        gpus=tuple(gpus),
    )


def read_packages(found: Iterable[Distribution] | None = None) -> dict[str, Any]:
    """Read the packages' own metadata, since importing a framework would take seconds. A damaged one is left out."""
    packages: dict[str, str] = {}
    requirements: dict[str, tuple[str, ...]] = {}
    openmp: list[OpenMp] = []
    for distribution in distributions() if found is None else found:
        try:
            described = distribution.metadata
            if "Name" not in described or "Version" not in described:
                continue
            name = normalised_name(described["Name"])
            version = printable(described["Version"])[:_VERSION_CHARS]
            if not name or name in packages:  # the first on the path is the one that is imported
                continue
            packages[name] = version
            if name in ASKING:
                requirements[name] = tuple(distribution.requires or ())
            # Read as one text: as paths, the lists of files of four frameworks take a second.
            record = distribution.read_text("RECORD") or ""
            libraries = dict.fromkeys(_OPENMP.findall(record))
            openmp += [OpenMp(package=name, library=library) for library in libraries]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return {"packages": packages, "requirements": requirements, "openmp": (*openmp, *_of_conda())}


def normalised_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).strip().lower()


def _of_conda() -> Iterable[OpenMp]:
    """A conda environment keeps its libraries outside of Python's packages."""
    prefix = Path(sys.prefix)
    if not (prefix / "conda-meta").is_dir():
        return
    seen = set()
    for path in sorted((prefix / "lib").glob("lib*omp*")):
        # libgomp.so, libgomp.so.1 and libgomp.so.1.0.0 are one file; conda's libgomp is often a link to LLVM's.
        real = path.resolve()
        if _OPENMP.search(f"/{real.name}") and real not in seen:
            seen.add(real)
            yield OpenMp(package="conda", library=real.name)

"""Scene: everything the checks look at. Pure data, so that a test can write down any machine."""

from __future__ import annotations

from msgspec import Struct

from metalmark.backends.base import DeviceReport, Probe
from metalmark.doctor.versions import at_least, release
from metalmark.machine.apple import Heat, PowerSource
from metalmark.machine.cgroup import Limits
from metalmark.model.run import Machine
from metalmark.runner.ask import NoAnswer


class Trouble(Struct, frozen=True, kw_only=True):
    """A tool that did not do what it is there for, and how."""

    tool: str
    reason: str


class Swap(Struct, frozen=True, kw_only=True):
    total_bytes: int
    used_bytes: int


class OpenFiles(Struct, frozen=True, kw_only=True):
    """None: unlimited."""

    soft: int | None
    hard: int | None


class Disk(Struct, frozen=True, kw_only=True):
    """The free space behind folders that share a disk."""

    folders: tuple[str, ...]
    free_bytes: int


class NvidiaGpu(Struct, frozen=True, kw_only=True):
    name: str
    memory_bytes: int | None = None
    used_bytes: int | None = None
    processes: int = 0
    busy_percent: int | None = None


class Nvidia(Struct, frozen=True, kw_only=True):
    """What the driver says; `cuda` is the newest CUDA it can run."""

    driver: str | None = None
    cuda: tuple[int, int] | None = None
    gpus: tuple[NvidiaGpu, ...] = ()


class OpenMp(Struct, frozen=True, kw_only=True):
    """An OpenMP runtime that an installed package brings along."""

    package: str
    library: str


class Scene(Struct, frozen=True, kw_only=True):
    """None, or empty: unknown, or there is none; `troubles` says why where a tool was at fault."""

    platform: str = "linux"
    """As sys.platform has it."""
    architecture: str = "x86_64"
    """Of this Python: under Rosetta it is not the machine's."""
    macos: str | None = None
    python: str = "3.11.0"
    environment: dict[str, str] = {}
    packages: dict[str, str] = {}
    """Installed distributions, by normalised name."""
    requirements: dict[str, tuple[str, ...]] = {}
    """What the frameworks' distributions ask for."""
    openmp: tuple[OpenMp, ...] = ()
    frameworks: dict[str, tuple[str, ...]] = {}
    """Each framework Metalmark knows → the import names it lacks; none missing: it was probed."""
    probes: dict[str, Probe | NoAnswer] = {}
    machine: Machine | None = None
    sysctl: dict[str, str] = {}
    swap: Swap | None = None
    memory_bytes: int | None = None
    memory_free_percent: int | None = None
    power: PowerSource | None = None
    low_power: bool | None = None
    heat: Heat | None = None
    open_files: OpenFiles | None = None
    shared_memory_bytes: int | None = None
    limits: Limits = Limits()
    visible_cores: int | None = None
    """What a framework counts when it decides how many threads to start."""
    logical_cores: int | None = None
    busy_cores: float | None = None
    """What others used before anything of ours ran."""
    disks: tuple[Disk, ...] = ()
    nvidia: Nvidia | None = None
    troubles: tuple[Trouble, ...] = ()

    @property
    def mac(self) -> bool:
        return self.platform == "darwin"

    @property
    def apple_silicon(self) -> bool:
        return self.mac and (self.architecture == "arm64" or self.translated)

    @property
    def translated(self) -> bool:
        """Whether this Python runs under Rosetta."""
        return self.mac and (
            self.sysctl.get("sysctl.proc_translated") == "1"
            or (self.architecture == "x86_64" and "Apple" in self.sysctl.get("machdep.cpu.brand_string", ""))
        )

    @property
    def usable_cores(self) -> int | None:
        known = [count for count in (self.visible_cores, self.limits.cores) if count is not None]
        return min(known, default=None)

    def version(self, package: str) -> str | None:
        return self.packages.get(package)

    def has(self, package: str, oldest: str | None = None) -> bool:
        """Whether a package is installed, and at least that new where that is asked."""
        return package in self.packages and (oldest is None or at_least(self.packages[package], oldest))

    def python_release(self) -> tuple[int, int]:
        return release(self.python) or (0, 0)

    def device(self, framework: str, word: str) -> DeviceReport | None:
        """What a framework's probe said of a device; None where it said nothing."""
        probe = self.probes.get(framework)
        reports = probe.devices if isinstance(probe, Probe) else ()
        return next((report for report in reports if report.word == word), None)

    def present(self, framework: str, word: str) -> bool:
        report = self.device(framework, word)
        return report is not None and report.present

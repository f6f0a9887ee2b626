"""Scene: everything that the checks look at, as pure data, so that a test can describe any machine."""

from msgspec import Struct
from packaging.version import InvalidVersion, Version

from metalmark.backends.base import DeviceReport, Probe
from metalmark.machine.apple import Heat, PowerSource
from metalmark.machine.cgroup import Limits
from metalmark.model.run import Machine
from metalmark.runner.ask import NoAnswer


class ToolFailure(Struct, frozen=True, kw_only=True):
    """A tool that gave no usable answer, and why."""

    tool: str
    reason: str


class Swap(Struct, frozen=True, kw_only=True):
    total_bytes: int
    used_bytes: int


class OpenFiles(Struct, frozen=True, kw_only=True):
    """Limits on open files; None is unlimited."""

    soft: int | None
    hard: int | None


class Disk(Struct, frozen=True, kw_only=True):
    """Free space of one disk, and which folders are on it."""

    folders: tuple[str, ...]
    free_bytes: int


class NvidiaGpu(Struct, frozen=True, kw_only=True):
    name: str
    memory_bytes: int | None = None
    used_bytes: int | None = None
    processes: int = 0
    busy_percent: int | None = None


class Nvidia(Struct, frozen=True, kw_only=True):
    """What the NVIDIA driver says; `cuda` is the newest CUDA that it can run."""

    driver: str | None = None
    cuda: tuple[int, int] | None = None
    gpus: tuple[NvidiaGpu, ...] = ()


class OpenMp(Struct, frozen=True, kw_only=True):
    """An OpenMP runtime that an installed package contains."""

    package: str
    library: str


class Scene(Struct, frozen=True, kw_only=True):
    """None or empty means unknown or absent; `troubles` says why where a tool failed."""

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
    """What the frameworks' distributions require."""
    openmp: tuple[OpenMp, ...] = ()
    frameworks: dict[str, tuple[str, ...]] = {}
    """For each framework that Metalmark knows, the import names that are missing; it was probed if none is."""
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
    """What other programs used before anything of ours ran."""
    disks: tuple[Disk, ...] = ()
    nvidia: Nvidia | None = None
    troubles: tuple[ToolFailure, ...] = ()

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
    def any_framework(self) -> bool:
        return any(not missing for missing in self.frameworks.values())

    @property
    def usable_cores(self) -> int | None:
        known = [count for count in (self.visible_cores, self.limits.cores) if count is not None]
        return min(known, default=None)

    def version(self, package: str) -> str | None:
        return self.packages.get(package)

    def has(self, package: str, oldest: str | None = None) -> bool:
        """Return whether a package is installed, and in version `oldest` or newer if one is given."""
        return package in self.packages and (oldest is None or at_least(self.packages[package], oldest))

    def python_release(self) -> tuple[int, int]:
        return release(self.python) or (0, 0)

    def device(self, framework: str, word: str) -> DeviceReport | None:
        """Return what a framework's probe said of a device; None where it said nothing."""
        probe = self.probes.get(framework)
        reports = probe.devices if isinstance(probe, Probe) else ()
        return next((report for report in reports if report.word == word), None)

    def present(self, framework: str, word: str) -> bool:
        report = self.device(framework, word)
        return report is not None and report.present


def parse_version(text: str | None) -> Version | None:
    """Return None for what can't be read: an unknown version is neither older nor newer than another."""
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


def release(text: str | None) -> tuple[int, int] | None:
    """Return major and minor: (2, 19) of "2.19.0+cpu"."""
    version = parse_version(text)
    return (version.major, version.minor) if version else None


def at_least(text: str | None, oldest: str) -> bool:
    version = parse_version(text)
    return version is not None and version >= Version(oldest)


def older(text: str | None, first: str) -> bool:
    version = parse_version(text)
    return version is not None and version < Version(first)

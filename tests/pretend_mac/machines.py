"""The pretend Macs: each a DoctorBundle, as an owner's own would be, put together from what tells one from another.

What the tools print here was written for these tests, in the formats that macOS's tools have.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import metalmark
from metalmark.backends.base import DeviceReport, Probe
from metalmark.doctor.bundle import DoctorBundle, ToolAnswer
from metalmark.doctor.scene import Scene
from metalmark.machine.apple import PowerSource
from metalmark.model.run import Gpu, Machine

OWNERS = Path(__file__).with_name("bundles")
"""Bundles that owners of Macs sent, each a machine under its file's name."""
GIB = 2**30

NO_WARNINGS = "".join(
    f"Note: No {what} has been recorded\n"
    for what in ("thermal warning level", "performance warning level", "CPU power status")
)
WARNINGS = (
    "2026-11-16 08:12:31 +0100 Thermal Warning Level = 2\n"
    "2026-11-16 08:12:31 +0100 CPU Power notify\n"
    "\tCPU_Scheduler_Limit \t= 100\n\tCPU_Available_CPUs \t= 15\n\tCPU_Speed_Limit \t= 62\n"
)
AC = "Now drawing from 'AC Power'\n"
CHARGED = " -InternalBattery-0 (id=23068771)\t100%; charged; 0:00 remaining present: true\n"
UPS = " -Back-UPS 700 (id=-1)\t96%; charging present: true\n"
BATTERY = (
    "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=23068771)\t41%; discharging; 1:38 remaining "
    "present: true\n"
)


def mac(
    *,
    chip: str,
    levels: tuple[tuple[str, int], ...],
    gpu_cores: int | None,
    memory_gib: int,
    macos: str,
    python: str = "3.11.9",
    batt: str = AC + CHARGED,
    therm: str = NO_WARNINGS,
    low_power: int = 0,
    swap_mib: float = 0.0,
    swapouts: int = 0,
    virtual: bool = False,
    metal_plugin: bool = True,
    macmon: list[dict[str, Any]] | None = None,
    model: str | None = None,
) -> DoctorBundle:
    cores = sum(count for _, count in levels)
    values = {
        "machdep.cpu.brand_string": chip,
        "hw.memsize": str(memory_gib * GIB),
        "hw.physicalcpu": str(cores),
        "hw.logicalcpu": str(cores),
        "hw.optional.AdvSIMD": "1",
        "hw.optional.neon": "1",
        "hw.optional.arm.FEAT_FP16": "1",
        "hw.optional.arm.FEAT_BF16": "0" if chip.startswith("Apple M1") else "1",
        "hw.optional.arm.FEAT_SME": "1" if chip.startswith(("Apple M4", "Apple M5")) else "0",
        "kern.hv_vmm_present": str(int(virtual)),
        "kern.osproductversion": macos,
        "sysctl.proc_translated": "0",
        "vm.swapusage": f"total = 4096.00M  used = {swap_mib:.2f}M  free = {4096 - swap_mib:.2f}M  (encrypted)",
        "iogpu.wired_limit_mb": "0",
        "hw.nperflevels": str(len(levels)),
    }
    for level, (name, count) in enumerate(levels):
        values |= {f"hw.perflevel{level}.physicalcpu": str(count), f"hw.perflevel{level}.name": name}
    model = model or chip
    answers = {
        ("/usr/sbin/sysctl",): "".join(f"{key}: {value}\n" for key, value in values.items()),
        ("/usr/sbin/system_profiler", "SPDisplaysDataType", "-json"): _displays(model, gpu_cores),
        ("/usr/bin/pmset", "-g", "batt"): batt,
        ("/usr/bin/pmset", "-g", "therm"): therm,
        ("/usr/bin/pmset", "-g"): _settings(low_power),
        ("/usr/bin/vm_stat",): _vm_stat(memory_gib, swapouts),
        ("/usr/bin/memory_pressure", "-Q"): _pressure(memory_gib),
    }
    if macmon is not None:
        answers["macmon", "pipe"] = "".join(json.dumps(line) + "\n" for line in macmon)
    return DoctorBundle(
        metalmark=metalmark.__version__,
        scene=Scene(
            platform="darwin",
            architecture="arm64",
            macos=macos,
            python=python,
            packages=_packages(metal_plugin),
            probes=_probes(chip, virtual=virtual, metal_plugin=metal_plugin),
            machine=_machine(chip, levels, model, gpu_cores, memory_gib, macos, virtual=virtual),
            power=PowerSource(on_battery="Battery" in batt.splitlines()[0], percent=41 if batt == BATTERY else 100),
        ),
        answers=tuple(ToolAnswer(argv=argv, status=0, stdout=text) for argv, text in answers.items()),
    )


def m1_8gb() -> DoctorBundle:
    """A MacBook Air of 2020 on Python 3.11, plugged in."""
    levels = (("Performance", 4), ("Efficiency", 4))
    return mac(chip="Apple M1", levels=levels, gpu_cores=7, memory_gib=8, macos="14.7.1", swap_mib=2694.19)


def m4_max() -> DoctorBundle:
    """A MacBook Pro with macmon."""
    return mac(
        chip="Apple M4 Max",
        levels=(("Performance", 12), ("Efficiency", 4)),
        gpu_cores=40,
        memory_gib=64,
        macos="15.6",
        macmon=[_macmon(clock=1578, active=0.97, scaled=0.95), _macmon(clock=1578, active=0.99, scaled=0.96)],
    )


def m3_ultra() -> DoctorBundle:
    """A Mac Studio: no battery of its own, on a UPS that is charging."""
    levels = (("Performance", 24), ("Efficiency", 8))
    return mac(chip="Apple M3 Ultra", levels=levels, gpu_cores=80, memory_gib=256, macos="15.5", batt=AC + UPS)


def hosted_runner() -> DoctorBundle:
    """A virtual machine of a hosting service: Metal is named, and can't be used by PyTorch."""
    return mac(
        chip="Apple M1 (Virtual)",
        levels=(("Standard", 3),),
        gpu_cores=None,
        memory_gib=7,
        macos="15.4",
        batt=AC,
        virtual=True,
        metal_plugin=False,
        model="Apple Paravirtual device",
    )


def throttling() -> DoctorBundle:
    """A MacBook Pro with an M5 Pro on its battery, saving power and held back by heat. Its Python calls macOS 26
    "16.0"."""
    hot = _macmon(clock=600, active=0.98, scaled=0.31)
    return mac(
        chip="Apple M5 Pro",
        levels=(("Super", 5), ("Performance", 10)),
        gpu_cores=20,
        memory_gib=24,
        macos="26.1",
        python="3.12.8",
        batt=BATTERY,
        therm=WARNINGS,
        low_power=1,
        swapouts=91_223,
        macmon=[hot, hot],
    )


MACHINES: dict[str, Callable[[], DoctorBundle]] = {
    "m1-8gb": m1_8gb,
    "m4-max": m4_max,
    "m3-ultra": m3_ultra,
    "hosted-runner": hosted_runner,
    "throttling": throttling,
}


def names() -> list[str]:
    return [*MACHINES, *sorted(path.stem for path in OWNERS.glob("*.json"))]


def load(name: str | Path) -> DoctorBundle:
    """One of ours, one that an owner sent, or the bundle in a file."""
    if name in MACHINES:
        return MACHINES[str(name)]()
    path = Path(name) if Path(name).suffix else OWNERS / f"{name}.json"
    return msgspec.json.decode(path.read_bytes(), type=DoctorBundle)


def _displays(model: str, cores: int | None) -> str:
    gpu = {
        "_name": "kHW_AppleM1Item" if model == "Apple M1" else model,
        "spdisplays_mtlgpufamilysupport": "spdisplays_metal3",
        "sppci_device_type": "spdisplays_gpu",
        "sppci_model": model,
        **({"sppci_cores": str(cores)} if cores else {}),
    }
    return json.dumps({"SPDisplaysDataType": [gpu]}, indent=2)


def _settings(low_power: int) -> str:
    return (
        "System-wide power settings:\nCurrently in use:\n standby              1\n Sleep On Power Button 1\n"
        f" lowpowermode         {low_power}\n displaysleep         10\n sleep                1\n"
    )


def _vm_stat(memory_gib: int, swapouts: int) -> str:
    free = memory_gib * GIB // 16384 // 3
    return (
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
        f"Pages free:                        {free:>12}.\nPages active:                      {free:>12}.\n"
        f"Pages wired down:                  {free // 4:>12}.\n"
        f'"Translation faults":               {91723422:>12}.\nPageins:                           {4711234:>12}.\n'
        f"Swapins:                           {swapouts // 2:>12}.\nSwapouts:                          {swapouts:>12}.\n"
    )


def _pressure(memory_gib: int) -> str:
    size = memory_gib * GIB
    return (
        f"The system has {size} ({size // 16384} pages with a page size of 16384).\n"
        "System-wide memory free percentage: 64%\n"
    )


def _macmon(*, clock: int, active: float, scaled: float) -> dict[str, Any]:
    return {
        "timestamp": "2026-11-16T08:12:31.000000+00:00",
        "temp": {"cpu_temp_avg": 61.2, "gpu_temp_avg": 58.4},
        "memory": {"ram_total": 2**36, "ram_usage": 2**34, "swap_total": 0, "swap_usage": 0},
        "ecpu_usage": [1020, 0.21],
        "pcpu_usage": [3810, 0.34],
        "gpu_usage": [clock, scaled],
        "ecpu_freq_mhz": 1020,
        "pcpu_freq_mhz": 3810,
        "gpu_freq_mhz": clock,
        "gpu_active_ratio": active,
        "gpu_scaled_ratio": scaled,
        "cpu_power": 6.25,
        "gpu_power": 31.5,
        "ane_power": 0.0,
        "all_power": 37.75,
        "sys_power": 49.0,
        "ram_power": 1.25,
        "gpu_ram_power": 0.5,
    }


def _packages(metal_plugin: bool) -> dict[str, str]:
    plugin = {"tensorflow-metal": "1.2.0", "tensorflow": "2.19.1"} if metal_plugin else {"tensorflow": "2.21.0"}
    return {"torch": "2.13.0", "jax": "0.10.2", "mlx": "0.32.4", **plugin}


def _probes(chip: str, *, virtual: bool, metal_plugin: bool) -> dict[str, Any]:
    cpu = DeviceReport(word="cpu", name="CPU", present=True)
    metal = DeviceReport(word="mps", name=chip, present=True)
    absent = DeviceReport(word="mps", present=False, reason="Metal can't be used here.")
    present = {"torch": not virtual, "tensorflow": metal_plugin, "jax": False, "mlx": True}
    return {
        name: Probe(framework=name, versions={}, devices=(cpu, metal if there else absent))
        for name, there in present.items()
    }


def _machine(
    chip: str,
    levels: tuple[tuple[str, int], ...],
    model: str,
    gpu_cores: int | None,
    memory_gib: int,
    macos: str,
    *,
    virtual: bool,
) -> Machine:
    cores = sum(count for _, count in levels)
    return Machine(
        chip=chip,
        architecture="arm64",
        physical_cores=cores,
        logical_cores=cores,
        usable_cores=cores,
        memory_bytes=memory_gib * GIB,
        os=f"macOS {macos}",
        gpus=(Gpu(name=model, cores=gpu_cores),),
        clusters=tuple(f"{count} {name}" for name, count in levels),
        virtual_machine=virtual,
    )

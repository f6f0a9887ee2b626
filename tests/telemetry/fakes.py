"""Stand-ins for sensors: one that plays a script, tools of a Mac that print what the test says, and zeus's monitor."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from metalmark.telemetry.base import Reading
from metalmark.telemetry.macmon import MacmonSensor
from metalmark.telemetry.powermetrics import PowermetricsSensor

PATIENCE_S = 60.0

HEAD = "import json, os, signal, sys, time\nopen(__file__ + '.pid', 'w').write(str(os.getpid()))\n"
MACMON_LINE: dict[str, Any] = {
    "timestamp": "2026-11-01T10:00:00.000000+00:00",
    "temp": {"cpu_temp_avg": 61.5, "gpu_temp_avg": 58.25},
    "ecpu_freq_mhz": 1200,
    "pcpu_freq_mhz": 3504,
    "gpu_freq_mhz": 1398,
    "gpu_active_ratio": 0.98,
    "gpu_scaled_ratio": 0.61,
    "cpu_power": 4.5,
    "gpu_power": 12.25,
    "ane_power": 0.0,
    "all_power": 16.75,
    "sys_power": 31.5,
    "ram_power": 1.5,
}
MACMON = f"print({json.dumps(json.dumps(MACMON_LINE))}, flush=True)\n"

PLIST = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
<key>elapsed_ns</key><integer>500000000</integer>
<key>processor</key>
<dict>
<key>clusters</key>
<array>
<dict><key>name</key><string>E0-Cluster</string><key>freq_hz</key><real>1.5e+09</real></dict>
<dict><key>name</key><string>M0-Cluster</string><key>freq_hz</key><real>4.25e+09</real></dict>
</array>
<key>cpu_energy</key><integer>2000</integer>
<key>cpu_power</key><real>4000</real>
<key>gpu_energy</key><integer>6000</integer>
<key>gpu_power</key><real>12000</real>
<key>ane_energy</key><integer>0</integer>
<key>ane_power</key><real>0</real>
<key>combined_power</key><real>16000</real>
</dict>
<key>thermal_pressure</key><string>Moderate</string>
<key>gpu</key>
<dict>
<key>freq_hz</key><real>1398</real>
<key>idle_ratio</key><real>0.25</real>
<key>gpu_energy</key><integer>6000</integer>
</dict>
</dict>
</plist>
"""
POWERMETRICS = f"sys.stdout.write({PLIST!r} + chr(0)); sys.stdout.flush()\n"


def steadily(sample: str) -> str:
    return f"while True:\n    {sample.strip()}\n    time.sleep(0.005)\n"


def tool(folder: Path, code: str, name: str = "tool.py") -> tuple[str, ...]:
    """A command that runs this code, whatever arguments follow, and leaves its process id beside it."""
    path = folder / name
    path.write_text(HEAD + code)
    return (sys.executable, str(path))


def macmon(
    folder: Path, code: str = steadily(MACMON), *, silence_s: float = PATIENCE_S, start_s: float = PATIENCE_S
) -> MacmonSensor:
    command = tool(folder, code, "macmon.py")
    return MacmonSensor(command, silence_s=silence_s, start_s=start_s, kinds=lambda: ("Performance", "Efficiency"))


def powermetrics(
    folder: Path, code: str = steadily(POWERMETRICS), *, silence_s: float = PATIENCE_S, start_s: float = PATIENCE_S
) -> PowermetricsSensor:
    return PowermetricsSensor(tool(folder, code, "powermetrics.py"), silence_s=silence_s, start_s=start_s, root=True)


def on_metal() -> bool:
    """Not in a virtual machine, wherever the tests run."""
    return False


class ZeusMonitor:
    """Counts 1500 mJ of the CPU's and 500 of the GPU's a call; this chip has no meter for its memory."""

    def __init__(self) -> None:
        self.calls = 0

    def get_cumulative_energy(self) -> SimpleNamespace:
        self.calls += 1
        return SimpleNamespace(cpu_total_mj=10_000 + 1500 * self.calls, gpu_mj=500 * self.calls, ane_mj=0, dram_mj=None)


class ZeusWindows:
    """An older version: windows alone."""

    def __init__(self) -> None:
        self.open: set[str] = set()

    def begin_window(self, label: str) -> None:
        assert label not in self.open
        self.open.add(label)

    def end_window(self, label: str) -> SimpleNamespace:
        self.open.remove(label)
        return SimpleNamespace(cpu_total_mj=1500, gpu_mj=500, ane_mj=0, dram_mj=None)


BATT = "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t72%; discharging; 3:15 remaining present: true\n"
SETTINGS = "System-wide power settings:\nCurrently in use:\n standby       1\n lowpowermode  1\n sleep         1\n"
THERM = "Note: No thermal warning level has been recorded\nNote: No performance warning level has been recorded\n"
VM_STAT = (
    "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPageins:  900.\nSwapins:  {0}.\nSwapouts:  {1}.\n"
)
PRESSURE = (
    "The system has 17179869184 (1048576 pages with a page size of 16384).\nSystem-wide memory free percentage: 64%\n"
)


class MacTools:
    """What `run_tool` would answer on a Mac; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, argv: tuple[str, ...], timeout_s: float) -> str:
        assert timeout_s > 0
        self.asked.append(tuple(argv))
        swapped = VM_STAT.format(100 + 10 * len(self.asked), 200)
        answers = {"batt": BATT, "-g": SETTINGS, "therm": THERM, "/usr/bin/vm_stat": swapped, "-Q": PRESSURE}
        return answers[argv[-1]]


HANG: Final = object()
"""A step of the script: `read` does not return until `release` is set."""


class FakeSensor:
    """Each step answers one `read`: an exception is raised, HANG hangs, anything else is returned as it is."""

    source = "script"

    def __init__(self, steps: Iterable[Any], *, name: str = "fake", unavailable: str | None = None) -> None:
        self.name = name
        self.spent = threading.Event()
        """Set when the script is over and all that it gave has been read."""
        self.hanging = threading.Event()
        self.release = threading.Event()
        self.closed = threading.Event()
        self._steps = iter(steps)
        self._unavailable = unavailable

    def available(self) -> str | None:
        return self._unavailable

    def read(self) -> list[Reading]:
        step = next(self._steps, None)
        if step is None:
            self.spent.set()
            return []
        if step is HANG:
            self.hanging.set()
            self.release.wait()
            return []
        if isinstance(step, BaseException):
            raise step
        return step  # type: ignore[no-any-return]  # nonsense is what it is for

    def close(self) -> None:
        self.closed.set()

"""ZeusSensor: the energy of an Apple chip's parts, through zeus-apple-silicon. Needs no root."""

import importlib
from collections.abc import Callable
from typing import Any

from metalmark.machine.apple import is_virtual_mac, read_sysctl
from metalmark.model.run import Absent
from metalmark.telemetry.base import MODELLED, Reading, Unit, number

_FIELDS = {"cpu_energy": "cpu_total_mj", "gpu0_energy": "gpu_mj", "ane_energy": "ane_mj", "ram_energy": "dram_mj"}
_WINDOW = "metalmark"


def in_virtual_machine() -> bool:
    return is_virtual_mac(read_sysctl()) is True


class ZeusSensor:
    """Reads the counters of zeus where its version has them, else adds up one window after another."""

    name = "zeus"
    source = "zeus-apple-silicon" + MODELLED

    def __init__(self, monitor: Any = None, is_virtual: Callable[[], bool] = in_virtual_machine) -> None:
        """`monitor` stands in for an AppleEnergyMonitor in a test."""
        self._monitor = monitor
        self._is_virtual = is_virtual
        self._in_window = False
        self._start_mj: dict[str, float] = {}
        self._total_mj: dict[str, float] = {}

    def available(self) -> str | None:
        if self._is_virtual():
            # There its counters are missing or stand still, and opening them is not known to be safe.
            return "zeus is left out in a virtual machine"
        if self._monitor is None:
            try:
                self._monitor = importlib.import_module("zeus_apple_silicon").AppleEnergyMonitor()
            except ImportError:
                return "zeus-apple-silicon is not installed"
            except Exception as error:  # noqa: BLE001  whatever it says of this chip is the reason
                return f"zeus-apple-silicon does not work here: {error}"
        if not self._counts and not self._in_window:
            self._monitor.begin_window(_WINDOW)
            self._in_window = True
        return None

    def read(self) -> list[Reading]:
        if self._monitor is None:
            return []
        energy_mj = self._counters() if self._counts else self._windows()
        return [
            Reading(
                name=name,
                unit=Unit.JOULES,
                value=Absent("this chip does not report it") if value is None else value / 1000,
            )
            for name, value in energy_mj.items()
        ]

    def close(self) -> None:
        monitor, self._monitor = self._monitor, None
        if monitor is not None and self._in_window:
            self._in_window = False
            monitor.end_window(_WINDOW)

    @property
    def _counts(self) -> bool:
        return hasattr(self._monitor, "get_cumulative_energy")

    def _counters(self) -> dict[str, float | None]:
        totals_mj = _fields(self._monitor.get_cumulative_energy())
        return {
            name: None if total_mj is None else total_mj - self._start_mj.setdefault(name, total_mj)
            for name, total_mj in totals_mj.items()
        }

    def _windows(self) -> dict[str, float | None]:
        used_mj = _fields(self._monitor.end_window(_WINDOW))
        self._monitor.begin_window(_WINDOW)
        for name, value in used_mj.items():
            self._total_mj[name] = self._total_mj.get(name, 0.0) + (value or 0.0)
        return {name: None if value is None else self._total_mj[name] for name, value in used_mj.items()}


def _fields(metrics: object) -> dict[str, float | None]:
    return {name: number(getattr(metrics, field, None)) for name, field in _FIELDS.items()}

"""A tool that prints a lot of anything is read in a moment.

By steps that grow with the square of the length it would take hours: the limit on each test is there for that.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metalmark.doctor import macos
from metalmark.doctor.recognise import read_error, recognise
from metalmark.machine import apple, cpu
from metalmark.machine.cgroup import parse_membership
from metalmark.machine.cpu import flags_of
from metalmark.machine.identity import describe_python
from metalmark.machine.tools import to_count, to_name
from metalmark.telemetry import macmon, powermetrics, system

MANY = 2**20
ENOUGH = MANY // 4
"""Where there is much to try: the square of it is still hours."""


def banner(text: str) -> str:
    return describe_python(implementation="CPython", version="3.12.4", built_for="x", banner=text, free_threaded=False)


READERS: dict[str, Callable[[str], object]] = {
    "sysctl": apple.parse_sysctl,
    "sysctl of the doctor": macos.read_sysctl,
    "swap": macos.parse_swap,
    "displays": apple.parse_displays,
    "battery": apple.parse_power,
    "settings": apple.parse_low_power,
    "heat": apple.parse_heat,
    "pressure": apple.parse_free_memory,
    "vm_stat": system.parse_vm_stat,
    "macmon": macmon.parse_line,
    "powermetrics": powermetrics.parse_line,
    "cpuinfo": cpu.parse_cpuinfo,
    "flags": flags_of,
    "cgroup": parse_membership,
    "python": banner,
    "name": to_name,
    "count": to_count,
    "known errors": recognise,
}
UNITS = [
    "/",
    "\\",
    "~",
    " ",
    "\t",
    "\n",
    "1",
    "a",
    ".",
    "-",
    "_",
    "'",
    "=",
    "|",
    ":",
    "a.",
    "1.",
    " -",
    "\n -",
    "CPU_",
    "MPS",
]
BEGINNINGS = [
    "vm.swapusage: total = 1",
    "total = 1",
    "total",
    "Now drawing from '",
    "Now drawing from 'AC Power'\n -",
    " lowpowermode",
    "CPU_Speed_Limit",
    "CPU_",
    "Thermal Warning Level",
    "free percentage:",
    "free percentage: 1.",
    "page size of 1 bytes\nSwapins:",
    "page size of 1 bytes\nSwapins: 1",
    "| packaged by ",
    "hw.",
    "flags : ",
    "0:cpu:/",
    '{"a": "',
    "<plist>",
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("reader", READERS)
def test_a_megabyte_of_one_thing(reader: str) -> None:
    for unit in UNITS:
        READERS[reader](unit * (MANY // len(unit)))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("reader", [reader for reader in READERS if reader != "known errors"])
def test_a_sound_beginning_and_then_nothing_but_spaces_or_digits(reader: str) -> None:
    for beginning in BEGINNINGS:
        for unit in (" ", "1"):
            READERS[reader](beginning + unit * ENOUGH + "\0")
            READERS[reader]((beginning + unit) * (ENOUGH // (len(beginning) + 1)))


@pytest.mark.timeout(60)
def test_a_long_error_on_the_command_line() -> None:
    text = "/" * 100_000 + " failed"
    assert read_error(text) == text

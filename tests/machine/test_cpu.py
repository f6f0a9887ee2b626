"""The processor's name and what this process may use of it."""

from __future__ import annotations

import os
import sys

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.doctor.readers import read_process
from metalmark.machine import cpu
from metalmark.machine.cgroup import Limits
from metalmark.scrub import printable

X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
model\t\t: 17
model name\t: AMD EPYC 9354   32-Core Processor
flags\t\t: fpu vme de: pse

processor\t: 1
model name\t: something else
"""
GRACE = """processor\t: 0
BogoMIPS\t: 2000.00
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd4f
"""
BOARD = """processor\t: 0
CPU implementer\t: 0x41
CPU part\t: 0xd08

Hardware\t: BCM2711
Serial\t\t: 10000000deadbeef
Model\t\t: Raspberry Pi 4 Model B Rev 1.4
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (X86, "AMD EPYC 9354 32-Core Processor"),
        (GRACE, "Arm Neoverse V2"),
        (BOARD, "Raspberry Pi 4 Model B Rev 1.4"),
        ("", None),
        ("model name\t:\n", None),
    ],
)
def test_names(text: str, name: str | None) -> None:
    assert cpu.parse_cpuinfo(text) == name


@given(st.one_of(st.text(), st.binary().map(lambda data: data.decode("utf-8", "replace"))))
def test_any_text_gives_a_name_or_none(text: str) -> None:
    name = cpu.parse_cpuinfo(f"model name : {text}")
    assert name is None or name == printable(name).strip() != ""


def test_cores_of_this_machine() -> None:
    logical = cpu.logical_cores()
    assert logical is not None
    assert logical >= (cpu.physical_cores() or 1)
    assert cpu.usable_cores(Limits(cores=1)) == 1
    assert cpu.usable_cores(Limits()) in range(1, logical + 1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process choose its processors")
def test_affinity_bounds_the_usable_cores() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cpu.visible_cores() == 1
        assert read_process()["visible_cores"] == 1
        assert read_process()["logical_cores"] == cpu.logical_cores()
        assert cpu.usable_cores(Limits(cores=64)) == 1
    finally:
        os.sched_setaffinity(0, before)


def test_memory_is_the_smaller_of_machine_and_container() -> None:
    total = psutil.virtual_memory().total
    assert cpu.memory_bytes(Limits()) == total
    assert cpu.memory_bytes(Limits(memory_bytes=2**63 - 4096)) == total
    assert cpu.memory_bytes(Limits(memory_bytes=2**20)) == 2**20


def test_the_system_has_a_name_and_no_builder_s_suffix() -> None:
    name = cpu.operating_system()
    assert name.startswith("macOS ") if sys.platform == "darwin" else "Linux" in name
    assert os.uname().nodename not in name.split()
    assert name.split()[-1].replace(".", "").isdigit()

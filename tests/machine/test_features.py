"""Instruction sets, virtual machines, containers and Python builds, from what the systems print."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.machine import apple, cpu
from metalmark.machine.apple import parse_sysctl
from metalmark.machine.cgroup import in_container
from metalmark.machine.identity import describe_python, identify

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"

SAPPHIRE = "processor : 0\nflags\t\t: fpu sse2 avx2 avx512f avx512_bf16 avx512_fp16 amx_tile amx_bf16 hypervisor\n"
OLD = "flags : fpu sse2\n\nprocessor: 1\nflags : fpu avx2 hypervisor\n"
GRACE = "processor : 0\nFeatures : fp asimd asimdhp sve bf16 i8mm\nCPU implementer : 0x41\n"

M2 = """hw.optional.AdvSIMD: 1
hw.optional.amx_version: 2
hw.optional.arm.FEAT_BF16: 1
hw.optional.arm.FEAT_I8MM: 1
hw.optional.arm.FEAT_SME: 0
hw.optional.neon_fp16: 1
kern.hv_vmm_present: 0
"""


@pytest.mark.parametrize(
    ("cpuinfo", "names", "is_virtual"),
    [
        (SAPPHIRE, ("avx2", "avx512", "amx", "bf16", "fp16"), True),
        (OLD, (), False),
        (GRACE, ("neon", "sve", "bf16", "fp16", "int8"), None),
        ("", (), None),
        ("flags", (), None),
    ],
    ids=["amx", "old", "arm", "empty", "cut"],
)
def test_linux(cpuinfo: str, names: tuple[str, ...], is_virtual: bool | None) -> None:
    assert cpu.features_of_linux(cpuinfo) == names
    assert cpu.is_virtual_linux(cpuinfo) is is_virtual


def test_a_mac_s_optional_features() -> None:
    sysctl = parse_sysctl(M2)
    assert cpu.features_of_mac(sysctl) == ("amx", "neon", "bf16", "fp16", "int8")
    assert apple.is_virtual_mac(sysctl) is False
    assert apple.is_virtual_mac({"kern.hv_vmm_present": "1"}) is True
    assert apple.is_virtual_mac({}) is None
    assert cpu.features_of_mac({"hw.optional.avx2_0": "1", "hw.optional.avx512f": "0"}) == ("avx2",)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the recorded outputs are not beside this checkout")
def test_recorded_features_of_an_intel_mac() -> None:
    text = (SAMPLES / "sysctl" / "intel_osx-10.14.6_sysctl-a.out").read_text(errors="replace")
    assert cpu.features_of_mac(parse_sysctl(text)) == ("avx2",)


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    cpu.features_of_linux(f"flags : {text}")
    cpu.is_virtual_linux(text)
    assert cpu.features_of_mac({"hw.optional.neon": text}) in ((), ("neon",))
    assert apple.is_virtual_mac({"kern.hv_vmm_present": f"x{text}"}) is None


def root(folder: Path, group: str | None, *marks: str) -> Path:
    if group is not None:
        (folder / "proc" / "1").mkdir(parents=True)
        (folder / "proc" / "1" / "cgroup").write_text(group)
    for mark in marks:
        (folder / mark).parent.mkdir(exist_ok=True)
        (folder / mark).touch()
    return folder


@pytest.mark.parametrize(
    ("group", "marks", "expected"),
    [
        ("0::/init.scope\n", (), False),
        ("0::/\n", (".dockerenv",), True),
        ("0::/\n", ("run/.containerenv",), True),
        ("4:memory:/docker/0123\n", (), True),
        ("0::/kubepods.slice/kubepods-burstable.slice\n", (), True),
        (None, (), None),
    ],
)
def test_containers(tmp_path: Path, group: str | None, marks: tuple[str, ...], expected: bool | None) -> None:
    assert in_container(root(tmp_path, group, *marks)) is expected


CONDA = "3.11.9 | packaged by conda-forge | (main, Apr 19 2024, 18:45:13) [Clang 16.0.6 ]"


def test_python_says_what_it_was_built_for_and_by_whom() -> None:
    text = describe_python(
        implementation="CPython",
        version="3.11.9",
        built_for="macosx-10.9-x86_64",
        banner=CONDA,
        free_threaded=False,
    )
    assert text == "CPython 3.11.9 for macosx-10.9-x86_64, packaged by conda-forge"


def test_a_free_threaded_python_says_so() -> None:
    text = describe_python(
        implementation="CPython",
        version="3.14.0",
        built_for="linux-x86_64",
        banner="3.14.0 (main)",
        free_threaded=True,
    )
    assert text == "CPython 3.14.0 for linux-x86_64, free-threaded"


def test_this_python() -> None:
    build = identify().python_build
    assert build is not None
    assert " for " in build
    assert "/" not in build

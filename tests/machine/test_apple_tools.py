"""What Macs print, read on any machine: written here, and recorded where the recordings lie beside the checkout."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.machine import apple
from metalmark.machine.apple import COMMANDS, SYSCTL_KEYS
from metalmark.model.run import Absent, Gpu
from metalmark.scrub import printable

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the recorded outputs are not beside this checkout")

SYSCTL = """machdep.cpu.brand_string: Apple M5 Max
hw.memsize: 68719476736
hw.nperflevels: 2
hw.perflevel0.physicalcpu: 6
hw.perflevel0.name: Super
hw.perflevel1.physicalcpu: 12
hw.perflevel1.name: Performance
kern.boottime: { sec = 1, usec = 2 } Mon Jun 22 07:34:39 2020
sysctl: unknown oid 'hw.perflevel2.physicalcpu'
"""


def displays(*entries: object) -> str:
    return json.dumps({"SPDisplaysDataType": list(entries)})


def test_sysctl_keeps_keys_and_drops_messages() -> None:
    values = apple.parse_sysctl(SYSCTL)
    assert values["machdep.cpu.brand_string"] == "Apple M5 Max"
    assert values["kern.boottime"].endswith("07:34:39 2020")
    assert "sysctl" not in values


def test_clusters_carry_the_names_the_chip_gives() -> None:
    assert apple.clusters(apple.parse_sysctl(SYSCTL)) == ("6 Super", "12 Performance")


def test_clusters_without_names_are_numbered() -> None:
    assert apple.clusters({"hw.perflevel0.physicalcpu": "8", "hw.perflevel1.physicalcpu": "x"}) == ("8 level 0",)


def test_displays_give_model_and_cores_and_nothing_of_the_screen() -> None:
    text = displays(
        {
            "_name": "kHW_AppleM1Item",
            "sppci_model": "Apple M1",
            "sppci_cores": "7",
            "spdisplays_ndrvs": [{"_name": "Someone's Display", "_spdisplays_display-serial-number": "42"}],
        }
    )
    assert apple.parse_displays(text) == (Gpu(name="Apple M1", cores=7),)


def test_a_gpu_without_cores_is_still_a_gpu() -> None:
    text = displays({"sppci_model": "AMD Radeon Pro 5500M"}, {"_name": "no model"}, "no entry", None)
    assert apple.parse_displays(text) == (Gpu(name="AMD Radeon Pro 5500M"),)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"SPDisplaysDataType": {}}', "[" * 100_000])
def test_nonsense_instead_of_displays_is_a_reason(text: str) -> None:
    assert apple.parse_displays(text) == Absent("its answer can't be read: there is no list of GPUs in it")


@pytest.mark.parametrize("text", ['{"SPDisplaysDataType": []}', '{"SPDisplaysDataType": [[]]}'])
def test_no_displays(text: str) -> None:
    assert apple.parse_displays(text) == ()


@given(st.one_of(st.text(), st.binary().map(lambda data: data.decode("utf-8", "replace"))))
def test_any_text_is_read(text: str) -> None:
    apple.clusters(apple.parse_sysctl(text))
    apple.clusters({"hw.perflevel0.physicalcpu": text, "hw.perflevel0.name": text})
    apple.parse_displays(text)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=5), scalars)
def test_any_json_is_read_and_can_be_stored(model: object, cores: object) -> None:
    gpus = apple.parse_displays(displays({"sppci_model": model, "sppci_cores": cores}))
    assert not isinstance(gpus, Absent)
    for gpu in gpus:
        assert gpu.name == printable(gpu.name).strip() != ""
        assert msgspec.json.encode(gpu)
        assert gpu.cores is None or 0 <= gpu.cores < 2**63


def test_a_lone_surrogate_does_not_reach_the_record() -> None:
    gpus = apple.parse_displays('{"SPDisplaysDataType": [{"sppci_model": "Apple \\ud800 M1"}]}')
    assert isinstance(gpus, tuple)
    assert msgspec.json.encode(gpus[0])


@pytest.mark.skipif(sys.platform != "darwin", reason="needs a Mac's sysctl and system_profiler")
def test_a_real_mac_answers() -> None:
    assert apple.read_sysctl()["hw.memsize"].isdigit()
    assert isinstance(apple.read_displays(), tuple)


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has these tools")
def test_without_the_tool_there_is_a_reason() -> None:
    assert apple.read_displays() == Absent("system_profiler could not be started: No such file or directory")


def test_three_kinds_of_cores() -> None:
    """No chip that is sold has them yet; macOS counts them already (hw.nperflevels)."""
    values = apple.parse_sysctl(
        "hw.nperflevels: 3\nhw.perflevel0.physicalcpu: 4\nhw.perflevel0.name: Super\n"
        "hw.perflevel1.physicalcpu: 8\nhw.perflevel1.name: Performance\n"
        "hw.perflevel2.physicalcpu: 4\nhw.perflevel2.name: Efficiency\n"
    )
    assert apple.clusters(values) == ("4 Super", "8 Performance", "4 Efficiency")
    assert {"hw.perflevel2.name", "hw.perflevel2.physicalcpu"} <= set(SYSCTL_KEYS)


@pytest.mark.parametrize(("text", "version"), [("26.1", "26.1"), ("15.6.1", "15.6.1"), ("", None), ("twelve", None)])
def test_the_version_is_the_kernel_s(text: str, version: str | None) -> None:
    assert apple.macos_version({"kern.osproductversion": text}) == version


def test_every_tool_is_started_by_its_full_path_and_asked_once_in_one_place() -> None:
    assert all(argv[0].startswith(("/usr/bin/", "/usr/sbin/")) for argv in COMMANDS.values())
    assert len(set(COMMANDS.values())) == len(COMMANDS)
    source = Path(apple.__file__).parents[1]
    tools = {argv[0] for argv in COMMANDS.values()}
    elsewhere = [
        path.name
        for path in source.rglob("*.py")
        if path != source / "machine" / "apple.py" and any(f'"{tool}"' in path.read_text() for tool in tools)
    ]
    assert elsewhere == []


@needs_samples
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SPDisplaysDataType_m1_7core_kHW_name.json", Gpu(name="Apple M1", cores=7)),
        ("SPDisplaysDataType_m1pro_3displays.json", Gpu(name="Apple M1 Pro", cores=16)),
        ("SPDisplaysDataType_m4_trimmed.json", Gpu(name="Apple M4", cores=10)),
    ],
)
def test_recorded_displays(name: str, expected: Gpu) -> None:
    assert apple.parse_displays((SAMPLES / "system_profiler" / name).read_text()) == (expected,)


@needs_samples
@pytest.mark.parametrize(
    ("name", "chip", "clusters"),
    [
        ("m1pro_grep_cpu.txt", "Apple M1 Pro", ("8 level 0", "2 level 1")),
        ("m2pro_hw_with_unknown_oid.txt", "Apple M2 Pro", ("8 level 0", "4 level 1")),
    ],
)
def test_recorded_sysctl(name: str, chip: str, clusters: tuple[str, ...]) -> None:
    values = apple.parse_sysctl((SAMPLES / "sysctl" / name).read_text())
    assert values["machdep.cpu.brand_string"] == chip
    assert apple.clusters(values) == clusters


@needs_samples
def test_recorded_sysctl_of_an_intel_mac() -> None:
    values = apple.parse_sysctl((SAMPLES / "sysctl" / "intel_osx-10.14.6_sysctl-a.out").read_text(errors="replace"))
    assert values["machdep.cpu.brand_string"].startswith("Intel(R) Core(TM)")
    assert apple.clusters(values) == ()

"""The machine as a whole."""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import msgspec
import pytest

from metalmark.machine import apple, identity
from metalmark.machine.identity import as_mac, identify, read_identity, with_peaks
from metalmark.machine.nvidia import Nvml, describe, read_gpus
from metalmark.model.run import Absent, Gpu, Machine, Peak

PLAIN = Machine(
    chip="arm64",
    architecture="arm64",
    physical_cores=None,
    logical_cores=10,
    usable_cores=10,
    memory_bytes=17_179_869_184,
    os="macOS 15.1",
)


def test_this_machine() -> None:
    machine = identify()
    assert machine.chip
    assert machine.memory_bytes > 2**26
    assert machine.usable_cores is not None
    assert machine.usable_cores >= 1
    assert identify() is machine


def test_it_survives_the_record_s_encoding() -> None:
    machine = identify()
    assert msgspec.json.decode(msgspec.json.encode(machine), type=Machine) == machine


def test_it_names_neither_owner_nor_host_nor_path() -> None:
    text = msgspec.json.encode(identify()).decode()
    names = {socket.gethostname(), socket.gethostname().split(".")[0], getpass.getuser(), os.uname().nodename}
    words = set(re.findall(r"[\w.-]+", text))
    assert not words & {name for name in names if len(name) > 2 and name != "localhost"}
    assert os.path.expanduser("~") not in text or os.path.expanduser("~") == "/"
    assert not re.search(r'"/', text)


def test_a_mac_says_more_about_itself() -> None:
    sysctl = {
        "machdep.cpu.brand_string": "Apple M1 Pro",
        "hw.memsize": "34359738368",
        "hw.physicalcpu": "10",
        "hw.logicalcpu": "10",
        "sysctl.proc_translated": "0",
        "hw.perflevel0.physicalcpu": "8",
        "hw.perflevel0.name": "Performance",
        "hw.perflevel1.physicalcpu": "2",
        "hw.perflevel1.name": "Efficiency",
        "hw.optional.amx_version": "2",
        "hw.optional.arm.FEAT_BF16": "1",
        "hw.optional.arm.FEAT_SME": "0",
        "kern.hv_vmm_present": "0",
    }
    gpus = (Gpu(name="Apple M1 Pro", cores=16),)
    assert as_mac(PLAIN, sysctl, gpus) == Machine(
        chip="Apple M1 Pro",
        architecture="arm64",
        physical_cores=10,
        logical_cores=10,
        usable_cores=10,
        memory_bytes=34_359_738_368,
        os="macOS 15.1",
        gpus=gpus,
        clusters=("8 Performance", "2 Efficiency"),
        variant="16-core GPU",
        features=("amx", "bf16"),
        virtual_machine=False,
    )


def test_a_mac_whose_tools_fail_keeps_what_is_known() -> None:
    assert as_mac(PLAIN, {}, ()) == PLAIN


@pytest.fixture
def no_mac_is_remembered() -> Iterator[None]:
    """What a pretended Mac said must not be this machine's answer in the next test, nor the other way round."""
    for remembered in (apple.read_sysctl, read_identity):
        remembered.cache_clear()
    yield
    for remembered in (apple.read_sysctl, read_identity):
        remembered.cache_clear()


@pytest.mark.usefixtures("no_mac_is_remembered")
def test_a_system_profiler_that_hangs_is_named_and_waited_for_five_seconds_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, float] = {}

    def run_tool(argv: Sequence[str], timeout_s: float, *, partial: bool = False) -> str | Absent:
        asked[argv[0]] = timeout_s
        return "machdep.cpu.brand_string: Apple M4\n" if partial else Absent("system_profiler gave no answer")

    monkeypatch.setattr(identity, "sys", SimpleNamespace(platform="darwin", version=sys.version))
    monkeypatch.setattr(apple, "run_tool", run_tool)
    found = read_identity()
    assert found.machine.chip == "Apple M4"
    assert found.failed_tools == {"system_profiler": "system_profiler gave no answer"}
    assert asked["/usr/sbin/system_profiler"] <= 5


def test_the_version_is_sysctl_s_where_it_tells() -> None:
    """A Python that was built with an older SDK is told 16.0 on macOS 26."""
    told = msgspec.structs.replace(PLAIN, os="macOS 16.0")
    assert as_mac(told, {"kern.osproductversion": "26.1"}, ()).os == "macOS 26.1"
    assert as_mac(told, {"kern.osproductversion": "?"}, ()).os == "macOS 16.0"


def test_rosetta_is_told_apart_and_the_chip_keeps_its_name() -> None:
    sysctl = {"machdep.cpu.brand_string": "VirtualApple @ 2.50GHz", "sysctl.proc_translated": "1"}
    machine = as_mac(msgspec.structs.replace(PLAIN, architecture="x86_64"), sysctl, (Gpu(name="Apple M2", cores=8),))
    assert machine.chip == "Apple M2"
    assert machine.architecture == "x86_64 under Rosetta"


def test_each_gpu_has_its_peak_or_the_reason_why_not() -> None:
    gpus = (Gpu(name="Apple M2", cores=8), Gpu(name="Radeon"))
    known, unknown = with_peaks(msgspec.structs.replace(PLAIN, gpus=gpus)).gpus
    assert isinstance(known.peak, Peak)
    assert known.peak.variant == "8-core GPU"
    assert unknown.peak == Absent("Radeon is not in the table of chips")


def test_peaks_survive_the_record_s_encoding() -> None:
    machine = with_peaks(msgspec.structs.replace(PLAIN, gpus=(Gpu(name="NVIDIA H200"), Gpu(name="Radeon"))))
    assert msgspec.json.decode(msgspec.json.encode(machine), type=Machine) == machine


def test_a_machine_recorded_before_these_fields_is_still_read() -> None:
    old = msgspec.json.decode(msgspec.json.encode(msgspec.structs.replace(PLAIN, gpus=(Gpu(name="NVIDIA T4"),))))
    for name in ("variant", "features", "virtual_machine", "container", "python_build"):
        del old[name]
    del old["gpus"][0]["peak"]
    machine = msgspec.convert(old, Machine)
    assert machine.virtual_machine is None
    assert machine.gpus == (Gpu(name="NVIDIA T4"),)


def test_nvidia_gpus_of_this_machine() -> None:
    gpus = read_gpus()
    if not gpus:
        pytest.skip("no NVIDIA driver, or no GPU behind it")
    assert all(gpu.name and gpu.driver for gpu in gpus)


class Driver:
    """NVML of a machine whose second GPU shares the host's memory, and whose third has fallen off the bus."""

    class NVMLError(Exception):
        pass

    class Memory:
        total = 80 * 2**30

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index == 2:
            raise self.NVMLError
        return index

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Memory:  # noqa: N802
        if gpu == 1:
            raise self.NVMLError
        return self.Memory()

    def nvmlDeviceGetName(self, gpu: int) -> str:  # noqa: N802
        return ("NVIDIA H100", "NVIDIA GB10")[gpu]


def test_what_an_nvidia_gpu_does_not_tell_is_none() -> None:
    assert describe(Nvml(Driver())) == (
        Gpu(name="NVIDIA H100", memory_bytes=80 * 2**30, driver="580.1"),
        Gpu(name="NVIDIA GB10", driver="580.1"),
    )

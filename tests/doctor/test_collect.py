"""Collecting: with tools that work, that print nonsense, that hang for ever, and on this very machine."""

from __future__ import annotations

import os
import pwd
import runpy
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metalmark.backends.base import Probe
from metalmark.doctor import collect as collecting
from metalmark.doctor import readers
from metalmark.doctor.catalog import examine
from metalmark.doctor.collect import WAITING, Readers, ask_together, collect
from metalmark.doctor.macos import PARSERS, TOOLS, MacTool
from metalmark.doctor.scene import Nvidia, NvidiaGpu, OpenMp, Scene, ToolFailure
from metalmark.machine.identity import Identity
from metalmark.machine.nvidia import Nvml
from metalmark.model.run import Absent
from metalmark.report.text.doctor_page import document, page
from metalmark.runner.ask import NoAnswer
from tests.doctor.scenes import probe
from tests.doctor.test_macos import LAPTOP, SETTINGS
from tests.samples import MACHINE

LONG_S = 60.0

OUTPUTS = {
    "sysctl": "hw.memsize: 17179869184\nkern.osproductversion: 15.1\nsysctl.proc_translated: 0\n"
    "iogpu.wired_limit_mb: 0\n"
    "machdep.cpu.brand_string: Apple M2\nvm.swapusage: total = 1024.00M  used = 0.00M  free = 1024.00M\n",
    "memory_pressure -Q": "System-wide memory free percentage: 71%\n",
    "pmset -g batt": LAPTOP,
    "pmset -g therm": "Note: No thermal warning level has been recorded\n",
    "pmset -g": SETTINGS,
}


def silent(name: str, after_s: float, answer: object) -> None:
    """Nobody listens."""


def answering(outputs: dict[str, str | Absent]) -> Callable[..., str | Absent]:
    by_argv = {tool.argv: tool.name for tool in TOOLS}

    def run(argv: Sequence[str], timeout_s: float, *, partial: bool = False) -> str | Absent:  # noqa: ARG001
        return outputs[by_argv[tuple(argv)]]

    return run


def mac(**changes: Any) -> Readers:
    """A Mac in software: its tools answer with OUTPUTS, PyTorch's probe at once."""
    readings = Readers(
        read_here=lambda: {"platform": "darwin", "architecture": "arm64", "python": "3.12.4", "visible_cores": 8},
        frameworks=lambda: {"torch": (), "mlx": ("mlx",)},
        probe=lambda name: probe(name, "cpu", "mps", torch="2.13.0"),
        run=answering(dict(OUTPUTS)),
        read_nvidia=lambda: None,
        read_busy_cores=lambda: 0.5,
        read_installed=lambda: {"packages": {"torch": "2.13.0"}, "requirements": {}, "openmp": ()},
        read_disks=lambda: (),
        identify=lambda: Identity(machine=MACHINE),
        quiet_limit_s=LONG_S,
        limit_s=2 * LONG_S,
    )
    return replace(readings, **changes)


def test_a_mac_is_read_from_its_tools() -> None:
    scene = collect(silent, mac())
    assert scene.macos == "15.1"
    assert scene.memory_bytes == 17179869184
    assert scene.memory_free_percent == 71
    assert scene.power is not None
    assert scene.power.on_battery
    assert scene.low_power is True
    assert scene.busy_cores == 0.5
    assert scene.present("torch", "mps")
    assert scene.machine == MACHINE
    assert scene.troubles == ()


def test_progress_names_each_framework() -> None:
    heard: dict[str, object] = {}
    collect(lambda name, _, answer: heard.update({name: answer}), mac())
    assert isinstance(heard["torch"], Probe)
    assert "mlx" not in heard


garbage = st.one_of(
    st.just(""),
    st.text(max_size=80),
    st.binary(max_size=80).map(lambda data: data.decode("utf-8", "replace")),
    st.sampled_from(
        ["Befehl nicht gefunden\n", "vm.swapusage: total = 1e999M used = -5M", "free percentage: 99999999999999999%"]
    ),
    st.builds(Absent, st.just("it gave no answer within 5 s")),
)
tool_outputs = st.fixed_dictionaries(
    {
        name: st.one_of(garbage, st.integers(0, len(text)).map(lambda end, text=text: text[:end]))
        for name, text in OUTPUTS.items()
    }
)
answers = st.one_of(
    st.builds(NoAnswer, reason=st.text(max_size=40), detail=st.text(max_size=40)),
    st.builds(
        Probe,
        framework=st.just("torch"),
        versions=st.dictionaries(st.text(), st.text(), max_size=2),
        devices=st.just(()),
    ),
)


@settings(max_examples=80, deadline=None)
@given(
    outputs=tool_outputs,
    answer=answers,
    packages=st.dictionaries(st.sampled_from(["torch", "tensorflow", "tensorflow-metal", "keras", "jax"]), st.text()),
    variables=st.dictionaries(
        st.sampled_from(["PYTORCH_MPS_HIGH_WATERMARK_RATIO", "OMP_NUM_THREADS", "TF_XLA_FLAGS"]), st.text(max_size=9)
    ),
    requirement=st.text(max_size=20),
    driver=st.one_of(st.none(), st.builds(Absent, st.text()), st.builds(Nvidia, driver=st.text())),
    python=st.sampled_from(["3.12.4", "", "three"]),
)
def test_garbage_from_every_tool(
    outputs: dict[str, str | Absent],
    answer: Probe | NoAnswer,
    packages: dict[str, str],
    variables: dict[str, str],
    requirement: str,
    driver: Nvidia | Absent | None,
    python: str,
) -> None:
    """No check fails on it, every page can be written, and what could not be read is named."""
    seen = {"platform": "darwin", "architecture": "arm64", "python": python, "environment": variables}
    found = {"packages": packages, "requirements": {"torch": (requirement,)}, "openmp": ()}
    scene = collect(
        silent,
        mac(
            run=answering(outputs),
            read_here=lambda: dict(seen),
            probe=lambda _: answer,
            read_installed=lambda: found,
            read_nvidia=lambda: driver,
        ),
    )
    findings = examine(scene)
    assert not [finding for finding in findings if "doctor's own check" in finding.title]
    assert page(scene, findings)
    assert msgspec.json.encode(document(scene, findings))
    blamed = {trouble.tool for trouble in scene.troubles}
    silent_tools = {name for name, output in outputs.items() if isinstance(output, Absent) or not output.strip()}
    assert silent_tools <= blamed
    assert blamed <= {*PARSERS, "NVML"}
    assert {f"{tool} gave no usable answer" for tool in blamed} <= {finding.title for finding in findings}


@pytest.mark.parametrize("text", ["", "\0\1\2\xff", "Systemweite freie Speicherprozente: 7", "total = "])
def test_nonsense_is_blamed_on_its_tool(text: str) -> None:
    scene = collect(silent, mac(run=answering(dict.fromkeys(OUTPUTS, text))))
    assert {trouble.tool for trouble in scene.troubles} == set(OUTPUTS)


def test_a_tool_that_hangs_for_ever_is_ended_and_named() -> None:
    """A real process, ended by its own time limit."""
    hanging = MacTool(name="pmset -g", argv=(sys.executable, "-c", "import time; time.sleep(600)"))
    scene = collect(silent, mac(mac_tools=(hanging,), run=Readers().run, tool_s=0.3))
    (trouble,) = scene.troubles
    assert trouble.tool == "pmset -g"
    assert "gave no answer within 0.3 s" in trouble.reason
    assert "pmset -g gave no usable answer" in [finding.title for finding in examine(scene)]


def test_a_system_profiler_that_failed_is_named_and_the_machine_is_still_described() -> None:
    reason = "system_profiler gave no answer within 5 s"
    identity = Identity(machine=MACHINE, failed_tools={"system_profiler": reason})
    scene = collect(silent, mac(identify=lambda: identity))
    assert scene.machine == MACHINE
    assert scene.troubles == (ToolFailure(tool="system_profiler", reason=reason),)
    (finding,) = [finding for finding in examine(scene) if finding.check == "tools"]
    assert finding.title == "system_profiler gave no usable answer"


def test_what_can_t_even_be_ended_is_left_behind() -> None:
    """Everything hangs, in a way that no time limit of its own ends: the whole still has one."""
    never = threading.Event()

    def hang(*_: object, **__: object) -> Any:
        never.wait(600)

    hanging = mac(
        run=hang,
        probe=hang,
        read_nvidia=hang,
        read_busy_cores=hang,
        read_installed=hang,
        read_disks=hang,
        identify=hang,
        quiet_limit_s=0.2,
        limit_s=0.5,
    )
    started_s = time.monotonic()
    scene = collect(silent, hanging)
    never.set()
    assert time.monotonic() - started_s < 300
    blamed = {trouble.tool for trouble in scene.troubles}
    assert blamed == {*PARSERS, "NVML", "processor load", "installed packages", "machine", "free disk space"}
    assert isinstance(scene.probes["torch"], NoAnswer)
    titles = [finding.title for finding in examine(scene)]
    assert "PyTorch gave no answer" in titles
    assert "sysctl gave no usable answer" in titles


def test_a_process_that_can_t_look_about_itself_still_has_a_page() -> None:
    def bad() -> dict[str, Any]:
        raise PermissionError("no proc here")

    scene = collect(silent, mac(read_here=bad, frameworks=bad))
    assert scene.platform == sys.platform
    assert [trouble.tool for trouble in scene.troubles[:2]] == ["this process", "search for frameworks"]
    assert page(scene, examine(scene))


def test_a_question_that_raises_costs_only_its_own_answer() -> None:
    def bad() -> None:
        raise OSError("no /home/someone/thing")

    found = ask_together({"good": lambda: 1, "bad": bad}, limit_s=LONG_S, tell=silent)
    assert found == {"good": 1, "bad": Absent("it raised OSError: no thing")}


def test_it_is_told_what_is_waited_for_and_less_and_less_often() -> None:
    patient = threading.Event()
    heard: list[tuple[str, float, object]] = []

    def tell(name: str, after_s: float, answer: object) -> None:
        heard.append((name, after_s, answer))
        if after_s >= 0.2 and answer is WAITING:
            patient.set()

    questions = {"torch": lambda: patient.wait(LONG_S), "quick": lambda: 1}
    assert ask_together(questions, limit_s=LONG_S, tell=tell, remind_s=0.1) == {"torch": True, "quick": 1}
    assert [(name, after_s) for name, after_s, answer in heard if answer is WAITING] == [("torch", 0.1), ("torch", 0.2)]


def test_a_collection_reminds_of_a_slow_framework() -> None:
    patient = threading.Event()

    def tell(name: str, _: float, answer: object) -> None:
        if name == "torch" and answer is WAITING:
            patient.set()

    def slow(name: str) -> Probe:
        assert patient.wait(LONG_S)
        return probe(name, "cpu", torch="2.13.0")

    assert collect(tell, mac(probe=slow, remind_s=0.05)).present("torch", "cpu")


@pytest.mark.parametrize(("platform", "probe_s", "why"), [("darwin", 90, "macOS scans"), ("linux", 24, "cold disk")])
def test_a_mac_scans_a_framework_at_its_first_import_and_is_given_longer(
    monkeypatch: pytest.MonkeyPatch, platform: str, probe_s: float, why: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    found = runpy.run_path(collecting.__file__)
    assert found["PROBE_S"] == probe_s
    assert why in found["WHY_SLOW"]
    assert found["LIMIT_S"] - collecting.QUIET_LIMIT_S > probe_s


def test_frameworks_that_crash_and_hang_are_findings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Through the real probe: a package of that name that ends its process, and one that sleeps."""
    for name, code in {"mlx": "import os; os.abort()", "jax": "import time; time.sleep(600)"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(collecting, "PROBE_S", 3.0)
    scene = collect(silent, mac(frameworks=lambda: {"mlx": (), "jax": ()}, probe=Readers().probe))
    found = {finding.title: finding for finding in examine(scene) if finding.check == "framework-import"}
    assert "SIGABRT" in found["MLX is installed and can't be imported"].evidence
    assert "3 s" in found["JAX (Keras 3, jit) gave no answer"].evidence


class Package(Distribution):
    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def read_text(self, filename: str) -> str | None:
        return self._files.get(filename)

    def locate_file(self, path: Any) -> Any:
        return path


def test_installed_packages_are_read_without_importing_them() -> None:
    torch = Package(
        {
            "METADATA": "Metadata-Version: 2.1\nName: Torch\nVersion: 2.13.0\nRequires-Dist: numpy<3\n",
            "RECORD": "torch/lib/libomp.dylib,sha256=1,2\ntorch/lib/libgomp-a34b3233.so.1,,\ntorch/a.py,,\n",
        }
    )
    damaged = Package({"METADATA": "nothing"})
    older = Package({"METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n"})
    found = readers.read_packages([damaged, torch, older])
    assert found["packages"] == {"torch": "2.13.0"}
    assert found["requirements"] == {"torch": ("numpy<3",)}
    assert set(found["openmp"]) >= {
        OpenMp(package="torch", library="libomp.dylib"),
        OpenMp(package="torch", library="libgomp-a34b3233.so.1"),
    }


def test_a_package_whose_description_is_missing_costs_only_itself(tmp_path: Path) -> None:
    """The folder is there and METADATA is not, as an interrupted installation leaves it."""
    (tmp_path / "torch-2.13.0.dist-info").mkdir()
    (tmp_path / "torch-2.13.0.dist-info" / "RECORD").write_text("torch/__init__.py,,\n")
    whole = tmp_path / "numpy-2.1.3.dist-info"
    whole.mkdir()
    (whole / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 2.1.3\n")
    found = [PathDistribution(path) for path in sorted(tmp_path.iterdir(), reverse=True)]
    assert readers.read_packages(found)["packages"] == {"numpy": "2.1.3"}


class Driver:
    """NVML of a machine whose GPU is in use, and whose second one has fallen off the bus."""

    class NVMLError(Exception):
        pass

    nvmlMemory_v2 = 2  # noqa: N815

    class Memory:
        total, used = 80 * 2**30, 40 * 2**30

    class Process:
        pid = -1

    class Rates:
        gpu = 93

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.1"

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 12080

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index:
            raise self.NVMLError
        return index

    def nvmlDeviceGetName(self, _: int) -> str:  # noqa: N802
        return "NVIDIA H100"

    def nvmlDeviceGetMemoryInfo(self, _: int, version: int | None = None) -> Memory:  # noqa: N802
        assert version == 2
        return self.Memory()

    def nvmlDeviceGetComputeRunningProcesses(self, _: int) -> list[Process]:  # noqa: N802
        return [self.Process()]

    def nvmlDeviceGetUtilizationRates(self, _: int) -> Rates:  # noqa: N802
        return self.Rates()


def test_nvidia_s_driver_says_who_is_there() -> None:
    busy = NvidiaGpu(name="NVIDIA H100", memory_bytes=80 * 2**30, used_bytes=40 * 2**30, processes=1, busy_percent=93)
    assert readers.describe_nvidia(Nvml(Driver())) == Nvidia(driver="570.1", cuda=(12, 8), gpus=(busy,))


def test_a_user_without_a_home_folder_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container started under any number; some folders have no place then, and the others have."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "USER", "LOGNAME", "METALMARK_CACHE", "TORCH_HOME", "HF_HOME", "KERAS_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    scene = collect(silent, replace(Readers(), frameworks=dict))
    assert [disk.folders for disk in scene.disks] == [("temporary files",)]
    assert [trouble for trouble in scene.troubles if trouble.tool != "NVML"] == []


def test_a_home_folder_that_does_not_exist_is_looked_for_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nonexistent/ada")
    folders = {label for disk in readers.read_disks() for label in disk.folders}
    assert {"PyTorch's cache", "Keras's cache"} <= folders


def test_a_folder_that_is_not_ours_to_see_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    exists = Path.exists

    def guarded(path: Path) -> bool:
        if "secret" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", guarded)
    monkeypatch.setenv("HF_HOME", "/secret/cache")
    folders = {label for disk in readers.read_disks() for label in disk.folders}
    assert "Hugging Face's cache" not in folders
    assert "temporary files" in folders


def test_this_machine_is_collected_without_a_fault_of_ours() -> None:
    scene = collect(silent, replace(Readers(), frameworks=dict))
    assert scene.platform == sys.platform
    assert scene.packages["msgspec"]
    assert scene.disks
    assert isinstance(scene, Scene)
    assert not [finding for finding in examine(scene) if "doctor's own check" in finding.title]

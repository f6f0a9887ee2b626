"""Every check on a machine that is broken in its way, and on one that is not."""

from __future__ import annotations

import pytest

from metalmark.doctor.catalog import CHECKS, examine, exit_code, find
from metalmark.doctor.check import Check, Severity, check_texts
from metalmark.doctor.scene import Disk, Nvidia, NvidiaGpu, OpenFiles, OpenMp, Scene, Swap, ToolFailure
from metalmark.errors import UsageError
from metalmark.machine.apple import Heat, PowerSource
from metalmark.machine.cgroup import Limits
from tests.doctor.scenes import GIB, LINUX, MAC, NVIDIA, broken, change, look, probe

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
NO_MPS = {"mps": "it is absent."}


def torch_mac(version: str = "2.13.0", **environment: str) -> Scene:
    return change(MAC, packages={"torch": version}, environment=environment)


def no_mps(**changes: object) -> Scene:
    return change(MAC, probes={"torch": probe("torch", "cpu", absent=NO_MPS, torch="2.13.0")}, **changes)


def tf_mac(tensorflow: str | None, metal: str | None, *, python: str = "3.12.4", **packages: str | None) -> Scene:
    """Its probe failed, as it does with a pair that can't load."""
    found = {"tensorflow": tensorflow, "tensorflow-metal": metal, **packages}
    return change(MAC, python=python, packages=found, probes={"tensorflow": broken()})


def gpu(**changes: object) -> Scene:
    fields: dict[str, object] = {"name": "NVIDIA H200", "memory_bytes": 141 * GIB, "used_bytes": 2**28}
    gpus = (NvidiaGpu(**{**fields, **changes}),)  # type: ignore[arg-type]
    return change(NVIDIA, nvidia=Nvidia(driver="580.65.06", cuda=(13, 0), gpus=gpus))


def driver(cuda: tuple[int, int], framework_cuda: str, *, present: bool = False) -> Scene:
    words = ("cpu", "cuda") if present else ("cpu",)
    absent = None if present else {"cuda": "no usable driver."}
    return change(
        NVIDIA,
        nvidia=Nvidia(driver="535.1", cuda=cuda, gpus=(NvidiaGpu(name="NVIDIA A100"),)),
        probes={"torch": probe("torch", *words, absent=absent, torch="2.13.0", cuda=framework_cuda)},
    )


X86_TORCH = {"torch": "2.2.2", "tensorflow": None, "tensorflow-metal": None}
TRANSLATED = change(MAC, architecture="x86_64", sysctl={"sysctl.proc_translated": "1"}, packages=X86_TORCH)
HIGH, LOW = "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO"
OMP = (OpenMp(package="torch", library="libomp.dylib"),)

# (check, scene, severity of each finding, words that one of its texts holds)
BROKEN: list[tuple[str, Scene, list[Severity], str]] = [
    ("rosetta", TRANSLATED, [ERROR], "proc_translated is 1"),
    ("rosetta", change(MAC, architecture="x86_64", sysctl={"sysctl.proc_translated": None}), [ERROR], "Apple M2 Pro"),
    ("macos-too-old", no_mps(macos="13.6"), [WARNING], "needs 14.0"),
    ("macos-too-old", no_mps(macos="13.6", packages={"torch": "2.15.0"}), [WARNING], '"torch<2.9"'),
    ("macos-too-old", no_mps(macos="12.6", packages={"torch": "2.5.1"}), [WARNING], '"torch<2.5"'),
    ("macos-too-old", no_mps(macos="12.0", packages={"torch": "2.4.1"}), [WARNING, WARNING], "needs 12.3"),
    ("python-too-new", change(MAC, python="3.13.0"), [WARNING], "python3.12 -m venv"),
    ("tensorflow-metal-pair", tf_mac("2.20.0", "1.2.0"), [ERROR], '"tensorflow==2.19.*" tensorflow-metal==1.2.0'),
    ("tensorflow-metal-pair", tf_mac("2.14.1", "1.2.0"), [WARNING], "2.15 to 2.19"),
    ("tensorflow-metal-pair", tf_mac("2.19.0", "1.2.0", python="3.13.1"), [ERROR], "Python 3.13"),
    ("tensorflow-macos", change(MAC, packages={"tensorflow-macos": "2.15.0"}), [WARNING], "same folder"),
    ("tensorflow-macos", change(MAC, packages={"tensorflow-macos": "2.16.2"}), [NOTE], "2.15.0"),
    ("tensorflow-macos", change(MAC, packages={"tensorflow-macos": "0.1a3", "tensorflow": None}), [ERROR], "2021"),
    ("tensorflow-no-gpu", tf_mac("2.19.0", None), [WARNING], "pip install tensorflow-metal==1.2.0"),
    ("tensorflow-no-gpu", tf_mac("2.21.0", None), [WARNING], '"tensorflow==2.19.*" tensorflow-metal==1.2.0'),
    (
        "tensorflow-no-gpu",
        change(MAC, probes={"tensorflow": probe("tensorflow", "cpu", absent=NO_MPS)}),
        [WARNING],
        "it is absent.",
    ),
    ("keras-metal-wrong", tf_mac("2.16.2", "1.2.0", keras="3.7.0"), [ERROR], "TF_USE_LEGACY_KERAS=1"),
    ("xla-on-metal", change(MAC, environment={"TF_XLA_FLAGS": "--tf_xla_auto_jit=2"}), [WARNING], "unset TF_XLA_FLAGS"),
    ("xla-on-metal", MAC, [NOTE], "jit_compile"),
    ("mps-unavailable", no_mps(), [WARNING], "it is absent."),
    ("mps-unavailable", no_mps(sysctl={"kern.hv_vmm_present": "1"}), [WARNING], "virtual machine"),
    (
        "mps-unavailable",
        change(
            MAC,
            probes={"torch": probe("torch", "cpu", absent={"mps": "this is a virtual machine: no tensor fits."})},
            sysctl={"kern.hv_vmm_present": None},
        ),
        [WARNING],
        "Run on the Mac itself",
    ),
    ("mps-fallback", torch_mac(PYTORCH_ENABLE_MPS_FALLBACK="1"), [WARNING], "float64"),
    *(
        ("mps-fallback", torch_mac(PYTORCH_ENABLE_MPS_FALLBACK=value), [ERROR], "export PYTORCH_ENABLE_MPS_FALLBACK=1")
        for value in ("true", "false", "", " ", "yes", "-", "99999999999")
    ),
    *(
        ("mps-fallback", torch_mac(PYTORCH_ENABLE_MPS_FALLBACK=value), [WARNING], "the CPU without a message")
        for value in ("2", " 1", "+1", "-1", "1true")
    ),
    ("useless-variables", torch_mac(PYTORCH_ENABLE_NNPACK="0"), [NOTE], "set_flags(False)"),
    ("useless-variables", torch_mac(PYTORCH_MPS_HIGH_WATERMARK="0.5"), [NOTE], HIGH),
    ("useless-variables", torch_mac("2.4.1", PYTORCH_MPS_FAST_MATH="1"), [NOTE], "from 2.5"),
    ("useless-variables", change(LINUX, environment={HIGH: "0.5"}), [NOTE], "Apple's"),
    ("mps-watermarks", torch_mac(**{HIGH: "0.8"}), [ERROR], "so it is 1.4"),
    ("mps-watermarks", torch_mac(**{HIGH: "0.8", LOW: "0.9"}), [ERROR], f"{HIGH}=1.0"),
    ("mps-watermarks", torch_mac(**{HIGH: "2.1"}), [ERROR], "from 0 to 2"),
    ("mps-watermarks", torch_mac(**{HIGH: "inf"}), [ERROR], "from 0 to 2"),
    ("mps-watermarks", torch_mac(**{HIGH: "0.0"}), [WARNING], "stalls"),
    ("mps-watermarks", torch_mac(**{HIGH: "much"}), [WARNING], "stalls"),
    ("mps-memory-limit", MAC, [NOTE], "127%"),
    ("wired-limit", change(MAC, sysctl={"iogpu.wired_limit_mb": "15800"}), [WARNING], "96%"),
    ("wired-limit", change(MAC, sysctl={"iogpu.wired_limit_mb": "13000"}), [NOTE], "79%"),
    ("mps-pin-memory", MAC, [NOTE], "pin_memory=False"),
    ("mps-float64", MAC, [NOTE], "float32"),
    ("jax-metal", change(MAC, packages={"jax": "0.5.1", "jax-metal": "0.1.1"}), [ERROR], "pip uninstall -y jax-metal"),
    ("jax-metal", change(MAC, packages={"jax": "0.5.0", "jax-metal": "0.1.1"}), [WARNING], "no longer developed"),
    ("jax-on-mac", change(MAC, packages={"jax": "0.10.2"}), [NOTE], "CPU"),
    ("known-wrong-results", torch_mac("2.3.1"), [WARNING, *[NOTE] * 5], "118115"),
    ("known-wrong-results", torch_mac("2.13.0"), [NOTE] * 6, "193487"),
    ("known-wrong-results", torch_mac("2.14.0"), [NOTE] * 4, "195163"),
    (
        "cpu-only-build",
        change(NVIDIA, probes=LINUX.probes),
        [WARNING, NOTE, NOTE],
        "pip install --force-reinstall torch",
    ),
    ("cpu-only-build", change(NVIDIA, environment={"CUDA_VISIBLE_DEVICES": ""}), [WARNING], "unset"),
    ("driver-too-old", driver((12, 2), "13.0"), [ERROR], "driver 580 or newer"),
    ("driver-too-old", driver((11, 4), "12.8"), [ERROR], "Choose CUDA 11.8 at https://pytorch.org"),
    ("gpu-in-use", gpu(used_bytes=20 * GIB, processes=2), [WARNING], "2 other processes"),
    ("gpu-in-use", gpu(used_bytes=20 * GIB), [WARNING], "not visible"),
    ("gpu-in-use", gpu(busy_percent=97), [WARNING], "97% busy"),
    (
        "package-conflicts",
        change(LINUX, requirements={"tensorflow-cpu": ("numpy<2.2,>=1.26", 'h5py<3; extra == "x"')}),
        [WARNING],
        'pip install "numpy<2.2,>=1.26"',
    ),
    (
        "package-conflicts",
        change(
            LINUX,
            packages={"protobuf": "7.0.0"},
            requirements={"tensorflow-cpu": ("protobuf<7",)},
            probes={"tensorflow": broken()},
        ),
        [ERROR],
        "protobuf<7",
    ),
    ("numpy-2", change(LINUX, packages={"torch": "2.2.2"}), [ERROR], "numpy<2"),
    ("framework-import", change(LINUX, probes={"torch": broken(detail="boom")}), [ERROR], "boom"),
    (
        "framework-import",
        change(LINUX, probes={"jax": broken("it hung: no answer in 24 s.")}),
        [WARNING],
        "no answer in 24 s",
    ),
    ("no-framework", change(LINUX, frameworks={"torch": ("torch",), "mlx": ("mlx",)}), [WARNING], "metalmark[torch]"),
    ("half-installed", change(LINUX, frameworks={"tensorflow": ("keras",)}), [WARNING], "keras"),
    ("tools", change(MAC, troubles=(ToolFailure(tool="pmset -g", reason="no answer"),)), [WARNING], "no answer"),
    ("open-files", change(MAC, open_files=OpenFiles(soft=256, hard=None)), [WARNING], "ulimit -S -n 4096"),
    ("open-files", change(LINUX, open_files=OpenFiles(soft=128, hard=128)), [WARNING], "hard limit"),
    (
        "open-files",
        change(LINUX, visible_cores=128, open_files=OpenFiles(soft=512, hard=4096)),
        [WARNING],
        "about 24 loader workers",
    ),
    ("spawn-main-guard", MAC, [NOTE], "__main__"),
    ("spawn-main-guard", change(LINUX, python="3.14.0"), [NOTE], "forkserver"),
    ("shared-memory", change(LINUX, shared_memory_bytes=64 * 2**20), [WARNING], "64 MiB"),
    ("cpu-quota", change(LINUX, visible_cores=64, limits=Limits(cores=4)), [WARNING], "OMP_NUM_THREADS=4"),
    ("thread-variables", change(LINUX, environment={"MKL_NUM_THREADS": "16"}), [WARNING], "MKL_NUM_THREADS=4"),
    ("thread-variables", change(LINUX, environment={"OMP_NUM_THREADS": "1"}), [NOTE], "one core"),
    (
        "openmp-duplicates",
        change(MAC, openmp=(*OMP, OpenMp(package="mkl", library="libiomp5.dylib"))),
        [WARNING],
        "libiomp5.dylib of mkl",
    ),
    (
        "openmp-duplicates",
        change(MAC, openmp=(*OMP, OpenMp(package="scikit-learn", library="libomp.dylib"))),
        [NOTE],
        "scikit-learn",
    ),
    ("openmp-duplicates", change(LINUX, environment={"KMP_DUPLICATE_LIB_OK": "TRUE"}), [WARNING], "wrong results"),
    ("busy-machine", change(LINUX, busy_cores=1.5), [WARNING], "1.5 of 4 cores"),
    ("low-power", change(MAC, low_power=True), [WARNING], "61%"),
    ("battery", change(MAC, power=PowerSource(on_battery=True, percent=80)), [NOTE], "80% left"),
    ("battery", change(MAC, power=PowerSource(on_battery=True, percent=15)), [WARNING], "15% left"),
    (
        "battery",
        change(MAC, power=PowerSource(on_battery=True, percent=60, from_ups=True)),
        [NOTE],
        "drawing from a UPS, 60% left",
    ),
    ("heat", change(MAC, heat=Heat(speed_limit_percent=70)), [WARNING], "70%"),
    ("heat", change(MAC, heat=Heat(warning_level=2)), [WARNING], "level 2"),
    ("memory-pressure", change(MAC, memory_free_percent=9), [WARNING], "9%"),
    ("swap", change(MAC, swap=Swap(total_bytes=6 * GIB, used_bytes=5 * GIB)), [WARNING], "5.0 of 6.0 GiB"),
    (
        "swap",
        change(MAC, swap=Swap(total_bytes=6 * GIB, used_bytes=2 * GIB)),
        [NOTE],
        "2.0 of 6.0 GiB of swap used; 16 GiB of memory",
    ),
    ("disk-space", change(LINUX, disks=(Disk(folders=("data sets",), free_bytes=2 * GIB),)), [WARNING], "data sets"),
    ("disk-space", change(LINUX, disks=(Disk(folders=("data sets",), free_bytes=2**20),)), [ERROR], "full"),
    ("container-memory", change(LINUX, limits=Limits(memory_bytes=8 * GIB)), [NOTE], "8.0 GiB"),
    ("container-memory", change(LINUX, limits=Limits(memory_bytes=2 * GIB)), [WARNING], "137"),
]

# The state next to the broken one, where nothing must be said.
HEALTHY: list[tuple[str, Scene]] = [
    ("rosetta", change(MAC, architecture="x86_64", sysctl={"machdep.cpu.brand_string": "Intel(R) Core(TM) i7"})),
    ("macos-too-old", no_mps(macos="14.0")),
    ("macos-too-old", change(MAC, macos="13.6")),  # the probe wins
    ("macos-too-old", no_mps(macos="10.16")),
    ("python-too-new", change(MAC, python="3.12.9")),
    ("python-too-new", change(MAC, python="3.13.0", packages={"tensorflow": None})),
    ("tensorflow-metal-pair", tf_mac("2.19.1", "1.2.0")),
    ("tensorflow-metal-pair", change(MAC, packages={"tensorflow": "2.20.0"})),  # the probe wins
    ("tensorflow-metal-pair", tf_mac("2.20.0", "9.9.9")),
    ("tensorflow-metal-pair", tf_mac("2.20.0", None)),
    ("tensorflow-macos", MAC),
    ("tensorflow-no-gpu", MAC),
    ("tensorflow-no-gpu", change(TRANSLATED, packages={"tensorflow": "2.16.2"})),
    ("tensorflow-no-gpu", tf_mac("2.21.0", None, python="3.13.0")),
    ("keras-metal-wrong", tf_mac("2.16.2", "1.2.0", keras="3.6.0")),
    ("keras-metal-wrong", tf_mac("2.19.0", "1.2.0", keras="3.12.0")),
    (
        "keras-metal-wrong",
        change(
            tf_mac("2.16.2", "1.2.0", keras="3.7.0", **{"tf-keras": "2.16.0"}), environment={"TF_USE_LEGACY_KERAS": "1"}
        ),
    ),
    ("xla-on-metal", tf_mac("2.19.0", None)),
    ("mps-unavailable", MAC),
    ("mps-unavailable", TRANSLATED),
    *(("mps-fallback", torch_mac(PYTORCH_ENABLE_MPS_FALLBACK=value)) for value in ("0", "-0", "00", "0.5")),
    ("mps-fallback", change(MAC, packages={"torch": None}, environment={"PYTORCH_ENABLE_MPS_FALLBACK": "1"})),
    ("useless-variables", torch_mac("2.5.0", PYTORCH_MPS_FAST_MATH="1")),
    ("mps-watermarks", torch_mac(**{HIGH: "1.0", LOW: "0.9"})),
    ("mps-watermarks", torch_mac(**{HIGH: "1.4"})),
    ("mps-watermarks", MAC),
    ("mps-memory-limit", torch_mac(**{HIGH: "1.0", LOW: "0.9"})),
    ("mps-memory-limit", no_mps()),
    ("wired-limit", MAC),
    ("mps-pin-memory", no_mps()),
    ("mps-float64", no_mps()),
    ("jax-metal", change(MAC, packages={"jax": "0.10.2"})),
    ("jax-on-mac", MAC),
    ("known-wrong-results", change(no_mps(), probes={"tensorflow": broken()})),
    ("cpu-only-build", NVIDIA),
    ("driver-too-old", driver((12, 2), "12.8")),
    ("driver-too-old", driver((12, 2), "13.0", present=True)),
    ("gpu-in-use", NVIDIA),
    ("package-conflicts", change(LINUX, requirements={"tensorflow-cpu": ("numpy>=1.26", "absent-package>=9")})),
    ("package-conflicts", change(LINUX, requirements={"torch": ('numpy<1; sys_platform == "darwin"',)})),
    ("package-conflicts", change(LINUX, requirements={"torch": ("!! no requirement",)})),
    ("numpy-2", change(LINUX, packages={"torch": "2.2.2", "numpy": "1.26.4"})),
    ("no-framework", LINUX),
    ("half-installed", change(LINUX, frameworks={"tensorflow": ("tensorflow", "keras")})),
    ("open-files", change(LINUX, packages={"torch": None}, open_files=OpenFiles(soft=64, hard=64))),
    ("open-files", change(LINUX, open_files=OpenFiles(soft=None, hard=None))),
    ("open-files", change(LINUX, visible_cores=128)),
    ("spawn-main-guard", LINUX),
    ("shared-memory", change(LINUX, packages={"torch": None}, shared_memory_bytes=2**20)),
    ("cpu-quota", change(LINUX, visible_cores=64, limits=Limits(cores=4), environment={"OMP_NUM_THREADS": "4"})),
    ("cpu-quota", change(LINUX, limits=Limits(cores=4))),
    ("thread-variables", change(LINUX, environment={"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "all"})),
    (
        "openmp-duplicates",
        change(
            LINUX,
            openmp=(
                OpenMp(package="torch", library="libgomp.so.1"),
                OpenMp(package="scikit-learn", library="libgomp-a1.so"),
            ),
        ),
    ),
    ("busy-machine", change(LINUX, busy_cores=20.0, logical_cores=64, visible_cores=64, limits=Limits(cores=4))),
    ("low-power", change(MAC, low_power=None)),
    ("heat", change(MAC, heat=Heat(speed_limit_percent=100, warning_level=0))),
    ("swap", change(LINUX, swap=None)),
    ("container-memory", change(LINUX, limits=Limits(memory_bytes=2**62))),
]


@pytest.mark.parametrize(("name", "scene", "severities", "words"), BROKEN, ids=[row[0] for row in BROKEN])
def test_the_broken_state_is_found(name: str, scene: Scene, severities: list[Severity], words: str) -> None:
    findings = look(name, scene)
    assert [finding.severity for finding in findings] == severities
    assert all(finding.fix for finding in findings)
    texts = [" ".join((f.title, f.evidence, f.why, *f.fix)) for f in findings]
    assert any(words in text for text in texts), texts
    for finding in findings:
        assert finding.check == name
        assert finding.title
        assert finding.evidence
        assert finding.why
        assert all(line.strip() for line in finding.fix)


@pytest.mark.parametrize(("name", "scene"), HEALTHY, ids=[row[0] for row in HEALTHY])
def test_the_healthy_state_is_silent(name: str, scene: Scene) -> None:
    assert look(name, scene) == []


def test_every_check_has_both_tests() -> None:
    in_order = {check for check in CHECKS if not look(check, LINUX)}
    assert {row[0] for row in BROKEN} == set(CHECKS)
    assert {row[0] for row in HEALTHY} | in_order == set(CHECKS)


def test_a_plain_linux_container_has_nothing_wrong() -> None:
    assert examine(LINUX) == []


def test_an_nvidia_server_in_order_has_nothing_wrong() -> None:
    assert examine(NVIDIA) == []


def test_a_mac_in_order_has_notes_only() -> None:
    findings = examine(MAC)
    assert findings
    assert {finding.severity for finding in findings} == {NOTE}
    assert exit_code(findings) == 0


def test_a_bare_machine_is_told_to_install_something() -> None:
    assert [finding.check for finding in examine(Scene(frameworks={"torch": ("torch",)}))] == ["no-framework"]


def test_a_scene_of_which_nothing_is_known_is_silent() -> None:
    assert examine(Scene()) == []
    assert [finding for finding in examine(Scene(platform="darwin")) if finding.severity is not NOTE] == []


def test_worst_first_and_the_exit_code() -> None:
    scene = change(MAC, low_power=True, environment={HIGH: "0.8"})
    findings = examine(scene)
    ranks = [list(Severity).index(finding.severity) for finding in findings]
    assert ranks == sorted(ranks)
    assert findings[0].check == "mps-watermarks"
    assert exit_code(findings) == 2
    assert exit_code(findings[1:]) == 1
    assert exit_code([]) == 0


def test_a_check_that_raises_is_a_finding_about_the_doctor() -> None:
    def bad(_: Scene) -> None:
        raise ZeroDivisionError("in /home/someone/check.py")

    (finding,) = examine(LINUX, [Check(name="bad", title="", story="", sources=(), examine=bad)])
    assert finding.check == "bad"
    assert finding.severity is WARNING
    assert finding.evidence == "ZeroDivisionError: in check.py"


def test_an_unknown_check_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean open-files"):
        find("open-file")


def test_checks_are_described() -> None:
    assert list(check_texts()) == list(CHECKS)
    for name, known in CHECKS.items():
        assert name == name.lower()
        assert known.title
        assert not known.title.endswith(".")
        assert len(known.story) > 60
        assert all(source.startswith("https://") for source in known.sources)

"""What the shell should set, on machines written down here."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.doctor.environment import HIGH, LEFTOVERS, LOW, ShellAction, ShellChange, advise
from metalmark.doctor.scene import OpenFiles, Scene
from metalmark.machine.cgroup import Limits
from metalmark.report.text.doctor_page import SHELLS, shell_lines

GIB = 2**30
ALL = {"torch": (), "tensorflow": (), "jax": (), "mlx": ()}


def linux(**fields: Any) -> Scene:
    healthy = {
        "platform": "linux",
        "open_files": OpenFiles(soft=1024, hard=4096),
        "visible_cores": 8,
        "memory_bytes": 32 * GIB,
        "frameworks": ALL,
    }
    return Scene(**{**healthy, **fields})


def mac(**fields: Any) -> Scene:
    """One whose limits were set as they should be."""
    healthy = {
        "platform": "darwin",
        "architecture": "arm64",
        "open_files": OpenFiles(soft=4096, hard=None),
        "visible_cores": 8,
        "memory_bytes": 16 * GIB,
        "environment": {HIGH: "1.0", LOW: "0.8"},
        "frameworks": ALL,
    }
    return Scene(**{**healthy, **fields})


def lines(scene: Scene) -> dict[str, str]:
    return {step.name: f"{step.action} {step.value}".strip() for step in advise(scene)}


@pytest.mark.parametrize("scene", [linux(), mac(), Scene(), Scene(platform="darwin", architecture="arm64")])
def test_a_healthy_machine_needs_nothing(scene: Scene) -> None:
    assert advise(scene) == ()


def test_a_mac_s_256_open_files_are_raised() -> None:
    assert lines(mac(open_files=OpenFiles(soft=256, hard=None))) == {"open files": "limit 4096"}
    assert lines(linux(open_files=OpenFiles(soft=256, hard=2048))) == {"open files": "limit 2048"}
    assert lines(linux(open_files=OpenFiles(soft=None, hard=None))) == {}


def test_a_hard_limit_is_a_note() -> None:
    (step,) = advise(linux(open_files=OpenFiles(soft=256, hard=256)))
    assert step.action is ShellAction.NOTE
    assert "administrator" in step.why


def test_a_quota_below_the_cores_seen_sets_the_threads() -> None:
    assert lines(linux(limits=Limits(cores=2))) == {
        "OMP_NUM_THREADS": "set 2",
        "TF_NUM_INTRAOP_THREADS": "set 2",
        "PJRT_NPROC": "set 2",
    }
    assert lines(linux(limits=Limits(cores=2), frameworks={"jax": ("jax",)})) == {"OMP_NUM_THREADS": "set 2"}
    assert lines(linux(limits=Limits(cores=8))) == {}


def test_a_thread_count_of_the_user_s_is_kept_unless_it_is_too_high() -> None:
    only_torch = {"torch": ()}
    few, many = ({"OMP_NUM_THREADS": count} for count in ("1", "64"))
    assert lines(linux(limits=Limits(cores=2), environment=few, frameworks=only_torch)) == {}
    assert lines(linux(limits=Limits(cores=2), environment=many, frameworks=only_torch)) == {"OMP_NUM_THREADS": "set 2"}
    assert lines(linux(environment=many)) == {"OMP_NUM_THREADS": "set 8"}


PAIR = {HIGH: "set 1", LOW: "set 0.8"}


@pytest.mark.parametrize(
    ("environment", "expected", "word"),
    [
        ({}, PAIR, "about 20 GiB, and this Mac has 16"),
        ({LOW: "0.5"}, PAIR, "swaps"),
        ({HIGH: "0.0"}, PAIR, "0 takes"),
        ({HIGH: "0"}, PAIR, "0 takes"),
        ({HIGH: "0.7"}, {HIGH: "set 0.7", LOW: "set 0.56"}, "invalid low watermark ratio"),
        ({HIGH: "1.0", LOW: "1.2"}, PAIR, "invalid low watermark ratio"),
        ({HIGH: "3"}, PAIR, "High 3 is not from 0 to 2"),
        ({HIGH: "nan"}, PAIR, "High nan is not from 0 to 2"),
        ({HIGH: "high"}, PAIR, "0 takes"),
        ({HIGH: "1.0", LOW: "-1"}, PAIR, "Low -1 is not from 0 to high 1"),
    ],
)
def test_watermarks_are_set_as_a_pair(environment: dict[str, str], expected: dict[str, str], word: str) -> None:
    scene = mac(environment=environment)
    assert lines(scene) == expected
    assert word in advise(scene)[0].why


@pytest.mark.parametrize(
    "scene",
    [
        mac(environment={HIGH: "1.5"}),
        mac(environment={HIGH: "1.0", LOW: "1.0"}),
        mac(environment={}, sysctl={"iogpu.wired_limit_mb": "8192"}),
        mac(environment={}, frameworks={"torch": ("torch",), "mlx": ()}),
        mac(environment={}, architecture="x86_64", sysctl={"sysctl.proc_translated": "1"}),
        mac(environment={}, architecture="x86_64"),
    ],
    ids=["high enough", "equal", "wired limit", "no torch", "rosetta", "intel"],
)
def test_watermarks_that_need_nothing(scene: Scene) -> None:
    assert lines(scene) == {}


@pytest.mark.parametrize(
    ("scene", "name", "word"),
    [
        (linux(environment={"PYTORCH_ENABLE_NNPACK": "0"}), "PYTORCH_ENABLE_NNPACK", "No PyTorch reads it"),
        (linux(environment={HIGH: "0.0"}), HIGH, "not a Mac"),
        (linux(environment={"PYTORCH_ENABLE_MPS_FALLBACK": "1"}), "PYTORCH_ENABLE_MPS_FALLBACK", "not a Mac"),
        (linux(environment={"KMP_DUPLICATE_LIB_OK": "TRUE"}), "KMP_DUPLICATE_LIB_OK", "two OpenMP"),
        (linux(environment={"CUDA_LAUNCH_BLOCKING": "1"}), "CUDA_LAUNCH_BLOCKING", "slower"),
        (linux(environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}), "PYTORCH_NO_CUDA_MEMORY_CACHING", "slower"),
        (linux(environment={"TF_CPP_MIN_LOG_LEVEL": "3"}), "TF_CPP_MIN_LOG_LEVEL", "errors"),
        (linux(environment={"TF_ENABLE_ONEDNN_OPTS": "0"}), "TF_ENABLE_ONEDNN_OPTS", "kernels off"),
        (
            linux(environment={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}),
            "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION",
            "pip check",
        ),
        (
            mac(environment={HIGH: "1", LOW: "1", "PYTORCH_ENABLE_MPS_FALLBACK": "1"}),
            "PYTORCH_ENABLE_MPS_FALLBACK",
            "on the CPU",
        ),
        (
            mac(environment={HIGH: "1", LOW: "1", "PYTORCH_ENABLE_MPS_FALLBACK": "true"}),
            "PYTORCH_ENABLE_MPS_FALLBACK",
            "reads it as a number",
        ),
        (
            mac(environment={HIGH: "1", LOW: "1", "PYTORCH_ENABLE_MPS_FALLBACK": ""}),
            "PYTORCH_ENABLE_MPS_FALLBACK",
            "reads it as a number",
        ),
        (
            mac(environment={HIGH: "1", LOW: "1", "PYTORCH_DEBUG_MPS_ALLOCATOR": "1"}),
            "PYTORCH_DEBUG_MPS_ALLOCATOR",
            "every allocation",
        ),
        (
            mac(environment={HIGH: "1", LOW: "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
            "PYTORCH_CUDA_ALLOC_CONF",
            "no Mac has",
        ),
        (
            mac(
                environment={HIGH: "1", LOW: "1", "TF_XLA_FLAGS": "--tf_xla_auto_jit=2"},
                packages={"tensorflow-metal": "1.2.0"},
            ),
            "TF_XLA_FLAGS",
            "no compiler for Metal",
        ),
    ],
)
def test_variables_that_do_nothing_or_hide_faults_go(scene: Scene, name: str, word: str) -> None:
    (step,) = advise(scene)
    assert (step.action, step.name) == (ShellAction.UNSET, name)
    assert word in step.why


@pytest.mark.parametrize(
    "environment",
    [
        {"KMP_DUPLICATE_LIB_OK": "FALSE"},
        {"CUDA_LAUNCH_BLOCKING": "0"},
        {"TF_CPP_MIN_LOG_LEVEL": "2"},
        {"TF_ENABLE_ONEDNN_OPTS": "1"},
        {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "upb"},
        {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2"},
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        {"CUDA_VISIBLE_DEVICES": "0"},
    ],
    ids=str,
)
def test_variables_that_mean_something_stay(environment: dict[str, str]) -> None:
    assert advise(linux(environment=environment)) == ()


EVERYTHING = advise(
    linux(
        open_files=OpenFiles(soft=256, hard=2048),
        limits=Limits(cores=2),
        environment={"KMP_DUPLICATE_LIB_OK": "TRUE", HIGH: "0.0"},
    )
)


def test_the_lines_of_a_posix_shell() -> None:
    text = shell_lines(EVERYTHING, "bash").splitlines()
    assert [line for line in text if not line.startswith("#")] == [
        "ulimit -S -n 2048",
        "export OMP_NUM_THREADS=2",
        "export TF_NUM_INTRAOP_THREADS=2",
        "export PJRT_NPROC=2",
        f"unset {HIGH}",
        "unset KMP_DUPLICATE_LIB_OK",
    ]
    assert shell_lines(EVERYTHING, "zsh").splitlines()[1:] == text[1:]


def test_the_lines_of_fish() -> None:
    text = shell_lines(EVERYTHING, "fish").splitlines()
    assert "set -gx OMP_NUM_THREADS 2" in text
    assert "set -e KMP_DUPLICATE_LIB_OK" in text
    assert "metalmark env --shell fish | source" in text[0]


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_nothing_to_set_is_a_comment(shell: str) -> None:
    text = shell_lines((), shell)
    assert text.startswith("# Nothing to set")
    assert "\n" not in text


def test_every_line_has_its_reason_above_it() -> None:
    text = shell_lines(EVERYTHING, "bash").splitlines()
    for before, line in pairwise(text):
        assert line.startswith("#") or before.startswith("# ")


def evaluate(shell: str, text: str, after: str, **environment: str) -> str:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    load = f"{text}\n{after}" if shell == "fish" else f'eval "$TEXT"\n{after}'
    run = subprocess.run(
        [path, "-c", load],
        env={"PATH": "/usr/bin:/bin", "TEXT": text, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert run.stderr == ""
    return run.stdout.strip()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_real_shell_evaluates_them(shell: str) -> None:
    steps = advise(linux(limits=Limits(cores=2), environment={"KMP_DUPLICATE_LIB_OK": "TRUE"}))
    # No bracket behind a variable: zsh and fish take it for a subscript, inside quotes too.
    after = 'echo "$OMP_NUM_THREADS" "<$KMP_DUPLICATE_LIB_OK>"'
    assert evaluate(shell, shell_lines(steps, shell), after, KMP_DUPLICATE_LIB_OK="TRUE") == "2 <>"


def test_a_real_shell_s_limit_is_the_soft_one() -> None:
    hard = evaluate("bash", "", "ulimit -H -n")
    steps = (ShellChange(action=ShellAction.LIMIT, name="open files", value="128", why="x"),)
    assert evaluate("bash", shell_lines(steps, "bash"), "ulimit -S -n; ulimit -H -n").split() == ["128", hard]


def test_a_line_end_in_a_reason_does_not_become_a_command() -> None:
    steps = (ShellChange(action=ShellAction.UNSET, name="X", why="one\ntouch /tmp/x\r$(id)"),)
    assert [line for line in shell_lines(steps, "bash").splitlines() if not line.startswith("#")] == ["unset X"]


NAMES = sorted({HIGH, LOW, "OMP_NUM_THREADS", *(name for names, _, _ in LEFTOVERS for name in names)})


@given(
    st.dictionaries(st.sampled_from(NAMES), st.text(max_size=20)),
    st.sampled_from(["linux", "darwin"]),
    st.none() | st.integers(1, 200),
    st.none() | st.integers(1, 200),
    st.none() | st.integers(0, 10_000),
)
def test_whatever_is_set_the_lines_are_a_shell_s(
    environment: dict[str, str], platform: str, seen: int | None, quota: int | None, files: int | None
) -> None:
    scene = Scene(
        platform=platform,
        architecture="arm64",
        environment=environment,
        visible_cores=seen,
        limits=Limits(cores=quota),
        open_files=OpenFiles(soft=files, hard=None),
        memory_bytes=16 * GIB,
        frameworks=ALL,
    )
    line = re.compile(r"#.*|ulimit -S -n \d+|export [A-Z_]+=[\d.]+|unset [A-Z_]+")
    assert all(line.fullmatch(text) for text in shell_lines(advise(scene), "bash").splitlines())

"""The source for a user's own loop: it runs without Metalmark, trains as the plain loop does, and holds no line that
its settings do not need."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from metalmark.model.plan import Device, DeviceKind, Feed, Mode, Plan, PlanChange, Scalar, Settings
from metalmark.tune.snippet import snippet

FRAMEWORKS = ("torch", "tensorflow", "jax", "mlx")
LOOPS = Path(__file__).with_name("snippet_loops.py")
HALF_TOLERANCE, TOLERANCE = 0.03, 1e-4
"""How far losses and outputs may be from the plain loop's, as a share of the largest."""

Changed = Mapping[str, Scalar]
TRAINED: dict[str, list[Changed]] = {
    "torch": [
        {"dtype": "bfloat16"},
        {"fused": True},
        {"channels_last": True},
        {"threads": 1},
        {"accumulate": 4},
        {"attention_kernel": "math"},
        {"recompute": True},
        {"conv_search": True},
        {"environment": "OMP_WAIT_POLICY=PASSIVE"},
        {"graph": True},
        {"compile": True, "compile_mode": "combo-kernels"},
        {"dtype": "bfloat16", "compile": True, "fused": True, "channels_last": True, "threads": 1, "accumulate": 2},
    ],
    "tensorflow": [{"dtype": "bfloat16"}, {"compile": True}, {"dtype": "float16"}, {"fused": True}],
    "jax": [{"dtype": "bfloat16", "compile": True}, {"dtype": "float16"}],
    "mlx": [{"dtype": "bfloat16"}, {"compile": True}, {"dtype": "float16", "compile": True}],
}
INFERRED: dict[str, list[Changed]] = {
    "torch": [{"dtype": "bfloat16", "channels_last": True}, {"compile": True}],
    "tensorflow": [{"dtype": "bfloat16", "compile": True}],
    "jax": [{"dtype": "bfloat16"}],
    "mlx": [{"dtype": "bfloat16", "compile": True}],
}
CAPTURED: dict[str, list[Changed]] = {name: [] for name in FRAMEWORKS} | {
    "torch": [{"graph": True}, {"graph": True, "channels_last": True, "accumulate": 2}]
}
"""CUDA graphs, which the child simulates."""
EVERY: dict[str, tuple[Scalar, ...]] = {
    "dtype": ("float32", "tf32", "bfloat16", "float16"),
    "compile": (True, False),
    "graph": (True,),
    "channels_last": (True,),
    "fused": (True,),
    "threads": (2,),
    "compile_mode": ("max-autotune", "combo-kernels"),
    "attention_kernel": ("flash", "cudnn"),
    "accumulate": (1, 4),
    "recompute": (True,),
    "conv_search": (True,),
    "environment": ("PYTORCH_MPS_FAST_MATH=1",),
}


def plan_of(framework: str, mode: Mode = Mode.TRAINING, settings: Settings = Settings()) -> Plan:  # noqa: B008
    return Plan(
        workload="resnet50",
        params={"batch_size": 32},
        mode=mode,
        framework=framework,
        device=Device(kind=DeviceKind.ANY),
        settings=settings,
    )


def source(framework: str, settings: Changed, mode: Mode = Mode.TRAINING, placed_on: str = "cpu", **more: Any) -> str:
    return snippet(plan_of(framework, mode), PlanChange(settings=dict(settings), **more), placed_on=placed_on)


def combinations(per_text: int) -> list[dict[str, Scalar]]:
    """Every value alone, and every pair or more of them up to that many settings."""
    texts = []
    for count in range(per_text + 1):
        for names in itertools.combinations(EVERY, count):
            texts += [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*map(EVERY.get, names))]
    return texts


def is_half(settings: Changed) -> bool:
    return settings.get("dtype") in ("bfloat16", "float16")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_trains_and_infers_as_the_plain_loop_does(framework: str) -> None:
    needed = {"tensorflow": ("tensorflow", "keras"), "jax": ("jax", "keras")}.get(framework, (framework,))
    if missing := [name for name in needed if find_spec(name) is None]:
        pytest.skip(f"{missing[0]} is not installed")
    chosen = [(Mode.TRAINING, each) for each in ({}, *TRAINED[framework])]
    chosen += [(Mode.INFERENCE, each) for each in ({}, *INFERRED[framework])]
    if shutil.which("g++") is None:
        chosen = [(mode, each) for mode, each in chosen if "compile" not in each]
    cases = [{"mode": mode.value, "source": source(framework, each, mode)} for mode, each in chosen]
    for each in CAPTURED[framework]:
        chosen.append((Mode.TRAINING, each))
        cases.append({"mode": "captured", "source": source(framework, each, placed_on="cuda:0")})
    child = subprocess.run(
        [sys.executable, str(LOOPS), framework],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert child.returncode == 0, child.stderr
    answer = json.loads(child.stdout)
    assert answer["metalmark"] is False
    plain: dict[Mode, list[float]] = {}
    for (mode, settings), numbers in zip(chosen, answer["numbers"], strict=True):
        expected = plain.setdefault(mode, numbers)
        if mode is Mode.TRAINING:
            assert numbers[-1] < 0.8 * numbers[0], (settings, numbers)
        allowed = (HALF_TOLERANCE if is_half(settings) else TOLERANCE) * max(map(abs, expected))
        assert numbers == pytest.approx(expected, abs=allowed), settings


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_text_is_python_without_metalmark_and_without_traces_of_its_template(framework: str) -> None:
    for mode, placed_on, settings in itertools.product(Mode, ("cpu", "cuda:0", "mps:0"), combinations(2)):
        text = source(
            framework, settings, mode, placed_on, loader={"workers": 4, "pin": True}, params={"batch_size": 64}
        )
        tree = ast.parse(text)
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert names == ["make_step" if mode is Mode.TRAINING else "make_infer"]
        assert ast.get_docstring(next(node for node in tree.body if isinstance(node, ast.FunctionDef)))
        assert "metalmark" not in text.lower()
        assert not any(trace in text for trace in ("#?", "#=", "{?", "\n\n\n\n", " \n", "{device}", "()()"))
        assert max(map(len, text.splitlines())) <= 120, text


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_setting_leaves_a_word_in_the_text(framework: str) -> None:
    plain = source(framework, {}, placed_on="cuda:0")
    for settings in combinations(1)[1:]:
        assert source(framework, settings, placed_on="cuda:0") != plain, settings


def test_one_setting_on_torch_is_a_short_text() -> None:
    for name in (
        "dtype",
        "fused",
        "channels_last",
        "threads",
        "compile",
        "attention_kernel",
        "conv_search",
        "environment",
    ):
        for value in EVERY[name]:
            assert len(source("torch", {name: value}, placed_on="cuda:0").splitlines()) < 25, (name, value)


def test_only_lines_that_the_settings_need_are_in_the_text() -> None:
    words = {
        "autocast": {"dtype": "bfloat16"},
        "torch.compile": {"compile": True},
        "channels_last": {"channels_last": True},
        "fused=True": {"fused": True},
        "set_num_threads(2)": {"threads": 2},
        "CUDAGraph": {"graph": True},
        "allow_tf32 = True": {"dtype": "tf32"},
        "GradScaler": {"dtype": "float16"},
        "checkpoint": {"recompute": True},
        "chunk(4)": {"accumulate": 4},
        "enable_math_sdp(False)": {"attention_kernel": "flash"},
        "cudnn.benchmark = True": {"conv_search": True},
        'os.environ["OMP_WAIT_POLICY"] = "PASSIVE"': {"environment": "OMP_WAIT_POLICY=PASSIVE"},
    }
    for text, settings in ((source("torch", each, placed_on="cuda"), each) for each in words.values()):
        found = {name for name in words if name in text}
        also = {"autocast"} if settings == {"dtype": "float16"} else set()
        assert found == {name for name, each in words.items() if each == settings} | also


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax"])
def test_variables_are_set_before_the_first_import_of_a_framework(framework: str) -> None:
    for mode, settings in itertools.product(Mode, combinations(1)):
        text = source(framework, {**settings, "environment": "FIRST=1 SECOND=a=b"}, mode)
        lines = [line for line in text.splitlines() if re.match(r"import |from |os\.environ", line)]
        assert lines[0] == "import os"
        assert 'os.environ["SECOND"] = "a=b"' in lines
        last = max(number for number, line in enumerate(lines) if line.startswith("os.environ"))
        assert not any(line.startswith(("import", "from")) for line in lines[1:last])
    text = source("mlx", {"environment": "FIRST=1 SECOND=2"})
    assert "# Not written for this framework: environment FIRST=1 SECOND=2." in text


def test_a_captured_step_in_float16() -> None:
    text = source("torch", {"dtype": "float16", "graph": True, "fused": True, "compile": True}, placed_on="cuda:0")
    for line in (
        "make_optimizer(model.parameters(), fused=True, capturable=True)",
        'scaler = torch.amp.GradScaler("cuda")',
        'torch.autocast("cuda", dtype=torch.float16, cache_enabled=False)',
        "scaler.scale(loss).backward()",
        "side = torch.cuda.Stream()",
        "with torch.cuda.graph(graph):",
        "graph.replay()",
    ):
        assert line in text
    assert "Add fused=True" in source("torch", {"dtype": "float16", "graph": True}, placed_on="cuda:0")
    assert "needs an NVIDIA GPU" in source("torch", {"graph": True}, placed_on="cpu")


@pytest.mark.parametrize("mode", Mode)
def test_the_options_of_the_compiler(mode: Mode) -> None:
    def options(**settings: Scalar) -> str:
        text = source("torch", {"compile": True, **settings}, mode, placed_on="cuda:0")
        lines = [line.strip() for line in text.splitlines() if re.match(r" *(options = |@torch\.compile)", line)]
        return " ".join(lines)

    asked = {"compile_mode": "combo-kernels"}
    assert options(**asked, channels_last=True) == (
        'options = {"combo_kernels": True} @torch.compile(dynamic=False, options=options)'
    )
    assert options(**asked).startswith('options = {"combo_kernels": True, "layout_optimization": False} @torch.compile')
    asked = {"compile_mode": "max-autotune"}
    assert options(**asked, channels_last=True) == '@torch.compile(dynamic=False, mode="max-autotune")'
    assert options(**asked).startswith('options = torch._inductor.list_mode_options("max-autotune") | {')
    assert options(channels_last=True) == "@torch.compile(dynamic=False)"


def test_what_is_not_of_the_step_is_a_comment() -> None:
    text = source("torch", {}, placed_on="cuda:0", loader={"workers": 4, "pin": True}, params={"batch_size": 128})
    assert (
        "# DataLoader(..., batch_size=128, num_workers=4, prefetch_factor=2, persistent_workers=True, pin_memory=True)"
        in text
    )
    assert 'inputs.to("cuda", non_blocking=True)' in text
    assert "batches of 32: begin with 4 times the rate for SGD, 2 times for" in text
    assert "data.to(" in source("torch", {}, feed=Feed.RESIDENT)
    assert "num_parallel_calls=8" in source("tensorflow", {}, loader={"workers": 8})
    assert "set_intra_op_parallelism_threads(2)" in source("tensorflow", {"threads": 2})
    assert 'os.environ["PJRT_NPROC"] = "2"' in source("jax", {"threads": 2})
    assert "# MLX has no switch for its CPU threads." in source("mlx", {"threads": 2})
    assert "in the workload itself: image_size 128" in source("torch", {}, params={"image_size": 128})


def test_settings_of_the_baseline_are_named_and_not_applied() -> None:
    plan = plan_of("torch", settings=Settings(compile=True, fused=True))
    text = snippet(plan, PlanChange(settings={"fused": False}), placed_on="cpu")
    assert "The baseline had compile on already" in text
    assert "As in a plain loop: fused off." in text
    assert "torch.compile" not in text


def test_a_framework_without_a_template_gets_a_sentence() -> None:
    assert source("fake", {"compile": True}) == "# There is nothing to write for fake.\n"

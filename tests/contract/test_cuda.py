"""On an NVIDIA GPU: every setting completes through a real worker, and a captured step trains as an eager one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.measurement import Completed
from metalmark.model.plan import Budget, Device, DeviceKind, Dtype, Mode, Plan, Proving, Scalar, Settings, World
from metalmark.model.run import Failed, FailureKind
from metalmark.runner.ask import NoAnswer
from metalmark.runner.launch import run_cell
from metalmark.runner.probing import probe_all
from metalmark.workloads.catalog import load
from tests.tune.test_snippet import HALF_TOLERANCE, LOOPS, source

ROOT = Path(__file__).parents[2]


@cache
def why_not(framework: str) -> str:
    """Empty when this framework has CUDA here; else its probe's own reason."""
    if FRAMEWORKS[framework].missing():
        return f"{framework} is not installed"
    probe = probe_all([framework])[framework]
    if isinstance(probe, NoAnswer):
        return probe.reason
    (report,) = [report for report in probe.devices if report.word == "cuda"]
    return "" if report.present else report.reason


def require(framework: str) -> None:
    if reason := why_not(framework):
        pytest.skip(f"no CUDA for {framework}: {reason}")


def cell(
    framework: str,
    mode: Mode,
    settings: Settings,
    params: dict[str, Scalar] | None = None,
    *,
    workload: str = "conv256",
) -> Completed | Failed:
    usual: dict[str, Scalar] = {param.name: param.default for param in load(workload).params}
    plan = Plan(
        workload=workload,
        params={**usual, **(params or {"batch_size": 4, "pixels": 32})},
        mode=mode,
        framework=framework,
        device=Device(kind=DeviceKind.CUDA),
        settings=settings,
        budget=Budget(steps=20, seconds=0.2),
        proof=Proving.STRICT,
    )
    return run_cell(plan).outcome


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("graph", [False, True])
def test_torch_settings(dtype: Dtype, mode: Mode, graph: bool) -> None:
    require("torch")
    for fused in (False, True):
        settings = Settings(dtype=dtype, graph=graph, compile=fused, fused=fused, channels_last=fused)
        outcome = cell("torch", mode, settings)
        if dtype is Dtype.FLOAT16 and graph and not fused and mode is Mode.TRAINING:
            assert isinstance(outcome, Failed)
            assert outcome.kind is FailureKind.UNSUPPORTED
            continue
        assert isinstance(outcome, Completed), outcome
        assert outcome.placed_on == "cuda:0"
        assert isinstance(outcome.memory.peak_bytes, int)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(compile=True, compile_mode="reduce-overhead"),
        Settings(compile=True, compile_mode="max-autotune"),
        Settings(compile=True, compile_mode="max-autotune-no-cudagraphs", graph=True, accumulate=2),
        Settings(accumulate=4, graph=True),
        Settings(accumulate=4, graph=True, fused=True, dtype=Dtype.FLOAT16),
        Settings(recompute=True),
        Settings(recompute=True, compile=True),
        Settings(recompute=True, accumulate=2, attention_kernel="efficient"),
        *(Settings(attention_kernel=kernel, dtype=Dtype.BFLOAT16) for kernel in ("math", "flash", "efficient")),
        Settings(attention_kernel="flash", dtype=Dtype.BFLOAT16, graph=True),
        Settings(attention_kernel="flash", dtype=Dtype.BFLOAT16, compile=True),
    ],
    ids=lambda settings: " ".join(f"{name}={value}" for name, value in settings.changed().items()),
)
@pytest.mark.timeout(900)  # max-autotune times each kernel in many ways before it chooses
def test_settings_of_a_transformer(settings: Settings) -> None:
    require("torch")
    small: dict[str, Scalar] = {"batch_size": 4, "seq_len": 64, "size": "nano"}
    for mode in Mode:
        outcome = cell("torch", mode, settings, small, workload="gpt")
        if mode is Mode.INFERENCE and (settings.accumulate > 1 or settings.recompute):
            assert isinstance(outcome, Failed)
            assert outcome.kind is FailureKind.UNSUPPORTED
        else:
            assert isinstance(outcome, Completed), outcome


def test_accumulation_and_recomputation_take_less_memory() -> None:
    require("torch")
    large: dict[str, Scalar] = {"batch_size": 32, "seq_len": 512, "size": "nano"}
    peaks = []
    for settings in (Settings(), Settings(accumulate=8), Settings(recompute=True)):
        outcome = cell("torch", Mode.TRAINING, settings, large, workload="gpt")
        assert isinstance(outcome, Completed), outcome
        assert isinstance(outcome.memory.peak_bytes, int)
        peaks.append(outcome.memory.peak_bytes)
    whole, in_parts, recomputed = peaks
    assert in_parts < whole
    assert recomputed < whole


def test_cudnn_times_its_convolutions_in_the_first_step() -> None:
    """And the same network is trained, captured or not."""
    require("torch")
    params: dict[str, Scalar] = {"batch_size": 32, "pixels": 128}
    plain = cell("torch", Mode.TRAINING, Settings(), params)
    assert isinstance(plain, Completed), plain
    for settings in (
        Settings(conv_search=True),
        Settings(conv_search=True, graph=True),
        Settings(conv_search=True, channels_last=True, dtype=Dtype.BFLOAT16),
        Settings(compile=True, compile_mode="combo-kernels", channels_last=True, dtype=Dtype.BFLOAT16, graph=True),
        Settings(environment="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        Settings(environment="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", graph=True, conv_search=True),
    ):
        outcome = cell("torch", Mode.TRAINING, settings, params)
        assert isinstance(outcome, Completed), outcome
    without = cell("torch", Mode.TRAINING, Settings(conv_search=True), {"batch_size": 8}, workload="mnist-mlp")
    assert isinstance(without, Failed)
    assert "no nn.Conv" in without.message


def test_a_capture_is_in_the_first_step_and_its_memory_in_the_peak() -> None:
    """Large activations: a replay alone allocates none of them, and takes milliseconds."""
    require("torch")
    large: dict[str, Scalar] = {"batch_size": 64, "pixels": 256}
    eager, captured = (cell("torch", Mode.TRAINING, Settings(graph=graph), large) for graph in (False, True))
    assert isinstance(eager, Completed)
    assert isinstance(captured, Completed)
    assert captured.memory.peak_bytes >= 0.9 * eager.memory.peak_bytes  # type: ignore[operator]
    steady_s = min(block.elapsed_s / block.steps for block in captured.measurement.blocks)
    assert captured.measurement.first_step_s > 4 * steady_s, "three steps to warm up and the capture itself are in it"


@pytest.mark.parametrize("dtype", list(Dtype))
def test_jax(dtype: Dtype) -> None:
    require("jax")
    outcome = cell("jax", Mode.TRAINING, Settings(dtype=dtype))
    assert isinstance(outcome, Completed), outcome
    assert "cuda" in outcome.placed_on


def test_an_absurd_batch_is_out_of_memory_and_the_next_cell_is_not(tmp_path: Path) -> None:
    require("torch")
    # Tokens are few bytes on the host, and what they become on the GPU is not: 98 GiB for the words alone.
    sizes = ["--size", "tiny", "--seq-len", "512", "--batch-size", "400000,2", "--steps", "5"]
    where = ["-f", "torch", "-d", "cuda", "--store", str(tmp_path / "store.sqlite3")]
    command = [sys.executable, "-m", "metalmark", "bench", "bert", *where, *sizes, "--json", "-q"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    absurd, modest = (record["outcome"] for record in json.loads(run.stdout)["records"])
    assert (absurd["type"], absurd["kind"]) == ("failed", FailureKind.OUT_OF_MEMORY.value)
    assert modest["type"] == "completed"


SAME = """
import numpy as np
from metalmark.backends.torch import BACKEND
from metalmark.model.plan import *
from metalmark.workloads.catalog import load
def losses(**settings):
    plan = Plan(workload="mnist-mlp", params={"batch_size": 16}, mode=Mode.TRAINING, framework="torch",
                device=Device(kind=DeviceKind.CUDA), settings=Settings(**settings))
    with BACKEND.open(plan, load("mnist-mlp")) as session:
        found = []
        for _ in range(20):
            session.step()
            session.synchronize()
            found.append(session.proof())
        return found
eager = losses()
for settings in ({"graph": True}, {"graph": True, "fused": True}, {"graph": True, "fused": True, "compile": True}):
    graph = losses(**settings)
    assert all(abs(a - b) < 1e-3 * abs(a) for a, b in zip(eager, graph)), (settings, eager, graph)
    assert graph[0] != graph[1], "the second batch was copied into the graph's buffers"
from metalmark.feeds.leaves import leaves_of
from metalmark.training.torch import TRAINING
def trained(**settings):
    plan = Plan(workload="mnist-mlp", params={"batch_size": 16}, mode=Mode.TRAINING, framework="torch",
                device=Device(kind=DeviceKind.CUDA), settings=Settings(**settings))
    workload = load("mnist-mlp")
    with TRAINING.open(plan, workload) as trainer:
        arrays = leaves_of(trainer.recipe.prepare(workload.batch(plan.params, np.random.default_rng(0))))[0]
        return trainer.read([trainer.train_batch(arrays) for _ in range(5)])
eager, graph = trained(), trained(graph=True)
assert all(abs(a - b) < 1e-3 * abs(a) for a, b in zip(eager, graph)), (eager, graph)
assert len(set(graph)) == 5, "each loss is kept, though the graph writes them to the same place"
print("same")
"""


def test_a_captured_step_trains_what_an_eager_one_does() -> None:
    require("torch")
    run = subprocess.run(
        [sys.executable, "-c", SAME], env={**os.environ}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.stdout.strip() == "same", run.stderr[-2000:]


def test_the_text_that_tune_prints_trains_and_infers_as_the_plain_loop_does() -> None:
    """In a process without Metalmark, and with graphs that are really captured."""
    require("torch")
    fast: dict[str, Scalar] = {"dtype": "bfloat16", "compile": True, "graph": True, "fused": True}
    chosen: list[tuple[Mode, dict[str, Scalar]]] = [
        (Mode.TRAINING, {"dtype": "float32"}),
        (Mode.TRAINING, {"dtype": "float32", "graph": True}),
        (Mode.TRAINING, {"dtype": "float16", "graph": True, "fused": True}),
        (Mode.TRAINING, {"dtype": "bfloat16", "recompute": True}),
        (Mode.TRAINING, fast),
        (Mode.TRAINING, {**fast, "channels_last": True, "conv_search": True, "compile_mode": "combo-kernels"}),
        (Mode.INFERENCE, {"dtype": "float32"}),
        (Mode.INFERENCE, {"dtype": "float32", "graph": True}),
        (Mode.INFERENCE, {"dtype": "bfloat16", "compile": True, "graph": True}),
    ]
    cases = [
        {"mode": mode.value, "source": source("torch", each, mode, placed_on="cuda:0"), "device": "cuda"}
        for mode, each in chosen
    ]
    command, given = [sys.executable, str(LOOPS), "torch"], json.dumps(cases)
    child = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr[-2000:]
    plain: dict[Mode, list[float]] = {}
    for (mode, settings), numbers in zip(chosen, json.loads(child.stdout)["numbers"], strict=True):
        expected = plain.setdefault(mode, numbers)
        allowed = (HALF_TOLERANCE if settings["dtype"] != "float32" else 1e-3) * max(map(abs, expected))
        assert numbers == pytest.approx(expected, abs=allowed), settings


def test_one_process_under_torchrun_with_nccl() -> None:
    """All that one GPU can show of several processes: they meet, gradients go through NCCL, and it learns."""
    require("torch")
    plan = Plan(
        workload="mnist-mlp",
        params={"batch_size": 16},
        mode=Mode.TRAINING,
        framework="torch",
        device=Device(kind=DeviceKind.CUDA),
        budget=Budget(steps=20, seconds=0.2),
        proof=Proving.STRICT,
        world=World(nproc=1),
    )
    outcome = run_cell(plan, hz=None).outcome
    assert isinstance(outcome, Completed), outcome
    assert outcome.placed_on == "cuda:0"

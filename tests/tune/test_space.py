"""What may be changed where, and what trials come to."""

from __future__ import annotations

import sys

import msgspec

from metalmark.backends.environment import VARIABLES, pairs, parse_environment
from metalmark.model.plan import Device, DeviceKind, Feed, Loader, Mode, Plan, PlanChange, Settings
from metalmark.model.run import Machine
from metalmark.model.tuning import TuningGoal
from metalmark.tune.ladder import added_words, change_words
from metalmark.tune.space import Space, axes, entries, space_of

MACHINE = Machine(
    chip="a chip", architecture="arm64", physical_cores=4, logical_cores=8, usable_cores=8, memory_bytes=2**34,
    os="Linux",
)  # fmt: skip
PLAN = Plan(
    workload="mnist-mlp", params={"batch_size": 32}, mode=Mode.TRAINING, framework="torch",
    device=Device(kind=DeviceKind.ANY),
)  # fmt: skip


def space(framework: str = "torch", device_type: str = "cuda", goal: str = "throughput", **more: object) -> Space:
    plan = msgspec.structs.replace(PLAN, framework=framework, **more)  # type: ignore[arg-type]
    return space_of(plan, device_type=device_type, goal=TuningGoal(goal), machine=MACHINE)


def names(found: Space) -> list[str]:
    return [option.name for option in found.options]


def test_each_device_has_its_own_options() -> None:
    assert {"tf32", "bfloat16", "compile", "graph", "fused", "channels_last"} <= set(names(space()))
    on_cpu = names(space(device_type="cpu"))
    assert "threads 4" in on_cpu
    assert not {"tf32", "graph"} & set(on_cpu)
    assert {"bfloat16", "compile", "fused"} <= set(names(space(device_type="mps")))
    assert "threads 4" not in names(space(device_type="mps"))


def test_a_framework_says_what_it_lacks() -> None:
    metal = space("tensorflow", "mps")
    assert names(metal) == ["float16"]  # instead of bfloat16, which tensorflow-metal lacks
    assert any(line.startswith("bfloat16: ") and "Use float16" in line for line in metal.left_out)
    assert any(line.startswith("compile: ") and "no XLA" in line for line in metal.left_out)
    assert "compile" not in names(space("jax", "cpu"))  # it always compiles
    assert "fused" not in names(space(mode=Mode.INFERENCE))


def test_what_a_network_has_nothing_for_is_not_tried() -> None:
    idle = {"channels_last": "this model has no images.", "attention_kernel": "it computes no attention."}
    found = space_of(PLAN, device_type="cuda", goal=TuningGoal.THROUGHPUT, machine=MACHINE, idle=idle)
    assert not {"channels_last", "cuDNN attention"} & set(names(found))
    assert set(names(space())) - set(names(found)) == {"channels_last", "cuDNN attention"}
    assert {"channels_last: this model has no images.", "cuDNN attention: it computes no attention."} <= set(
        found.left_out
    )


def test_what_a_plan_has_already_is_not_needed_any_more() -> None:
    def needs(plan: Plan) -> dict[str, tuple[str, ...]]:
        found = space_of(plan, device_type="cuda", goal=TuningGoal.THROUGHPUT, machine=MACHINE)
        return {option.name: option.needs for option in found.options if option.needs}

    compiled = msgspec.structs.replace(PLAN, settings=Settings(compile=True))
    assert needs(PLAN)["combo kernels"] == ("compile", "channels_last")
    assert needs(compiled)["combo kernels"] == ("channels_last",)
    assert "max-autotune" in needs(PLAN)
    assert "max-autotune" not in needs(compiled)


def test_variables_are_tried_where_they_are_read() -> None:
    variables = {each.name for each in entries() if each.axis == "environment"}
    tried = {
        (framework, device_type): variables & set(names(space(framework, device_type)))
        for framework in ("torch", "tensorflow", "jax", "mlx")
        for device_type in ("cpu", "cuda", "mps")
    }
    assert tried["torch", "cpu"] == {"OMP_WAIT_POLICY=ACTIVE"}
    assert tried["torch", "mps"] == {"PYTORCH_MPS_FAST_MATH=1", "PYTORCH_MPS_PREFER_METAL=1"}
    assert tried["tensorflow", "cuda"] == {"TF_GPU_THREAD_MODE=gpu_private"}
    assert tried["jax", "cuda"] == {"XLA latency hiding"}
    assert tried["torch", "cuda"] == {"separate reductions"}
    assert not any(tried[key] for key in (("tensorflow", "mps"), ("jax", "cpu"), ("mlx", "mps")))
    assert "expandable segments" in names(space(goal="memory")) or sys.platform != "linux"
    assert "cuDNN search" in names(space())
    assert "cuDNN search" not in names(space(device_type="mps"))


def test_every_variable_that_is_tried_may_be_set() -> None:
    for entry in entries():
        if entry.axis == "environment":
            text = str(entry.settings["environment"])
            assert parse_environment(text) == text
            assert all(set(VARIABLES[name].frameworks) >= set(entry.frameworks) for name in pairs(text))
            assert all(set(VARIABLES[name].devices) >= set(entry.expected) for name in pairs(text))


def test_what_is_kept_is_not_tried_and_every_axis_can_be_kept() -> None:
    plan = msgspec.structs.replace(PLAN, feed=Feed.PIPELINE, loader=Loader())
    found = space_of(plan, device_type="cpu", goal=TuningGoal.LATENCY, machine=MACHINE, fixed=axes())
    assert not found.options
    assert "bfloat16: --keep dtype" in found.left_out
    assert {entry.axis for entry in entries()} <= set(axes())


def test_a_step_that_waits_has_its_loader_tried_first() -> None:
    plan = msgspec.structs.replace(PLAN, feed=Feed.PIPELINE, loader=Loader())
    for waiting, first in ((0.7, "2 workers"), (0.0, "bfloat16")):
        found = space_of(plan, device_type="cuda", goal=TuningGoal.THROUGHPUT, machine=MACHINE, waiting_share=waiting)
        assert max(found.options, key=lambda each: each.expected).name == first
    assert "8 workers" in names(found)
    assert not any("workers" in name for name in names(space()))


def test_memory_is_tuned_by_what_saves_it() -> None:
    assert not {"compile", "tf32"} & set(names(space(goal="memory")))
    assert "bfloat16" in names(space(goal="memory"))


def test_changes_in_words() -> None:
    first = PlanChange(settings={"dtype": "bfloat16"})
    second = PlanChange(settings={"dtype": "bfloat16", "compile": True, "threads": 2}, params={"batch_size": 64})
    assert change_words(PlanChange()) == "baseline"
    assert change_words(second) == "bfloat16 + compile + threads 2 + batch 64"
    assert added_words(first, second) == "+ compile + threads 2 + batch 64"
    third = PlanChange(settings={**first.settings, "conv_search": True, "environment": "OMP_WAIT_POLICY=ACTIVE"})
    assert added_words(first, third) == "+ conv_search + OMP_WAIT_POLICY=ACTIVE"
    restored = msgspec.json.decode(msgspec.json.encode(second), type=PlanChange)
    assert restored.applied(PLAN).settings == second.applied(PLAN).settings
    assert restored.applied(PLAN).settings.dtype.name == "BFLOAT16"

"""Environment variables as a setting: which ones are taken, and that a real process has them before its framework."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from metalmark.app.choices import settings_product
from metalmark.app.parity import reference_plan
from metalmark.backends import catalog
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.backends.environment import REFUSED, VARIABLES, notes_without_compiler, pairs, parse_environment, written
from metalmark.errors import UnsupportedError, UsageError
from metalmark.machine.steering import steering_variables
from metalmark.model.measurement import Completed
from metalmark.model.plan import Budget, Device, DeviceKind, Mode, Plan, Settings
from metalmark.parity.examine import examine
from metalmark.parity.job import Options
from metalmark.results.command import bench_command
from metalmark.runner.launch import run_cell
from metalmark.workloads.catalog import load

POLICY = "OMP_WAIT_POLICY"
SEEN = "METALMARK_TEST_SEEN"
WATCH = f"""
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            with open(os.environ["{SEEN}"], "a") as file:
                file.write(os.environ.get("{POLICY}", "unset") + "\\n")

sys.meta_path.insert(0, Watch())
"""
"""Notes the variable in each Python that is started, when PyTorch is looked for."""
PLAN = Plan(
    workload="mnist-mlp",
    params={param.name: param.default for param in load("mnist-mlp").params},
    mode=Mode.TRAINING,
    framework="torch",
    device=Device(kind=DeviceKind.CPU),
    settings=Settings(environment=f"{POLICY}=PASSIVE"),
    budget=Budget(steps=10, seconds=0.1),
)


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the variable was whenever PyTorch was looked for, a line each."""
    if FRAMEWORKS["torch"].missing():
        pytest.skip("torch is not installed")
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv(SEEN, str(tmp_path / "seen.txt"))
    return tmp_path / "seen.txt"


def test_a_worker_has_the_variable_before_pytorch_is_imported(seen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POLICY, "ACTIVE")  # of the user's own: the setting wins, and the record says so
    ended = run_cell(PLAN)
    assert isinstance(ended.outcome, Completed), ended.outcome
    assert set(seen.read_text().split()) == {"PASSIVE"}
    assert ended.software.environment[POLICY] == "PASSIVE"
    seen.unlink()
    ended = run_cell(replace(PLAN, settings=Settings()))
    assert set(seen.read_text().split()) == {"ACTIVE"}
    assert ended.software.environment[POLICY] == "ACTIVE"


def test_the_checked_side_has_the_variable_and_its_reference_does_not(
    seen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(POLICY, raising=False)
    reference = reference_plan(PLAN, "", PLAN.device)
    found = examine(PLAN, reference, options=Options(steps=1, draws=1, repeats=0, seeds=0))
    assert not found.interrupted
    lines = seen.read_text().split()
    assert list(dict.fromkeys(lines)) == ["unset", "PASSIVE"], "the reference is the first of the two"
    assert found.software.environment[POLICY] == "PASSIVE"


def test_a_variable_for_the_compiler_is_said_to_do_nothing_without_it() -> None:
    """Such a plan is not refused: a parity check that looks for a cause takes the compiler away and leaves the rest."""
    text = f"{POLICY}=ACTIVE TORCHINDUCTOR_MIX_ORDER_REDUCTION=0"
    assert notes_without_compiler(text) == (
        "TORCHINDUCTOR_MIX_ORDER_REDUCTION does nothing here: it is for what --compile compiles.",
    )
    assert not notes_without_compiler("LD_PRELOAD=evil.so")


def test_a_worker_refuses_what_its_device_does_not_read() -> None:
    for framework, device_type, text, message in (
        ("torch", "cpu", "PYTORCH_MPS_FAST_MATH=1", "which is for torch on mps."),
        ("torch", "cuda", f"{POLICY}=ACTIVE", "which is for torch on cpu."),
        ("jax", "cpu", "XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true", "which is for jax on cuda."),
        ("jax", "cpu", f"{POLICY}=ACTIVE", "which is for torch on cpu."),
        ("fake", "gpu", f"{POLICY}=ACTIVE", "which is for torch on cpu."),
        ("torch", "cpu", f"LD_PRELOAD=evil.so {POLICY}=ACTIVE", "not one of the variables that Metalmark sets."),
        ("torch", "cpu", f"{POLICY}=SOMETIMES", "not one of the variables that Metalmark sets."),
        ("torch", "mps", "PYTORCH_ENABLE_MPS_FALLBACK=1", "would run on the CPU without a word."),
    ):
        name, _, value = text.split()[0].partition("=")
        pattern = rf"^--environment {name}={re.escape(value)} on {framework}, {device_type}: .*{re.escape(message)}$"
        with pytest.raises(UnsupportedError, match=pattern):
            FRAMEWORKS[framework].check(Settings(environment=text), device_type)


def test_only_known_variables_reach_a_process() -> None:
    """Settings may come from a file that somebody else has written."""
    torch = FRAMEWORKS["torch"]
    usual = torch.environment(Settings())
    steered = torch.environment(Settings(environment=f"LD_PRELOAD=evil.so {POLICY}=ACTIVE PYTORCH_MPS_FAST_MATH=9"))
    assert steered == {**usual, POLICY: "ACTIVE"}
    assert POLICY not in FRAMEWORKS["jax"].environment(Settings(environment=f"{POLICY}=ACTIVE"))


@pytest.mark.parametrize("name", VARIABLES)
def test_each_variable_works_where_it_says_and_is_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = VARIABLES[name]
    monkeypatch.setattr(catalog, "version_of", lambda *_: None)
    for value in variable.values:
        settings = Settings(environment=parse_environment(f"{name}={value}"))
        for framework in variable.frameworks:
            assert FRAMEWORKS[framework].environment(settings)[name] == value
            for device_type in variable.devices:
                for system in variable.systems or ("darwin", "linux"):
                    monkeypatch.setattr("sys.platform", system)
                    FRAMEWORKS[framework].check(settings, device_type)
        assert steering_variables({name: value}) == {name: value}, "a run says what it was measured with"
    assert name not in REFUSED


def test_a_version_or_a_system_without_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = Settings(environment="PYTORCH_MPS_FAST_MATH=1")
    for version, refused in (("2.4.1", True), ("2.5.0", False), ("2.13.0+cpu", False), ("unknown", False)):
        monkeypatch.setattr(catalog, "version_of", lambda *_, version=version: version)
        if refused:
            with pytest.raises(UnsupportedError, match=r"from version 2.5 on; this is 2.4.1.$"):
                FRAMEWORKS["torch"].check(fast, "mps")
        else:
            FRAMEWORKS["torch"].check(fast, "mps")
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(UnsupportedError, match="does nothing on this system"):
        FRAMEWORKS["tensorflow"].check(Settings(environment="TF_ENABLE_ONEDNN_OPTS=0"), "cpu")


def test_several_are_sorted_and_lists_try_each() -> None:
    both = "PYTORCH_MPS_FAST_MATH=1 PYTORCH_MPS_PREFER_METAL=1"
    assert parse_environment("  PYTORCH_MPS_PREFER_METAL=1   PYTORCH_MPS_FAST_MATH=1 ") == both
    assert pairs(both) == {"PYTORCH_MPS_FAST_MATH": "1", "PYTORCH_MPS_PREFER_METAL": "1"}
    assert parse_environment("") == ""
    text = f"default,{both},PYTORCH_MPS_PREFER_METAL=1 PYTORCH_MPS_FAST_MATH=1,{POLICY}=ACTIVE"
    assert [each.environment for each in settings_product(environment=text)] == ["", both, f"{POLICY}=ACTIVE"]
    assert [each.environment for each in settings_product(environment=["default", both])] == ["", both]
    assert [each.environment for each in settings_product(environment="")] == [""]


def test_the_answer_to_an_unknown_one_lists_those_that_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        parse_environment("PYTORCH_MPS_FASTMATH=1")
    assert caught.value.message.endswith("; did you mean PYTORCH_MPS_FAST_MATH?")
    assert all(each in caught.value.hint for each in written())
    with pytest.raises(UsageError, match="takes NAME=VALUE, not 'on'"):
        parse_environment("on")


def test_runs_without_the_settings_are_read_and_commands_repeat_them() -> None:
    old = msgspec.json.decode(b'{"dtype": "bfloat16", "recompute": true}', type=Settings)
    assert (old.conv_search, old.environment) == (False, "")
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"environment": "no variable"}, Settings)
    settings = Settings(conv_search=True, environment="A=1 B=2")
    assert "--conv-search=on '--environment=A=1 B=2'" in bench_command(replace(PLAN, settings=settings))
    assert settings.changed() == {"conv_search": "on", "environment": "A=1 B=2"}

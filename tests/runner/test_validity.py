"""Spoiled on purpose and measured for real: worker processes whose cells must come back flagged."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from metalmark.backends.fake import FakeSession
from metalmark.model.measurement import Completed
from metalmark.model.plan import Budget, Device, DeviceKind, Mode, Plan
from metalmark.model.run import DeviceMemory
from metalmark.runner.flags import flags_of
from metalmark.runner.launch import run_cell
from metalmark.runner.loop import Clock
from tests.samples import MACHINE

Plans = Callable[..., Plan]


def measured(plan: Plan, **options: Any) -> tuple[Completed, dict[str, str]]:
    ended = run_cell(plan, **options)
    assert isinstance(ended.outcome, Completed), ended.outcome
    flags = flags_of(ended.outcome, ended.telemetry, MACHINE)
    return ended.outcome, {flag.name: flag.evidence for flag in flags}


def test_a_leak_of_a_megabyte_a_step_and_of_nothing(fake_plan: Plans) -> None:
    """0.953674 MiB are 10^6 bytes."""
    run, flags = measured(fake_plan(leak_mb=0.953674), hz=None)
    assert "leaking" in flags
    assert "954 MiB in 1,000 steps" in flags["leaking"]
    live = [block.live_bytes for block in run.measurement.blocks]
    assert None not in live
    assert live == sorted(live)  # type: ignore[type-var]
    _, flags = measured(fake_plan(), hz=None)
    assert "leaking" not in flags


def test_a_device_that_doubles_its_step(fake_plan: Plans) -> None:
    # Slower for far longer than it is measured: however long the warm-up took, the drift is not over by then.
    _, flags = measured(fake_plan(drift=20.0, drift_s=60.0, budget=Budget(seconds=3.0)), hz=None)
    assert "slower than the first" in flags["drifting"]


def test_an_operation_that_left_the_device(fake_plan: Plans) -> None:
    run, flags = measured(fake_plan(fault="fallback"), hz=None)
    assert run.fallbacks == ("aten::fake_op.out",)
    assert "aten::fake_op.out" in flags["cpu_fallback"]


LEAKS = """
import numpy as np
from metalmark import Batch, Param, Recipe, Workload

def build(params):
    import torch
    kept = []
    class Net(torch.nn.Linear):
        def forward(self, x):
            if params["leak"]:
                kept.append(np.ones(125_000))
            return super().forward(x)
    return Recipe(model=Net(8, 2), loss=torch.nn.functional.cross_entropy,
                  optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1))

def batch(params, rng):
    return Batch(inputs=(rng.normal(size=(4, 8)).astype(np.float32),), targets=np.array([0, 1, 0, 1], np.int32))

leaky = Workload(name="leaky", title="", params=(Param("batch_size", 4), Param("leak", False)),
                 build={"torch": build}, batch=batch)
"""


@pytest.mark.parametrize("leak", [True, False])
def test_a_real_process_that_loses_a_megabyte_a_step(leak: bool, tmp_path: Any) -> None:
    """On the CPU nothing counts but what the process holds. The steps are fixed: it loses 1 GB in all at most."""
    pytest.importorskip("torch")
    source = tmp_path / "leaky.py"
    source.write_text(LEAKS.replace("super().forward(x)", "(time.sleep(0.004), super(Net, self).forward(x))[1]")
                      .replace("import numpy as np", "import time\nimport numpy as np", 1))  # fmt: skip
    word = "leaky.py:leaky"
    plan = Plan(
        workload=word,
        params={"batch_size": 4, "leak": leak},
        mode=Mode.TRAINING,
        framework="torch",
        device=Device(kind=DeviceKind.CPU),
        budget=Budget(steps=600, seconds=0.2),
    )
    _, flags = measured(plan, paths={word: str(source)}, hz=10.0)
    assert ("leaking" in flags) == leak, flags


def test_memory_is_read_while_the_clock_stands(fake_plan: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the block's synchronisation and its proof, once, and never among its steps."""
    calls: list[str] = []
    for name in ("step", "synchronize", "proof", "memory"):
        real = getattr(FakeSession, name)

        def spy(session: FakeSession, name: str = name, real: Callable[[FakeSession], Any] = real) -> Any:
            calls.append(name)
            return real(session)

        monkeypatch.setattr(FakeSession, name, spy)
    plan = fake_plan(step_ms=0.1)
    session = FakeSession(plan, plan.params)
    block = Clock(session, plan.budget, origin_s=time.monotonic(), tell=lambda *_: None).block(3)
    # A reading that took long is taken once more.
    assert list(dict.fromkeys(calls)) == ["step", "synchronize", "proof", "memory"]
    assert calls[:5] == ["step", "step", "step", "synchronize", "proof"]
    assert calls[-1] == "memory"
    assert calls.count("memory") == 1
    assert isinstance(session.memory(), DeviceMemory)
    assert block.live_bytes == session.memory().live_bytes

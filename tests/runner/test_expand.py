from __future__ import annotations

import pytest

from metalmark.errors import UsageError
from metalmark.model.plan import Budget, Device, DeviceKind, Dtype, Mode, Settings, Sweep
from metalmark.model.run import new_id, now_utc
from metalmark.model.workload import Param, WorkloadInfo
from metalmark.runner.expand import SweepAxes, combine, expand, require

CPU = Device(kind=DeviceKind.CPU)


def info(name: str, *params: Param, frameworks: tuple[str, ...] = ("torch", "mlx")) -> WorkloadInfo:
    batch = Param("batch_size", 32, minimum=1)
    return WorkloadInfo(name=name, title="", params=(batch, *params), modes=tuple(Mode), frameworks=frameworks)


SMALL, BERT = info("small"), info("bert", Param("size", "base", choices=("base", "tiny")), frameworks=("torch",))


def axes(given: dict[str, str], *workloads: WorkloadInfo, **changes: object) -> SweepAxes:
    fields = {
        "workloads": workloads,
        "params": combine(workloads, given, ["--framework"], verb="bench"),
        "modes": [Mode.TRAINING],
        "devices": {"torch": [CPU], "mlx": [CPU]},
        "settings": [Settings()],
        "budget": Budget(),
    }
    return SweepAxes(**{**fields, **changes})  # type: ignore[arg-type]


def test_everything_is_multiplied() -> None:
    settings = [Settings(dtype=dtype) for dtype in (Dtype.FLOAT32, Dtype.BFLOAT16)]
    plans = expand(axes({"batch_size": "1,2,4"}, SMALL, modes=list(Mode), settings=settings))
    assert len(plans) == 3 * 2 * 2 * 2
    assert len(set(map(repr, plans))) == len(plans)


def test_a_parameter_need_be_known_to_one_workload_only() -> None:
    plans = expand(axes({"size": "tiny"}, SMALL, BERT))
    assert {plan.workload: plan.params.get("size") for plan in plans} == {"small": None, "bert": "tiny"}


def test_an_unknown_parameter_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean --batch-size") as refused:
        combine([SMALL], {"batchsize": "1"}, [], verb="tune")
    assert "metalmark tune --help" in str(refused.value.hint)
    with pytest.raises(UsageError, match="did you mean --framework"):
        combine([SMALL], {"frmework": "1"}, ["--framework"], verb="bench")


def test_a_framework_without_an_implementation_is_left_out_and_said() -> None:
    asked = axes({}, BERT)
    assert {plan.framework for plan in expand(asked)} == {"torch"}
    assert "bert on mlx" in asked.left_out[0]
    with pytest.raises(UsageError, match="no implementation for mlx"):
        require([BERT], ["mlx"])


def test_nothing_to_run_is_an_error() -> None:
    with pytest.raises(UsageError, match="nothing to run"):
        expand(axes({}, BERT, devices={"mlx": [CPU]}))


def test_too_much_is_an_error() -> None:
    with pytest.raises(UsageError, match="cells"):
        expand(axes({"batch_size": "1-1000"}, SMALL, settings=[Settings(threads=n) for n in range(1, 12)]))


def test_repeats_are_interleaved() -> None:
    """Every cell once, then every cell again: slow drift of the machine hits all alike."""
    plans = expand(axes({"batch_size": "1,2"}, SMALL))
    sweep = Sweep(id=new_id(), created_at=now_utc(), plans=plans, repeats=3)
    order = list(sweep.order())
    assert order[:5] == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1)]
    assert len(order) == 12

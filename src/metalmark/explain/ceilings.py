"""The most that the device reaches in a matrix product and in a copy, measured on the spot in a worker's process."""

from collections.abc import Callable

from metalmark.errors import MetalmarkError
from metalmark.explain.base import Anatomy, ExplainBackend
from metalmark.explain.job import Ceiling
from metalmark.explain.timing import BlockTimer
from metalmark.model.plan import Device, DeviceKind, Plan
from metalmark.runner.ask import in_one_line
from metalmark.runner.ceiling import ceiling_plans
from metalmark.stats.summary import median
from metalmark.workloads.catalog import load
from metalmark.workloads.ceiling import COPY, copied_bytes


def measure_ceiling(
    side: ExplainBackend, plan: Plan, placed_on: str, timer_of: Callable[[Anatomy], BlockTimer]
) -> Ceiling:
    """Measure with the plan's framework, device, dtype and threads. `placed_on`: where its parameters are."""
    device = _device(plan.device, placed_on)
    found: dict[str, float] = {}
    reasons: list[str] = []
    settings = plan.settings
    for probe in ceiling_plans({plan.framework: [device]}, [settings.dtype], settings.threads):
        try:
            found["copy" if probe.workload == COPY else "product"] = _rate(side, probe, timer_of)
        except MetalmarkError as error:
            reasons.append(error.message.rstrip("."))
        except Exception as error:  # noqa: BLE001  whatever a framework throws is why there is no ceiling
            reasons.append("out of memory" if side.is_out_of_memory(error) else in_one_line(error))
    absent = "; ".join(dict.fromkeys(reasons))
    return Ceiling(flops_per_s=found.get("product"), bytes_per_s=found.get("copy"), absent=absent)


def _rate(side: ExplainBackend, probe: Plan, timer_of: Callable[[Anatomy], BlockTimer]) -> float:
    """Return operations or bytes per second."""
    workload = load(probe.workload)
    with side.open(probe, workload) as anatomy:
        anatomy.session.step()
        anatomy.session.settle()
        step_s = median(timer_of(anatomy).time(anatomy.session.step))
    if workload.flops is None:
        return copied_bytes(probe.params) / step_s
    return workload.flops(probe.params) * probe.samples_per_step / step_s


def _device(asked: Device, placed_on: str) -> Device:
    """Return the device by the name of its kind, which the sizes depend on, where `gpu` or `any` was asked for."""
    kind = placed_on.partition(":")[0]
    if asked.kind in (DeviceKind.GPU, DeviceKind.ANY) and kind in (DeviceKind.CPU, DeviceKind.CUDA, DeviceKind.MPS):
        return Device(kind=DeviceKind(kind), index=asked.index)
    return asked

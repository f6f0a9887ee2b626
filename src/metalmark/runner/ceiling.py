"""The cells that measure ceilings, and which of them this machine has measured before."""

from collections.abc import Iterable, Mapping, Sequence

from metalmark.backends.catalog import UNKNOWN, version_of
from metalmark.machine.identity import identify
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.plan import Budget, Device, DeviceKind, Dtype, Mode, Plan, Scalar, Settings
from metalmark.workloads.ceiling import COPY, MATMUL

SIZES = {DeviceKind.CPU: (768, 16), DeviceKind.ANY: (768, 16), DeviceKind.CUDA: (8192, 256)}
"""Width of the square matrices, and millions of numbers copied: large enough to be at the ceiling, small enough to wait
for."""
OTHER_SIZE = 4096, 64
SECONDS = 1.0


def ceiling_plans(
    devices: Mapping[str, Sequence[Device]], dtypes: Iterable[Dtype], threads: int | None
) -> tuple[Plan, ...]:
    """Return, per framework and device, a matrix product in each dtype and one copy, which moves bytes of any dtype."""
    plans = []
    for framework, found in devices.items():
        for device in found:
            width, megafloats = SIZES.get(device.kind, OTHER_SIZE)
            square: dict[str, Scalar] = {"batch_size": width, "width": width}
            copied: dict[str, Scalar] = {"batch_size": 1, "megafloats": megafloats}
            cells = [*((MATMUL, square, dtype) for dtype in dtypes), (COPY, copied, Dtype.FLOAT32)]
            for workload, params, dtype in cells:
                plan = Plan(
                    workload=workload, params=params, mode=Mode.INFERENCE, framework=framework, device=device,
                    settings=Settings(dtype=dtype, threads=threads), budget=Budget(seconds=SECONDS),
                )  # fmt: skip
                plans.append(plan)
    return tuple(plans)


def measured_before(plans: Sequence[Plan], runs: Iterable[BenchRun]) -> dict[int, BenchRun]:
    """Return, by the plan's number, its newest run on this machine with the version that is installed now."""
    machine = identify()
    found: dict[int, BenchRun] = {}
    for run in sorted(runs, key=lambda run: run.started_at):
        here = (run.machine.chip, run.machine.gpus) == (machine.chip, machine.gpus)
        same = _is_installed(run.plan.framework, run.software.versions.get(run.plan.framework))
        if here and same and isinstance(run.outcome, Completed) and run.plan in plans:
            found[plans.index(run.plan)] = run
    return found


def _is_installed(framework: str, version: str | None) -> bool:
    """PyTorch says 2.13.0+cu130 where its package may say 2.13.0. Two unknown versions may differ."""
    names = (framework, f"{framework}-cpu", f"{framework}-macos")
    installed = next((found for name in names if (found := version_of(name)) is not None), None)
    return version not in (None, UNKNOWN) and installed in (version, version.partition("+")[0])

"""What `metalmark tune` finds on an NVIDIA GPU, over float32 and eager, its parity checked, against what it has to.

python benchmarks/tune_cuda.py [--out FILE.json] [--store FILE.sqlite3] [--time 150s] [--warm] [CASE ...]

Without a name every case is run that FILE.json does not hold, or holds below its bound; it takes about as long as the
cases times --time. The batch size stays as it is, but for the cases that end in `any-batch`. Prints a line for each
case and how many missed their bound; exit 1 where one did, or where the best could not be proved. FILE.json gets the
tunings after each case; with --store the trials are kept too.

--warm compiles beforehand, for all cases at once, the steps that are measured and those that the parity check takes, so
that each case finds its code in PyTorch's cache: the first steps in the ladders are then those of a warm cache, and no
figure that is compared with a bound contains one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import metalmark as mm
from metalmark.app.gate import what_is_checked
from metalmark.app.tune_gate import LEAST_BATCH
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.feeds.leaves import leaves_of
from metalmark.machine.durable import write_whole
from metalmark.model.codec import decode_export, encode_export
from metalmark.model.measurement import Completed
from metalmark.model.plan import Budget, Device, DeviceKind, Dtype, Mode, Plan, Proving, Settings
from metalmark.model.run import Failed, Run
from metalmark.model.tuning import TuningRun
from metalmark.runner.launch import run_cell
from metalmark.runner.spares import kept_ready
from metalmark.workloads.catalog import load

CASES: dict[str, tuple[str, dict[str, Any], float, float]] = {
    # The workload, its options, the least gain, and the milliseconds that are as good as that gain.
    "bert-16x128": ("bert", {"batch_size": 16, "seq_len": 128}, 6.0, 5.9),
    "bert-256x128": ("bert", {"batch_size": 256, "seq_len": 128}, 7.8, 0.0),
    "bert-16x512": ("bert", {"batch_size": 16, "seq_len": 512}, 7.6, 0.0),
    "bert-64x512": ("bert", {"batch_size": 64, "seq_len": 512}, 6.8, 0.0),
    "bert-256x512": ("bert", {"batch_size": 256, "seq_len": 512}, 7.05, 0.0),
    "bert-inference-16x128": ("bert", {"batch_size": 16, "seq_len": 128, "mode": "inference"}, 9.2, 0.0),
    "bert-inference-256x512": ("bert", {"batch_size": 256, "seq_len": 512, "mode": "inference"}, 9.2, 0.0),
    "mobilenet-32": ("mobilenet-cifar10", {"batch_size": 32, "pixels": 32, "train": "all"}, 20.0, 0.0),
    "mobilenet-32-any-batch": ("mobilenet-cifar10", {"batch_size": 32, "pixels": 32, "train": "all"}, 20.0, 0.0),
    "resnet50-32": ("resnet50-transfer", {"batch_size": 32, "train": "all"}, 6.5, 0.0),
    "resnet50-256": ("resnet50-transfer", {"batch_size": 256, "train": "all"}, 5.5, 0.0),
    "gpt-12x1024": ("gpt", {"size": "small", "batch_size": 12, "seq_len": 1024}, 9.3, 0.0),
}


ANY_BATCH = "-any-batch"
"""How the cases end in which the batch may grow, and the gain is in samples per second."""
SMALL = {"mobilenet-32": 32}
"""The batch at which the CPU should check a case, where it is not the least."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--out", type=Path, help="file for the tunings")
    parser.add_argument("--time", default="150s", help="how long each search may take")
    parser.add_argument("--repeat", type=int, default=3, help="how many processes measure each finalist")
    parser.add_argument("--keep", default="batch_size", help="what stays as it is, as for metalmark tune")
    parser.add_argument("--within", type=float, help="seconds after which no further case is begun")
    parser.add_argument("--warm", action="store_true", help="compile the steps of all cases at once beforehand")
    parser.add_argument("--store", type=Path, help="file in which the trials are kept (default: they are not)")
    parser.add_argument("--compile-check", choices=CASES, help="only compile what the parity check of a case does")
    parser.add_argument("--settings", default="{}", help="more settings as JSON, with --compile-check")
    parser.add_argument("--device", default="cuda", help="another one than cuda tries only whether this command runs")
    given = parser.parse_args()
    unknown = [name for name in given.cases if name not in CASES]
    if unknown:
        parser.error(f"there is no case {unknown[0]}: {', '.join(CASES)}")
    if given.compile_check:
        compile_check(plan_of(given.compile_check, given.device, **json.loads(given.settings)), given.compile_check)
        return 0
    begun_s = time.monotonic()
    runs: list[Run] = []
    if given.out is not None and given.out.exists():
        runs += decode_export(given.out.read_bytes(), source=given.out.name)
    held = {case_of(run): run for run in runs if isinstance(run, TuningRun)}
    cases = [name for name in given.cases or CASES if name not in held or not has_reached(name, held[name])]
    if given.warm:
        warm(cases, given.device)
        print(f"warmed_seconds: {time.monotonic() - begun_s:.0f}", flush=True)
    missed, tried = 0, 0
    # Spare processes that one case leaves are the next one's. Importing transformers takes longest of all.
    with tempfile.TemporaryDirectory() as folder, kept_ready(plan_of("bert-16x128", given.device)):
        for name in cases:
            if given.within is not None and time.monotonic() - begun_s > given.within:
                break
            workload, options, _, _ = CASES[name]
            case_s = time.monotonic()
            (run,) = mm.tune(
                workload, framework="torch", device=given.device, keep=kept(name, given.keep), time=given.time,
                repeat=given.repeat, store=given.store or Path(folder, "store.sqlite3"), **options,
            )  # fmt: skip
            assert isinstance(run, TuningRun)
            runs = [each for each in runs if each is not held.get(name)] + [run]
            tried += 1
            if given.out is not None:  # after each: what a later one does loses nothing
                write_whole(given.out, encode_export(runs))
            report(name, run, seconds=time.monotonic() - case_s)
            missed += not has_reached(name, run)
    print(f"cases: {tried}")
    print(f"missed: {missed}")
    return 1 if missed else 0


def has_reached(name: str, run: TuningRun) -> bool:
    """Return whether a tuning reached the bound of its case, and was proved."""
    _, _, least, most_ms = CASES[name]
    if isinstance(run.outcome, Failed):
        return False
    best = run.outcome.best
    return best.proved and ((best.gain or 1.0) >= least or (best.step_s or 1.0) * 1e3 <= most_ms)


def kept(name: str, asked: str) -> str:
    """Return what stays as it is in a case: what is asked, and of images the variable that gained for a decoder."""
    axes = dict.fromkeys((*asked.split(","), *(("environment",) if has_images(name) else ())))
    return ",".join(axis for axis in axes if axis != "batch_size" or not name.endswith(ANY_BATCH))


def report(name: str, run: TuningRun, *, seconds: float) -> None:
    """Print what a case came to."""
    if isinstance(run.outcome, Failed):
        print(f"{name}: {run.outcome.message}", flush=True)
        return
    best = run.outcome.best
    rungs = " ".join(rung.title for rung in run.outcome.ladder[1:]) or "nothing helps"
    proved = "parity agrees" if best.proved else f"not proved ({best.reason})"
    baseline_ms, step_ms = ((rung.step_s or 0.0) * 1e3 for rung in (run.outcome.ladder[0], best))
    print(
        f"{name}: {best.gain or 1.0:.2f}x ({baseline_ms:.2f} to {step_ms:.2f} ms; at least {CASES[name][2]}x), "
        f"{rungs}, {proved}, {run.outcome.trials} trials, {seconds:.0f} s",
        flush=True,
    )


def case_of(run: TuningRun) -> str:
    """Return the name of the case that a tuning is of; empty where it is of none."""
    asked = {**run.plan.params, "mode": run.plan.mode.value}
    found = (
        name
        for name, (workload, options, _, _) in CASES.items()
        if workload == run.plan.workload
        and name.endswith(ANY_BATCH) == ("batch_size" not in run.request.fixed)
        and all(asked.get(key) == value for key, value in {"mode": "training", **options}.items())
    )
    return next(found, "")


def warm(cases: Sequence[str], device: str) -> None:
    """Compile what the cases will, each in a process of its own, all at the same time. Code for inference is in no
    cache, and what fills most of the memory by itself would leave too little for the others."""
    likely = [
        (name, more, plan_of(name, device, **more))
        for name in cases
        if not name.endswith(ANY_BATCH)
        for more in likely_settings(name, device)
    ]
    likely = [each for each in likely if each[-1].mode is Mode.TRAINING]
    # Cases of the same network are checked alike.
    checks = {msgspec.json.encode(checked_plan(plan, name)): (name, more) for name, more, plan in likely}
    command = [sys.executable, __file__, "--device", device]
    with ThreadPoolExecutor(max(1, len(likely) * 2)) as pool:
        compiled = [
            (plan.label, pool.submit(run_cell, plan, hz=None)) for name, _, plan in likely if name != "bert-256x512"
        ]
        checked = [
            pool.submit(
                subprocess.run, [*command, "--compile-check", name, "--settings", json.dumps(more)], check=False
            )
            for name, more in checks.values()
        ]  # fmt: skip
        for label, cell in compiled:
            if not isinstance(outcome := cell.result().outcome, Completed):
                print(f"# not compiled beforehand: {label}: {outcome.message}", flush=True)
        for check in checked:
            if check.result().returncode:
                print(f"# not compiled beforehand: {' '.join(check.result().args[-3:])}", flush=True)


def likely_settings(name: str, device: str) -> tuple[dict[str, str], ...]:
    """Return what a search is likely to try for a case beside the settings that are mostly best."""
    if device != "cuda":
        return ({},)
    if has_images(name):
        return ({}, {"compile_mode": "combo-kernels"})
    separate = {"environment": "TORCHINDUCTOR_MIX_ORDER_REDUCTION=0"}
    cudnn = {"attention_kernel": "cudnn"}
    return ({}, separate, cudnn, {**separate, **cudnn})


def has_images(name: str) -> bool:
    return CASES[name][0] not in ("bert", "gpt")


def compile_check(plan: Plan, name: str) -> None:
    """Take the steps of a case's parity check, so that their code is in PyTorch's cache."""
    os.environ.update(FRAMEWORKS["torch"].environment(plan.settings))  # before PyTorch is imported
    from metalmark.parity.torch import SIDE

    plan = checked_plan(plan, name)
    workload = load(plan.workload)
    with SIDE.open(plan, workload) as subject:
        batch = workload.batch(plan.params, np.random.default_rng(plan.seed))
        arrays = leaves_of(subject.recipe.prepare(batch))[0]
        subject.predict(arrays)
        subject.read([subject.train_batch(arrays)])
        subject.settle()


def checked_plan(plan: Plan, name: str) -> Plan:
    """Return what the gate of a case will check."""
    size = SMALL.get(name, LEAST_BATCH)
    return what_is_checked(msgspec.structs.replace(plan, params={**plan.params, "batch_size": size}))


def plan_of(name: str, device: str, **more: str) -> Plan:
    """Return the step of a case with the settings that are mostly best, and more."""
    workload, options, _, _ = CASES[name]
    params = {param.name: param.default for param in load(workload).params}
    params |= {key: value for key, value in options.items() if key != "mode"}
    settings = Settings(
        dtype=Dtype.BFLOAT16, compile=True, graph=device == "cuda", fused=options.get("mode") != "inference",
        channels_last=has_images(name),
    )  # fmt: skip
    return Plan(
        workload=workload, params=params, mode=Mode(options.get("mode", Mode.TRAINING)), framework="torch",
        device=Device(kind=DeviceKind(device)), budget=Budget(steps=1, min_blocks=1), proof=Proving.OFF,
        settings=msgspec.structs.replace(settings, **more),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

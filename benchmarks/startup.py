"""How long the command takes to say something, against a bare `python -c pass`, alternating in one run.

python benchmarks/startup.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import msgspec

from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Device, DeviceKind, Mode, Plan
from metalmark.model.run import Failed, FailureKind, Machine, Software, Telemetry, new_id, now_utc
from metalmark.stats.summary import median
from metalmark.store.store import Store

ROUNDS = 30
HELP_BOUND, LIST_BOUND = 6.0, 12.0
RECORDS = 1000
FRAMEWORKS = ("torch", "tensorflow", "jax", "mlx", "keras", "numpy")


def fill(path: Path) -> None:
    machine = Machine(
        chip="test", architecture="x", physical_cores=1, logical_cores=1, usable_cores=1, memory_bytes=1, os="x"
    )
    plan = Plan(
        workload="mnist-mlp",
        params={"batch_size": 32},
        mode=Mode.TRAINING,
        framework="torch",
        device=Device(kind=DeviceKind.CPU),
    )
    record = BenchRun(
        id=new_id(),
        sweep=new_id(),
        cell=0,
        repeat=0,
        started_at=now_utc(),
        plan=plan,
        machine=machine,
        software=Software(metalmark="0", python="3"),
        outcome=Failed(kind=FailureKind.CRASHED, message="made for a benchmark"),
        telemetry=Telemetry(hz=None),
    )
    with Store(path) as store:
        store.add_all([msgspec.structs.replace(record, id=new_id()) for _ in range(RECORDS)])


def elapsed(command: list[str], environment: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def imported(arguments: list[str], environment: dict[str, str]) -> list[str]:
    """Frameworks (and NumPy) that the verb pulled in, by Python's own account of its imports."""
    code = f"import sys; sys.argv = ['metalmark', *{arguments!r}]\nfrom metalmark.cli import main\ntry: main()\n"
    code += f"finally: print([n for n in {FRAMEWORKS!r} if n in sys.modules], file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return list(msgspec.json.decode(run.stderr.strip().splitlines()[-1].replace("'", '"')))


def main() -> int:
    script = str(Path(sysconfig.get_path("scripts")) / "metalmark")
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "METALMARK_STORE": str(Path(folder, "store.sqlite3"))}
        fill(Path(folder, "store.sqlite3"))
        sides = {
            "bare": [sys.executable, "-c", "pass"],
            "help": [script, "--help"],
            "list": [script, "runs", "list"],
        }
        for command in sides.values():
            elapsed(command, environment)
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(ROUNDS):
            for name, command in sides.items():
                times[name].append(elapsed(command, environment))
        pulled = {verb: imported(verb.split(), environment) for verb in ("--help", "runs list")}
    bare_s = median(times["bare"])
    for name in sides:
        print(f"{name}_ms: {median(times[name]) * 1e3:.1f}")
    for verb, names in pulled.items():
        print(f"frameworks_imported_by {verb}: {names or 'none'}")
    list_ratio, help_ratio = median(times["list"]) / bare_s, median(times["help"]) / bare_s
    print(f"list_ratio: {list_ratio:.2f}")
    print(f"help_ratio: {help_ratio:.2f}")
    good = help_ratio <= HELP_BOUND and list_ratio <= LIST_BOUND and not any(pulled.values())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

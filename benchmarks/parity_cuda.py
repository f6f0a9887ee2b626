"""Whether an NVIDIA GPU trains the networks that the CPU trains: in float32, tf32, bfloat16, compiled and captured.

python benchmarks/parity_cuda.py [--out FILE.json] [WORKLOAD ...]

Prints, for each check, the quantity that is nearest to its limit and how near (1 is the limit), then how many differ;
exit 1 where one does or could not be tested. FILE gets the checks, after each of them.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import metalmark as mm
from metalmark.machine.durable import write_whole
from metalmark.model.codec import encode_export
from metalmark.model.parity import Checked, ParityRun, ParityVerdict
from metalmark.model.run import Failed

WORKLOADS: dict[str, dict[str, Any]] = {
    "bert": {"batch_size": 2, "seq_len": 128, "size": "base"},
    "mobilenet-cifar10": {"batch_size": 32, "pixels": 32, "train": "all"},
    "resnet50-transfer": {"batch_size": 4, "train": "all"},
}
"""Batches that the CPU can do in float64 in a minute or two."""
SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {},
    "tf32": {"dtype": "tf32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16-compile-graph": {"dtype": "bfloat16", "compile": True, "graph": True, "fused": True},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--out", type=Path, help="file for the checks")
    parser.add_argument("--device", default="cuda", help="another one than cuda tries only whether this command runs")
    parser.add_argument("--only", default=",".join(SETTINGS), help="which settings, as a list")
    given = parser.parse_args()
    runs: list[ParityRun] = []
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        for workload in given.workloads or WORKLOADS:
            for name in given.only.split(","):
                (run,) = mm.parity(
                    workload, framework="torch", device=given.device, steps=2, draws=2, seeds=1, repeats=20,
                    diagnose=False, store=Path(folder, "store.sqlite3"), **WORKLOADS[workload], **SETTINGS[name],
                )  # fmt: skip
                assert isinstance(run, ParityRun)
                runs.append(run)
                if given.out is not None:
                    write_whole(given.out, encode_export(runs))
                differ += run.verdict is not ParityVerdict.AGREES
                print(f"{workload}-{name}: {run.verdict.value}, {_nearest(run.outcome)}", flush=True)
    print(f"differ: {differ} of {len(runs)}")
    return 1 if differ else 0


def _nearest(outcome: Checked | Failed) -> str:
    if isinstance(outcome, Failed):
        return outcome.message
    nearest: dict[str, float] = {}
    for row in outcome.compared:
        key = row.quantity.value
        nearest[key] = max(nearest.get(key, 0.0), row.sigmas / row.limit)
    return f"{outcome.seconds:.0f} s; " + ", ".join(f"{key} {share:.2f}" for key, share in nearest.items())


if __name__ == "__main__":
    sys.exit(main())

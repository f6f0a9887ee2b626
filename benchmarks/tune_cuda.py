"""What `metalmark tune` finds on an NVIDIA GPU, over float32 and eager, its parity checked, against what it has to.

python benchmarks/tune_cuda.py [--out FILE.json] [--store FILE.sqlite3] [--time 300s] [CASE ...]

Without a name every case is run, which takes as long as the cases times --time. The batch size stays as it is. Prints a
line for each case and how many missed their bound; exit 1 where one did, or where the best could not be proved.
FILE.json gets the tunings, and those that it holds already are kept; with --store the trials are kept too.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import metalmark as mm
from metalmark.machine.durable import write_whole
from metalmark.model.codec import decode_export, encode_export
from metalmark.model.run import Failed, Run
from metalmark.model.tuning import TuningRun

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
    "resnet50-32": ("resnet50-transfer", {"batch_size": 32, "train": "all"}, 6.5, 0.0),
    "resnet50-256": ("resnet50-transfer", {"batch_size": 256, "train": "all"}, 5.5, 0.0),
    "gpt-12x1024": ("gpt", {"size": "small", "batch_size": 12, "seq_len": 1024}, 9.3, 0.0),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--out", type=Path, help="file for the tunings")
    parser.add_argument("--time", default="300s", help="how long each search may take")
    parser.add_argument("--store", type=Path, help="file in which the trials are kept (default: they are not)")
    parser.add_argument("--device", default="cuda", help="another one than cuda tries only whether this command runs")
    given = parser.parse_args()
    unknown = [name for name in given.cases if name not in CASES]
    if unknown:
        parser.error(f"there is no case {unknown[0]}: {', '.join(CASES)}")
    runs: list[Run] = []
    if given.out is not None and given.out.exists():
        runs += decode_export(given.out.read_bytes(), source=given.out.name)
    missed, begun = 0, len(runs)
    with tempfile.TemporaryDirectory() as folder:
        for name in given.cases or CASES:
            workload, options, least, most_ms = CASES[name]
            (run,) = mm.tune(
                workload, framework="torch", device=given.device, keep="batch_size", time=given.time,
                store=given.store or Path(folder, "store.sqlite3"), **options,
            )  # fmt: skip
            assert isinstance(run, TuningRun)
            runs.append(run)
            if given.out is not None:  # after each: what a later one does loses nothing
                write_whole(given.out, encode_export(runs))
            if isinstance(run.outcome, Failed):
                print(f"{name}: {run.outcome.message}", flush=True)
                missed += 1
                continue
            best = run.outcome.best
            reached = (best.gain or 1.0) >= least or (best.step_s or 1.0) * 1e3 <= most_ms
            missed += not (reached and best.proved)
            rungs = " ".join(rung.title for rung in run.outcome.ladder[1:]) or "nothing helps"
            step_ms = (best.step_s or 0.0) * 1e3
            proved = "parity agrees" if best.proved else f"not proved ({best.reason})"
            print(
                f"{name}: {best.gain or 1.0:.2f}x ({step_ms:.2f} ms; at least {least}x), {rungs}, {proved}, "
                f"{run.outcome.elapsed_s:.0f} s",
                flush=True,
            )
    print(f"missed: {missed} of {len(runs) - begun}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

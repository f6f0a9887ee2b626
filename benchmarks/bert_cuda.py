"""BERT on an NVIDIA GPU: stored float32 records beside a bare loop, and what the fast settings gain.

python benchmarks/bert_cuda.py RECORDS.json [--bare OUT.json]

RECORDS.json comes from `metalmark runs export` and holds, for each shape and mode, a float32 eager record and one with
bfloat16, compiled, captured and fused. With --bare, this machine's GPU runs a bare loop for each float32 record and
writes its times; run it right after the sweep. Without, the bare times are read from RECORDS.bare.json. Exit 1
when a record differs from the bare loop by over 5%, or both a gain and its step are over 5% short of those by hand.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

BOUND = 0.05
WARMUP_STEPS, LEAST_STEPS, MOST_STEPS, SECONDS = 3, 8, 100, 3.0
BY_HAND = {
    ("training", 16, 128): (6.6, 6.0),
    ("training", 256, 128): (7.75, 50.0),
    ("training", 16, 512): (7.4, 17.0),
    ("training", 256, 512): (7.05, 243.0),
    ("inference", 16, 128): (9.2, 1.087),
    ("inference", 256, 512): (9.3, 59.7),
}
"""Gain over float32 eager, and milliseconds a step, from a loop written by hand on an H200 with the same settings.
Small eager steps are as fast as the host is, so a faster host makes the same step a smaller gain: either will do."""
Cell = tuple[str, int, int]


def cells(path: Path) -> dict[bool, dict[Cell, float]]:
    """Seconds a step, by whether the settings are the fast ones."""
    from metalmark.model.codec import decode_export
    from metalmark.model.measurement import BenchRun
    from metalmark.model.plan import Dtype
    from metalmark.results.cells import cells_of

    found: dict[bool, dict[Cell, float]] = {False: {}, True: {}}
    runs = decode_export(path.read_bytes(), source=str(path))
    for cell in cells_of(run for run in runs if isinstance(run, BenchRun)):
        plan = cell.plan
        if plan.workload == "bert" and cell.completed:
            key = (plan.mode.value, int(plan.params["batch_size"]), int(plan.params["seq_len"]))
            found[plan.settings.dtype is Dtype.BFLOAT16][key] = cell.step_s
    return found


def bare_step_s(cell: Cell) -> float:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    mode, size, length = cell
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    config = BertConfig(vocab_size=28_996, num_labels=2, attn_implementation="sdpa")
    model = BertForSequenceClassification(config).cuda().train(mode == "training")
    ring = [
        (torch.randint(0, 28_996, (size, length), device="cuda"), torch.arange(size, device="cuda") % 2)
        for _ in range(2)
    ]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    loss_of = torch.nn.CrossEntropyLoss()

    def train(tokens: Any, labels: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(model(input_ids=tokens).logits, labels).backward()
        optimizer.step()

    @torch.inference_mode()
    def infer(tokens: Any, _: Any) -> None:
        model(input_ids=tokens)

    step = train if mode == "training" else infer

    def run(steps: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for number in range(steps):
            step(*ring[number % 2])
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / steps

    run(WARMUP_STEPS)
    once = run(2)
    blocks = sorted(run(max(2, min(MOST_STEPS, round(SECONDS / once)) // 4)) for _ in range(4))
    return (blocks[1] + blocks[2]) / 2


def main(arguments: list[str]) -> int:
    records = Path(arguments[0])
    bare_path = records.with_suffix(".bare.json")
    ours = cells(records)
    if arguments[1:] == ["--bare"]:
        import torch

        bare = {}
        for cell in ours[False]:
            bare["{} {}x{}".format(*cell)] = bare_step_s(cell)
            torch.cuda.empty_cache()
            print(cell, bare["{} {}x{}".format(*cell)], file=sys.stderr)
        bare_path.write_text(json.dumps(bare, indent=1))
    bare = json.loads(bare_path.read_text())
    worst = 0.0
    for cell, step_s in ours[False].items():
        name = "{} {}x{}".format(*cell)
        ratio = step_s / bare[name]
        worst = max(worst, abs(ratio - 1))
        print(f"{name} float32_ms: {step_s * 1e3:.2f}")
        print(f"{name} over_bare: {ratio:.4f}")
    shortest = 1.0
    for cell, step_s in ours[True].items():
        name = "{} {}x{}".format(*cell)
        gain = ours[False][cell] / step_s
        print(f"{name} fast_ms: {step_s * 1e3:.2f}")
        print(f"{name} gain: {gain:.2f}")
        if cell in BY_HAND:
            gain_by_hand, ms_by_hand = BY_HAND[cell]
            print(f"{name} gain_over_by_hand: {gain / gain_by_hand:.3f}")
            print(f"{name} speed_over_by_hand: {ms_by_hand / (step_s * 1e3):.3f}")
            shortest = min(shortest, max(gain / gain_by_hand, ms_by_hand / (step_s * 1e3)))
    missing = [cell for cell in BY_HAND if cell not in ours[True]]
    print(f"missing_cells: {len(missing)}")
    print(f"worst_difference_from_bare: {worst:.4f}")
    print(f"least_over_by_hand: {shortest:.3f}")
    return 0 if worst <= BOUND and shortest >= 1 - BOUND and not missing else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

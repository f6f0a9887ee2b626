"""`metalmark train`: parses, trains in a process of its own, prints the curve."""

from __future__ import annotations

from typing import Any

import click

from metalmark.cli.bench import BenchCommand, complete_frameworks, complete_workloads, split_words
from metalmark.cli.tracking import track_option
from metalmark.errors import UsageError

EPILOG = """\b
Any parameter of the workload is an option (metalmark list workloads), or -p name=value.
DIR gets record.json (the curve and everything about it), best.safetensors and last.safetensors.
Lists of devices or frameworks train one after another, a folder each in DIR, then compare them.

\b
Examples:
  metalmark train mnist-mlp --epochs 2
  metalmark train mnist-mlp --data fashion-mnist --framework torch --target-accuracy 86
  metalmark train mobilenet-cifar10 --data real --device gpu --dtype bfloat16 --patience 3
  metalmark train mobilenet-cifar10 --device cpu,gpu,any
  metalmark train mnist-mlp --framework torch,tensorflow --device cpu
  metalmark train mnist-mlp --track mlflow,wandb=offline
  metalmark train --resume=DIR

\b
Exit code: 0 trained; 1 the loss became NaN, or it failed; 2 bad input or not possible here;
130 stopped by Ctrl-C. Of several: 1 when one of them crashed, hung or computed wrongly, or none
trained; 2 when none is possible here.
"""


@click.command(
    "train",
    cls=BenchCommand,
    epilog=EPILOG,
    context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="WORKLOAD", shell_complete=complete_workloads)
@click.option("-f", "--framework", default=None, shell_complete=complete_frameworks,
              help="torch, tensorflow, jax, mlx, a list, or all (default: the first installed).")  # fmt: skip
@click.option("-d", "--device", default="any", show_default=True,
              help="cpu, gpu (the framework's accelerator), any, mps, cuda, cuda:1, a list, or all.")  # fmt: skip
@click.option("-e", "--epochs", type=click.IntRange(min=1), default=None, help="At most so many (default: 5).")
@click.option("--target-accuracy", type=float, default=None, metavar="SHARE|PERCENT",
              help="Stop when the validation accuracy reaches it: 0.86 or 86.")  # fmt: skip
@click.option("--patience", type=click.IntRange(min=1), default=None,
              help="Stop after so many epochs without a better validation accuracy.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Of the first weights, the order of samples, augmentation and dropout.")  # fmt: skip
@click.option("--dtype", default="float32", show_default=True, help="float32, tf32, bfloat16, float16.")
@click.option("--compile", "compile_", default="off", metavar="[=off|on]",
              help="torch.compile; XLA for TensorFlow; mx.compile; JAX always compiles.")  # fmt: skip
@click.option("--channels-last", default="off", metavar="[=off|on]", help="NHWC memory layout.")
@click.option("--fused", default="off", metavar="[=off|on]", help="Fused optimiser (PyTorch).")
@click.option("--threads", default=None, help="CPU threads.")
@click.option("--data", default="synthetic", show_default=True, metavar="synthetic|real|NAME|PATH",
              help="What it trains on; real downloads the workload's data set, hash-checked.")  # fmt: skip
@click.option("--workers", type=click.IntRange(0, 64), default=None,
              help="Threads that make batches ahead (default: by the size of a batch).")  # fmt: skip
@click.option("-p", "--param", "given", multiple=True, metavar="NAME=VALUE", help="A parameter of the workload.")
@click.option("-o", "--out", default=None, metavar="DIR",
              help="Where the record and the checkpoints go (default: one under your data folder).")  # fmt: skip
@click.option("--resume", default=None, metavar="[=DIR]",
              help="Go on with an interrupted training (of --out, or the last one).")  # fmt: skip
@click.option("--stall", type=click.FloatRange(min=0, min_open=True), default=600.0, show_default=True,
              help="Seconds of silence that count as hung.")  # fmt: skip
@click.option("--telemetry", default="5", show_default=True, metavar="off|HZ", help="Samples a second.")
@track_option
@click.option("--json", "as_json", is_flag=True, help="The record with every step's loss, on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def command(
    words: tuple[str, ...], resume: str | None, out: str | None, as_json: bool, quiet: bool, **options: Any
) -> int:
    """Train WORKLOAD, validating after each epoch, with checkpoints it can be resumed from.

    It runs in a fresh process; on the CPU the same seed gives the same weights, bit for bit.
    """
    from metalmark.cli.lineup import SideBySide, asks_for_several
    from metalmark.cli.training import Train, find_folder
    from metalmark.training.lineup import is_lineup, read_lineup

    train = Train(quiet=quiet, as_json=as_json, tracking=options["track"])
    side_by_side = SideBySide(train, as_json=as_json)
    if resume is not None:
        if words:
            raise UsageError("--resume goes on with a stored training and takes no workload.",
                             hint="Write `metalmark train --resume=DIR`; --epochs may be raised.")  # fmt: skip
        folder = find_folder(out if resume == "last" else resume)
        if is_lineup(folder):
            return side_by_side.run(folder, read_lineup(folder), options["epochs"])
        return train.run(*train.stored(folder, options["epochs"]))
    names, params = split_words(words, options["given"], verb="train")
    if len(names) > 1:
        raise UsageError(f"One workload at a time, not {len(names)}.", hint=f"metalmark train {names[0]}")
    if asks_for_several(options):
        return side_by_side.run(*side_by_side.new(names[0], params, out, options))
    return train.run(*train.new(names[0], params, out, options))


def option_flags() -> list[str]:
    return [name for parameter in command.params for name in parameter.opts if name.startswith("--")]

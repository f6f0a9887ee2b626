"""PyTorch's DataLoader with the choices made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from metalmark.feeds.on_torch import FILES_PER_BATCH
from metalmark.kit.loading.choice import enough_files, start_method, why_not_travelling, why_unguarded, workers
from metalmark.machine.cgroup import limits
from metalmark.machine.cpu import usable_cores

BY_NAME = "file_system"
PREFETCH = 2
"""DataLoader's own."""


class Start:
    """What a worker does first: shares as its parent does (a fresh process does not know), then the user's own."""

    def __init__(self, strategy: str, then: Callable[[int], None] | None) -> None:
        self._strategy, self._then = strategy, then

    def __call__(self, number: int) -> None:
        torch.multiprocessing.set_sharing_strategy(self._strategy)
        if self._then is not None:
            self._then(number)


def make(dataset: Any, given: dict[str, Any]) -> DataLoader:
    options, why = dict(given), {}
    chosen = options.get("multiprocessing_context")
    unguarded = why_unguarded(sys.modules["__main__"])
    method, reason = (None, "") if chosen is not None else start_method(unguarded=unguarded, imported=sys.modules)
    if options.get("num_workers") is None:
        options["num_workers"], why["workers"] = workers(
            cores=usable_cores(limits()),
            method=method or str(chosen),
            iterable=isinstance(dataset, IterableDataset),
            resident=isinstance(dataset, TensorDataset),
            travels=lambda: (
                unguarded or why_not_travelling((dataset, options.get("collate_fn"), options.get("worker_init_fn")))
            ),
        )
    if options.get("pin_memory") is None:
        options["pin_memory"] = torch.cuda.is_available()
        why["pin"] = "CUDA copies from pinned memory" if options["pin_memory"] else "only CUDA gains by it"
    count = options["num_workers"]
    if count:
        if method is not None:
            options["multiprocessing_context"], why["start method"] = method, f"{method}: {reason}"
        options.setdefault("persistent_workers", True)
        prefetch = options.get("prefetch_factor") or PREFETCH
        why["sharing"] = _share(64 + count * (32 + prefetch * FILES_PER_BATCH))
        options["worker_init_fn"] = Start(torch.multiprocessing.get_sharing_strategy(), options.get("worker_init_fn"))
    made = DataLoader(dataset, **options)
    made.why = why
    return made


def _share(needed: int) -> str:
    """By open file where files are plenty: a killed process leaves nothing behind. Else by name."""
    trouble = enough_files(needed)
    if trouble and BY_NAME in torch.multiprocessing.get_all_sharing_strategies():
        # Before the first tensor is sent: each one in flight, and each one kept, would hold a file open.
        torch.multiprocessing.set_sharing_strategy(BY_NAME)
    strategy = torch.multiprocessing.get_sharing_strategy()
    return f"{strategy}: {trouble or 'there are files enough'}"

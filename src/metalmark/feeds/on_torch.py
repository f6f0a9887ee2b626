"""PyTorch's DataLoader: worker processes make the batches; this process takes them in order."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from metalmark.errors import UnsupportedError
from metalmark.feeds.files import FILES_PER_BATCH, allow_files
from metalmark.feeds.leaves import Arrays
from metalmark.feeds.source import Source
from metalmark.model.plan import Loader


class Indexed(Dataset):
    """A Source as DataLoader wants it."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(map(as_tensor, self.source[index]))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return the array as a tensor. PyTorch's own function of this name takes three times as long."""
    if array.ndim == 1 and array.dtype == np.int32:
        array = array.astype(np.int64)  # class indices: PyTorch's losses take nothing shorter
    return torch.from_numpy(array)


@contextmanager
def torch_loader(source: Source, loader: Loader) -> Iterator[Iterator[Arrays]]:
    if loader.prefetch and not loader.workers:
        raise UnsupportedError(
            "--prefetch without --workers: PyTorch's DataLoader makes batches ahead in worker processes only.",
            hint="Add --workers 1, or use --prefetch 0.",
        )
    if loader.workers and not loader.prefetch:
        raise UnsupportedError(
            "--workers without --prefetch: PyTorch's worker processes always make batches ahead.",
            hint="Add --prefetch 1, or use --workers 0.",
        )
    allow_files(64 + loader.workers * (32 + loader.prefetch * FILES_PER_BATCH))
    options: dict[str, Any] = {"num_workers": loader.workers, "pin_memory": loader.pin}
    if loader.workers:
        options |= {"prefetch_factor": loader.prefetch, "persistent_workers": loader.persistent}
        options["multiprocessing_context"] = loader.start_method or None
    # A sampler that never ends: a benchmark has no epoch.
    iterator = iter(DataLoader(Indexed(source), batch_size=None, sampler=count(), **options))
    try:
        yield iterator
    finally:
        del iterator  # ends the worker processes

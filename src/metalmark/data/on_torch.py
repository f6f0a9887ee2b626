"""A DataLoader as it was given: its own workers, sampler and collate_fn. Only the seed of its order is ours."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from metalmark.data.dataset import Stream
from metalmark.errors import UsageError
from metalmark.model.workload import Batch


def loader_stream(loader: Any, *, name: str, seed: int, read: Callable[[int, Any], Batch]) -> Stream:
    samples = _count(loader.dataset)
    if samples == 0:
        raise UsageError(f"{name} is empty: its Dataset has no samples.", hint="Give at least one sample.")
    length = _count(loader)
    if length == 0:
        raise UsageError(
            f"{name} has no batches: drop_last leaves none of {samples:,} samples.",
            hint="Use a smaller --batch-size, or drop_last=False.",
        )

    def begin(epoch: int) -> Iterator[tuple[int, Any]]:
        return enumerate(_seeded(loader, seed, epoch))

    def first() -> Any:
        if loader.batch_sampler is None or isinstance(loader.dataset, torch.utils.data.IterableDataset):
            return next(iter(_seeded(loader, seed, 1)))
        # Without its workers, which would be started for this one batch.
        with SeededOrder(loader, seed, 1):
            numbers = next(iter(loader.batch_sampler))
        return loader.collate_fn([loader.dataset[number] for number in numbers])

    sequential = isinstance(loader.sampler, torch.utils.data.SequentialSampler)
    return Stream(
        name=name, kind="DataLoader", open=begin, read=read, length=length, samples=samples, peek=first,
        steady=sequential,
    )  # fmt: skip


class SeededOrder:
    """Makes the order of a loader's next pass a function of the seed and the epoch, and leaves PyTorch's own random
    numbers as they were."""

    def __init__(self, loader: Any, seed: int, epoch: int) -> None:
        words = hashlib.sha256(f"{seed} {epoch}".encode()).digest()
        self._seed = int.from_bytes(words[:7], "little")
        samplers = (loader, loader.sampler, loader.batch_sampler)
        found = (getattr(each, "generator", None) for each in samplers)
        self._generators = [each for each in found if isinstance(each, torch.Generator)]

    def __enter__(self) -> None:
        self._before = torch.default_generator.get_state()
        for generator in (torch.default_generator, *self._generators):
            generator.manual_seed(self._seed)

    def __exit__(self, *_: object) -> None:
        torch.default_generator.set_state(self._before)


def _seeded(loader: Any, seed: int, epoch: int) -> Iterator[Any]:
    with SeededOrder(loader, seed, epoch):
        # The first batch, too: a sampler draws its order only when it is asked for the first number.
        batches = iter(loader)
        first = next(batches, batches)
    if first is not batches:
        yield first
        yield from batches


def _count(thing: Any) -> int | None:
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return None

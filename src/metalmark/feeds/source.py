"""Source: batches by number, made on demand, from synthetic or real samples; what every loader draws from.

`thread_loader` is the loader of frameworks that have none of their own (JAX, MLX).
"""

import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, fields
from itertools import count, islice
from pathlib import Path

import numpy as np

from metalmark.data.arrays import shown
from metalmark.data.catalog import ACCEPTED, OWN, PIXELS, REAL, SYNTHETIC, FileReading, load, load_path
from metalmark.data.dataset import Dataset, Positions, Split, Stream
from metalmark.data.own import read_own
from metalmark.data.recognised import seed_random_numbers
from metalmark.errors import FormatError, UnsupportedError, UsageError
from metalmark.feeds.leaves import Arrays, leaves_of
from metalmark.feeds.share import for_one, share_here
from metalmark.model.nest import flatten
from metalmark.model.plan import Feed, Loader, Plan, word
from metalmark.model.workload import Batch, Params, Recipe, Workload
from metalmark.workloads import catalog

HELD = 2
"""Batches of a stream that a session keeps on the device."""


@dataclass(frozen=True)
class Source:
    """Batch `index` is a function of the seed and the index alone, whoever makes it."""

    workload: Workload
    recipe: Recipe
    plan: Plan

    def __getitem__(self, index: int) -> Arrays:
        share = share_here(self.plan)
        # Each of several processes makes its own part only, as many samples as its steps take.
        rng = np.random.default_rng([self.plan.seed, 1 + index, *([share.number] if share is not None else [])])
        return leaves_of(self.recipe.prepare(self.workload.produce(for_one(self.plan).params, rng)))[0]

    def __reduce__(self) -> tuple[object, ...]:
        """Models do not travel to a worker process; it finds the same workload by its name."""
        return _remade, (self.plan, self.recipe.prepare, self.workload.origin)


def _remade(plan: Plan, prepare: object, origin: str) -> Source:
    recipe = Recipe(model=None, loss=_nothing, optimizer=_nothing, prepare=prepare)  # type: ignore[arg-type]
    workload, _ = with_data(catalog.load(plan.workload, source=origin), plan)
    return Source(workload, recipe, plan)


def _nothing(*_: object) -> None:
    """A worker process makes batches; it trains nothing."""


def thread_loader(source: Source, loader: Loader) -> AbstractContextManager[Iterator[Arrays]]:
    """Yield batches in order, made ahead by threads. With nothing ahead, each is made when it is asked for."""
    return made_ahead(source.__getitem__, count(), workers=max(1, loader.workers), ahead=loader.prefetch)


@contextmanager
def made_ahead(
    make: Callable[[int], Arrays], numbers: Iterable[int], *, workers: int, ahead: int
) -> Iterator[Iterator[Arrays]]:
    """Give the batches of these numbers in order, made by threads; by the caller where `ahead` is 0."""
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="batches") as pool:
        try:
            yield _in_turn(make, numbers, pool, ahead) if ahead else map(make, numbers)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _in_turn(
    make: Callable[[int], Arrays], numbers: Iterable[int], pool: ThreadPoolExecutor, ahead: int
) -> Iterator[Arrays]:
    pending: deque[Future[Arrays]] = deque()
    for number in numbers:
        pending.append(pool.submit(make, number))
        if len(pending) > ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def with_data(workload: Workload, plan: Plan) -> tuple[Workload, str]:
    """Return the workload fed by the plan's data, and what to call that data in a record."""
    if plan.data == SYNTHETIC:
        return workload, SYNTHETIC
    dataset = find_dataset(workload, plan)
    part = dataset.train
    if isinstance(part, Stream):
        refuse_shared(part, plan)
        asis = f"Batches come from {part.name} as it is, with its own workers: --workers and --prefetch are not for it."
        notes = dataset.notes
        if plan.feed is Feed.PIPELINE:
            notes = (*notes, asis)
            _refuse_settings(part, plan.loader or Loader())
        fed = _fed(workload, _held(workload, part, plan), notes, part)
    else:
        fed = _fed(workload, _chooser(workload, part, batch_size_of(workload, plan)), dataset.notes)
    return fed, f"{dataset.source}, {dataset.digest[:12]}"


@dataclass(frozen=True, kw_only=True)
class FedWorkload(Workload):
    """A workload whose batches are real samples."""

    stream: Stream | None = None
    """Where its batches come one after another: there are no numbers to ask for them by."""


def _fed(workload: Workload, batch: "BatchMaker", notes: tuple[str, ...], stream: Stream | None = None) -> FedWorkload:
    given = {field.name: getattr(workload, field.name) for field in fields(workload) if field.init}
    theirs = workload.notes

    def say(params: Params) -> tuple[str, ...]:
        return (*(theirs(params) if theirs is not None else ()), *notes)

    fed = FedWorkload(**{**given, "batch": batch, "notes": say}, stream=stream)
    object.__setattr__(fed, "origin", workload.origin)
    return fed


BatchMaker = Callable[[Params, np.random.Generator], Batch]


def _chooser(workload: Workload, split: Split, size: int) -> BatchMaker:
    def batch(params: Params, rng: np.random.Generator) -> Batch:
        count = int(params.get("batch_size", size))
        positions: Positions = np.asarray(rng.choice(len(split), count, replace=count > len(split)), np.intp)
        return finished(workload, params, split.take(positions), rng)

    return batch


def _held(workload: Workload, stream: Stream, plan: Plan) -> BatchMaker:
    """Hand out a stream's first batches in turn, so that no pass of it, with its workers, stays open for them."""
    held: list[Batch] = []
    numbers = count()

    def batch(params: Params, rng: np.random.Generator) -> Batch:
        if not held:
            with closing(_endless(workload, stream, plan)) as batches:
                held.extend(islice(batches, HELD))
        return finished(workload, params, held[next(numbers) % HELD], rng)

    return batch


def _endless(workload: Workload, stream: Stream, plan: Plan) -> Generator[Batch]:
    """Give batches pass after pass. A short last one is left out: a benchmark's steps are all the same work."""
    form: list[tuple[int, ...]] | None = None
    for epoch in count(1):
        found = False
        for batch in stream.batches(epoch):
            shapes = [np.shape(leaf) for leaf in flatten((batch.inputs, batch.targets))[0]]
            if form is None:
                _refuse_other_size(workload, stream, plan, shapes[0][0] if shapes and shapes[0] else 0)
                form = shapes
            if shapes == form:
                found = True
                yield batch
        if not found:
            raise _used_up(stream, epoch)


def _refuse_other_size(workload: Workload, stream: Stream, plan: Plan, size: int) -> None:
    asked = plan.params.get("batch_size", size)
    if asked != size:
        raise UsageError(
            f"{stream.name} gives batches of {size:,} samples, and --batch-size is {asked}: figures would be wrong.",
            hint=f"Make it with params['batch_size'] in {workload.name}'s `data`, or give --batch-size {size}.",
        )


def _used_up(stream: Stream, epoch: int) -> UsageError:
    if epoch == 1:
        return UsageError(f"{stream.name} gave no batches.", hint="Give data with at least one batch.")
    return UsageError(
        f"{stream.name} gave no batches when it was gone through again, in epoch {epoch}.",
        hint="It can be gone through only once: give a function that returns a new one.",
    )


def passes_of(stream: Stream, epoch: int) -> Iterator[Batch]:
    """Give the batches of one pass, of which there must be some."""
    number = -1
    for number, batch in enumerate(stream.batches(epoch)):  # noqa: B007  whether there were any is asked below
        yield batch
    if number < 0:
        raise _used_up(stream, max(1, epoch))


def finished(workload: Workload, params: Params, batch: Batch, rng: np.random.Generator | None = None) -> Batch:
    """Make a workload's batch of samples as they are in the data: augmented where `rng` is given, then as its `sample`
    makes them."""
    inputs, called = batch.inputs, "augment"
    try:
        if rng is not None and workload.augment is not None:
            inputs = workload.augment(params, inputs, rng)
        if workload.sample is None:
            return Batch(inputs=inputs, targets=batch.targets)
        called = "sample"
        return workload.sample(params, inputs, batch.targets)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(
            f"`{called}` of {workload.name} failed in line {frame.lineno} of {Path(frame.filename).name} "
            f"({type(error).__name__}: {error}); it was given inputs, {shown(batch.inputs)}, and targets, "
            f"{shown(batch.targets)}.",
            hint=f"Is this the data that {workload.name} is for? Arrays come as they are in the data.",
        ) from error


def batch_size_of(workload: Workload, plan: Plan) -> int:
    """Return the number of samples to put into a batch, where that is ours to choose."""
    size = plan.params.get("batch_size")
    if size is None:
        raise UsageError(
            f"{workload.name} has no parameter batch_size, and its data comes sample by sample.",
            hint='Add one: params=(Param("batch_size", 32),); or let `data` return batches (a loader, an iterable).',
        )
    return int(size)


def refuse_shared(stream: Stream, plan: Plan) -> None:
    """Refuse to split a stream over processes: each would go through all of it, in an order that need not be one."""
    if plan.processes > 1:
        raise UnsupportedError(
            f"--nproc: {stream.name} makes its batches itself, and nothing says that each process gets the same ones.",
            hint="Give the Dataset or the arrays instead, or leave --nproc out.",
        )


def refuse_workers(stream: Stream, asked: str) -> None:
    raise UnsupportedError(
        f"{asked}: {stream.name} makes its batches itself, with its own workers.",
        hint="Leave the option out and set num_workers there; or give the Dataset or the arrays instead.",
    )


def _refuse_settings(stream: Stream, loader: Loader) -> None:
    for name in ("workers", "prefetch", "pin", "start_method"):
        value = getattr(loader, name)
        if value != getattr(Loader(), name):
            refuse_workers(stream, f"--{name.replace('_', '-')} {word(value)}")


OpenBatches = AbstractContextManager[Iterator[Arrays]]


def open_batches(source: Source, loader: Loader, framework: Callable[[Source, Loader], OpenBatches]) -> OpenBatches:
    """Open the framework's own loader over the source; of a stream, the stream itself as it was given."""
    stream = getattr(source.workload, "stream", None)
    return closing(_streaming(source, stream)) if isinstance(stream, Stream) else framework(source, loader)


def _streaming(source: Source, stream: Stream) -> Generator[Arrays]:
    for number, batch in enumerate(_endless(source.workload, stream, source.plan)):
        rng = np.random.default_rng([source.plan.seed, 1 + number])
        made = finished(source.workload, source.plan.params, batch, rng)
        yield leaves_of(source.recipe.prepare(made))[0]


def synthetic_dataset(workload: Workload, plan: Plan) -> Dataset:
    """Return made-up samples in the shapes of the workload's first data set."""
    return load(workload.datasets[0], SYNTHETIC, plan.seed, reading=_reading(workload, plan))


def find_dataset(workload: Workload, plan: Plan, *, validated: bool = False) -> Dataset:
    """Return the data that the plan names. `validated`: its validation part is needed too."""
    reading = _reading(workload, plan)
    if workload.data is not None and plan.data in (OWN, REAL, SYNTHETIC):
        seed_random_numbers()
        return read_own(workload.data(plan.params), name=workload.name, seed=plan.seed, validated=validated)
    if plan.data == OWN:
        raise UnsupportedError(
            f"{workload.name} brings no data of its own.", hint="A workload of yours may: Workload(data=...)."
        )
    if plan.data in (REAL, *ACCEPTED) and not workload.datasets:
        raise UnsupportedError(
            f"{workload.name} has no data set: it trains on synthetic data.",
            hint="Use --data synthetic, or give files of your own: --data PATH.",
        )
    named = workload.datasets[0] if plan.data == REAL else plan.data
    if named in workload.datasets:
        return load(named, REAL, plan.seed, reading=reading)
    if plan.data in ACCEPTED:
        raise UnsupportedError(
            f"{workload.name} does not take {plan.data}.", hint=f"It takes: {', '.join(workload.datasets)}."
        )
    if not workload.datasets:
        if not workload.origin:
            raise UnsupportedError(
                f"{workload.name} takes no files: it trains on synthetic data.", hint="Use --data synthetic."
            )
        return load_path(Path(plan.data), reading=reading)
    # A path may contain any of them; what the first data set says of it is what most users want to read.
    first: FormatError | None = None
    for name in workload.datasets:
        try:
            return load(name, plan.data, plan.seed, reading=reading)
        except FormatError as error:
            first = first or error
    assert first is not None
    raise first


def _reading(workload: Workload, plan: Plan) -> FileReading:
    params = plan.params
    return FileReading(
        pixels=int(params.get("pixels", PIXELS)),
        seq_len=int(params["seq_len"]) if "seq_len" in params else None,
        target_column=plan.target_column,
        task=workload.task,
    )

"""The loader for frameworks that have none of their own (JAX, MLX): threads that make NumPy batches ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from metalmark.feeds.source import Arrays, Source
from metalmark.model.plan import Loader


@contextmanager
def thread_loader(source: Source, loader: Loader) -> Iterator[Iterator[Arrays]]:
    """Batches in order. With nothing ahead, each is made when it is asked for."""
    if not loader.prefetch:
        yield (source[index] for index in _count())
        return
    with ThreadPoolExecutor(max_workers=max(1, loader.workers), thread_name_prefix="loader") as pool:
        try:
            yield _ahead(source, pool, loader.prefetch)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ahead(source: Source, pool: ThreadPoolExecutor, prefetch: int) -> Iterator[Arrays]:
    pending: deque[Future[Arrays]] = deque()
    for index in _count():
        pending.append(pool.submit(source.__getitem__, index))
        if len(pending) > prefetch:
            yield pending.popleft().result()


def _count() -> Iterator[int]:
    index = 0
    while True:
        yield index
        index += 1

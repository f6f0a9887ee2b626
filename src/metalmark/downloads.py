"""Downloads: where they are kept, how a file arrives whole or not at all, and how far along it is."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

CACHE_VARIABLE = "METALMARK_CACHE"
TIMEOUT_S = 30.0
CHUNK_BYTES = 1 << 20

Listen = Callable[[float | None], None]
"""listen(share done), None where the server does not tell the size."""
_listener: ContextVar[Listen | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listen: Listen) -> Iterator[None]:
    token = _listener.set(listen)
    try:
        yield
    finally:
        _listener.reset(token)


def cache_folder(name: str) -> Path:
    """Return METALMARK_CACHE/name, or `name` under the user's cache folder; RuntimeError where no home is known."""
    given = os.environ.get(CACHE_VARIABLE)
    if not given:
        import platformdirs

        given = platformdirs.user_cache_dir("metalmark", appauthor=False)
    return Path(given).expanduser() / name


@contextmanager
def downloaded(url: str, path: Path) -> Iterator[Path]:
    """Download to a temporary file beside `path` and hand it to the block, which raises if it is not the right one.

    Only then does it get its name: what stands under `path` is whole and checked.
    """
    # Imported here: it takes a fifth of a second, and most commands download nothing.
    from pooch import HTTPDownloader  # type: ignore[import-untyped]

    # Two workers may download at once: each writes a file of its own, and the last to finish wins with the same bytes.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        HTTPDownloader(chunk_size=CHUNK_BYTES, timeout=TIMEOUT_S, progressbar=_Meter())(url, str(part), None)
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def download_error(error: BaseException) -> str:
    """Return why a download failed, in a few words: requests wraps the one useful line in three others."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"the server answered {response.status_code}"
    while True:
        held = (getattr(error, "reason", None), *error.args)
        inner = next((cause for cause in held if isinstance(cause, Exception)), None)
        if inner is None:
            break
        error = inner
    text = getattr(error, "strerror", None) or str(error).rpartition(": ")[2].rstrip(".") or type(error).__name__
    return str(text)[:120]


class _Meter:
    """What pooch wants as a progress bar: it sets `total`, and calls `update` with each piece's bytes."""

    def __init__(self) -> None:
        self.total: int | None = None
        self._done = 0

    def update(self, count: int) -> None:
        self._done += count
        listen = _listener.get()
        if listen is not None:
            listen(min(1.0, self._done / self.total) if self.total else None)

    def reset(self) -> None:
        """pooch begins anew after its last piece, to leave a full bar behind; there is no bar here."""

    def close(self) -> None:
        """Nothing is drawn."""

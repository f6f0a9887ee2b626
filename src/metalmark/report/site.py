"""A folder of bundles from many machines as a static site: a leaderboard a workload, a page a machine, one index.

Links are relative, nothing is loaded from anywhere, and each page is whole by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from metalmark.errors import MetalmarkError, StoreError, UsageError
from metalmark.model.codec import encode
from metalmark.model.measurement import BenchRun
from metalmark.results.leaderboard import board_of
from metalmark.runner.job import write_whole
from metalmark.store.bundle import MAKE_ONE, read_file
from metalmark.store.personal import look

MARK = ".metalmark-site"
"""Lists what we wrote, so that the next time pages of what is gone go too, and nobody else's file does."""
OURS = re.compile(r"(?:index|workload/[a-z0-9-]+|machine/[a-z0-9-]+)\.html")


class Site(Struct, frozen=True, kw_only=True):
    pages: tuple[str, ...]
    records: int
    machines: int
    refused: dict[str, str]
    """File → why it is not in the site."""


def find_bundles(folder: Path) -> list[Path]:
    """Every file in it that could be one, in the order of their names."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder.", hint="Name the folder that the bundles lie in.")
    found = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not found:
        raise UsageError(f"There is no bundle in {folder}.", hint=MAKE_ONE)
    return found


def write_site(bundles: Sequence[Path], out: Path) -> Site:
    """A file that is no bundle is left out and named; the site is of the others."""
    from metalmark.report.html.page import environment

    environment()  # without the extra `web` it says so, before anything is read
    from metalmark.report.html.site import site_pages

    gathered, refused = _gather(bundles)
    if not gathered:
        name, reason = next(iter(refused.items()), ("", "there are none"))
        raise UsageError(f"None of these bundles can be shown. {name}: {reason}", hint=MAKE_ONE)
    board, count = board_of(gathered), sum(map(len, gathered))
    pages = site_pages(board, records=count, refused=len(refused))
    _write(out, pages)
    return Site(pages=tuple(pages), records=count, machines=len(board.machines), refused=refused)


def _gather(bundles: Sequence[Path]) -> tuple[list[list[BenchRun]], dict[str, str]]:
    """What each bundle adds to those before it, and why some add nothing."""
    gathered: list[list[BenchRun]] = []
    held: dict[str, BenchRun] = {}
    refused: dict[str, str] = {}
    for path in bundles:
        try:
            found = read_file(str(path)).records
        except MetalmarkError as error:
            refused[path.name] = error.message
            continue
        personal = next((one for record in found for one in look(record)), None)
        twice = next((one for one in found if one.id in held and encode(held[one.id]) != encode(one)), None)
        if personal is not None:
            refused[path.name] = f"it would give away {personal.what} in {personal.where} of record {personal.record}."
        elif twice is not None:
            refused[path.name] = f"it has another record {twice.id} than a bundle before it."
        else:
            fresh = {record.id: record for record in found if record.id not in held}
            held.update(fresh)
            gathered.append(list(fresh.values()))
    return [records for records in gathered if records], refused


def _write(out: Path, pages: dict[str, str]) -> None:
    try:
        before = _written_before(out)
        for name, text in pages.items():
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode())
        write_whole(out / MARK, ("\n".join(sorted(pages)) + "\n").encode())
        for name in before - set(pages):
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{out} can't be written: {error.strerror}.", hint="Name another folder.") from error


def _written_before(out: Path) -> set[str]:
    if not out.exists():
        return set()
    mark = out / MARK
    if mark.is_file():
        return {line for line in mark.read_text(encoding="utf-8").splitlines() if OURS.fullmatch(line)}
    if not out.is_dir() or any(out.iterdir()):
        raise UsageError(f"{out} holds other things already.", hint="Name a new folder, or an empty one.")
    return set()

"""A cell that was measured and can't be stored: kept in a file of its own, so that a full disk costs no result."""

from __future__ import annotations

import tempfile
from pathlib import Path

from metalmark.model.codec import encode_export
from metalmark.model.measurement import BenchRun


def rescue(record: BenchRun, store: Path) -> str:
    """Writes the record beside the store, or else where temporary files go; says where, and what to type."""
    data = encode_export([record])
    for folder in (store.parent, Path(tempfile.gettempdir())):
        path = folder / f"metalmark-unsaved-{record.id}.json"
        try:
            path.write_bytes(data)
        except OSError:
            path.unlink(missing_ok=True)  # a full disk may have taken half of it
            continue
        return f"The cell just measured is in {path}: metalmark runs import {path}."
    return "The cell just measured could not be kept anywhere."

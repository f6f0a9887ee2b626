"""What tests of the store share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach: pytest's own is closed to the one that root becomes in a test."""
    with TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name, "open")
        folder.mkdir(mode=0o755)
        folder.parent.chmod(0o755)
        try:
            yield folder
        finally:
            folder.chmod(0o755)

"""A framework's version: its own word first, then its package's; a damaged package is not a missing one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from metalmark.backends.catalog import UNKNOWN, version_of


def test_whose_word_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, described in (
        ("sound", "Name: sound\nVersion: 1.2\n"),
        ("nameless", "Name: nameless\n"),
        ("hollow", None),
    ):
        folder = tmp_path / f"{name}-1.2.dist-info"
        folder.mkdir()
        if described is not None:
            (folder / "METADATA").write_text(described)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert version_of("sound") == "1.2"
    assert version_of("sound", SimpleNamespace(__version__="1.2+cu130")) == "1.2+cu130"
    assert version_of("sound", SimpleNamespace()) == "1.2"
    assert version_of("nameless") == UNKNOWN
    assert version_of("hollow") == UNKNOWN
    assert version_of("hollow", SimpleNamespace(__version__="3")) == "3"
    assert version_of("never-heard-of-it") is None

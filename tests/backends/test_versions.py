"""A framework's version: its own word first, then its package's; a damaged package is not a missing one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from metalmark.backends.catalog import FRAMEWORKS, UNKNOWN, version_of
from metalmark.model.plan import Settings

ROOT = Path(__file__).parents[2]


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


PROBE = """
import sys
from importlib import metadata
import msgspec
from metalmark.backends.base import Probe
from metalmark.backends.catalog import FRAMEWORKS
backend = FRAMEWORKS[sys.argv[1]].backend()
def missing(name):
    raise metadata.PackageNotFoundError(name)
metadata.version = metadata.distribution = missing
probe = msgspec.json.decode(msgspec.json.encode(backend.probe()), type=Probe)
assert probe.versions[sys.argv[1]][0].isdigit(), probe.versions
print("same")
"""


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax", "mlx"])
def test_a_package_without_metadata_can_still_be_used(framework: str) -> None:
    if FRAMEWORKS[framework].missing():
        pytest.skip(f"{framework} is not installed")
    environment = {**os.environ, **FRAMEWORKS[framework].environment(Settings())}
    run = subprocess.run(
        [sys.executable, "-c", PROBE, framework],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environment,
    )  # fmt: skip
    assert run.stdout.strip() == "same", run.stderr[-2000:]

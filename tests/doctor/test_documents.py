"""docs/doctor.md says what the checks say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from metalmark.doctor.catalog import CHECKS

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "tools/doctor_pages.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_check_is_on_it() -> None:
    text = (ROOT / "docs" / "doctor.md").read_text()
    assert [name for name in CHECKS if f"| `{name}` |" not in text] == []

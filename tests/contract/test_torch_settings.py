"""Settings that only PyTorch has: each trains the same network on the CPU, and what has no meaning is refused."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from metalmark.backends.catalog import FRAMEWORKS
from tests import processes

pytestmark = pytest.mark.skipif(bool(FRAMEWORKS["torch"].missing()), reason="torch is not installed")


@cache
def results() -> dict[str, str]:
    """Of all checks, in one process: importing PyTorch takes longer than most of them."""
    with TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        run = processes.run([sys.executable, "-m", "tests.contract.settings_checks", str(answer)])
        assert answer.exists(), f"exit code {run.returncode}: {run.stderr[-3000:]}"
        return dict(json.loads(answer.read_text()))


@pytest.mark.parametrize(
    "check",
    [
        "check_parts_of_a_batch_train_the_same",
        "check_a_smaller_last_batch_has_smaller_parts",
        "check_recomputed_blocks_train_the_same",
        "check_attention_has_the_kernel_that_was_asked_for",
        "check_compiled_steps_honour_them",
        "check_what_has_no_meaning_is_refused",
        "check_what_a_network_has_nothing_for_is_seen_in_its_steps",
        "check_what_excludes_each_other_is_refused",
        "check_cudnn_times_convolutions_only_where_asked",
    ],
)
def test_torch_settings(check: str) -> None:
    trouble = results()[check]
    assert not trouble, trouble

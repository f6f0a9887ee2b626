"""What is known of why published experiments came to what they did, for the workloads that repeat them."""

import tomllib
from functools import cache
from pathlib import Path


@cache
def _all_notes() -> dict[str, tuple[str, ...]]:
    table = tomllib.loads(Path(__file__).with_name("published_notes.toml").read_text(encoding="utf-8"))
    return {workload: tuple(entry["notes"]) for workload, entry in table.items()}


def published_notes(workload: str) -> tuple[str, ...]:
    """Return the notes on the published experiment that a workload repeats; empty where there is nothing to say."""
    return _all_notes().get(workload, ())

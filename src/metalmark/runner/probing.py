"""Probes each framework in a process of its own: `python -m metalmark.runner.probing NAME ANSWER`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from metalmark.backends.base import Probe
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.plan import Settings
from metalmark.runner.ask import NoAnswer, ask
from metalmark.runner.job import write_struct
from metalmark.scrub import scrub

TIMEOUT_S = 120.0


def probe_all(names: Iterable[str], *, timeout_s: float = TIMEOUT_S) -> dict[str, Probe | NoAnswer]:
    """Side by side; a framework that crashes or hangs at import is a finding, not a hang of ours."""
    wanted = list(names)

    def one(name: str) -> Probe | NoAnswer:
        environment = FRAMEWORKS[name].environment(Settings())
        return ask("metalmark.runner.probing", name, Probe, environment=environment, timeout_s=timeout_s)

    with ThreadPoolExecutor(max_workers=max(1, len(wanted))) as pool:
        return dict(zip(wanted, pool.map(one, wanted), strict=True))


def main(name: str, answer: str) -> None:
    result: Probe | NoAnswer
    try:
        result = FRAMEWORKS[name].backend().probe()
    except BaseException as error:  # noqa: BLE001  whatever an import throws is the finding
        last = (str(error).strip() or "no message").splitlines()[0]
        result = NoAnswer(
            reason=scrub(f"it fails at import: {type(error).__name__}: {last}")[:500],
            detail=scrub("".join(traceback.format_exception(error)))[-4000:],
        )
    write_struct(Path(answer), result)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
    os._exit(0)  # the answer is on the disk; some frameworks take a second to come down, or hang there

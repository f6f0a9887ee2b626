"""A spare process: it imports a framework, waits for the job of a worker, and is that worker from then on.

`python -m metalmark.runner.spare FRAMEWORK WORKLOAD [MODULE ...]`; the job comes as one line on its standard input.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.model.codec import read_json
from metalmark.runner.events import PROGRESS_FD, SPARE_IS_READY, SpareJob
from metalmark.runner.worker import die_with_parent, leave
from metalmark.workloads import LazyBuilder
from metalmark.workloads.catalog import BUILT_IN, load


def main(framework: str, workload: str, modules: Sequence[str]) -> None:
    die_with_parent()
    FRAMEWORKS[framework].backend()
    for module in [*modules_of(framework, workload), *modules]:
        import_module(module)
    os.write(int(os.environ[PROGRESS_FD]), SPARE_IS_READY)
    line = sys.stdin.buffer.readline()
    if not line:  # nobody needs it
        return
    job = read_json(line, SpareJob, source="the job of a spare process")
    output = os.open(job.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    os.environ.update(job.variables)
    import_module(job.module).main(job.job, job.outcome)
    leave()


def modules_of(framework: str, workload: str) -> list[str]:
    """Return the module that builds a workload of our own. A user's file is run by the worker alone, once."""
    builder = load(workload).build.get(FRAMEWORKS[framework].family) if workload in BUILT_IN else None
    return [builder.module] if isinstance(builder, LazyBuilder) else []


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])

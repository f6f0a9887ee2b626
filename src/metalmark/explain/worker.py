"""The worker process: the experiments on one plan. `python -m metalmark.explain.worker JOB OUTCOME`."""

import sys
from importlib import import_module
from pathlib import Path
from typing import cast

from metalmark.backends.base import Backend
from metalmark.downloads import listening
from metalmark.explain.base import ExplainBackend
from metalmark.explain.experiments import Experimenter
from metalmark.explain.job import LINES, Done, ExplainJob, ExplainReport
from metalmark.feeds.source import with_data
from metalmark.machine.durable import write_struct
from metalmark.model.codec import read_json
from metalmark.model.plan import Plan
from metalmark.model.run import Failed
from metalmark.model.workload import Workload
from metalmark.runner.lines import JsonLineWriter
from metalmark.runner.worker import ProgressPipe, describe, die_with_parent, here
from metalmark.workloads.catalog import load


def main(job_path: str, outcome_path: str) -> None:
    die_with_parent()
    job = read_json(Path(job_path).read_bytes(), ExplainJob, source=job_path)
    tell = ProgressPipe(job.spawned_at_s)
    tell("import")
    side: ExplainBackend | None = None
    versions: dict[str, str] = {}
    failure: Failed | None = None
    notes: tuple[str, ...] = ()
    write = JsonLineWriter(Path(job.folder) / LINES)
    try:
        side = cast("ExplainBackend", import_module(f"metalmark.explain.{job.plan.framework}").SIDE)
        versions = side.probe().versions
        with listening(lambda share: tell("download", share)):
            notes = run(side, job, write, tell)
        write(Done())
    except BaseException as error:  # noqa: BLE001  whatever a framework throws is this explanation's end
        failure = describe(error, cast("Backend | None", side), tell.phase)
    finally:
        write.close()
    write_struct(Path(outcome_path), ExplainReport(failure=failure, versions=versions, notes=notes))


def run(side: ExplainBackend, job: ExplainJob, write: JsonLineWriter, tell: ProgressPipe) -> tuple[str, ...]:
    plan, source = here(job.plan, job.paths), job.paths.get(job.plan.workload, "")

    def loaded(changed: Plan) -> Workload:
        return with_data(load(changed.workload, source=source), changed)[0]

    experimenter = Experimenter(side, plan, job.options, load=loaded, write=write, tell=tell)
    experimenter.run()
    return tuple(experimenter.notes)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

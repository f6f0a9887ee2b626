"""The worker process: one side of one or more checks. `python -m metalmark.parity.worker JOB OUTCOME`."""

import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import cast

import msgspec
from msgspec.structs import replace

from metalmark.backends.base import Backend
from metalmark.downloads import listening
from metalmark.errors import UnsupportedError
from metalmark.feeds.source import with_data
from metalmark.machine.durable import write_struct
from metalmark.model.codec import read_json
from metalmark.model.plan import Plan
from metalmark.model.run import Failed
from metalmark.model.workload import Workload
from metalmark.parity.base import ParityBackend
from metalmark.parity.candidate import CandidateExaminer
from metalmark.parity.job import Case, SideJob, SideReport
from metalmark.parity.lines import LineWriter
from metalmark.parity.reference import ReferenceExaminer
from metalmark.runner.worker import ProgressPipe, describe, die_with_parent, here, leave
from metalmark.workloads.catalog import digest, load


def main(job_path: str, outcome_path: str) -> None:
    die_with_parent()
    job = read_json(Path(job_path).read_bytes(), SideJob, source=job_path)
    tell = ProgressPipe(job.spawned_at_s)
    tell("import")
    side: ParityBackend | None = None
    versions: dict[str, str] = {}
    failure: Failed | None = None
    number = 0
    try:
        side = cast("ParityBackend", import_module(f"metalmark.parity.{_plan(job.cases[0], job).framework}").SIDE)
        versions = side.probe().versions
        with listening(lambda share: tell("download", share)):
            done: dict[bytes, Path] = {}
            for number, case in enumerate(job.cases):  # noqa: B007  the report says which one failed
                alike = _deciding(case)
                if job.is_reference and alike in done:
                    _share(done[alike], Path(case.folder))
                    continue
                examine(side, case, job, tell)
                done[alike] = Path(case.folder)
    except BaseException as error:  # noqa: BLE001  whatever a framework throws is this check's end
        failure = describe(error, cast("Backend | None", side), tell.phase)
    write_struct(Path(outcome_path), SideReport(failure=failure, failed_case=number, versions=versions))


def examine(side: ParityBackend, case: Case, job: SideJob, tell: ProgressPipe) -> None:
    plan = here(_plan(case, job), job.paths)
    workload = the_same_workload(plan, job.paths.get(plan.workload, ""))
    write = LineWriter(Path(case.folder), reference=job.is_reference)
    # Both plans of a case are used on either side, so both need the paths of this machine.
    local = replace(case, plan=here(case.plan, job.paths), reference=here(case.reference, job.paths))
    try:
        examiner = ReferenceExaminer if job.is_reference else CandidateExaminer
        examiner(side, local, workload, write=write, tell=tell).examine()
    finally:
        write.close()


def _deciding(case: Case) -> bytes:
    """Return all that decides what the reference writes; two cases with the same need it once."""
    plan = case.plan
    options = replace(case.options, contiguous=True)
    return msgspec.json.encode([case.reference, options, plan.settings.dtype, plan.framework, plan.mode, plan.seed])


def _share(source: Path, folder: Path) -> None:
    """Let another case have the files of one: they are read only."""
    for path in source.iterdir():
        try:
            os.link(path, folder / path.name)
        except OSError:  # a file system without links
            shutil.copyfile(path, folder / path.name)


def the_same_workload(plan: Plan, source: str) -> Workload:
    """Load the workload, and refuse a user's file that has changed since the check began."""
    if source and plan.workload_digest and digest(Path(source)) != plan.workload_digest:
        raise UnsupportedError(
            f"{plan.workload} has changed since this check began, so its two sides would be two networks.",
            hint="Run the command again, and leave the file alone until it ends.",
        )
    workload, _ = with_data(load(plan.workload, source=source), plan)
    return workload


def _plan(case: Case, job: SideJob) -> Plan:
    return case.reference if job.is_reference else case.plan


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
    leave()

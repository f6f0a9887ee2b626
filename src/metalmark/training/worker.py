"""The worker process: one training, one framework. `python -m metalmark.training.worker JOB OUTCOME`."""

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import cast

from metalmark.backends.base import Backend
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.backends.ranks import ONE, Ranks
from metalmark.data.dataset import classes_of
from metalmark.downloads import listening
from metalmark.feeds.share import for_all
from metalmark.machine import cpu
from metalmark.machine.cgroup import limits
from metalmark.model.codec import read_json
from metalmark.model.run import DeviceMemory, Failed
from metalmark.model.training import Ending, Epoch, TrainingSetup
from metalmark.runner.events import TrainingProgress
from metalmark.runner.worker import PROGRESS_EVERY_S, ProgressPipe, describe, die_with_parent, here, report_end
from metalmark.training import samples
from metalmark.training.base import Training
from metalmark.training.folder import TrainingJob, TrainingReport
from metalmark.training.loop import Loop
from metalmark.workloads.catalog import load


class TrainingPipe(ProgressPipe):
    """Tells the parent every loss and every epoch; how far a validation is, only five times per second."""

    def losses(self, *, epoch: int, step: int, done: float | None, losses: list[float]) -> None:
        self.tell("training", done=done, epoch=epoch, step=step, losses=tuple(losses))

    def validating(self, *, epoch: int, done: float | None) -> None:
        if self.phase != "validating" or self._at_s() - self._wrote_s >= PROGRESS_EVERY_S:
            self.tell("validating", done=done, epoch=epoch)

    def saved(self, *, epoch: int, step: int) -> None:
        self.tell("saved", epoch=epoch, step=step)

    def ended(self, epoch: Epoch, step: int) -> None:
        self.tell("saved", epoch=epoch.number, step=step, ended=epoch)

    def _at_s(self) -> float:
        return time.monotonic() - self._origin_s

    def tell(self, phase: str, **what: object) -> None:
        self.phase, self._wrote_s = phase, self._at_s()
        if self._fd >= 0:
            self._write(TrainingProgress(phase=phase, at_s=self._wrote_s, **what))  # type: ignore[arg-type]


def main(job_path: str, outcome_path: str) -> None:
    die_with_parent()
    job = read_json(Path(job_path).read_bytes(), TrainingJob, source=job_path)
    tell = TrainingPipe(job.spawned_at_s)
    tell("import")
    training: Training | None = None
    memory: DeviceMemory | None = None
    ending: Ending | Failed
    try:
        training = import_module(f"metalmark.training.{job.request.plan.framework}").TRAINING
        ranks = FRAMEWORKS[job.request.plan.framework].join(job.request.plan)
        with listening(lambda share: tell("download", share)):
            ending, memory = run(job, training, tell, ranks)
        ranks.leave()
    except BaseException as error:  # noqa: BLE001  whatever a framework throws is this training's end
        ending = describe(error, cast("Backend | None", training), tell.phase)
    report_end(job.request.plan, Path(outcome_path), TrainingReport(ending=ending, memory=memory), ending)


def run(job: TrainingJob, training: Training, tell: TrainingPipe, ranks: Ranks = ONE) -> tuple[Ending, DeviceMemory]:
    request = job.request
    plan = for_all(here(request.plan, request.paths))
    tell("data")
    workload = load(plan.workload, source=request.paths.get(plan.workload, ""))
    dataset = samples.limited(samples.dataset_of(workload, plan), request.goal.limit_samples)
    tell("build")
    with training.open(plan, samples.light(workload, dataset)) as trainer:
        first = samples.first_batch(workload, trainer.recipe, plan, dataset.train)
        cores = cpu.usable_cores(limits()) or 1
        workers = samples.choose_workers(request.goal.workers, dataset.train, first, cores)
        loop = Loop(
            trainer, workload, plan, dataset, request, folder=Path(job.folder), session=job.session,
            workers=workers, tell=tell, now=lambda: time.monotonic() - job.spawned_at_s, ranks=ranks,
        )  # fmt: skip
        task = loop.check(first)
        validation = dataset.validation
        own_notes = workload.notes(plan.params) if workload.notes is not None else ()
        setting = TrainingSetup(
            placed_on=trainer.placement.device, device_name=trainer.placement.name, parameters=trainer.parameters,
            trainable_parameters=trainer.trainable_parameters, data=dataset.source, data_digest=dataset.digest,
            train_samples=samples.samples_in(dataset.train),
            validation_samples=0 if validation is None else samples.samples_in(validation),
            classes=len(classes_of(dataset.train)), workers=workers, versions=training.probe().versions,
            notes=(*trainer.notes, *own_notes, *dataset.notes), task=task.value if task is not None else "",
        )  # fmt: skip
        tell.tell("ready", setting=setting)
        return loop.run(), trainer.memory()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

"""MlflowService: a run at MLflow, in a local SQLite file or on any tracking server."""

import math
import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput, LoggedModelStatus, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from metalmark.track.destination import Destination, database_file, fit_name, fit_text, full_uri
from metalmark.track.queue import AttachedModel, Begin, End, EndStatus, Known, MetricAxis, MetricRow

ID = "metalmark.id"
EPOCH = "metalmark.epoch"
MODEL = "best"
METRICS_AT_ONCE, PARAMS_AT_ONCE = 1000, 100
LONGEST_PARAM, LONGEST_TAG, LONGEST_NAME = 6000, 5000, 250
STATUS = {EndStatus.FINISHED: "FINISHED", EndStatus.FAILED: "FAILED", EndStatus.KILLED: "KILLED"}
OLDEST_FIRST = ["attributes.start_time ASC"]
RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
OLD_SERVER = {"ENDPOINT_NOT_FOUND", "NOT_IMPLEMENTED", "FEATURE_DISABLED"}


class MlflowService:
    def __init__(self, destination: Destination) -> None:
        self._to = destination
        uri = full_uri(destination.place)
        file = database_file(uri)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(uri)
        self._run = ""
        self._experiment = ""
        self._held: dict[str, set[int]] = {}
        """Metric → the steps that MLflow had of it when this try began."""
        self._params: dict[str, str] = {}

    def begin(self, begin: Begin) -> str:
        self._experiment = self._find_experiment()
        run = self._find_run(begin.id)
        if run is None:
            with asked_once():
                created = self._client.create_run(
                    self._experiment,
                    start_time=begin.at_ms,
                    tags={ID: begin.id, "metalmark.kind": begin.kind},
                    run_name=fit_text(begin.name, LONGEST_NAME),
                )
            # Looked for again, since one that an earlier try asked for may have come at last.
            run = self._find_run(begin.id) or created
        if run.data.metrics or run.info.status != "RUNNING":
            self._client.update_run(run.info.run_id, status="RUNNING")
            for name in run.data.metrics:
                self._held[name] = {metric.step for metric in self._client.get_metric_history(run.info.run_id, name)}
        self._run, self._params = run.info.run_id, dict(run.data.params)
        group = {"metalmark.sweep": begin.group} if begin.group else {}
        self.known(Known(params=begin.params, tags={**begin.tags, **group}))
        return self._where()

    def known(self, known: Known) -> None:
        """Log params and tags. MLflow lets no param change, so what differs in a resumed run becomes a tag."""
        params = {fit_name(name): fit_text(str(value), LONGEST_PARAM) for name, value in known.params.items()}
        new = {name: value for name, value in params.items() if name not in self._params}
        changed = {f"now.{name}": value for name, value in params.items() if self._params.get(name, value) != value}
        self._params |= new
        tags = {fit_name(name): fit_text(value, LONGEST_TAG) for name, value in {**known.tags, **changed}.items()}
        new_params = [Param(name, value) for name, value in new.items()]
        new_tags = [RunTag(name, value) for name, value in tags.items()]
        for start in range(0, max(len(new_params), len(new_tags)), PARAMS_AT_ONCE):
            some = slice(start, start + PARAMS_AT_ONCE)
            self._client.log_batch(self._run, params=new_params[some], tags=new_tags[some])

    def rows(self, rows: Sequence[MetricRow]) -> None:
        metrics = list(chain.from_iterable(self._metrics(row) for row in rows))
        for start in range(0, len(metrics), METRICS_AT_ONCE):
            self._client.log_batch(self._run, metrics=metrics[start : start + METRICS_AT_ONCE])

    def file(self, path: Path) -> None:
        self._client.log_artifact(self._run, str(path))

    def model(self, path: Path, model: AttachedModel) -> None:
        with tempfile.TemporaryDirectory(prefix="metalmark-") as folder:
            local = save_model(path, model, Path(folder))
            try:
                self._log_model(local, model)
            except MlflowException as error:
                if error.error_code not in OLD_SERVER:
                    raise
                # A server from before MLflow 3 has no models of their own; one among the run's files loads as well.
                self._client.log_artifacts(self._run, str(local), MODEL)

    def end(self, end: End) -> None:
        self._client.set_terminated(self._run, STATUS[end.status], end.at_ms)

    def close(self) -> None: ...

    def _metrics(self, row: MetricRow) -> Iterator[Metric]:
        # Steps are whole numbers there, so seconds are counted in thousandths.
        step = round(row.x * 1000) if row.axis is MetricAxis.SECONDS else int(row.x)
        for name, value in row.values.items():
            key = fit_name(name)
            if step not in self._held.get(key, ()):
                yield Metric(key, math.nan if value is None else value, row.at_ms, step)

    def _find_experiment(self) -> str:
        if self._to.entity:
            return self._to.entity
        name = self._to.project
        found = self._client.get_experiment_by_name(name)
        if found is None:
            file = database_file(self._to.place)
            # Beside a database file: MLflow's own choice is wherever the process happens to run.
            artifacts = None if file is None else (file.resolve().parent / "mlflow-artifacts").as_uri()
            try:
                return str(self._client.create_experiment(name, artifact_location=artifacts))
            except MlflowException:
                found = self._client.get_experiment_by_name(name)  # another process was faster
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            raise MlflowException(f"The experiment {name} is deleted there: restore it, or set MLFLOW_EXPERIMENT_NAME.")
        return str(found.experiment_id)

    def _find_run(self, identifier: str) -> Run | None:
        """Return the run of that id. Of several, which a proxy can make of one request, those without content go."""
        found = self._client.search_runs([self._experiment], f"tags.`{ID}` = '{identifier}'", order_by=OLDEST_FIRST)
        run = max(found, key=lambda run: (len(run.data.metrics), len(run.data.params)), default=None)
        for other in found:
            if other is not run and not other.data.metrics and not other.data.params:
                self._client.delete_run(other.info.run_id)
        return run

    def _where(self) -> str:
        place = self._to.place
        if database_file(place) is not None:
            return f"run {self._run}; look at it: mlflow ui --backend-store-uri {shlex.quote(place)}"
        link = f"{place}/#/experiments/{self._experiment}/runs/{self._run}" if place.startswith("http") else ""
        return link or f"run {self._run} in {place}"

    def _log_model(self, local: Path, model: AttachedModel) -> None:
        epoch = str(model.epoch)
        # One that was created, and whose connection was cut before we heard of it, is not among the run's outputs.
        models = self._client.search_logged_models([self._experiment], f"source_run_id = '{self._run}'")
        logged = next((each for each in models if each.tags.get(EPOCH) == epoch), None)
        if logged is None:
            with asked_once():
                logged = self._client.create_logged_model(
                    self._experiment, name=MODEL, source_run_id=self._run, tags={EPOCH: epoch}, params=self._params
                )
        outputs = self._client.get_run(self._run).outputs
        known = {output.model_id for output in (outputs.model_outputs if outputs is not None else ())}
        if logged.model_id not in known:
            self._client.log_outputs(self._run, [LoggedModelOutput(logged.model_id, step=model.epoch)])
        if logged.status != LoggedModelStatus.READY:
            self._client.log_model_artifacts(logged.model_id, str(local))
            self._client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)


@contextmanager
def asked_once() -> Iterator[None]:
    """Let MLflow's library send each request of the block once.

    By itself it repeats one whose connection was cut, though the server may have done it: that makes two of one run.
    It is we who try again, and look first.
    """
    before = os.environ.get(RETRIES)
    os.environ[RETRIES] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[RETRIES]
        else:
            os.environ[RETRIES] = before


def save_model(checkpoint: Path, model: AttachedModel, folder: Path) -> Path:
    """Save an MLflow model around the checkpoint. `metalmark.track.model` loads it, so nothing is pickled."""
    import mlflow.pyfunc
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    from metalmark.track.model import describe, lay_out

    data, local = folder / "checkpoint", folder / "model"
    description, arrays = describe(model)
    lay_out(data, checkpoint, description)
    signature, example, output = None, None, description.output
    if description.inputs:
        names = [None] if len(description.inputs) == 1 else [spec.name for spec in description.inputs]
        signature = ModelSignature(
            inputs=Schema([TensorSpec(np.dtype(spec.dtype), (-1, *spec.shape), name)
                           for spec, name in zip(description.inputs, names, strict=True)]),
            outputs=output and Schema([TensorSpec(np.dtype(output.dtype), (-1, *output.shape))]),
        )  # fmt: skip
        example = arrays[0] if len(arrays) == 1 else dict(zip(names, arrays, strict=True))
    mlflow.pyfunc.save_model(
        path=str(local),
        loader_module="metalmark.track.model",
        data_path=str(data),
        signature=signature,
        input_example=example,
        # What a loader may be given: where a workload of the user's own is.
        model_config={"source": ""},
        # Named, since MLflow would find them by loading the model, and the framework with it.
        pip_requirements=[f"metalmark[{model.plan.framework},mlflow]"],
        metadata={"metalmark.note": description.note} if description.note else None,
    )
    return local

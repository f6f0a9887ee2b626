"""WandbService: a run at Weights & Biases, online, or offline in files that `wandb sync` uploads.

Offline, one folder holds the whole run, and W&B cannot append to it: each try writes a new one and removes the old.
W&B keeps the newest of two uploads under one id, so nothing is there twice.
"""

import json
import math
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import wandb

from metalmark.track.destination import Destination, fit_name, fit_text
from metalmark.track.queue import AttachedModel, Begin, End, EndStatus, Known, MetricAxis, MetricRow

LONGEST_NAME = 120
INIT_TIMEOUT_S = 30.0


class WandbService:
    def __init__(self, destination: Destination) -> None:
        self._to = destination
        self._run: Any = None
        self._online = destination.place == "online"
        self._held: dict[str, set[float]] = {}
        """Metric → the positions on its axis that W&B had of it when this try began."""
        self._named: set[str] = set()

    def begin(self, begin: Begin) -> str:
        old = sorted(Path(self._to.folder, "wandb").glob(f"offline-run-*-{begin.id}"))
        Path(self._to.folder).mkdir(parents=True, exist_ok=True)
        self._run = run = wandb.init(
            project=self._to.project,
            entity=self._to.entity or None,
            id=begin.id,
            name=fit_text(begin.name, LONGEST_NAME),
            group=begin.group or None,
            job_type=begin.kind,
            dir=self._to.folder,
            mode="online" if self._online else "offline",
            resume="allow" if self._online else None,
            tags=[begin.kind],
            settings=_settings(),
        )
        if self._online and run.resumed:
            self._held = held(wandb.Api().run(run.path).scan_history())
        if not self._online:
            for folder in old:
                shutil.rmtree(folder, ignore_errors=True)
        for axis in MetricAxis:
            run.define_metric(axis.value, hidden=True)
        self.known(Known(params=begin.params, tags=begin.tags))
        folder = Path(run.dir).parent
        return str(run.url) if self._online else f"kept offline; upload it: wandb sync {shlex.quote(str(folder))}"

    def known(self, known: Known) -> None:
        config = {**known.params, **{f"tags/{name}": value for name, value in known.tags.items()}}
        self._run.config.update({fit_name(name): value for name, value in config.items()}, allow_val_change=True)

    def rows(self, rows: Sequence[MetricRow]) -> None:
        for row in rows:
            values = {fit_name(name): math.nan if value is None else value for name, value in row.values.items()}
            new = {name: value for name, value in values.items() if row.x not in self._held.get(name, ())}
            for name in (name for name in new if name not in self._named):
                self._run.define_metric(name, step_metric=row.axis.value)
                self._named.add(name)
            if new:
                self._run.log({**new, row.axis.value: row.x})

    def file(self, path: Path) -> None:
        artifact = wandb.Artifact(f"record-{self._run.id}", type="record")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def model(self, path: Path, model: AttachedModel) -> None:
        from metalmark.track.model import describe, lay_out

        description, arrays = describe(model)
        shown = [
            None if each is None else f"{each.name}: {each.dtype} {('batch', *each.shape)}"
            for each in (*description.inputs, description.output)
        ]
        *inputs, output = shown
        metadata = {"epoch": model.epoch, "inputs": inputs, "output": output}
        with tempfile.TemporaryDirectory(prefix="metalmark-") as folder:
            data = Path(folder, "model")
            lay_out(data, path, description)
            artifact = wandb.Artifact(f"model-{self._run.id}", type="model", metadata=metadata)
            artifact.add_dir(str(data))
            for number, array in enumerate(arrays):
                with artifact.new_file(f"input_example_{number}.json") as file:
                    file.write(json.dumps(array.tolist()))
            self._run.log_artifact(artifact)

    def end(self, end: End) -> None:
        self._run.finish(exit_code=0 if end.status is EndStatus.FINISHED else 1)
        self._run = None

    def close(self) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            run.finish(exit_code=1)


def held(history: Iterable[dict[str, Any]]) -> dict[str, set[float]]:
    """Return the metrics that are there, and at which positions on their axis."""
    positions: dict[str, set[float]] = {}
    for row in history:
        x = next((row[axis.value] for axis in MetricAxis if row.get(axis.value) is not None), None)
        if x is not None:
            for name, value in row.items():
                if value is not None:
                    positions.setdefault(name, set()).add(float(x))
    return positions


def _settings() -> Any:
    """Switch off W&B's own sampling, which would be of the sending process, and all that names machine or user."""
    disabled = ("silent", "x_disable_stats", "x_disable_meta", "x_disable_machine_info", "disable_git", "disable_code",
                "disable_job_creation")  # fmt: skip
    wanted: dict[str, Any] = {
        "console": "off",
        "init_timeout": INIT_TIMEOUT_S,
        **dict.fromkeys(disabled, True),
        **dict.fromkeys(("x_save_requirements", "save_code"), False),
        **dict.fromkeys(("host", "username", "email"), ""),
    }
    # Which of them there are differs from version to version.
    return wandb.Settings(**{name: value for name, value in wanted.items() if name in wandb.Settings.model_fields})

"""Real trackers: `mlflow server` on loopback and W&B offline, read back through their own APIs.

One training is made to suffer: killed with its tracker hanging, resumed with its tracker gone, sent when it is back.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metalmark.model.training import Ending, TrainingRun
from metalmark.track import sender
from metalmark.track.destination import Destination
from metalmark.track.queue import Begin, End, EndStatus, Known, MetricAxis, MetricRow, Queue, QueueWriter
from metalmark.track.story import write_run
from metalmark.training.folder import read_record
from tests.conftest import ROOT
from tests.track.servers import cutting_proxy, free_port, hanging_server, mlflow_server, refusing_server
from tests.track.wandb_file import OfflineRun
from tests.training.files import write_learnable_idx

for package in ("mlflow", "wandb", "torch"):
    pytest.importorskip(package)

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of libraries that are not ours
    pytest.mark.timeout(600),
]
PASSWORD = "hunter2secret"


class Stage:
    """The command in an environment of its own, and what it leaves there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.data = write_learnable_idx(folder / "idx")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "MLFLOW"))},
            "METALMARK_STORE": str(folder / "store.sqlite3"),
            "NETRC": str(folder / "netrc"),
            "WANDB_DATA_DIR": str(folder / "wandb-data"),
            "WANDB_CACHE_DIR": str(folder / "wandb-cache"),
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "2",
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            # With a password, as some servers want one: it must be found nowhere afterwards.
            "MLFLOW_TRACKING_URI": f"http://ann:{PASSWORD}@127.0.0.1:{self.port}",
            "OMP_NUM_THREADS": "1",
        }

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self._command(arguments), env=self.environment, cwd=ROOT, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, check=False, timeout=300)  # fmt: skip

    def kill_training(self, *arguments: object) -> None:
        """kill -9 once a first epoch and some steps of the next are queued."""
        with subprocess.Popen(self._command(arguments), env=self.environment, cwd=ROOT,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # fmt: skip
            while not any(isinstance(event, MetricRow) and event.axis is MetricAxis.EPOCH for event in self.queued()):
                assert process.poll() is None
                time.sleep(0.1)
            process.kill()

    def queued(self) -> list[Any]:
        return [event for folder in (self.folder / "track").glob("*.*") for event in Queue(folder).read()[0]]

    def record(self) -> TrainingRun:
        return read_record(self.out)

    def offline(self) -> OfflineRun:
        (found,) = (self.folder / "wandb").glob(f"offline-run-*-{self.record().id}")
        return OfflineRun(found)

    def _command(self, arguments: tuple[object, ...]) -> list[str]:
        return [sys.executable, "-m", "metalmark", *map(str, arguments)]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("trackers"))


@pytest.fixture(scope="module")
def resumed(stage: Stage) -> subprocess.CompletedProcess[str]:
    """Killed while the server hung, then resumed to its end while nobody listened there."""
    with hanging_server(stage.port):
        stage.kill_training(
            "train", "mnist-mlp", "--data", stage.data, "-f", "torch", "-d", "cpu", "--threads", 1, "--batch-size", 1,
            "--epochs", 500, "-o", stage.out, "--track", "mlflow",
        )  # fmt: skip
    killed = stage.record()
    assert killed.ending is Ending.RUNNING
    assert killed.epochs
    epochs = len(killed.epochs) + 1
    return stage.run("train", f"--resume={stage.out}", "--epochs", epochs, "--track", "mlflow,wandb")


@pytest.fixture(scope="module")
def listed(stage: Stage, resumed: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert resumed.returncode == 0
    run = stage.run("track", "list", "--json")
    assert run.returncode == 0, run.stderr
    found: list[dict[str, Any]] = json.loads(run.stdout)
    return found


@pytest.fixture(scope="module")
def server(stage: Stage, listed: list[dict[str, Any]]) -> Iterator[str]:
    assert listed is not None
    with mlflow_server(stage.folder / "server", stage.port) as uri:
        yield uri


@pytest.fixture(scope="module")
def synced(stage: Stage, server: str) -> subprocess.CompletedProcess[str]:
    assert server
    return stage.run("track", "sync")


@pytest.fixture(scope="module")
def client(stage: Stage) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(stage.uri)


def runs(client: Any, identifier: str) -> list[Any]:
    experiment = client.get_experiment_by_name("metalmark")
    found = client.search_runs([experiment.experiment_id], f"tags.`metalmark.id` = '{identifier}'")
    return list(found)


def history(client: Any, run: Any, name: str) -> list[tuple[int, float]]:
    return sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name))


def test_a_tracker_that_is_down_costs_the_training_nothing(
    stage: Stage, resumed: subprocess.CompletedProcess[str], listed: list[dict[str, Any]]
) -> None:
    assert resumed.returncode == 0, resumed.stderr
    assert "mlflow: not sent (ConnectionRefusedError" in resumed.stderr
    assert "metalmark track sync" in resumed.stderr
    assert "no API key was found" in resumed.stderr
    assert "accuracy" in resumed.stdout
    record = stage.record()
    assert record.ending is Ending.EPOCHS
    assert len(record.sessions) == 2
    # One queue for each of its two sessions; both wait for MLflow alone.
    assert [entry["tracker"] for entry in listed] == ["mlflow", "mlflow"]
    assert {entry["run"] for entry in listed} == {record.id}
    assert {entry["state"] for entry in listed} == {"waiting"}
    assert "refused" in listed[-1]["why"]


def test_no_password_is_kept_or_shown(stage: Stage, resumed: subprocess.CompletedProcess[str]) -> None:
    assert PASSWORD not in resumed.stderr + resumed.stdout
    places = [stage.out, stage.folder / "track", stage.folder / "wandb"]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]


def test_w_and_b_has_the_resumed_training_whole(stage: Stage, resumed: subprocess.CompletedProcess[str]) -> None:
    assert resumed.returncode == 0
    record, run = stage.record(), stage.offline()
    losses = [loss for epoch in record.epochs for loss in epoch.losses]
    assert run.curve("train/loss", "step") == list(enumerate(losses, start=1))
    assert run.curve("epoch/accuracy", "epoch") == [(epoch.number, epoch.accuracy) for epoch in record.epochs]
    assert run.axes["train/loss"] == "step"
    assert run.axes["epoch/accuracy"] == "epoch"
    assert run.axes["system/process_memory_bytes"] == "seconds"
    assert run.curve("system/process_memory_bytes", "seconds")
    assert run.curve("best/epoch", "epoch")
    assert run.config["batch_size"] == 1
    assert run.config["data_source"] == record.setting.data  # type: ignore[union-attr]
    assert run.run.project == "metalmark"
    assert run.run.run_id == record.id
    assert run.run.host == ""
    assert run.exit_code == 0
    paths = {content.path for content in run.artifacts["model"].manifest.contents}
    assert paths == {"best.safetensors", "model.json", "input_example_0.json"}
    assert [content.path for content in run.artifacts["record"].manifest.contents] == ["record.json"]
    assert "float32 ('batch', 784)" in run.artifacts["model"].metadata


def test_sync_sends_what_waited_to_one_run(stage: Stage, synced: subprocess.CompletedProcess[str], client: Any) -> None:
    assert synced.returncode == 0, synced.stderr
    record = stage.record()
    (run,) = runs(client, record.id)
    losses = [loss for epoch in record.epochs for loss in epoch.losses]
    assert history(client, run, "train/loss") == list(enumerate(losses, start=1))
    for name, values in {
        "epoch/accuracy": [epoch.accuracy for epoch in record.epochs],
        "epoch/validation_loss": [epoch.validation_loss for epoch in record.epochs],
        "epoch/learning_rate": [epoch.learning_rate for epoch in record.epochs],
    }.items():
        assert history(client, run, name) == list(enumerate(values, start=1))
    assert history(client, run, "system/process_memory_bytes")
    assert (run.info.status, run.data.params["batch_size"], run.data.params["framework"]) == ("FINISHED", "1", "torch")
    # What was asked for first is a param for good; MLflow lets none change.
    assert (run.data.params["epochs"], run.data.tags["now.epochs"]) == ("500", str(len(record.epochs)))
    assert run.data.tags["ending"] == "all epochs done"
    assert run.data.tags["version.torch"]
    assert stage.run("track", "list", "--json").stdout.strip() == "[]"
    assert not stage.queued()


def test_the_record_and_a_model_that_loads_are_there(
    stage: Stage,
    synced: subprocess.CompletedProcess[str],
    client: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert synced.returncode == 0
    monkeypatch.setenv("MLFLOW_TRACKING_URI", stage.uri)
    record = stage.record()
    (run,) = runs(client, record.id)
    path = client.download_artifacts(run.info.run_id, "record.json", str(tmp_path))
    assert msgspec.json.decode(Path(path).read_bytes(), type=TrainingRun) == record
    models = [client.get_logged_model(output.model_id) for output in run.outputs.model_outputs]
    best = max(record.epochs, key=lambda epoch: (epoch.accuracy, -epoch.validation_loss)).number
    (model,) = [each for each in models if each.tags["metalmark.epoch"] == str(best)]
    assert str(model.status) == "READY"
    from mlflow.artifacts import download_artifacts
    from mlflow.models import Model

    folder = Path(download_artifacts(model.model_uri, dst_path=str(tmp_path / "model")))
    told = Model.load(str(folder))
    assert told.flavors["python_function"]["loader_module"] == "metalmark.track.model"
    assert [(str(each.type), each.shape) for each in told.signature.inputs] == [("float32", (-1, 784))]
    assert [(str(each.type), each.shape) for each in told.signature.outputs] == [("float32", (-1, 10))]
    assert told.load_input_example(str(folder)).shape == (1, 784)
    assert not list(folder.rglob("*.pkl"))
    data = folder / told.flavors["python_function"]["data"]
    done = subprocess.run([sys.executable, "-c", LOADS, str(data)], cwd=ROOT, env=stage.environment,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(record.epochs[best - 1].accuracy)


# As MLflow's load_model calls it, in a process that has the framework.
LOADS = """
import sys
from metalmark.track.model import _load_pyfunc
from tests.training.files import learnable
images, labels = learnable(70, (28, 28), seed=2)
outputs = _load_pyfunc(sys.argv[1], {"source": ""}).predict((images.reshape(70, -1) / 255).astype("float32"))
print((outputs.argmax(1) == labels).mean())
"""


def test_what_is_told_again_completes_a_run_and_never_doubles_it(
    stage: Stage, synced: subprocess.CompletedProcess[str], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert synced.returncode == 0
    monkeypatch.setenv("METALMARK_STORE", stage.environment["METALMARK_STORE"])
    record = stage.record()
    (before,) = runs(client, record.id)
    points = {name: history(client, before, name) for name in before.data.metrics}
    to = Destination(tracker="mlflow", place=stage.uri)
    with QueueWriter(record.id, [to]) as writer:
        write_run(writer, record, stage.out)
    queue = writer.queue
    assert sender.main(to.key, [str(queue.folder)], follow=False) == 0
    assert before.info.run_id in queue.delivery(to.key).where
    queue.remove()
    (after,) = runs(client, record.id)
    assert {name: history(client, after, name) for name in after.data.metrics} == points
    assert len(after.outputs.model_outputs) == len(before.outputs.model_outputs)


LOOP = """
import sys, metalmark as mm
with mm.run(sys.argv[1], track=sys.argv[2], params={"a b\\x00%": "x" * 9000, "rate": 0.1}, hz=20) as run:
    for number in run.watch(range(1, 41)):
        run.log(loss=1 / number, **{"../x%": number, "x$": float("nan")})
        if sys.argv[3:] and number == 30:
            import os, time
            time.sleep(1.1)
            run.log(step=31, loss=0.5)
            time.sleep(0.5)
            os.kill(os.getpid(), 9)
print(run.id, run.result.notes)
"""


def test_a_loop_of_ones_own_with_hostile_names(stage: Stage, server: str, client: Any) -> None:
    assert server
    done = subprocess.run([sys.executable, "-c", LOOP, "a\x1b[31m <b>loop</b>\n" * 20, "mlflow"], env=stage.environment,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "sent" not in done.stdout + done.stderr
    (run,) = runs(client, done.stdout.split()[0])
    assert run.info.status == "FINISHED"
    assert "\x1b" not in run.info.run_name
    assert history(client, run, "loss") == [(number, 1 / number) for number in range(1, 41)]
    names = {name.rpartition("-")[0] for name in run.data.metrics}
    assert {"x_"} <= names
    assert len([name for name in run.data.metrics if name.startswith("x_-")]) == 2
    assert run.data.params["rate"] == "0.1"
    assert "input_wait/train_share" in run.data.metrics
    assert [artifact.path for artifact in client.list_artifacts(run.info.run_id)] == ["run.json"]


def test_what_a_killed_loop_had_queued_is_sent(stage: Stage, synced: subprocess.CompletedProcess[str]) -> None:
    assert synced.returncode == 0
    done = subprocess.run([sys.executable, "-c", LOOP, "killed", "wandb=offline", "kill"], env=stage.environment,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    (folder,) = (stage.folder / "track").glob("*.*")
    queue = Queue(folder)
    # Its sender lives on in a session of its own and ends what the loop could not.
    deadline_s = time.monotonic() + 120
    while queue.waits and time.monotonic() < deadline_s:
        time.sleep(0.2)
    (found,) = (stage.folder / "wandb").glob(f"offline-run-*-{queue.id}")
    run = OfflineRun(found)
    assert run.exit_code == 1
    expected = [(number, 1 / number) for number in range(1, 31)]
    assert run.curve("loss", "step") == [*expected, (31, 0.5)]
    assert run.run.display_name.startswith("killed ")


def test_servers_that_hang_or_answer_500(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MLFLOW")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("METALMARK_STORE", stage.environment["METALMARK_STORE"])
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with ExitStack() as stack:
        places = {
            stack.enter_context(hanging_server(free_port())): "timed out",
            stack.enter_context(refusing_server()): "500",
        }
        for place, said in places.items():
            to = Destination(tracker="mlflow", place=place)
            with QueueWriter("refused001", [to]) as writer:
                writer.append(Begin(id="refused001", name="refused", kind="run", at_ms=1), Known(params={"a": 1}))
                writer.end(End(at_ms=2, status=EndStatus.FINISHED))
            assert sender.main(to.key, [str(writer.queue.folder)], follow=False) == 1
            (delivery,) = writer.queue.deliveries()
            assert said in delivery.trouble
            assert (delivery.done, len(writer.queue.read()[0])) == (False, 3)
            writer.queue.remove()


@pytest.mark.parametrize("retries", ["0", "3"])
def test_a_connection_cut_after_a_request_leaves_one_of_each(
    stage: Stage,
    server: str,
    client: Any,
    synced: subprocess.CompletedProcess[str],
    monkeypatch: pytest.MonkeyPatch,
    retries: str,
) -> None:
    """Whether MLflow's own library would repeat the request or not. The server has done what it was asked for."""
    assert synced.returncode == 0
    monkeypatch.setenv("METALMARK_STORE", stage.environment["METALMARK_STORE"])
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", retries)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    record = msgspec.structs.replace(stage.record(), id=f"cut000000{retries}")
    cuts = {"runs/create": 1, "logged-models": 1, "runs/log-batch": 2, "runs/update": 1}
    with cutting_proxy(server, cuts) as proxy:
        to = Destination(tracker="mlflow", place=proxy.uri)
        with QueueWriter(record.id, [to]) as writer:
            write_run(writer, record, stage.out)
        tries = 0
        while sender.main(to.key, [str(writer.queue.folder)], follow=False) != 0:
            tries += 1
            assert tries < 10, writer.queue.delivery(to.key).trouble
        assert proxy.cut == sum(cuts.values())
    assert tries >= 2
    writer.queue.remove()
    (run,) = runs(client, record.id)
    losses = [loss for epoch in record.epochs for loss in epoch.losses]
    assert history(client, run, "train/loss") == list(enumerate(losses, start=1))
    assert run.info.status == "FINISHED"
    models = client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run.info.run_id}'")
    assert [str(model.status) for model in models] == ["READY"]
    assert [output.model_id for output in run.outputs.model_outputs] == [models[0].model_id]


def test_an_empty_twin_of_a_run_goes(stage: Stage, server: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METALMARK_STORE", stage.environment["METALMARK_STORE"])
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    experiment = client.get_experiment_by_name("metalmark").experiment_id
    for _ in range(3):
        client.create_run(experiment, tags={"metalmark.id": "twin000001"})
    to = Destination(tracker="mlflow", place=server)
    with QueueWriter("twin000001", [to]) as writer:
        writer.append(Begin(id="twin000001", name="twin", kind="run", at_ms=1), Known(params={"a": 1}))
        writer.end(End(at_ms=2, status=EndStatus.FINISHED))
    assert sender.main(to.key, [str(writer.queue.folder)], follow=False) == 0
    writer.queue.remove()
    (run,) = runs(client, "twin000001")
    assert (run.info.status, run.data.params) == ("FINISHED", {"a": "1"})


def test_cells_that_were_measured_before(stage: Stage, server: str, client: Any) -> None:
    run = stage.run("bench", "fake", "-f", "fake", "--steps", 20, "--seconds", 0.2, "--repeat", 2, "--json")
    assert run.returncode == 0, run.stderr
    pushed = stage.run("runs", "push", "--to", f"mlflow={server}", "last")
    assert pushed.returncode == 0, pushed.stderr
    records = json.loads(run.stdout)["records"]
    assert len(records) == pushed.stderr.count("mlflow: ") == 2
    for record in records:
        (found,) = runs(client, record["id"])
        assert f"/runs/{found.info.run_id}" in pushed.stderr
        assert found.data.tags["metalmark.sweep"] == record["sweep"]
        assert found.data.params["workload"] == "fake"
        measurement = record["outcome"]["measurement"]
        assert len(history(client, found, "bench/step_s")) == len(measurement["blocks"])
        assert found.data.metrics["bench/first_step_s"] == pytest.approx(measurement["first_step_s"])
        assert [artifact.path for artifact in client.list_artifacts(found.info.run_id)] == ["record.json"]

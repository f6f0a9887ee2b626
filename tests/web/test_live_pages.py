from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from starlette.testclient import TestClient

from metalmark.model.plan import PlanChange
from metalmark.model.run import RunKind
from metalmark.model.training import Ending, Epoch, Goal, TrainingRun, TrainingSession
from metalmark.model.tuning import RungStatus, TuningPhase
from metalmark.store.live import LiveFile, Trace, live_folder
from metalmark.store.store import Store
from metalmark.training.folder import write_record
from tests.report.contents import watched
from tests.samples import BASELINE_RUNG, MACHINE, OTHER_RUNGS, live_tuning, plan, record, rung, tuned, tuning_run
from tests.store.test_live import ID, status
from tests.web.conftest import HOSTILE
from tests.web.test_pages import read


@pytest.fixture
def client(store_file: Path, client_of: Callable[..., TestClient]) -> TestClient:
    with Store(store_file) as store:
        store.add(record(sweep=ID))
    return client_of(store_file)


def trace(name: str, unit: str, *values: float) -> Trace:
    return Trace(name=name, unit=unit, at_s=tuple(float(n) for n in range(len(values))), values=values)


def test_what_runs_is_shown_as_it_comes(client: TestClient, store_file: Path) -> None:
    assert "Nothing runs now" in client.get("/live").text
    file = LiveFile(store_file, ID)
    traces = (trace("process_memory", "bytes", 2**20), trace("throughput", "samples/s", 10.0, 12.5))
    file.write(status(what=HOSTILE, share=0.25, total=4, traces=traces, ended=(f"{HOSTILE} done",), left="about 1 s"))
    page = client.get(f"/live/{ID}")
    assert page.status_code == 200
    assert f'data-now="/live/{ID}/now"' in page.text
    assert '<a href="">Look again</a>' in page.text, "without script a link does"
    for text in (page.text, client.get(f"/live/{ID}/now").text):
        assert HOSTILE not in text
        assert "&lt;script&gt;" in text
        for part in ("12.5 samples/s", "1.00 MiB", "25%", "0 of 4 runs done, about 1 s", "<polyline"):
            assert part in text
        assert text.index("throughput") < text.index("process memory")
        assert "data-over" not in text
    assert f"/live/{ID}" in client.get("/").text
    assert f"/live/{ID}" in client.get("/live/now").text
    assert "It runs now" in client.get(f"/sweep/{ID}").text
    file.remove()
    over = client.get(f"/live/{ID}/now").text
    assert "data-over" in over
    assert f'href="/sweep/{ID}"' in over


def test_a_killed_run_is_shown_as_ended(client: TestClient, store_file: Path) -> None:
    LiveFile(store_file, ID).write(status(process_s=1.0))
    text = client.get(f"/live/{ID}/now").text
    assert "its process is gone" in text
    assert "data-over" in text
    assert "its process is gone" in client.get("/live").text
    assert "Running now:" not in client.get("/").text
    assert "It runs now" not in client.get(f"/sweep/{ID}").text


def test_a_search_is_shown_as_it_goes(client: TestClient, store_file: Path) -> None:
    file = LiveFile(store_file, ID)
    searching = {"kind": RunKind.TUNE, "what": HOSTILE, "phase": "warm-up", "limit_s": 90.0, "done": 7}
    file.write(status(**searching))
    assert "0 s of 1 min 30 s, 7 runs done" in read(client.get(f"/live/{ID}/now").text).text, "before the first trial"
    crashed = rung(HOSTILE, RungStatus.FAILED, None, reason=f"{HOSTILE} broke")
    searched = live_tuning(rungs=(*live_tuning().rungs, crashed))
    file.write(status(**searching, share=0.25, tunings=(searched,)))
    for address in (f"/live/{ID}", f"/live/{ID}/now"):
        answer = client.get(address).text
        assert HOSTILE not in answer
        text = " ".join(read(answer).text.split())
        for part in (
            "Tuning mnist-mlp training batch 32 torch cpu, goal throughput", "search (now)", "0 s of 1 min 30 s",
            "bfloat16 + fused: warm-up", "25%", "bfloat16 + compile: 1.60 ms per step, gain 2.00x (1.94 to 2.06)",
            "fused3.30 ms9,6970.97x", "trains differently, parity_failed: torch mps differs: in bn1.",
            "channels_last-failed: the worker was killed", f"{HOSTILE}-failed: {HOSTILE} broke",
        ):  # fmt: skip
            assert part in text, part
        assert answer.count("best so far") == 2, "in words, and in its row"
        assert answer.count('aria-current="step"') == 1
        assert f'href="/sweep/{ID}"' in answer
    assert "search, bfloat16 + fused: warm-up; 0 s of 1 min 30 s, 7 runs done" in client.get("/live/now").text
    assert "tuning &lt;script&gt;" in client.get("/").text
    nothing = live_tuning(phase=TuningPhase.GATE, rungs=(BASELINE_RUNG, OTHER_RUNGS[0]))
    file.write(status(**searching, tunings=(nothing, live_tuning(node="one"))))
    text = " ".join(read(client.get(f"/live/{ID}/now").text).text.split())
    assert "checkingbfloat16 + fused" in text
    assert "nothing is better than the baseline so far" in text
    assert "torch cpu on one, goal" in text


def test_a_search_that_runs_is_not_called_stopped(client: TestClient, store_file: Path) -> None:
    """Its run is stored from the start, so that it can go on when it is killed."""
    with Store(store_file) as store:
        store.put(tuning_run(tuned(complete=False), id="tuned00001", sweep=ID))
    file = LiveFile(store_file, ID)
    file.write(status(kind=RunKind.TUNE, limit_s=90.0, tunings=(live_tuning(),)))
    page = client.get("/run/tuned00001").text
    assert "tune, running" in page
    assert "as if it were stopped here" in page
    assert "fused" in page
    assert "as if it were stopped here" in client.get(f"/sweep/{ID}").text
    with Store(store_file) as store:  # further on, with the same best
        more = rung("novel", RungStatus.NO_GAIN, change=PlanChange(settings={"threads": 7}))
        store.put(tuning_run(tuned(complete=False, others=(more,)), id="tuned00001", sweep=ID))
    assert "threads 7" in client.get("/run/tuned00001").text
    assert "threads 7" in client.get(f"/sweep/{ID}").text
    file.write(status(kind=RunKind.TUNE, process_s=1.0, limit_s=90.0, tunings=(live_tuning(),)))
    killed = client.get(f"/live/{ID}/now").text
    assert "its process is gone" in killed
    assert f"metalmark tune --resume={ID}" in killed
    assert "search (now)" not in killed
    assert "tune, running" not in client.get("/run/tuned00001").text
    file.remove()
    over = client.get(f"/live/{ID}/now").text
    assert "data-over" in over
    assert 'href="/run/tuned00001"' in over
    with Store(store_file) as store:
        store.put(tuning_run(id="tuned00002", sweep=ID))
    assert f'href="/sweep/{ID}"' in client.get(f"/live/{ID}/now").text, "of several, all of them"


@pytest.mark.parametrize("values", [(0.0,), (0.0, 0.0), (-1.0, 5.0), (1e300, 1e-300)])
def test_any_figures_can_be_drawn(client: TestClient, store_file: Path, values: tuple[float, ...]) -> None:
    LiveFile(store_file, ID).write(status(traces=(trace("gpu0_power", "W", *values),)))
    answer = client.get(f"/live/{ID}/now")
    assert answer.status_code == 200
    assert "nan" not in answer.text.lower()


def test_rubbish_in_the_folder_is_passed_over(client: TestClient, store_file: Path) -> None:
    live_folder(store_file).mkdir()
    (live_folder(store_file) / "x.json").write_bytes(b"\xff{")
    assert "Nothing runs now" in client.get("/live").text


def training(folder: Path, identifier: str) -> TrainingRun:
    epoch = Epoch(
        number=1, session=0, begin_s=1, end_s=2, samples=100, steps=4, losses=(2.3, 1.9, 1.1, 0.7), train_loss=1.5,
        validation_loss=0.9, accuracy=0.875, top5=0.99, validation_samples=50, learning_rate=0.001, input_s=0.1,
        compute_s=0.7, first_steps_s=0.2, first_steps_samples=25, validation_s=0.2,
    )  # fmt: skip
    made = record()
    session = TrainingSession(started_at=made.started_at, first_epoch=1, machine=MACHINE, software=made.software,
                      telemetry=made.telemetry)  # fmt: skip
    found = TrainingRun(id=identifier, started_at=made.started_at, plan=plan(), goal=Goal(epochs=1),
                           ending=Ending.EPOCHS, epochs=(epoch,), sessions=(session,))  # fmt: skip
    folder.mkdir()
    write_record(folder, found)
    return found


def test_a_training_is_a_run_in_the_list_and_has_a_page(client: TestClient, store_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "<b>mine"
    with Store(store_file) as store:
        store.put_training(training(folder, "train00001"), folder)
    listed = client.get("/").text
    assert "87.50% in 1 epoch" in listed
    assert "<b>" not in listed
    assert "training" in client.get("/?q=train00001").text
    page = client.get("/run/train00001")
    assert page.status_code == 200
    for part in ("reached a validation accuracy of 87.50%", "<svg", "all epochs done", "Test chip"):
        assert part in page.text
    assert client.get("/find/train00001").headers["location"] == "/run/train00001"
    LiveFile(store_file, "train00001").write(status(id="train00001", kind=RunKind.TRAINING))
    assert "epochs done" in client.get("/live/train00001").text
    assert "It runs now" in client.get("/run/train00001").text
    (folder / "record.json").unlink()
    folder.rmdir()
    assert client.get("/run/train00001").status_code == 200, "the store has the run; the folder has its checkpoints"


def test_a_training_that_was_killed_says_so(client: TestClient, store_file: Path, tmp_path: Path) -> None:
    left = msgspec.structs.replace(training(tmp_path / "left", "train00002"), ending=Ending.RUNNING)
    with Store(store_file) as store:
        store.put_training(left, tmp_path / "elsewhere")
    assert "stopped from outside before it could tell its end" in client.get("/run/train00002").text


def test_trainings_of_one_command_are_a_sweep(client: TestClient, store_file: Path, tmp_path: Path) -> None:
    one = training(tmp_path / "one", "train00003")
    with Store(store_file) as store:
        for repeat, identifier in enumerate(("train00003", "train00004")):
            run = msgspec.structs.replace(one, id=identifier, sweep="sweeptrain", repeat=repeat)
            store.put_training(run, tmp_path / identifier)
    page = client.get("/sweep/sweeptrain").text
    for part in ("87.50% validation accuracy: first", "<svg", "train00003", "train00004", "Machine and software"):
        assert part in page
    assert "Planned and not measured" not in page
    assert client.get("/find/sweeptrain").headers["location"] == "/sweep/sweeptrain"


def test_a_watched_run_is_in_the_list_and_has_a_page(client: TestClient, store_file: Path) -> None:
    with Store(store_file) as store:
        store.add(watched())
    listed = client.get("/?q=watch").text
    assert "5 steps, 400 ms per step, input wait 25.0%" in listed
    page = client.get("/run/watched0001").text
    for part in ("400 ms per step by the host", "<svg", "until the first batch", "ValueError", "Test chip"):
        assert part in page
    assert "<script>alert(1)" not in page + listed
    assert client.get("/find/watched0001").headers["location"] == "/run/watched0001"

"""Settings files: what is written is read again and applied, and what does not fit is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import metalmark as mm
from metalmark.app.settings_file import device_for, read_settings, write_settings
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import FormatError, UsageError
from metalmark.model.plan import DEFAULT_SETTINGS, Dtype, Feed, Loader, Mode, Settings
from metalmark.model.settings_file import SettingsFile
from metalmark.model.training import TrainingRun
from tests.conftest import Cli

OWN = """
from metalmark.model.workload import Workload
from metalmark.workloads.catalog import load

mine = load("fake")
"""
QUICK = {"steps": 20, "seconds": 0.2, "progress": False}


def tuned(**changes: Any) -> SettingsFile:
    fields: dict[str, Any] = {
        "workload": "fake", "framework": "fake", "mode": Mode.TRAINING, "device": "fake", "run": "abcdefgh12",
        "settings": Settings(dtype=Dtype.BFLOAT16, compile=True), "params": {"batch_size": 16}, "gain": 1.5,
    }  # fmt: skip
    return SettingsFile(**fields | changes)


def on_torch(**changes: Any) -> SettingsFile:
    return tuned(**{"workload": "mnist-mlp", "framework": "torch", "device": "cuda"} | changes)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_settings(tmp_path / "best.json", tuned())


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    whole = on_torch(
        settings=Settings(
            dtype=Dtype.TF32, threads=2, compile=True, compile_mode="max-autotune", accumulate=4, conv_search=True,
            environment="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ),
        loader=Loader(workers=4, pin=True), feed=Feed.PIPELINE, workload_digest="ab" * 32, gain=None, run=None,
    )  # fmt: skip
    assert read_settings(write_settings(tmp_path / "best.json", whole)) == whole
    least = {name: json.loads((tmp_path / "best.json").read_text())[name] for name in ("format", "version", "workload")}
    least |= {"framework": "torch", "mode": "inference", "device": "cpu", "settings": {}}
    (tmp_path / "least.json").write_text(json.dumps(least))
    assert read_settings(tmp_path / "least.json").settings == DEFAULT_SETTINGS
    with pytest.raises(UsageError, match="can't be written"):
        write_settings(tmp_path / "nowhere" / "best.json", whole)


def test_bench_runs_as_the_file_says(file: Path, store_file: Path) -> None:
    runs = mm.bench("fake", settings=file, store=store_file, step_ms=1.0, **QUICK)  # type: ignore[arg-type]
    (entry,) = runs.to_dicts()
    assert (entry["framework"], entry["batch_size"], entry["dtype"], entry["compile"]) == ("fake", 16, "bfloat16", "on")
    assert runs.sweep is not None
    (plan,) = runs.sweep.plans
    assert plan.settings == tuned().settings
    assert (plan.mode, plan.loader, plan.params["step_ms"]) == (Mode.TRAINING, None, 1.0)
    write_settings(file, tuned(feed=Feed.PIPELINE, loader=Loader(workers=2, prefetch=3), mode=Mode.INFERENCE))
    again = mm.bench("fake", settings=file, store=store_file, device="gpu", **QUICK)  # type: ignore[arg-type]
    assert again.sweep is not None
    (plan,) = again.sweep.plans
    assert (plan.mode, plan.feed, plan.loader) == (Mode.INFERENCE, Feed.PIPELINE, Loader(workers=2, prefetch=3))


@pytest.mark.skipif(bool(FRAMEWORKS["torch"].missing()), reason="torch is not installed")
def test_train_runs_as_the_file_says(tmp_path: Path, store_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The last batch has 4 samples, and what a training has no use for is said."""
    settings = Settings(accumulate=4, graph=True, threads=1)
    best = on_torch(device="cpu", settings=settings, feed=Feed.PIPELINE, loader=Loader(workers=0, prefetch=4))
    file = write_settings(tmp_path / "best.json", best)
    runs = mm.train("mnist-mlp", settings=file, epochs=1, limit_samples=20, store=store_file, out=tmp_path / "out")
    run = runs[0]
    assert isinstance(run, TrainingRun)
    assert run.epochs
    assert run.plan.settings == Settings(accumulate=4, threads=1)
    assert (run.plan.framework, str(run.plan.device), run.plan.params["batch_size"]) == ("torch", "cpu", 16)
    assert run.goal.workers == 0
    said = capfd.readouterr().err
    assert "--graph is not used" in said
    assert "have no prefetch" in said
    with pytest.raises(UsageError, match="--workers is given, and"):
        mm.train("mnist-mlp", settings=file, workers=1, store=store_file)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "mnist-mlp"], "has the settings for fake, not for mnist-mlp"),
        (["bench", "fake,mnist-mlp"], "has the settings for fake, not for fake, mnist-mlp"),
        (["train", "mnist-mlp"], "has the settings for fake, not for mnist-mlp"),
        (["bench", "fake", "--framework", "torch"], "for fake, not for --framework torch"),
        (["bench", "fake", "--framework", "all"], "for fake, not for --framework all"),
        (["bench", "fake", "--device", "cpu"], "for fake, not for --device cpu"),
        (["bench", "fake", "--device", "all"], "for fake, not for --device all"),
        (["bench", "fake", "--mode", "inference"], "for training, not for inference"),
        (["bench", "fake", "--dtype", "float32"], "--dtype is given, and"),
        (["bench", "fake", "--compile=off"], "--compile is given, and"),
        (["bench", "fake", "--attention-kernel", "default"], "--attention-kernel is given, and"),
        (["train", "fake", "--environment", "default"], "--environment is given, and"),
        (["train", "fake", "--accumulate", "1"], "--accumulate is given, and"),
        (["bench", "fake", "--workers", "1"], "--workers is given, and"),
        (["bench", "fake", "--data-from", "resident"], "--data-from is given, and"),
        (["bench", "fake", "--batch-size", "16"], "--batch-size is given, and"),
        (["bench", "fake", "-p", "batch_size=8"], "--batch-size is given, and"),
        (["bench", "--resume"], "whose settings stay as they are"),
        (["train", "--resume"], "whose settings stay as they are"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_it_was_not_made_for_is_refused(inside: Cli, file: Path, arguments: list[str], message: str) -> None:
    run = inside(*arguments, "--settings", file)
    assert run.returncode == 2, run.stderr
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""


def test_a_workload_that_changed_is_refused(tmp_path: Path, store_file: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN)
    word = f"{own}:mine"
    runs = mm.bench(word, framework="fake", device="gpu", store=store_file, **QUICK)  # type: ignore[arg-type]
    assert runs.sweep is not None
    (plan,) = runs.sweep.plans
    file = write_settings(
        tmp_path / "best.json", tuned(workload=plan.workload, workload_digest=plan.workload_digest, params={})
    )
    assert len(mm.bench(word, settings=file, store=store_file, **QUICK)) == 1  # type: ignore[arg-type]
    own.write_text(OWN + "# another line\n")
    with pytest.raises(UsageError, match=r"own.py:mine has changed since the settings"):
        mm.bench(word, settings=file, store=store_file, **QUICK)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a settings file"),
        ("not JSON", "is not a settings file"),
        ("[]", "is not a settings file"),
        ('{"format": "metalmark-records", "schema": 2, "records": []}', "its format is 'metalmark-records'"),
        ('{"format": "metalmark-settings"}', "has version 0, which never existed"),
        ('{"format": "metalmark-settings", "version": 2}', "has version 2; this Metalmark reads up to 1"),
        ('{"format": "metalmark-settings", "version": 1, "workload": "fake"}', "missing required field"),
    ],
)
def test_what_is_not_such_a_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "best.json"
    path.write_text(text)
    with pytest.raises(FormatError) as caught:
        read_settings(path)
    assert message in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_names_and_values_that_nobody_would_heed_are_refused(file: Path, tmp_path: Path) -> None:
    given = json.loads(file.read_text())
    for part, changes, message in (
        ("settings", {"dtyp": "float16"}, "'dtyp', which this Metalmark does not know; did you mean dtype"),
        ("settings", {"compile_mode": "fastest"}, "is not a settings file"),
        ("settings", {"accumulate": 0}, "is not a settings file"),
        ("settings", {"environment": "no sign"}, "is not a settings file"),
        ("settings", {"environment": "LD_PRELOAD=evil.so"}, "--environment does not set 'LD_PRELOAD'"),
        ("", {"wrkload": "fake"}, "'wrkload', which this Metalmark does not know; did you mean workload"),
    ):
        changed = {**given, part: {**given[part], **changes}} if part else {**given, **changes}
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(changed))
        with pytest.raises(FormatError) as caught:
            read_settings(path)
        assert message in caught.value.message
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(UsageError, match=r"There is no settings file|can't be read"):
            read_settings(path)


@pytest.mark.parametrize(
    ("device", "asked", "words"),
    [
        ("cuda", None, "cuda"),
        ("cuda", "gpu", "cuda"),
        ("cuda", "any", "cuda"),
        ("cuda", "gpu:1", "cuda:1"),
        ("cuda", ["cuda:0", "cuda:1"], "cuda:0,cuda:1"),
        ("mps", "gpu", "mps"),
        ("cpu", "any", "cpu"),
        ("xpu", None, "gpu"),
        ("cuda", "mps", None),
        ("cuda", "cpu,cuda", None),
        ("cpu", "gpu", None),
        ("mps", "all", None),
    ],
)
def test_the_device_is_of_the_files_type(device: str, asked: Any, words: str | None) -> None:
    file = on_torch(device=device)
    if words is not None:
        assert device_for("best.json", file, asked) == words
        return
    with pytest.raises(UsageError, match=f"best.json has the settings for {device}, not for --device"):
        device_for("best.json", file, asked)

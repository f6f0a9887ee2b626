"""Loaders: the same batches in the same order whoever makes them, waiting counted, limits raised or explained."""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pytest

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.backends.session import Feeder
from metalmark.feeds.source import Source, thread_loader
from metalmark.model.measurement import Completed
from metalmark.model.plan import Budget, Device, DeviceKind, Feed, Loader, Mode, Plan, Proving, Settings
from metalmark.model.run import Failed, FailureKind
from metalmark.model.workload import Recipe
from metalmark.runner.launch import run_cell
from metalmark.workloads.catalog import load

ROOT = Path(__file__).parents[2]


def make_plan(framework: str = "torch", **loader: object) -> Plan:
    return Plan(
        workload="input-pipeline",
        params={"batch_size": 4, "produce_ms": 1.0},
        mode=Mode.TRAINING,
        framework=framework,
        device=Device(kind=DeviceKind.CPU),
        budget=Budget(steps=20, seconds=0.2),
        proof=Proving.STRICT,
        feed=Feed.PIPELINE,
        loader=Loader(**loader),  # type: ignore[arg-type]
    )


def make_source() -> Source:
    recipe = Recipe(model=None, loss=lambda *_: None, optimizer=lambda: None)
    return Source(load("input-pipeline"), recipe, make_plan())


def test_a_batch_is_a_function_of_its_number() -> None:
    source = make_source()
    for mine, theirs in zip(source[3], source[3], strict=True):
        assert np.array_equal(mine, theirs)
    assert not np.array_equal(source[3][0], source[4][0])


def test_a_worker_process_makes_the_same_batch() -> None:
    source = make_source()
    copy = pickle.loads(pickle.dumps(source))
    for mine, theirs in zip(source[7], copy[7], strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize(("workers", "prefetch"), [(0, 0), (1, 2), (3, 4), (2, 1)])
def test_threads_keep_the_order(workers: int, prefetch: int) -> None:
    source = make_source()
    with thread_loader(source, Loader(workers=workers, prefetch=prefetch)) as batches:
        for index, arrays in enumerate(islice(batches, 9)):
            assert np.array_equal(arrays[0], source[index][0])


IN_ORDER = """
from itertools import islice
import numpy as np
from tests.feeds.test_feeds import make_source
from metalmark.model.plan import Loader
{imports}
if __name__ == "__main__":
    source = make_source()
    for options in {options}:
        with {loader}(source, Loader(**options)) as batches:
            for index, arrays in enumerate(islice(batches, 6)):
                assert np.array_equal(np.asarray(arrays[0]), source[index][0]), (options, index)
    print("good")
"""


@pytest.mark.parametrize(
    ("framework", "options"),
    [
        (
            "torch",
            [
                {"workers": 0, "prefetch": 0},
                {"workers": 2, "prefetch": 2},
                {"workers": 1, "prefetch": 1, "start_method": "spawn"},
            ],
        ),
        ("tensorflow", [{"workers": 0, "prefetch": 0}, {"workers": 2, "prefetch": 2}]),
    ],
)
def test_the_frameworks_own_loaders_keep_the_order(framework: str, options: list[object], tmp_path: Path) -> None:
    if FRAMEWORKS[framework].missing():
        pytest.skip(f"{framework} is not installed")
    # A file, not -c: a spawned worker process imports the main module again.
    script = tmp_path / "in_order.py"
    loader = f"{framework}_loader"
    script.write_text(
        IN_ORDER.format(
            imports=f"from metalmark.feeds.on_{framework} import {loader}", loader=loader, options=repr(options)
        )
    )
    run = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
        timeout=200,
    )
    assert run.stdout.strip().endswith("good"), run.stderr[-2000:]


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax", "mlx"])
def test_a_step_fed_by_a_loader_is_measured_and_its_waiting_counted(framework: str) -> None:
    if FRAMEWORKS[framework].missing():
        pytest.skip(f"{framework} is not installed")
    # MLX has no threads to set. Runtimes fix their thread pools when they start: this goes through a worker.
    settings = Settings(threads=None if framework == "mlx" else 1)
    plan = msgspec.structs.replace(make_plan(framework, workers=1, prefetch=2), settings=settings)
    outcome = run_cell(plan).outcome
    assert isinstance(outcome, Completed), outcome
    assert framework == "mlx" or "1 thread" in outcome.device_name
    for block in outcome.measurement.blocks:
        assert block.waited_s is not None
        assert 0 <= block.waited_s <= block.elapsed_s


def test_what_a_dataloader_cannot_do_is_unsupported() -> None:
    for options in ({"workers": 0, "prefetch": 2}, {"workers": 1, "prefetch": 0}):
        outcome = run_cell(make_plan("torch", **options)).outcome
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.UNSUPPORTED
        assert "--workers" in outcome.message


def test_the_ring_goes_on_where_it_was() -> None:
    ring = [((0,), 0), ((1,), 1)]
    source = make_source()
    feeder = Feeder(
        ring,  # type: ignore[arg-type]
        place=lambda arrays: (arrays, None),
        loader=lambda: thread_loader(source, Loader(workers=0, prefetch=0)),
    )
    assert feeder.take() == ((0,), 0)
    feeder.stream(True)
    feeder.take()
    feeder.take()
    assert feeder.batch == 0
    assert feeder.waited_s > 0
    feeder.stream(False)
    assert feeder.take() == ((1,), 1)


FILES = """
import resource
from metalmark.errors import UnsupportedError
from metalmark.feeds.files import allow_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
try:
    allow_files(200)
except UnsupportedError as error:
    print(error.message)
else:
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("hard", "said"), [(300, "200"), (100, "need about 200 open files; this system allows 100")])
def test_the_open_file_limit_is_raised_or_explained(hard: int, said: str) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 300:
        pytest.skip("this system's own limit is lower than the test's")
    run = subprocess.run([sys.executable, "-c", FILES.format(hard=hard)], capture_output=True, text=True, check=True)
    assert said in run.stdout

"""Words in messages: one is not several, and no message names a file that only a checkout has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import metalmark
from metalmark.app.results import Chart
from metalmark.model.plan import Feed, Loader
from metalmark.model.run import Telemetry
from metalmark.report.text.run_page import plan_facts, run_page
from metalmark.results.measured import measured_of
from metalmark.store.store import Store
from metalmark.track.destination import Destination
from metalmark.track.queue import Begin, QueueWriter
from tests.conftest import Verb
from tests.samples import MACHINE, completed, plan, record

SOURCE = Path(metalmark.__file__).parent
CHECKOUT = re.compile(r"\b(examples|docs|benchmarks|tests|tools)/\w|\bmake (demo|test|quick|check)\b|\bREADME\b")
ONE = re.compile(
    r"\b1 (runs|cells|cores|threads|workers|batches|queues|names|pages|epochs|steps|samples|files|charts|processes)\b"
)


def texts(path: Path) -> Iterator[str]:
    """What a file may print: its strings, without docstrings."""
    tree = ast.parse(path.read_text())
    silent = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    after = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # the doc of a field
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent | after:
            yield node.value


def test_no_message_names_a_file_that_a_wheel_lacks() -> None:
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if path.name != "folder.py"]
    assert len(paths) > 200
    for path in paths:
        for text in texts(path):
            plain = re.sub(r"https?://\S+", "", text)
            assert not CHECKOUT.search(plain), f"{path.relative_to(SOURCE)}: {text!r}"


def test_one_of_each_is_one() -> None:
    alone = plan(params={"batch_size": 1}, feed=Feed.PIPELINE, loader=Loader(workers=1, prefetch=1))
    machine = replace(MACHINE, usable_cores=1)
    run = record(completed(samples=1, steps=1, blocks=1), plan=alone, machine=machine, telemetry=Telemetry(hz=None))
    page = run_page([run])
    assert "1 core usable" in page
    assert "1 worker, 1 batch ahead" in page
    assert "1 sample per step" in page
    assert "1 core," in measured_of([run])[0].around["machine"]
    assert repr(Chart(["<svg/>"])).startswith("1 chart:")
    assert not ONE.search(page + str(plan_facts(alone)))


def test_one_queue_is_one(verb: Verb, store_file: Path) -> None:
    with Store(store_file) as store:
        store.add(record(id="tyodawerf7"))
    with QueueWriter("tyodawerf7", [Destination(tracker="mlflow", place="http://127.0.0.1:1")]) as writer:
        writer.append(Begin(id="tyodawerf7", name="one", kind="bench", at_ms=1))
    assert verb("track", "delete", "tyodawerf7", "--yes").stderr == "1 queue deleted.\n"


def test_the_list_of_what_waits_fits_80_columns(verb: Verb, store_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    place = Destination(tracker="mlflow", place="http://127.0.0.1:1")
    with QueueWriter("tyodawerf7", [place]) as writer:
        writer.append(Begin(id="tyodawerf7", name="mnist-mlp training batch 32 torch cpu", kind="bench", at_ms=1))
    writer.queue.keep(replace(writer.queue.delivery(place.key), trouble="ConnectionRefusedError: " + "refused " * 12))
    shown = verb("track", "list")
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "Not shown (use --wide): " in shown.stderr
    assert "tyodawerf7: ConnectionRefusedError" in shown.stdout
    assert store_file.parent in writer.queue.folder.parents

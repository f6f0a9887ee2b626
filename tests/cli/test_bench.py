"""`metalmark bench` as a user runs it: real processes, on the software device unless a framework is the point."""

from __future__ import annotations

import csv
import getpass
import io
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metalmark.model.codec import decode_export
from metalmark.model.measurement import Completed
from metalmark.model.run import Failed, FailureKind
from metalmark.store.store import Store
from tests.conftest import ROOT, Cli
from tests.processes import heed_ctrl_c

QUICK = ("--framework", "fake", "--device", "gpu", "--steps", "20", "--seconds", "0.2")


def test_a_sweep_is_measured_shown_and_stored(cli: Cli, store_file: Path) -> None:
    run = cli("bench", "fake", *QUICK, "--batch-size", "8,16", "--mode", "training,inference", "--step-ms", "1.0")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("gpu → fake:0") == 4
    assert "[4/4]" in run.stderr
    with Store(store_file, readonly=True) as store:
        records = store.load(store.rows())
    assert len(records) == 4
    assert {record.plan.params["batch_size"] for record in records} == {8, 16}
    assert all(isinstance(record.outcome, Completed) for record in records)
    assert all(record.machine.memory_bytes > 0 for record in records)


def test_json_holds_every_block_and_names_no_owner(cli: Cli) -> None:
    run = cli("bench", "fake", *QUICK, "--json", OMP_NUM_THREADS="3", MTL_DEBUG_LAYER="1",
              METALMARK_CACHE="/home/ada/cache", XLA_FLAGS="--xla_dump_to=/home/ada/dump")  # fmt: skip
    (record,) = decode_export(run.stdout.encode(), source="stdout")
    assert isinstance(record.outcome, Completed)
    assert len(record.outcome.measurement.blocks) >= 10
    steering = record.software.environment
    assert steering["OMP_NUM_THREADS"] == "3"
    assert steering["MTL_DEBUG_LAYER"] == "1", "Metal's own checks slow it down"
    assert "METALMARK_CACHE" not in steering
    assert "ada" not in run.stdout
    # As whole words: a short name may well occur inside a random id.
    secrets = [socket.gethostname(), str(Path.home()), str(ROOT)]
    if getpass.getuser() != "root":
        secrets.append(getpass.getuser())
    for secret in secrets:
        assert not re.search(rf"\b{re.escape(secret)}\b", run.stdout), secret


def test_csv_has_plain_numbers(cli: Cli) -> None:
    run = cli("bench", "fake", *QUICK, "--csv", "-q", "--fault", "none,oom")
    rows = list(csv.DictReader(io.StringIO(run.stdout)))
    assert run.stderr == ""
    assert [row["outcome"] for row in rows] == ["completed", "out of memory"]
    assert float(rows[0]["step_s"]) > 0
    assert rows[1]["step_s"] == ""


def test_failures_are_cells_and_the_sweep_goes_on(cli: Cli) -> None:
    run = cli("bench", "fake", *QUICK, "--fault", "oom,crash,wrong,none", "--markdown")
    assert run.returncode == 1
    lines = [line for line in run.stdout.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[-2].strip(" |") for line in lines[2:]][:3] == ["out of memory", "crashed", "wrong result"]
    assert "loss" in lines[-1]
    assert "SIGSEGV" in run.stdout


def test_out_of_memory_and_unsupported_are_answers(cli: Cli) -> None:
    run = cli("bench", "fake", *QUICK, "--fault", "oom,none")
    assert run.returncode == 0
    run = cli("bench", "fake", *QUICK, "--graph=off,on")
    assert run.returncode == 0
    assert "unsupported" in run.stdout
    assert cli("bench", "fake", *QUICK, "--graph").returncode == 1, "nothing completed"


def test_a_cell_that_failed_is_not_repeated(cli: Cli, store_file: Path) -> None:
    cli("bench", "fake", *QUICK, "--fault", "oom,none", "--repeat", "3")
    with Store(store_file, readonly=True) as store:
        outcomes = [type(record.outcome) for record in store.load(store.rows())]
    assert outcomes.count(Failed) == 1
    assert outcomes.count(Completed) == 3


def test_ctrl_c_keeps_what_ended_and_resume_goes_on(cli: Cli, store_file: Path) -> None:
    command = [sys.executable, "-m", "metalmark", "bench", "fake", *QUICK, "--batch-size", "1,2,3"]
    running = subprocess.Popen(
        command,
        env={**os.environ, "METALMARK_STORE": str(store_file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    )
    assert running.stderr is not None
    seen = [running.stderr.readline()]
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    assert "[1/3]" in seen[0]
    assert "--resume=" in stderr
    assert "Traceback" not in stderr
    assert "interrupted" in stdout
    with Store(store_file, readonly=True) as store:
        first = [record for record in store.load(store.rows()) if isinstance(record.outcome, Completed)]
    assert len(first) == 1
    resumed = cli("bench", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "1 of 3 runs is stored already" in resumed.stderr
    with Store(store_file, readonly=True) as store:
        records = store.load(store.rows())
    assert sum(isinstance(record.outcome, Completed) for record in records) == 3
    assert len({record.sweep for record in records}) == 1
    assert "interrupted" not in resumed.stdout
    again = cli("bench", "--resume")
    assert again.returncode == 0
    assert "3 of 3" in again.stderr


def test_kill_minus_nine_keeps_what_ended(cli: Cli, store_file: Path) -> None:
    command = [sys.executable, "-m", "metalmark", "bench", "fake", *QUICK, "--batch-size", "1,2,3"]
    running = subprocess.Popen(
        command, env={**os.environ, "METALMARK_STORE": str(store_file)}, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    running.stderr.readline()
    time.sleep(0.5)
    running.kill()
    running.wait()
    running.stderr.close()
    resumed = cli("bench", "--resume")
    assert "1 of 3 runs is stored already" in resumed.stderr
    assert resumed.returncode == 0


def test_the_live_table_on_a_terminal(store_file: Path) -> None:
    """A real pseudo-terminal: the table is drawn while cells end, and the last one stays."""
    environment = {**os.environ, "METALMARK_STORE": str(store_file), "TERM": "xterm", "COLUMNS": "140"}
    arguments = ["bench", "fake", *QUICK, "--batch-size", "8,16", "--fault", "none,oom", "--step-ms", "30"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execve(sys.executable, [sys.executable, "-m", "metalmark", *arguments], environment)
    output = b""
    try:
        while chunk := os.read(terminal, 65536):
            output += chunk
    except OSError:
        pass  # the terminal's other end is closed: the command has ended
    _, status = os.waitpid(pid, 0)
    text = output.decode()
    assert os.waitstatus_to_exitcode(status) == 0, text
    assert "measure" in text
    assert "left" in text
    assert "out of memory" in text
    assert "Stored in" in text


MINE = """
from metalmark import Batch, Param, Recipe, Workload
{body}
mine = Workload(name="mine", title="", params=(Param("batch_size", 4, minimum=1),),
                build={{"torch": lambda params: 1 / 0}}, batch=lambda params, rng: None)
"""


@pytest.mark.parametrize(
    ("body", "name", "message"),
    [
        ("raise RuntimeError('broken on purpose')", "mine", "raises RuntimeError: broken on purpose"),
        ("import no_such_module", "mine", "no_such_module"),
        ("import sys; sys.exit(3)", "mine", "raises SystemExit"),
        ("import os; os.abort()", "mine", "SIGABRT"),
        ("", "other", "holds nothing called 'other'"),
        ("def (", "mine", "SyntaxError"),
    ],
)
def test_a_users_file_that_cannot_be_used(cli: Cli, tmp_path: Path, body: str, name: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(body=body))
    run = cli("bench", f"{path}:{name}", "-f", "torch", "-d", "cpu")
    assert run.returncode == 2
    assert message in run.stderr
    assert run.stdout == ""


def test_a_users_model_that_raises_is_a_crashed_cell_without_paths(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(body=""))
    run = cli("bench", f"{path}:mine", "-f", "torch", "-d", "cpu", "--json")
    assert run.returncode == 1
    (record,) = decode_export(run.stdout.encode(), source="x")
    assert isinstance(record.outcome, Failed)
    assert record.outcome.kind is FailureKind.CRASHED
    assert "ZeroDivisionError" in record.outcome.message
    assert str(tmp_path) not in run.stdout
    assert record.plan.workload == "mine.py:mine"
    assert len(record.plan.workload_digest) == 64


def test_the_example_runs_on_torch_and_keras(cli: Cli) -> None:
    words = ("bench", "examples/my_net.py:my_net", "-f", "torch,tensorflow", "-d", "cpu", "--hidden", "8")
    run = cli(*words, "--steps", "20", "--seconds", "0.2")
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("loss") == 2


def test_telemetry_can_be_switched_off(cli: Cli) -> None:
    (record,) = decode_export(cli("bench", "fake", *QUICK, "--telemetry", "off", "--json").stdout.encode(), source="x")
    assert record.telemetry.hz is None
    assert record.telemetry.series == ()


def test_a_store_that_fails_in_the_middle_loses_no_cell(cli: Cli, store_file: Path, tmp_path: Path) -> None:
    """The store becomes too small for the second record: what is stored stays, and the cell is kept beside it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sqlite3\nconnect = sqlite3.connect\n"
        "def small(*a, **k):\n    c = connect(*a, **k)\n    c.execute('PRAGMA max_page_count = 18')\n    return c\n"
        "sqlite3.connect = small\n"
    )
    run = cli("bench", "fake", *QUICK, "--batch-size", "1-6", PYTHONPATH=str(tmp_path))
    assert run.returncode == 2, run.stderr
    assert "disk is full" in run.stderr
    assert "Traceback" not in run.stderr
    (kept,) = store_file.parent.glob("metalmark-unsaved-*.json")
    with Store(store_file) as store:
        before = store.count()
    assert before >= 1
    assert "1 run imported" in cli("runs", "import", kept).stderr
    resumed = cli("bench", "--resume")
    assert resumed.returncode == 0
    assert f"{before + 1} of 6" in resumed.stderr


def test_watch_tells_how_a_long_run_goes(cli: Cli) -> None:
    run = cli("bench", "fake", "--framework", "fake", "--device", "gpu", "--seconds", "3", "--watch")
    assert run.returncode == 0, run.stderr
    assert re.search(r"^\d+ s: throughput [\d,.]+ samples/s, process_memory [\d.]+ MiB", run.stderr, re.MULTILINE)

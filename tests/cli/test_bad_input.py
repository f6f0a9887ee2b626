"""Bad input: a message that says what, why and what next, on stderr, exit code 2, no traceback, nothing stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Cli

ON_CPU = ("--framework", "torch", "--device", "cpu")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "mnist-mpl"], "did you mean mnist-mlp?"),
        (["bench", "mnist-mlp", "--framework", "trch"], "did you mean torch?"),
        (["bench", "mnist-mlp", "--device", "mpss"], "did you mean mps?"),
        (["bench", "mnist-mlp", *ON_CPU, "--batchsize", "3"], "did you mean --batch-size?"),
        (["bench", "mnist-mlp", "--frmework", "torch"], "did you mean --framework?"),
        (["bench", "mnist-mlp", "--strct", "1"], "did you mean --strict?"),
        (["bench", "mnist-mlp", *ON_CPU, "--batch-size", "0"], "must be at least 1"),
        (["bench", "mnist-mlp", *ON_CPU, "--batch-size", "-4"], "must be at least 1"),
        (["bench", "mnist-mlp", *ON_CPU, "--batch-size", "many"], "takes numbers"),
        (["bench", "mnist-mlp", *ON_CPU, "--batch-size", "1.5"], "whole numbers"),
        (["bench", "mnist-mlp", *ON_CPU, "--batch-size"], "has no value"),
        (["bench", "mnist-mlp", *ON_CPU, "--batch-size", "1", "-p", "batch_size=2"], "given twice"),
        (["bench", "mnist-mlp", *ON_CPU, "--dtype", "float64"], "There is no --dtype 'float64'"),
        (["bench", "mnist-mlp", *ON_CPU, "--mode", "trainig"], "did you mean training?"),
        (["bench", "mnist-mlp", *ON_CPU, "--threads", "0"], "at least 1"),
        (["bench", "mnist-mlp", *ON_CPU, "--steps", "-1"], "--steps"),
        (["bench", "mnist-mlp", *ON_CPU, "--seconds", "0"], "--seconds"),
        (["bench", "mnist-mlp", *ON_CPU, "--repeat", "0"], "--repeat"),
        (["bench", "mnist-mlp", *ON_CPU, "--compile=perhaps"], "on or off"),
        (["bench", "mnist-mlp", *ON_CPU, "--compile-mode", "max-autotune"], "--compile is off"),
        (["bench", "mnist-mlp", *ON_CPU, "--compile", "--compile-mode", "max-autotun"], "did you mean max-autotune?"),
        (["train", "mnist-mlp", *ON_CPU, "--attention-kernel", "flsh"], "did you mean flash?"),
        (["parity", "mnist-mlp", *ON_CPU, "--accumulate", "0"], "number of parts of a batch"),
        (["explain", "mnist-mlp", *ON_CPU, "--recompute=perhaps"], "on or off"),
        (["explain", "mnist-mlp", *ON_CPU, "--conv-search=perhaps"], "on or off"),
        (["bench", "mnist-mlp", *ON_CPU, "--environment", "OMP_WAIT_POLCY=ACTIVE"], "did you mean OMP_WAIT_POLICY?"),
        (["train", "mnist-mlp", *ON_CPU, "--environment", "LD_PRELOAD=evil.so"], "does not set 'LD_PRELOAD'"),
        (["parity", "mnist-mlp", *ON_CPU, "--environment", "OMP_WAIT_POLICY=lazy"], "ACTIVE or PASSIVE, not 'lazy'"),
        (["bench", "mnist-mlp", *ON_CPU, "--environment", "OMP_WAIT_POLICY"], "takes ACTIVE or PASSIVE."),
        (["bench", "mnist-mlp", *ON_CPU, "--environment=,"], "--environment has an empty value"),
        (["tune", "mnist-mlp", *ON_CPU, "--environment", "OMP_WAIT_POLICY=ACTIVE"], "is what tune searches"),
        (["train", "mnist-mlp", *ON_CPU, "--environment=default,OMP_WAIT_POLICY=ACTIVE"], "train takes one value"),
        (
            ["bench", "mnist-mlp", *ON_CPU, *(2 * ["--environment", "OMP_WAIT_POLICY=ACTIVE"])],
            "has OMP_WAIT_POLICY twice",
        ),
        (
            ["bench", "mnist-mlp", *ON_CPU, "--environment", "PYTORCH_ENABLE_MPS_FALLBACK=1"],
            "does not set PYTORCH_ENABLE_MPS_FALLBACK: operations that Metal lacks would run on the CPU",
        ),
        (["bench", "mnist-mlp", *ON_CPU, "--telemetry", "-1"], "--telemetry"),
        (["bench", "mnist-mlp", *ON_CPU, "-z"], "no option -z"),
        (["bench"], "Which workload?"),
        (["bench", "nowhere.py:net"], "There is no file nowhere.py"),
        (["bench", "examples/my_net.py"], "my_net.py:NAME"),
        (["bench", "examples/my_net.py:my_net", "-f", "mlx", "-d", "cpu"], "no implementation for mlx"),
        (["bench", "mnist-mlp", "--resume"], "takes no workloads"),
        (["bench", "--resume"], "no sweep yet"),
        (["bnch"], "did you mean bench?"),
        (["runs", "show", "nothing"], "There is no run, sweep or name"),
        (["runs", "show", "'; DROP TABLE runs"], "There is no run, sweep or name"),
        (["runs", "import", "nowhere.json"], "can't be read"),
        (["runs", "delete", "nothing", "--yes"], "There is no run, sweep or name"),
        (["list", "dragons"], "dragons"),
        (["completion", "tcsh"], "tcsh"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_a_message_and_exit_code_2(inside: Cli, store_file: Path, arguments: list[str], message: str) -> None:
    run = inside(*arguments)
    assert run.returncode == 2, run.stderr
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) < 24
    assert not store_file.exists() or b"CREATE TABLE" in store_file.read_bytes()[:8192]


def test_a_framework_that_is_not_installed(cli: Cli, tmp_path: Path) -> None:
    """As on a machine without it: its package can't be found."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "hidden = ('mlx', 'jax', 'tensorflow')\n"
        "u.find_spec = lambda name, package=None: None if name in hidden else find(name, package)\n"
    )
    run = cli("bench", "mnist-mlp", "--framework", "mlx", "--device", "cpu", PYTHONPATH=str(tmp_path))
    assert run.returncode == 2
    assert 'pip install "metalmark[mlx]"' in run.stderr
    run = cli(
        *("bench", "mnist-mlp", "--framework", "all", "--device", "cpu", "--steps", "5", "--dtype", "tf32"),
        PYTHONPATH=str(tmp_path),
    )
    assert "mlx not run: it is not installed" in run.stdout
    assert run.returncode == 1, "tf32 is unsupported on every CPU, so nothing completed"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an export"),
        (b"{}", "not an export"),
        (b'{"format": "speedtest", "schema": 1, "records": []}', "format 'speedtest'"),
        (b'{"format": "metalmark-records", "schema": 99, "records": []}', "schema 99"),
        (b'{"format": "metalmark-records", "schema": 1, "records": [{"schema": 1, "id": "../../x"}]}', "record 0"),
        (b"[" * 200_000, "not an export"),
    ],
)
def test_an_import_of_a_foreign_or_hostile_file(inside: Cli, tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "theirs.json"
    path.write_bytes(content)
    run = inside("runs", "import", path)
    assert run.returncode == 2
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_a_store_that_is_rubbish(cli: Cli, store_file: Path) -> None:
    store_file.write_bytes(b"rubbish " * 100)
    for arguments in (["runs", "list"], ["bench", "fake", "-f", "fake", "-d", "gpu"], ["bench", "--resume"]):
        run = cli(*arguments)
        assert run.returncode == 2
        assert "not a SQLite file" in run.stderr
    assert store_file.read_bytes() == b"rubbish " * 100

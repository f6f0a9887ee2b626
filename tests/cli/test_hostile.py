"""Hostile use of the command line: devices, links and pipes, numbers without end, odd terminals and folders."""

from __future__ import annotations

import math
import os
import stat
import threading
from pathlib import Path

import click
import pytest

import metalmark as mm
from metalmark.app import choices
from metalmark.cli import _exit_code
from metalmark.cli import main as metalmark_main
from metalmark.errors import FormatError, MetalmarkError, StoreError, UsageError
from metalmark.machine.durable import read_whole, write_whole
from metalmark.runner.values import localise, parse_device, parse_param
from metalmark.store.store import Store
from metalmark.workloads.catalog import load as load_workload
from tests.conftest import Cli, Verb
from tests.samples import record, training_run, watched_run

# What is written


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "old.html").write_bytes(b"before")
    (tmp_path / "old.html").chmod(0o600)
    for name, target in (("link.html", "old.html"), ("new.html", "made.html")):
        (tmp_path / name).symlink_to(target)
        write_whole(tmp_path / name, b"after")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / target).read_bytes() == b"after"
    assert stat.S_IMODE((tmp_path / "old.html").stat().st_mode) == 0o600
    assert not list(tmp_path.glob("*.part"))


def test_what_is_not_a_regular_file_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"hello")
    reader.join()
    assert heard == [b"hello"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    write_whole(Path("/dev/null"), b"hello")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    (tmp_path / "to-null").symlink_to("/dev/null")
    write_whole(tmp_path / "to-null", b"hello")
    assert (tmp_path / "to-null").is_symlink()


def test_a_pipe_that_nobody_reads_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metalmark.machine.durable.READER_S", 0.0)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="nobody reads"):
        write_whole(tmp_path / "pipe", b"hello")


def test_a_file_of_the_users_that_ends_in_part_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "report.html.part").write_bytes(b"mine")
    write_whole(tmp_path / "report.html", b"page")
    assert (tmp_path / "report.html.part").read_bytes() == b"mine"
    longest = tmp_path / ("x" * 255)
    write_whole(longest, b"page")
    assert longest.read_bytes() == b"page"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_store_is_a_regular_file(tmp_path: Path, verb: Verb) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    before = set(os.listdir("/dev"))
    for path in ("/dev/null", "/dev/zero", str(tmp_path / "pipe")):
        with pytest.raises(StoreError, match="not a regular file"):
            verb("runs", "list", "--store", path)
    for path in (tmp_path / "loop", "x" * 300, "a\0b"):
        for readonly in (True, False):
            with pytest.raises(StoreError, match="can't be used"):
                Store(Path(path), readonly=readonly)
    with pytest.raises(StoreError, match="too deep"):
        Store(tmp_path / ("x/" * 1500) / "store")
    assert set(os.listdir("/dev")) == before


def test_standard_output_is_a_file_everywhere(verb: Verb, store_file: Path) -> None:
    with Store(store_file) as store:
        store.add(record())
    for arguments in (("runs", "export", "-o", "-"), ("report", "-o", "-", "--format", "json")):
        assert b"metalmark-records" in verb(*arguments).stdout_bytes
    assert verb("runs", "export", "--bundle", "-").stdout_bytes.startswith(b"\x1f\x8b")
    with pytest.raises(UsageError, match="--out is a folder"):
        verb("train", "mnist-mlp", "-o", "-")


# What is read


def test_what_has_no_end_is_not_read(tmp_path: Path, verb: Verb) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for path in ("/dev/zero", tmp_path / "pipe.json"):
        for arguments in (("runs", "import"), ("runs", "show")):
            with pytest.raises(FormatError, match=r"not a regular file|neither a file nor"):
                verb(*arguments, path)
        with pytest.raises(UsageError, match="there is no file or folder"):
            localise(str(path), fixed=[], what="--data")
    (tmp_path / "large").write_bytes(b"x" * 11)
    with pytest.raises(OSError, match="too large"):
        read_whole(tmp_path / "large", 10)
    assert read_whole(tmp_path / "large", 11) == b"x" * 11


# Numbers


@pytest.mark.parametrize("option", ["--seconds", "--stall", "--timeout"])
@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "1e300"])
def test_seconds_are_finite(verb: Verb, option: str, value: str) -> None:
    with pytest.raises(click.BadParameter, match="not"):
        verb("bench", "mnist-mlp", f"{option}={value}")
    name = option.removeprefix("--")
    with pytest.raises(UsageError, match=option):
        mm.bench("mnist-mlp", framework="torch", device="cpu", progress=False, **{name: float(value)})
    if option == "--stall":
        with pytest.raises(click.BadParameter, match="not"):
            verb("train", "mnist-mlp", f"{option}={value}")
        with pytest.raises(UsageError, match=option):
            mm.train("mnist-mlp", stall=float(value), progress=False)


def test_other_numbers_are_finite_too() -> None:
    for value in (math.inf, math.nan, -1.0, 0.0):
        with pytest.raises(UsageError, match="noise_band"):
            mm.compare("a", "b", noise_band=value)
        for parse in (choices.parse_cooldown, choices.parse_telemetry, choices.parse_accuracy):
            with pytest.raises(UsageError):
                parse(value)
    for value in (10**30, -1, True, 1.5, 10**5000):
        with pytest.raises(UsageError, match="--steps"):
            choices.parse_count(value, what="--steps")  # type: ignore[arg-type]


def test_threads_are_a_sane_multiple_of_the_cores(verb: Verb) -> None:
    most = choices.THREADS_PER_CORE * (os.cpu_count() or 1)
    assert choices.parse_threads(most) == [most]
    with pytest.raises(UsageError, match=f"at most {most} here, not {most + 1}") as caught:
        verb("bench", "mnist-mlp", "--threads", most + 1)
    assert f"{os.cpu_count()} cores" in caught.value.hint
    with pytest.raises(UsageError, match="--threads"):
        verb("ceiling", "--threads", most + 1)
    with pytest.raises(UsageError, match="--workers"):
        verb("bench", "mnist-mlp", "--workers", 10**6)


def test_sizes_are_refused_before_memory_is_taken(verb: Verb) -> None:
    (batch,) = [param for param in load_workload("mnist-mlp").params if param.name == "batch_size"]
    for text in ("1e19", "1e15", "9" * 30, "3e9"):
        with pytest.raises(UsageError, match="--batch-size"):
            parse_param(batch, text)
    for lists in (
        ("--workers", "0-60", "--prefetch", "0-999", "--pin=on,off"),
        ("--batch-size", "1-1000", "--workers", "0-60", "--data-from", "pipeline"),
    ):
        with pytest.raises(UsageError, match="cells"):
            verb("bench", "mnist-mlp", "-f", "torch", "-d", "cpu", *lists)
    with pytest.raises(click.BadParameter, match="range"):
        verb("runs", "list", "--limit", "9" * 30)
    for word in ("cuda:" + "9" * 5000, "cuda:²", "cuda:99999"):
        with pytest.raises(UsageError, match="is not a device"):
            parse_device(word)


def test_a_limit_beyond_what_sqlite_counts_is_all(store_file: Path) -> None:
    with Store(store_file) as store:
        store.add(record())
        assert len(store.rows(limit=10**30)) == 1


# Damage


@pytest.fixture
def damaged(store_file: Path) -> str:
    """The id of a damaged run among others."""
    with Store(store_file) as store:
        store.add_all([record(id=f"bench{number:05}", repeat=number) for number in range(3)])
        store.add_all([record(id="others0001", sweep="sweep00002"), training_run(), watched_run()])
        store.database.connection.execute(
            "UPDATE runs SET body = ? WHERE id = 'bench00001'", (b'{"schema":2,"id":"\xff',)
        )
    return "bench00001"


def test_a_damaged_run_costs_that_run_alone_in_every_verb(
    verb: Verb, damaged: str, tmp_path: Path, store_file: Path
) -> None:
    page = tmp_path / "page.html"
    for arguments in (
        ("runs", "show", "sweep00001"),
        ("runs", "export", "-o", tmp_path / "all.json"),
        ("runs", "export", "sweep00001", "--bundle", tmp_path / "all.bundle"),
        ("report", "sweep00001", "-o", page),
        ("compare", "sweep00002", "sweep00001"),
    ):
        done = verb(*arguments)
        assert done.return_value == 1, arguments
        assert f"left out: Run {damaged} of" in done.stderr
        assert f"metalmark runs delete {damaged} --yes" in done.stderr
    assert len(mm.runs(str(tmp_path / "all.json"), store=store_file)) == 5
    assert damaged in verb("runs", "list").output
    with pytest.raises(FormatError, match=damaged):
        verb("runs", "show", damaged)
    assert verb("runs", "name", damaged, "main").exit_code == 0
    assert verb("runs", "delete", damaged, "--yes").exit_code == 0
    assert not verb("runs", "show", "sweep00001").return_value


def test_an_import_mends_a_damaged_run(verb: Verb, damaged: str, tmp_path: Path) -> None:
    from metalmark.model.codec import encode_export

    (tmp_path / "good.json").write_bytes(encode_export([record(id=damaged, repeat=1)]))
    assert "1 run imported" in verb("runs", "import", tmp_path / "good.json").stderr
    assert not verb("runs", "show", "sweep00001").return_value


def test_what_cannot_be_read_back_is_not_stored(store_file: Path) -> None:
    import msgspec

    run = record()
    endless = msgspec.structs.replace(
        run, plan=msgspec.structs.replace(run.plan, budget=msgspec.structs.replace(run.plan.budget, seconds=math.inf))
    )
    with Store(store_file) as store:
        with pytest.raises(StoreError, match="can't be read back"):
            store.add(endless)
        assert store.count() == 0
        store.add(run)
        assert store.load(store.rows()) == [run]


def test_a_column_that_is_not_text_costs_no_other_row(verb: Verb, store_file: Path) -> None:
    with Store(store_file) as store:
        store.add_all([record(), record(id="damaged000")])
        for column in ("workload", "started_at", "ending", "device"):
            store.database.connection.execute(
                f"UPDATE runs SET {column} = CAST(x'ff41' AS TEXT) WHERE id = 'damaged000'"
            )
        store.database.connection.execute("UPDATE runs SET step_s = 9e999 WHERE id = 'damaged000'")
        assert [row.ending for row in store.rows() if row.id == "damaged000"] == ["damaged"]
    for arguments in (("runs", "list"), ("runs", "list", "--json"), ("runs", "delete", "damaged000", "--yes")):
        assert verb(*arguments).exit_code == 0


# Where it runs


def test_plain_characters_where_the_terminal_has_no_others(cli: Cli, damaged: str) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    shown = cli("runs", "show", "sweep00002", **plain)
    assert shown.returncode == 0, shown.stderr
    assert "loss 2.3 -> 0.1" in shown.stdout
    assert damaged not in shown.stdout


def test_a_place_that_the_system_refuses_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store_file: Path
) -> None:
    monkeypatch.setenv("METALMARK_STORE", str(store_file))

    def fail(error: OSError) -> int:
        def run() -> int:
            raise error

        monkeypatch.setattr("metalmark.cli._run", run)
        code = _exit_code()
        assert isinstance(code, int)
        return code

    assert fail(FileNotFoundError(2, "No usable temporary directory found in ['/x']")) == 2
    assert "TMPDIR=" in capsys.readouterr().err
    assert fail(PermissionError(13, "Permission denied", "/x/y")) == 2
    assert "/x/y can't be used: Permission denied" in capsys.readouterr().err
    with pytest.raises(OSError, match="Bad address"):
        fail(OSError(14, "Bad address"))


@pytest.mark.usefixtures("damaged")
def test_hosts_that_are_none(verb: Verb) -> None:
    for host in ("..", "a..b", "a" * 300, "nosuch.invalid"):
        with pytest.raises(UsageError, match="can't be used"):
            verb("serve", "--host", host, "--port", 0)
    with pytest.raises(click.BadParameter):
        verb("serve", "--port", 65536)


def test_homes_that_are_none(verb: Verb) -> None:
    for arguments in (("runs", "list", "--store", "~nosuch/x"), ("train", "--resume=~nosuch/x")):
        with pytest.raises(MetalmarkError, match="home folder is not known"):
            verb(*arguments)


def test_the_command_ends_with_a_code(monkeypatch: pytest.MonkeyPatch, store_file: Path) -> None:
    monkeypatch.setenv("METALMARK_STORE", str(store_file))
    monkeypatch.setattr("sys.argv", ["metalmark", "runs", "unname", "\udcff"])
    with pytest.raises(SystemExit, match="2"):
        metalmark_main()

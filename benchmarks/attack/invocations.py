"""Hostile command lines: every option with hostile values, hostile files wherever a file is taken, odd environments.

python benchmarks/attack/invocations.py [--quick]

Most of them run in this process, through the command line's own `main`; every tenth runs as a real process too. A
failure is any exit code but 0, 1, 2, 130 and 74 (the output could not be written), a traceback, an exception, a hang,
or a device in /dev that is not one any more. Command lines that would measure end with a device that does not exist,
which is looked at after everything else was parsed. --quick: every twentieth, to see that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from unittest import mock

from click.testing import CliRunner

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.samples import record, training_run, watched_run  # noqa: E402

from metalmark.cli import main as metalmark_main  # noqa: E402
from metalmark.store.store import Store  # noqa: E402
from metalmark.web.app import Server  # noqa: E402

ALLOWED = {0, 1, 2, 130, 74}
LEAST, LEAST_PROCESSES = 1200, 120
HANG_S = 20.0
EVERY = 20
"""Of the command lines, so many run as one real process."""

NUMBERS = (
    "inf", "-inf", "nan", "1e309", "1e308", "1e19", "-1", "-0", "0", "", " ", "1e-400", "9" * 30, "9" * 5000, "0x10",
    "1,2", "１２", "²", "1-", "1-1000000", "1-1e9*1.0000001", "\x1b[31m5", "\udcff", "5%", "true", "None", "[1]",
    "a" * 300, "1-9+0", "9-1", ",", "1,,2", "off", "NaN,1",
)  # fmt: skip
WORDS = (
    "", " ", ",", "a,,b", "nosuch", "\x1b]0;x\x07", "\udcff\udcfe", "a" * 5000, "--", "-", "*", "../..",
    "'; DROP TABLE", "cpu:1", "cuda:", "cuda:-1", "cuda:²", "cuda:" + "9" * 5000, "\u202e", "é", "💥",
    "%s%n", "{0}", "$(id)", "\n",
    "last",
)  # fmt: skip
HOSTS = (
    "..", ".", "a..b", "a" * 300, "é", "\udcff", "256.256.256.256", "nosuch.invalid", "::g", "[::1]", "1.2.3.4", "-",
    " ", "\n", "http://x", "localhost:80",
)  # fmt: skip
PORTS = ("-1", "65536", "99999999999999999999", "nan", "1.5", "", "http", "0x50")
BAD_DEVICE = ("-f", "torch", "-d", "nosuch")
ENVIRONMENTS: tuple[dict[str, str | None], ...] = (
    {"HOME": None}, {"HOME": ""}, {"HOME": "relative"}, {"HOME": "/dev/null"}, {"HOME": "/nonexistent/home"},
    {"HOME": "x" * 5000}, {"COLUMNS": "0"}, {"COLUMNS": "-5"}, {"COLUMNS": "many"}, {"COLUMNS": "9" * 30},
    {"XDG_DATA_HOME": "/dev/null", "METALMARK_STORE": None}, {"XDG_DATA_HOME": "~nosuch", "METALMARK_STORE": None},
    {"METALMARK_STORE": "~nosuch/x"}, {"METALMARK_STORE": "/dev/null"}, {"METALMARK_STORE": "x" * 5000},
    {"METALMARK_STORE": "/"}, {"METALMARK_STORE": "\udcff"}, {"TERM": "dumb"}, {"TERM": None}, {"NO_COLOR": "1"},
    {"METALMARK_STORE": None, "HOME": "/dev/null", "XDG_DATA_HOME": None},
)  # fmt: skip
PROCESS_ENVIRONMENTS: tuple[dict[str, str | None], ...] = (
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"}, {"TMPDIR": "/nonexistent"}, {"LANG": "xx_XX"}, {"HOME": None, "USER": None},
    {"PYTHONIOENCODING": "ascii:strict", "COLUMNS": "20"}, {"METALMARK_STORE": None, "HOME": "/nonexistent/home"},
)  # fmt: skip
QUIET = (
    ("runs", "list"), ("runs", "list", "--json"), ("runs", "show", "last"), ("runs", "export"), ("compare", "last"),
    ("list", "workloads"), ("list", "frameworks"), ("env",), ("schema",), ("track", "list"), ("--help",),
    ("report", "-o", "-", "--format", "markdown"), ("doctor", "--explain", "nosuch"), ("completion", "bash"),
)  # fmt: skip


class Invocation(NamedTuple):
    arguments: tuple[str, ...]
    environment: dict[str, str | None] = {}  # noqa: RUF012  never written


class Hang(BaseException):
    """Not an Exception, so that no handler on the way takes it for one of its own."""


def hostile_files(folder: Path) -> list[str]:
    """Make files that nobody would want to be given, and return their names and those of others."""
    made = {
        "empty.json": b"", "text.json": b"hello", "bytes.json": b"\xff\xfe\x00", "deep.json": b'{"a":' * 100_000,
        "list.json": b"[" * 100_000, "digits.json": b'{"format":"metalmark-records","schema":' + b"9" * 400 + b"}",
        "half.json": b'{"format": "metalmark-records", "sch',
        "newer.json": b'{"format":"metalmark-records","schema":99}',
        "gzip.bundle": b"\x1f\x8b" + b"\x00" * 100, "half.gz": b"\x1f\x8b\x08\x00", "null.json": b"null",
        "sqlite.json": b"SQLite format 3\x00" + b"\xff" * 4096, "spaces \n\x1b[31m.json": b"{}",
        "net.py": b"\x00", "loop.py": b"while True",
    }  # fmt: skip
    for name, data in made.items():
        (folder / name).write_bytes(data)
    with suppress(OSError), open(os.path.join(os.fsencode(folder), b"\xff.json"), "wb") as file:
        file.write(b"{}")  # not on a Mac, whose names are text
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    for training, data in (("damaged", b'{"\xff'), ("deep", b"[" * 100_000), ("digits", b'{"schema":' + b"9" * 400)):
        (folder / training).mkdir()
        for name in ("record.json", "job.json", "lineup.json"):
            (folder / training / name).write_bytes(data)
    (folder / "pipes").mkdir()
    for name in ("record.json", "job.json", "last.safetensors"):
        os.mkfifo(folder / "pipes" / name)
    for name, target in (("loop.json", "loop.json"), ("gone.json", "nowhere/at/all"), ("device.json", "/dev/null")):
        (folder / name).symlink_to(target)
    others = (
        "/dev/null", "/dev/zero", "/dev/full", "/dev/stdin", "/proc/self/mem", "/", ".", "..", "", " ", "~nosuch/x",
        "x" * 300, "x/" * 2000, "nowhere/at/all", "\udcff.json", "damaged", "deep", "digits", "pipes", "-",
    )  # fmt: skip
    return [*made, "pipe.json", "folder.json", "loop.json", "gone.json", "device.json", *others]


def invocations(files: Sequence[str]) -> Iterator[Invocation]:
    """Every command line, made from the options and the values above."""
    bench, train = ("bench", "mnist-mlp"), ("train", "mnist-mlp")
    for option in ("--seconds", "--stall", "--timeout", "--cooldown", "--telemetry", "--steps", "--repeat", "--seed",
                   "--threads", "--workers", "--prefetch", "--batch-size"):  # fmt: skip
        for value in NUMBERS:
            yield Invocation((*bench, f"{option}={value}", *BAD_DEVICE))
    for option in ("--epochs", "--patience", "--repeat", "--seed", "--stall", "--target-accuracy", "--workers",
                   "--threads", "--telemetry", "--batch-size"):  # fmt: skip
        for value in NUMBERS:
            yield Invocation((*train, f"{option}={value}", *BAD_DEVICE))
    for option, command in (("--limit", ("runs", "list")), ("--fail-if-slower", ("compare", "last")),
                            ("--noise-band", ("compare", "last")),
                            ("--target-accuracy", ("compare", "last"))):  # fmt: skip
        for value in NUMBERS:
            yield Invocation((*command, f"{option}={value}"))
    for option in ("--framework", "--device", "--mode", "--dtype", "--compile", "--graph", "--channels-last", "--fused",
                   "--data", "--data-from", "--pin", "--start-method", "-p", "--track", "--resume",
                   "--nosuch"):  # fmt: skip
        for value in WORDS[:18]:
            words = (option, value) if option == "-p" else (f"{option}={value}",)
            yield Invocation(
                ("bench", *words) if option == "--resume" else (*bench, *BAD_DEVICE, *words, "-d", "nosuch")
            )
    for value in WORDS:
        yield Invocation(("bench", value, *BAD_DEVICE))
        yield Invocation(("train", value, *BAD_DEVICE))
        yield Invocation(("runs", "show", value))
        yield Invocation(("runs", "name", "last", value))
        yield Invocation(("runs", "unname", value))
        yield Invocation(("runs", "delete", value))
        yield Invocation(("compare", value, "last"))
        yield Invocation(("compare", "last", "--by", value))
        yield Invocation(("list", value))
        yield Invocation(("doctor", "--explain", value))
        yield Invocation(("doctor", "--for", value or "nothing"))
        yield Invocation(("runs", "push", "last", f"--to=nosuch{value}"))
        yield Invocation(("track", "delete", value, "--yes"))
        yield Invocation((value,))
    huge = ("1-1000", "1-1000", "1-1000")
    yield Invocation((*bench, "--workers", "0-60", "--prefetch", "0-999", "--threads", "1-8", *BAD_DEVICE))
    yield Invocation(
        (*bench, "--batch-size", huge[0], "--dtype", "float32,bfloat16,float16", "--workers", "1-60", *BAD_DEVICE)
    )
    yield Invocation(("bench", "bert", "--batch-size", "1-1000", "--sequence-length", "1-1000", *BAD_DEVICE))
    for file in files:
        for command in (("runs", "import"), ("runs", "show"), ("compare", "last"), ("report", "-o", "out.html")):
            yield Invocation((*command, file))
        yield Invocation(
            ("runs", "export", "-o", file) if file not in ("pipe.json",) else ("runs", "import", file, file)
        )
        yield Invocation(("report", f"--output={file}") if file != "pipe.json" else ("report", file))
        yield Invocation(("report", "--site", file, "folder.json"))
        yield Invocation(("report", "--site", "site", file))
        yield Invocation(("train", f"--resume={file}"))
        yield Invocation((*train, "--data", file, *BAD_DEVICE))
        yield Invocation(("bench", f"{file}:net", *BAD_DEVICE))
        for command in (
            ("runs", "list"),
            ("runs", "delete", "last", "--yes"),
            ("runs", "import", "empty.json"),
            ("report",),
        ):
            if file:  # an empty one is none
                yield Invocation((*command, "--store", file))
    for host in HOSTS:
        yield Invocation(("serve", "--port", "0", f"--host={host}"))
    for port in PORTS:
        yield Invocation(("serve", f"--port={port}"))
    for environment in ENVIRONMENTS:
        for command in QUIET:
            yield Invocation(command, environment)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")
    failures: list[str] = []
    codes: Counter[int] = Counter()
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="metalmark-") as name:
        folder = Path(name)
        os.chdir(folder)
        os.environ["METALMARK_STORE"] = str(folder / "store.sqlite3")
        os.environ["XDG_DATA_HOME"] = str(folder / "data")
        fill(folder / "store.sqlite3")
        every = list(invocations(hostile_files(folder)))
        every = every[::20] if quick else every
        for number, one in enumerate(every):
            judge(one, *run_here(one, folder), failures, codes)
            if number % 50 == 0:
                fill(folder / "store.sqlite3")
        print(f"in_this_process: {len(every)}", flush=True)
        processes = [one for one in every[::EVERY] if one.arguments[0] != "serve"]
        processes += [Invocation(command, extra) for extra in PROCESS_ENVIRONMENTS for command in QUIET][
            :: 20 if quick else 1
        ]
        for one in processes:
            judge(one, *run_process(one, folder), failures, codes)
        print(f"as_processes: {len(processes)}")
        os.chdir(ROOT)
    for device in ("/dev/null", "/dev/zero", "/dev/full"):
        if os.path.exists(device) and not stat.S_ISCHR(os.stat(device).st_mode):
            failures.append(f"{device} is not a device any more")
    failures += [
        f"left behind: /dev/{left}" for left in os.listdir("/dev") if "journal" in left or left.endswith(".part")
    ]
    for code, count in sorted(codes.items()):
        print(f"exit_{code}: {count}")
    for failure in failures[:40]:
        print(failure, file=sys.stderr)
    if not quick and (len(every) < LEAST or len(processes) < LEAST_PROCESSES):
        failures.append("there are fewer command lines than promised")
    print(f"seconds: {time.monotonic() - begin_s:.0f}")
    print(f"failures: {len(failures)}")
    return 1 if failures else 0


def fill(path: Path) -> None:
    """Put runs of every kind into the store; some command lines delete them."""
    with Store(path) as store:
        runs = [record(id=f"bench{number:05}", repeat=number) for number in range(4)]
        store.add_all([*runs, training_run(id="training01"), watched_run(id="watched001")])


def judge(one: Invocation, code: int, said: str, failures: list[str], codes: Counter[int]) -> None:
    codes[code] += 1
    if code not in ALLOWED or "Traceback (most recent call last)" in said:
        words = [word if len(word) < 60 else f"{word[:20]}...({len(word)})" for word in one.arguments]
        environment = {name: value if value is None else value[:40] for name, value in one.environment.items()}
        failures.append(f"{json.dumps(words)} {environment or ''}: exit {code}: {said.strip()[-600:]}")


def run_here(one: Invocation, folder: Path) -> tuple[int, str]:
    """Run a command line in this process as `metalmark` would. Return its exit code and what it said on stderr."""
    with changed(one.environment), mock.patch.object(sys, "argv", ["metalmark", *one.arguments]), limited(), \
            mock.patch.object(Server, "run", Server.close), CliRunner().isolation() as streams:  # fmt: skip
        try:
            metalmark_main()
            code: object = None
        except SystemExit as ended:
            code = ended.code
        except Hang:
            code = -1
        except BaseException as error:  # noqa: BLE001  whatever escapes is what is looked for
            import traceback

            return -2, "".join(traceback.format_exception(error))
        finally:
            os.chdir(folder)
        said = streams[1].getvalue().decode(errors="replace")
    return (code if isinstance(code, int) else 0), said if code != -1 else f"it hangs: {said}"


def run_process(one: Invocation, folder: Path) -> tuple[int, str]:
    environment = {**os.environ, **{name: value for name, value in one.environment.items() if value is not None}}
    for name in (name for name, value in one.environment.items() if value is None):
        environment.pop(name, None)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "metalmark", *one.arguments], cwd=folder, env=environment, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, "it hangs"
    return done.returncode, done.stderr.decode(errors="replace")


@contextmanager
def changed(environment: dict[str, str | None]) -> Iterator[None]:
    before = dict(os.environ)
    try:
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def limited() -> Iterator[None]:
    def late(_number: int, _frame: FrameType | None) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    socket.setdefaulttimeout(5)  # a name server that does not answer is not what is tested
    sys.exit(main())

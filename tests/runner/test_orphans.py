"""Nothing outlives a command: real processes, killed with kill -9, and looked for by what they have in common."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from metalmark.backends.base import Probe
from metalmark.errors import UsageError
from metalmark.machine import orphans
from metalmark.runner import probing
from metalmark.runner.ask import Asker, NoAnswer, ask
from metalmark.runner.describe import describe
from metalmark.workloads.catalog import digest
from tests.processes import PATIENCE_S, ROOT, heed_ctrl_c, lives, metalmark, until

WORKLOAD = """
import ctypes, os, signal, subprocess, sys, time
from metalmark.workloads.fake import WORKLOAD
def hold():
    if "metalmark.runner.worker" in sys.orig_argv:
{body}
hold()
"""
BODIES = {
    # PyDLL keeps the interpreter locked in a call of C, so that no thread of Python's can run.
    "in C": """
        open(os.environ["HERE"], "w").write(str(os.getpid()))
        ctypes.PyDLL(None).sleep(600)
""",
    "stopped": """
        open(os.environ["HERE"], "w").write(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
""",
    "with children": """
        sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
        pids = [os.getpid(), subprocess.Popen(sleeper).pid, subprocess.Popen(sleeper, start_new_session=True).pid]
        if (forked := os.fork()) == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        open(os.environ["HERE"], "w").write(" ".join(map(str, [*pids, forked])))
        time.sleep(600)
""",
}


def is_ready(helper: int) -> bool:
    """Whether Python has started there: signals that come before would end it."""
    status = Path(f"/proc/{helper}/status")
    if not status.exists():
        time.sleep(1)
        return True
    (ignored,) = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("SigIgn")]
    return bool(int(ignored, 16) & 1 << signal.SIGTERM - 1)


class Scene:
    """One command whose worker has told its process IDs."""

    def __init__(self, folder: Path, body: str) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.store = folder / "store.sqlite3"
        told, file = folder / "pids", folder / "held.py"
        file.write_text(WORKLOAD.format(body=body))
        self.command = subprocess.Popen(
            metalmark("bench", f"{file}:WORKLOAD", "-f", "fake", "--store", self.store, "--telemetry", "off"),
            env={**os.environ, "TMPDIR": str(self.temporary), "HERE": str(told)},
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=heed_ctrl_c, start_new_session=True,
        )  # fmt: skip
        until(lambda: self.command.poll() is not None or (told.exists() and told.read_text()))
        assert self.command.poll() is None, self.command.communicate()[0]
        self.pids = [int(pid) for pid in told.read_text().split()]

    def end(self, number: int) -> str:
        os.kill(self.command.pid, number)
        printed = self.command.communicate(timeout=PATIENCE_S)[0]
        until(lambda: not any(lives(pid) for pid in self.pids))
        return printed


@pytest.mark.parametrize("how", BODIES)
def test_nothing_outlives_kill_9_of_the_command(tmp_path: Path, how: str) -> None:
    scene = Scene(tmp_path, BODIES[how])
    assert list(scene.temporary.iterdir())
    scene.end(signal.SIGKILL)
    until(lambda: not list(scene.temporary.iterdir()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_term_and_hup_clear_up_as_ctrl_c_does(tmp_path: Path, number: signal.Signals) -> None:
    scene = Scene(tmp_path, BODIES["in C"])
    printed = scene.end(number)
    assert scene.command.returncode == (130 if number is signal.SIGINT else -number)
    assert "Traceback" not in printed
    assert list(scene.temporary.iterdir()) == []
    assert not scene.store.with_name("store.sqlite3-live").exists()
    listed = subprocess.run(metalmark("runs", "show", "last", "--store", scene.store), cwd=ROOT, capture_output=True,
                            text=True, check=True)  # fmt: skip
    assert f"Stopped by {'Ctrl-C' if number is signal.SIGINT else number.name}." in listed.stdout


def test_a_file_that_ends_its_own_group_at_import(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import os, signal\nos.killpg(0, signal.SIGKILL)\n")
    with pytest.raises(UsageError, match=r"mine\.py can't be used: it was ended by SIGKILL"):
        describe(f"{file}:WORKLOAD")


def test_what_a_question_started_ends_with_it(tmp_path: Path) -> None:
    file, told = tmp_path / "mine.py", tmp_path / "pid"
    file.write_text(
        "import subprocess, sys\nfrom metalmark.workloads.fake import WORKLOAD\n"
        "sleeper = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "pids = [subprocess.Popen(sleeper, start_new_session=new).pid for new in (False, True)]\n"
        f"open({str(told)!r}, 'w').write(' '.join(map(str, pids)))\n"
    )
    info, _ = describe(f"{file}:WORKLOAD")
    assert info.digest == digest(file)
    until(lambda: not any(lives(int(pid)) for pid in told.read_text().split()))


def test_ctrl_c_while_frameworks_are_asked_does_not_wait_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging.py").write_text("import time\ntime.sleep(600)\n")
    answers: list[Probe | NoAnswer] = []

    def hanging(*_: object, timeout_s: float, asker: Asker, **__: object) -> None:
        path = {"PYTHONPATH": str(tmp_path)}
        answers.append(ask("hanging", "", Probe, environment=path, timeout_s=timeout_s, asker=asker))

    def interrupted(pool: ThreadPoolExecutor, one: Callable[[str], object], names: list[str]) -> Iterator[object]:
        for name in names:
            pool.submit(one, name)
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadPoolExecutor, "map", interrupted)
    monkeypatch.setattr(probing, "ask", hanging)
    with pytest.raises(KeyboardInterrupt):
        probing.probe_all(["fake", "torch"])
    assert [answer.reason for answer in answers if isinstance(answer, NoAnswer)] == ["it was ended by SIGKILL."] * 2


HOLDS = """
import os, sys, time
from metalmark.machine import orphans
with orphans.scratch_folder() as folder:
    helper = orphans._helper._process.pid
    if sys.argv[1] == "helper":
        os.kill(helper, 9)
        time.sleep(0.2)
        orphans.watch_group(2**22 - 1)
        helper = orphans._helper._process.pid
    elif sys.argv[1] == "fork" and os.fork() == 0:
        os.setsid()
        os.write(1, f"{os.getpid()}\\n".encode())
        time.sleep(600)
    # One write each: with PYTHONUNBUFFERED set, print makes several, and the two processes' words mingle.
    os.write(1, f"{folder} {helper}\\n".encode())
    time.sleep(600)
"""


@pytest.mark.parametrize("scene", ["plain", "helper", "fork"])
def test_the_helper_is_replaced_and_ends_with_its_command_and_never_before(tmp_path: Path, scene: str) -> None:
    """Whether its command has a fork that lives on, or somebody ended the first helper."""
    command = subprocess.Popen([sys.executable, "-c", HOLDS, scene], stdout=subprocess.PIPE, text=True, cwd=ROOT,
                               env={**os.environ, "TMPDIR": str(tmp_path)})  # fmt: skip
    assert command.stdout is not None
    lines = [command.stdout.readline().split() for _ in range(2 if scene == "fork" else 1)]
    (forked,) = [int(line[0]) for line in lines if len(line) == 1] or [0]
    ((folder, helper),) = [line for line in lines if len(line) == 2]
    try:
        until(lambda: is_ready(int(helper)))
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            os.kill(int(helper), number)
        assert lives(int(helper))
        assert Path(folder).is_dir()
        command.kill()
        command.wait()
        until(lambda: not lives(int(helper)))
        assert not Path(folder).exists()
    finally:
        if forked:
            os.kill(forked, signal.SIGKILL)
        command.stdout.close()


def test_processes_are_found_by_their_mark_alone() -> None:
    value = f"abc{os.getpid()}.1"
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(sleeper, env={**os.environ, orphans.MARK: value})
    variable = f"{orphans.MARK}={value}".encode()
    try:
        until(lambda: orphans.marked_processes(variable + b"\0") == [child.pid])
        assert orphans.marked_processes(variable[:-1]) == [child.pid]
        assert orphans.marked_processes(variable[:-1] + b"\0") == []
        assert orphans.marked_processes(variable[1:]) == []
    finally:
        child.kill()
        child.wait()


LISTED = b"""    1 /sbin/launchd
  501 /Applications/Some App.app/Contents/MacOS/Some App -x HOME=/Users/someone
  612 /opt/python3 -m metalmark.runner.worker job.json PATH=/usr/bin METALMARK_COMMAND=abc123.1 LANG=en_GB.UTF-8
  613 /opt/python3 -c import time HOME=/Users/someone METALMARK_COMMAND=abc123.12

  700 /opt/python3 -m metalmark.runner.worker job.json METALMARK_COMMAND=fff999.1
"""


def test_marks_are_read_from_the_listing_of_macos() -> None:
    assert orphans.marked_in(LISTED, b"METALMARK_COMMAND=abc123.") == [612, 613]
    assert orphans.marked_in(LISTED, b"METALMARK_COMMAND=abc123.1\0") == [612]
    assert orphans.marked_in(LISTED, b"METALMARK_COMMAND=none.") == []


def test_the_helper_does_not_look_like_a_child_of_its_command() -> None:
    """macOS lists a process's arguments and its environment in one line: it would end itself before it had cleared
    up."""
    with orphans.scratch_folder():
        assert orphans._helper._process is not None
        words = orphans._helper._process.args
        assert isinstance(words, list)
        listed = " ".join(["700", *map(str, words)]).encode()
        assert orphans.marked_in(listed, f"{orphans.MARK}={orphans._helper._command}.".encode()) == []


def test_a_process_that_forked_while_it_was_listed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    listings = iter([[], [700]])
    monkeypatch.setattr(orphans, "_listed", lambda _: next(listings))
    assert orphans.marked_processes(b"METALMARK_COMMAND=abc123.") == [700]

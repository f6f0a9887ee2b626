"""Running a system tool, with real processes that behave badly."""

from __future__ import annotations

import sys

from metalmark.machine.tools import run_tool
from metalmark.record import Absent

LONG_S = 60.0


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_gives_the_text() -> None:
    assert run_tool(python("print('hw.memsize: 1')"), LONG_S) == "hw.memsize: 1\n"


def test_speaks_plain_english() -> None:
    assert run_tool(python("import os; print(os.environ['LC_ALL'], end='')"), LONG_S) == "C"


def test_a_missing_tool_is_a_reason() -> None:
    answer = run_tool(["/nowhere/metalmark-no-such-tool"], LONG_S)
    assert isinstance(answer, Absent)
    assert answer.reason.startswith("metalmark-no-such-tool could not be started")
    assert "/nowhere" not in answer.reason


def test_an_impossible_name_is_a_reason() -> None:
    assert isinstance(run_tool(["a\0b"], LONG_S), Absent)


def test_failure_is_a_reason_with_the_last_line_of_the_error() -> None:
    answer = run_tool(python("import sys; sys.exit('first\\nunknown oid /home/someone/file')"), LONG_S)
    assert isinstance(answer, Absent)
    assert "status 1" in answer.reason
    assert answer.reason.endswith("unknown oid file")


def test_partial_output_counts_when_asked_for() -> None:
    tool = python("import sys; print('hw.ncpu: 8'); sys.exit('unknown oid')")
    assert run_tool(tool, LONG_S, partial=True) == "hw.ncpu: 8\n"
    assert isinstance(run_tool(tool, LONG_S), Absent)


def test_partial_of_nothing_is_a_reason() -> None:
    assert isinstance(run_tool(python("raise SystemExit(1)"), LONG_S, partial=True), Absent)


def test_bytes_that_are_no_text_are_replaced() -> None:
    answer = run_tool(python("import sys; sys.stdout.buffer.write(b'Apple \\xff\\xfe M1')"), LONG_S)
    assert isinstance(answer, str)
    assert answer.startswith("Apple ")
    assert answer.endswith(" M1")


def test_a_tool_that_hangs_is_ended() -> None:
    answer = run_tool(python("import time; time.sleep(600)"), 0.2)
    assert answer == Absent(f"{sys.executable.rsplit('/', 1)[-1]} gave no answer within 0.2 s")


def test_a_helper_that_keeps_the_pipe_open_does_not_keep_us() -> None:
    helper = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    assert isinstance(run_tool(python(helper), 1.0), Absent)


def test_it_reads_nothing_from_our_input() -> None:
    assert run_tool(python("import sys; print(len(sys.stdin.read()), end='')"), LONG_S) == "0"

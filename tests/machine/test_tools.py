"""Running a system tool, with real processes that behave badly."""

from __future__ import annotations

import os
import sys
import tracemalloc

import pytest

from metalmark.machine.tools import run_tool
from metalmark.model.run import Absent

LONG_S = 60.0


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_gives_the_text() -> None:
    assert run_tool(python("print('hw.memsize: 1')"), LONG_S) == "hw.memsize: 1\n"


def test_speaks_plain_english() -> None:
    assert run_tool(python("import os; print(os.environ['LC_ALL'], end='')"), LONG_S) == "C"


def test_macos_is_to_tell_tools_its_real_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTEM_VERSION_COMPAT", "1")
    tool = python("import os; print(os.environ['SYSTEM_VERSION_COMPAT'], end='')")
    assert run_tool(tool, LONG_S) == "0"


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


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_tool_that_prints_without_end_is_ended_and_takes_no_memory(stream: str) -> None:
    flood = f"import os, sys\nprint(os.getpid(), file=sys.stderr)\nwhile True: sys.{stream}.write('x' * 65536)"
    tracemalloc.start()
    try:
        answer = run_tool(python(flood), LONG_S)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer == Absent(f"{os.path.basename(sys.executable)} printed more than 1 MiB and was ended")
    assert peak_bytes < 16 * 2**20


def test_both_streams_are_read_however_they_alternate() -> None:
    """Each is longer than a pipe holds: a reader of one alone would wait for ever."""
    both = "import sys\nfor _ in range(8):\n    sys.stderr.write('e' * 65536); sys.stdout.write('o' * 65536)"
    assert run_tool(python(both), LONG_S) == "o" * 8 * 65536


def test_a_tool_that_closes_its_output_and_hangs_is_ended() -> None:
    silent = "import os, time; os.close(1); os.close(2); time.sleep(600)"
    assert run_tool(python(silent), 0.2) == Absent(f"{os.path.basename(sys.executable)} gave no answer within 0.2 s")


def test_a_helper_that_keeps_the_pipe_open_does_not_keep_us() -> None:
    helper = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    assert isinstance(run_tool(python(helper), 1.0), Absent)


def test_it_reads_nothing_from_our_input() -> None:
    assert run_tool(python("import sys; print(len(sys.stdin.read()), end='')"), LONG_S) == "0"

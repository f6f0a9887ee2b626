"""`doctor --for`: the text itself, a file, standard input; and what is none of them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from metalmark.cli.doctor import _recognise, command
from metalmark.doctor import recognise as recognising
from metalmark.doctor.known_errors import FurtherCause, known_errors
from metalmark.doctor.recognise import recognise
from metalmark.errors import UsageError
from metalmark.report.text.doctor_page import MOST_ERRORS, error_page
from tests.doctor.error_samples import HEALTHY, SAMPLES

TEXT = SAMPLES["mps-float64"]


def answer(source: str, *, as_json: bool = False) -> int:
    return _recognise(source, as_json=as_json)


def test_the_text_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(TEXT) == 0
    out = capsys.readouterr().out
    for part in ("mps-float64", "seen in line ", "what happened:", "what to change:", "source: https://"):
        assert part in out


def test_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.txt"
    path.write_bytes(b"\x00\xff\xfe garbage\n" + TEXT.encode())
    assert answer(str(path)) == 0
    assert "mps-float64" in capsys.readouterr().out


def test_a_log_of_powershell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.txt"
    path.write_bytes(TEXT.encode("utf-16"))
    assert answer(str(path), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "mps-float64"


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert answer("-") == 0
    assert "mps-float64" in capsys.readouterr().out


def test_a_terminal_as_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    with pytest.raises(UsageError, match="terminal"):
        answer("-")


def test_nothing_known_says_so_and_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer("Traceback\nzoo.AnimalError: the lion is loose in /home/keeper/cage.py\n") == 1
    out = capsys.readouterr().out
    assert f"none of the {len(known_errors())} errors" in out
    assert "zoo.AnimalError: the lion is loose in cage.py" in out
    assert "metalmark doctor" in out


def test_nothing_known_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer("RuntimeError: the MPS backend has run out of its unified memory", as_json=True) == 1
    unknown = json.loads(capsys.readouterr().out)
    assert unknown["recognised"] == []
    assert unknown["known"] == len(known_errors())
    assert unknown["last_error"].startswith("RuntimeError")
    assert {"name", "happened", "source", "shared", "nearness"} == set(unknown["nearest"][0])
    assert unknown["next_steps"][0].startswith("metalmark doctor ")


def test_the_nearest_are_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer("RuntimeError: the MPS backend has run out of its unified memory") == 1
    out = capsys.readouterr().out
    assert "Nearest, not recognised" in out
    assert "mps-out-of-memory   shares: " in out
    assert "what to change:" not in out
    assert answer("the lion is loose") == 1
    assert "Nearest" not in capsys.readouterr().out


def test_several_causes_are_ranked_with_how_to_tell_them_apart() -> None:
    (match,) = recognise(TEXT)[:1]
    causes = (
        FurtherCause(happened="No fuel.", tell="The lamp is red.", change="Fill it.", fix=("fill",)),
        FurtherCause(happened="No key.", tell="Nothing turns.", change="Turn it."),
    )
    page = error_page(
        [msgspec.structs.replace(match, tell="The lamp is green.", also=causes, holds_for=("torch <2.8",))]
    )
    lines = [line.strip() for line in page.splitlines()]
    told = [line for line in lines if line.startswith("how to tell")]
    assert told == ["how to tell: The lamp is green.", "how to tell: The lamp is red.", "how to tell: Nothing turns."]
    assert "the same text has 2 further causes, likeliest first:" in lines
    assert lines.index("2. what happened: No fuel.") < lines.index("fill") < lines.index("3. what happened: No key.")
    assert "holds for: torch <2.8" in lines
    assert lines[-1].startswith("source: https://")


def test_a_text_longer_than_any_file_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(f"{'x' * 10_000}\n{TEXT}") == 0
    assert "mps-float64" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_no_text(text: str) -> None:
    with pytest.raises(UsageError, match="empty"):
        answer(text)


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="folder"):
        answer(str(tmp_path))


@pytest.mark.parametrize("source", ["trace.log", "logs/run-3", "/nowhere/at/all.txt"])
def test_a_file_that_is_not_there(source: str) -> None:
    with pytest.raises(UsageError, match="There is no file"):
        answer(source)


def test_a_file_that_is_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.log").touch()
    with pytest.raises(UsageError, match="empty"):
        answer(str(tmp_path / "empty.log"))


def test_of_a_huge_file_both_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.log"
    filler = b"step 17\n" * 500_000
    path.write_bytes(SAMPLES["cuda-busy"].encode() + b"\n" + filler + TEXT.encode())
    text = recognising.read_error(str(path))
    assert len(text) < 2_000_000
    assert [match.name for match in recognise(text)] == ["cuda-busy", "mps-float64"]


def test_a_stream_that_never_ends_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("no endless device here")
    monkeypatch.setattr(recognising, "_MOST_BYTES", 4 << 20)
    assert recognising.read_error("/dev/zero").strip("\0") == ""


def test_many_errors_are_shown_as_the_likeliest_and_the_rest_by_name() -> None:
    matches = recognise("\n".join(SAMPLES.values()))
    page = error_page(matches)
    assert page.count("seen in line") == MOST_ERRORS
    assert "Also in the text:" in page
    assert max(len(line) for line in page.splitlines() if "Also" in line) <= 100


def run(*arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(command, arguments, input=text, standalone_mode=False, catch_exceptions=False)


def test_the_doctor_s_option() -> None:
    known = run("--for", TEXT)
    assert (known.return_value, known.output.splitlines()[0]) == (0, "mps-float64")
    assert run("--for", "-", text=f"{HEALTHY}{TEXT}").return_value == 0
    unknown = run("--for", "the lion is loose")
    assert unknown.return_value == 1
    assert "What to do next" in unknown.output

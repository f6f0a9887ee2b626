"""`metalmark doctor`: the page, the JSON, the exit codes, and the options."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metalmark.app import doctor as use_case
from metalmark.cli.doctor import command
from metalmark.doctor.collect import WAITING, WHY_SLOW
from metalmark.doctor.scene import Scene
from metalmark.model.run import Machine
from metalmark.report.text.doctor_page import page, story
from tests.conftest import Cli
from tests.doctor.scenes import LINUX, MAC, NVIDIA, broken, change, look
from tests.samples import MACHINE
from tests.test_architecture import parent


def run(monkeypatch: pytest.MonkeyPatch, scene: Scene, *arguments: str) -> Result:
    """The command over a machine that is written down."""
    monkeypatch.setattr(use_case, "collect", lambda _: scene)
    return CliRunner().invoke(command, arguments, standalone_mode=False, catch_exceptions=False)


HOT = change(MAC, low_power=True)
REFUSED = change(HOT, environment={"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.8"})


@pytest.mark.parametrize(("scene", "code"), [(LINUX, 0), (MAC, 0), (NVIDIA, 0), (HOT, 1), (REFUSED, 2)])
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, scene: Scene, code: int) -> None:
    assert run(monkeypatch, scene).return_value == code
    assert run(monkeypatch, scene, "--json").return_value == code


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(run(monkeypatch, change(REFUSED, machine=MACHINE), "--json").stdout)
    assert found["format"] == "metalmark-doctor"
    assert found["machine"]["chip"] == MACHINE.chip
    assert found["exit_code"] == 2
    assert found["counts"]["error"] == 1
    first = found["findings"][0]
    assert first["check"] == "mps-watermarks"
    assert first["severity"] == "error"
    assert first["fix"]
    frameworks = {entry["name"]: entry for entry in found["frameworks"]}
    assert frameworks["torch"]["devices"][1] == {
        "word": "mps",
        "name": "MPS",
        "present": True,
        "reason": "",
        "fix": "",
        "count": 1,
    }
    assert frameworks["jax"]["missing"] == ["jax"]


def test_only(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, REFUSED, "--only", "low-power", "--json")
    assert [finding["check"] for finding in json.loads(result.stdout)["findings"]] == ["low-power"]
    assert result.return_value == 1
    several = run(monkeypatch, REFUSED, "--only", "low-power,mps-watermarks", "--only", "heat", "--json")
    assert [finding["check"] for finding in json.loads(several.stdout)["findings"]] == ["mps-watermarks", "low-power"]


def test_the_page_shows_what_works_and_what_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = run(monkeypatch, change(REFUSED, machine=MACHINE)).stdout
    assert re.search(r"torch +2\.13\.0 +yes +yes +-", text)
    assert "ERROR: The low watermark" in text
    assert text.index("ERROR:") < text.index("warning: Low-power") < text.index("note:")
    assert "fix:  sudo pmset -a lowpowermode 0" in text
    assert "\x1b" not in text


def test_the_page_of_frameworks_that_failed() -> None:
    text = page(change(LINUX, probes={"torch": broken()}), [], width=100)
    assert re.search(r"torch +no answer +-", text)
    assert "torch: it was ended by SIGSEGV." in text
    assert "mlx: it lacks mlx." in text
    assert "no mps in tensorflow, jax: no Mac." in text
    assert "Nothing is wrong." in text


def test_the_page_obeys_no_control_character() -> None:
    chip = "chip\x1b[31m\x07"
    fields: dict[str, Any] = {name: getattr(MACHINE, name) for name in Machine.__struct_fields__}
    scene = change(LINUX, machine=Machine(**{**fields, "chip": chip}), probes={"torch": broken("\x1b]0;hello\x07")})
    assert "\x1b" not in page(scene, [])


def test_the_page_fits_a_narrow_terminal_but_for_commands() -> None:
    text = page(HOT, look("low-power", HOT), width=60)
    lines = [line for line in text.splitlines() if not line.startswith("  fix:")]
    assert max(len(line) for line in lines) <= 60


def test_what_is_waited_for_is_said_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    use_case._tell("torch", 10.0, WAITING)
    use_case._tell("sysctl", 10.0, WAITING)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"  still waiting for torch after 10 s: {WHY_SLOW}\n"


def test_explain(cli: Cli) -> None:
    done = cli("doctor", "--explain", "tensorflow-metal-pair")
    assert done.returncode == 0
    assert "2.19" in done.stdout
    assert "https://pypi.org/project/tensorflow-metal/" in done.stdout


@pytest.mark.parametrize("option", ["--only", "--explain"])
def test_an_unknown_check_names_the_nearest(cli: Cli, option: str) -> None:
    done = cli("doctor", option, "open-file")
    assert done.returncode == 2
    assert "did you mean open-files?" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_stories_are_wrapped() -> None:
    from metalmark.doctor.catalog import CHECKS

    for check in CHECKS.values():
        told = story(check, width=80).split("Sources:")[0].splitlines()[1:]
        assert max(len(line) for line in told) <= 80


def test_this_machine(store_file: Path) -> None:
    """The real thing: it ends, tells the truth about its exit code, names no path, and imports no framework itself."""
    done = parent(["doctor", "--json"], store_file)
    assert done.stderr.strip().splitlines()[-1] == "[]"
    found = json.loads(done.stdout)
    assert done.returncode == found["exit_code"]
    assert "Asking the frameworks" in done.stderr
    assert not re.search(r"(/home|/Users|/root|/tmp)/", done.stdout)
    severities = [finding["severity"] for finding in found["findings"]]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)

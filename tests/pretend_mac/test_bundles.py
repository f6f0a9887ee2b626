"""`metalmark doctor --bundle`: a machine's file goes out without names, and comes back as a machine of these tests."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from metalmark.doctor.bundle import DoctorBundle, make_bundle
from metalmark.doctor.scene import Scene
from metalmark.machine.apple import COMMANDS, DISPLAYS
from metalmark.machine.tools import Printed
from metalmark.model.run import Absent, Telemetry
from tests.conftest import Cli
from tests.pretend_mac.conftest import MakeMac
from tests.pretend_mac.machines import load, names

DISPLAY = {
    "sppci_model": "Apple M4",
    "sppci_cores": "10",
    "spdisplays_ndrvs": [{"_name": "Pat's screen", "_spdisplays_display-serial-number": "C02XG0J5JG5H"}],
}

BATTERY = COMMANDS["pmset -g batt"]


@pytest.mark.parametrize("name", names())
def test_every_machine_is_a_bundle(name: str) -> None:
    bundle = load(name)
    assert msgspec.json.decode(msgspec.json.encode(bundle), type=DoctorBundle) == bundle
    assert bundle.scene.mac


def test_a_machine_that_was_sent_in_is_the_machine_it_came_from(make_mac: MakeMac, tmp_path: Path) -> None:
    first = make_mac("m4-max")
    file = tmp_path / "doctor.json"
    made = first.run("doctor", "--bundle", file)
    assert made.returncode == 0, made.stderr
    assert made.stdout.strip() == str(file)
    bundle = load(file)
    assert bundle.scene.machine is not None
    assert bundle.scene.machine.chip == "Apple M4 Max"
    assert {"gpu0_power", "process_memory"} <= {series.name for series in bundle.telemetry.series}
    for personal in (str(first.folder), "pat"):
        assert personal not in file.read_text().split('"'), personal
    assert str(first.home) not in file.read_text()
    second = make_mac(file)
    ours, theirs = (json.loads(mac.run("doctor", "--json").stdout) for mac in (first, second))
    assert ours["machine"] == theirs["machine"]
    assert [finding["title"] for finding in ours["findings"]] == [finding["title"] for finding in theirs["findings"]]


def test_displays_and_batteries_lose_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "patricia")
    answers = {
        DISPLAYS: json.dumps({"SPDisplaysDataType": [DISPLAY]}),
        COMMANDS[
            "pmset -g batt"
        ]: "Now drawing from 'AC Power'\n -InternalBattery-0 (id=23068771)\t100%; charged; patricia\n",
    }

    def ask(argv: tuple[str, ...], _: float) -> Printed | Absent:
        if argv not in answers:
            return Absent("tool gave no answer within 5 s")
        return Printed(status=0, out=answers[argv], err="read /Users/patricia/Library/x.plist")

    packages = {"torch": "2.13.0", "employer-secret-project": "1.0", "sympy": "1.14"}
    scene = Scene(platform="darwin", packages=packages, requirements={"torch": ("sympy>=1.13.3",)})
    bundle = make_bundle(scene, ask=ask, sample=lambda: Telemetry(hz=None))
    text = msgspec.json.encode(bundle).decode()
    for personal in ("C02XG0J5JG5H", "Pat's screen", "23068771", "patricia", "/Users/", "employer"):
        assert personal not in text
    found = {answer.argv: answer for answer in bundle.answers}
    assert "sppci_cores" in found[DISPLAYS].stdout
    assert "100%; charged" in found[BATTERY].stdout
    hung = [answer for answer in bundle.answers if answer.status == -1]
    assert hung
    assert all("no answer" in answer.stderr for answer in hung)
    assert bundle.scene.packages == {"torch": "2.13.0", "sympy": "1.14"}


@pytest.mark.parametrize("file", ["no/such/folder/doctor.json", "."])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_asked(cli: Cli, file: str) -> None:
    run = cli("doctor", "--bundle", file)
    assert run.returncode == 2
    assert run.stderr.startswith("metalmark: ")
    assert "Traceback" not in run.stderr
    assert "Asking" not in run.stderr

"""The parts of the suite that touch the system, run once more on a pretend Mac."""

from __future__ import annotations

import re
import sys

import pytest

from tests.pretend_mac.conftest import MakeMac

PARTS = (
    "tests/machine",
    "tests/telemetry",
    "tests/store",
    "tests/test_scrub.py",
    "tests/contract/test_sensors.py",
    "tests/contract/test_sensor_faults.py",
    "tests/doctor/test_collect.py",
    "tests/doctor/test_environment.py",
    "tests/doctor/test_macos.py",
    "tests/runner/test_launch.py",
    "tests/runner/test_leave.py",
    "tests/runner/test_spares.py",
    "tests/runner/test_local.py",
    "tests/runner/test_sleep.py",
    "tests/runner/test_cooling.py",
    "tests/runner/test_idle.py",
    "tests/training/test_checkpoint.py",
    "tests/kit/test_loading.py",
    "tests/kit/test_running.py",
    "tests/track/test_queue.py",
)
ELSEWHERE = {
    "test_every_tool_is_started_by_its_full_path_and_asked_once_in_one_place": "the tools lie in the machine's folder",
    "test_root_alone_may_read_it": "the user is root behind the pretended one, whom no file refuses",
    "test_a_mac_scans_a_framework_at_its_first_import_and_is_given_longer": "it reads a file past the import system",
}
"""Tests that look behind the scenery, and what they would see there."""
PURE = ("test_a_megabyte_of", "test_a_sound_beginning_and_then_nothing_but")
"""How tests begin that give a long text to a pure function, which takes long and is the same on every system."""


@pytest.mark.timeout(900)
def test_what_touches_the_system_passes_on_a_mac(make_mac: MakeMac) -> None:
    mac = make_mac("m1-8gb")
    options = ["--assert=plain", "-p", "no:cacheprovider", "--tb=short"]
    deselected = ["-k", " and ".join(f"not {name}" for name in (*ELSEWHERE, *PURE))]
    run = mac.execute([sys.executable, "-m", "pytest", *options, *deselected, *PARTS], timeout_s=850)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed is not None, run.stdout[-2000:]
    assert int(passed[1]) > 400, "most of what was chosen runs there"

"""Which environment variables are read: one list, for records and for the doctor."""

from __future__ import annotations

import pytest

from metalmark.doctor.readers import read_process
from metalmark.machine.steering import steering_variables


def test_only_variables_that_matter_are_read_and_paths_are_cut() -> None:
    found = steering_variables(
        {"OMP_NUM_THREADS": "2", "HOME": "/home/x", "XLA_FLAGS": "--a=/home/someone/b", "TF_X": "a\udcffb"}
    )
    assert found == {"OMP_NUM_THREADS": "2", "TF_X": "a?b", "XLA_FLAGS": "--a=b"}


def test_another_program_s_variables_are_not_ours() -> None:
    assert steering_variables({"TF_CLI_CONFIG_FILE": "x", "TF_VAR_secret": "y", "PATH": "/bin"}) == {}


def test_the_doctor_reads_what_records_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTL_DEBUG_LAYER", "1")
    monkeypatch.setenv("TF_CLI_CONFIG_FILE", "x")
    seen = read_process()["environment"]
    assert seen["MTL_DEBUG_LAYER"] == "1"
    assert "TF_CLI_CONFIG_FILE" not in seen

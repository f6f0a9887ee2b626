from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.scrub import printable, scrub


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ('File "/home/ada/secret/net.py", line 3', 'File "net.py", line 3'),
        ("cannot open /data/x.bin: no", "cannot open x.bin: no"),
        ("C:\\Users\\ada\\net.py failed", "net.py failed"),
        ("~/models/a.safetensors", "a.safetensors"),
        ("--xla_dump_to=/tmp/a/b", "--xla_dump_to=b"),
        ("3/4 of 1/2 done at 10 steps/s", "3/4 of 1/2 done at 10 steps/s"),
    ],
)
def test_paths_are_cut_to_their_last_part(text: str, clean: str) -> None:
    assert scrub(text) == clean


def test_the_home_folder_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "ada_lovelace")
    assert "ada_lovelace" not in scrub("hello ada_lovelace in /home/ada_lovelace/x")
    assert str(Path.home()) not in scrub(f"in {Path.home()}/deep/file.py")


@given(st.text())
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    assert not any(ord(sign) < 32 and sign not in "\t\n" for sign in printable(text))
    assert "\x1b" not in printable(text + "\x1b[31m")
    assert "\x9b" not in printable(text + "\x9b31m")

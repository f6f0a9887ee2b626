from __future__ import annotations

import pwd
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.scrub import PATH, home, place, printable, scrub, user_names


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ('File "/home/ada/secret/net.py", line 3', 'File "net.py", line 3'),
        ("cannot open /data/x.bin: no", "cannot open x.bin: no"),
        ("C:\\Users\\ada\\net.py failed", "net.py failed"),
        ("~/models/a.safetensors", "a.safetensors"),
        ("--xla_dump_to=/tmp/a/b", "--xla_dump_to=b"),
        ("3/4 of 1/2 done at 10 steps/s", "3/4 of 1/2 done at 10 steps/s"),
        ("~ada/notes/x.txt and ~/x.txt", "x.txt and ~/x.txt"),
        ("//server//share/x in /tmp", "x in /tmp"),
        (f"~/{'d' * 255}/x", "x"),
    ],
)
def test_paths_are_cut_to_their_last_part(text: str, clean: str) -> None:
    assert scrub(text) == clean


def test_the_home_folder_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "ada_lovelace")
    assert "ada_lovelace" not in scrub("hello ada_lovelace in /home/ada_lovelace/x")
    assert str(Path.home()) not in scrub(f"in {Path.home()}/deep/file.py")


# What the pattern says, tried in many ways and so for ever on a long text.
SLOW = re.compile(r"(?<![\w.:/])(?:~|[A-Za-z]:\\|/)(?:[^\s'\",:;()\[\]<>|]+[/\\])+([^\s'\",:;()\[\]<>|/\\]*)")


@given(st.text(alphabet="/\\~ab.:'= -_C\n", max_size=30))
def test_a_path_is_what_the_simple_pattern_says(text: str) -> None:
    assert PATH.sub(r"<\1>", text) == SLOW.sub(r"<\1>", text)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "unit",
    ["~", "-~", "/", "\\", "/a", "~/", "~a", " ~", " /", "C:\\", "a", " ", "\n", "1", ".", "/a/ ", "\x1b["],
    ids=repr,
)
def test_a_megabyte_of_anything_is_scrubbed_in_a_moment(unit: str) -> None:
    """By steps that grow with the square of the length it would take hours, which is what the limit is there for."""
    assert len(scrub(unit * (2**20 // len(unit)) + "\x00")) <= 2**20


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom the system does not know, without HOME: as in a container started under any number."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.usefixtures("nobody")
def test_a_user_without_a_home_folder() -> None:
    assert home() is None
    assert user_names() == set()
    assert scrub("in /home/ada/net.py") == "in net.py"
    assert place(Path("/srv/data")) == "data"


def test_a_home_folder_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nonexistent/ada_lovelace")
    assert scrub("hello ada_lovelace") == "hello user"
    assert place(Path("/nonexistent/ada_lovelace/x")) == "~/x"


@given(st.text())
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    assert not any(ord(sign) < 32 and sign not in "\t\n" for sign in printable(text))
    assert "\x1b" not in printable(text + "\x1b[31m")
    assert "\x9b" not in printable(text + "\x9b31m")

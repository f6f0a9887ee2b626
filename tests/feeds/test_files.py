"""The open-file limit where the system names no hard one and refuses all the same, as macOS does."""

from __future__ import annotations

import resource

import pytest

from metalmark.errors import UnsupportedError
from metalmark.feeds.files import allow_files
from metalmark.kit.loading import enough_files

MOST = 10240


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Soft and hard, of a kernel that grants no more than MOST."""
    now = [256, resource.RLIM_INFINITY]

    def setrlimit(_: int, to: tuple[int, int]) -> None:
        if to[0] > MOST:
            raise ValueError("current limit exceeds maximum limit")
        now[:] = to

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(now))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    return now


def test_what_the_kernel_grants_is_taken(limit: list[int]) -> None:
    allow_files(4096)
    assert limit == [4096, resource.RLIM_INFINITY]


def test_what_the_kernel_refuses_is_a_sentence(limit: list[int]) -> None:
    with pytest.raises(UnsupportedError, match="need about 20000 open files; this system allows 256 and refuses"):
        allow_files(20000)
    assert limit[0] == 256


def test_a_loader_takes_the_most_that_is_granted(limit: list[int]) -> None:
    assert enough_files(300) == ""
    assert limit[0] == MOST

"""Addresses of clusters: what is meant, and what is refused with a sentence."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest

from metalmark.cluster import address
from metalmark.cluster.address import ClusterAddress, Entrance, parse_address
from metalmark.errors import ClusterError, UsageError
from tests.conftest import Cli


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("local-ray", ClusterAddress(Entrance.LOCAL)),
        ("ray://10.0.0.5:10001", ClusterAddress(Entrance.CLIENT, "10.0.0.5", 10001)),
        ("ray://studio.local", ClusterAddress(Entrance.CLIENT, "studio.local", 10001)),
        ("10.0.0.5:6379", ClusterAddress(Entrance.DIRECT, "10.0.0.5", 6379)),
        ("[fe80::1]:6379", ClusterAddress(Entrance.DIRECT, "[fe80::1]", 6379)),
    ],
)
def test_addresses_are_read(text: str, meant: ClusterAddress) -> None:
    assert parse_address(text) == meant


@pytest.mark.parametrize(
    "text", ["", "nonsense", "http://host:1", "ray://", "host:70000", "host:port", "a b:1", "auto"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--on is the address of a Ray cluster"):
        parse_address(text)


def test_an_address_where_nothing_listens_is_a_sentence(inside: Cli, store_file: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, and not listened to
        port = held.getsockname()[1]
        refused = inside("bench", "fake", "-f", "fake", "-d", "gpu", "--on", f"ray://127.0.0.1:{port}")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"Nothing listens at ray://127.0.0.1:{port}" in refused.stderr
    assert not store_file.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nodes", "all"), "--nodes says which nodes of a cluster run each cell."),
        (("--on", "local-ray", "--nodes", "some"), "--nodes is kinds, all, any, not 'some'."),
        (("--on", "local-ray", "--parity"), "--parity checks on this machine"),
    ],
)
def test_options_that_do_not_go_together_are_refused(inside: Cli, words: tuple[str, ...], said: str) -> None:
    refused = inside("bench", "fake", "-f", "fake", "-d", "gpu", *words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert said in refused.stderr


class BusyHead(ModuleType):
    """Ray, with a head that starts no process for a command until it has been asked `refusals` times."""

    def __init__(self, refusals: int) -> None:
        super().__init__("ray")
        self.refusals, self.asked = refusals, 0

    def init(self, **_: object) -> None:
        self.asked += 1
        if self.asked <= self.refusals:
            raise ConnectionAbortedError(
                'Initialization failure from server:\nTraceback (most recent call last):\n  File "proxier.py", line 1\n'
                "RuntimeError: Proxy failed to Connect to backend! Check `ray_client_server.err`.\n"
            )


def connect_to(head: BusyHead, monkeypatch: pytest.MonkeyPatch) -> object:
    for name in ("require_ray", "_reach", "_knock"):
        monkeypatch.setattr(address, name, lambda *_: None)
    monkeypatch.setattr(address, "QUICK", {})
    monkeypatch.setitem(sys.modules, "ray", head)
    monkeypatch.setitem(sys.modules, "ray._private.worker", ModuleType("worker"))
    return address.connect(parse_address("ray://studio.local"))


def test_a_head_that_was_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    head = BusyHead(refusals=1)
    assert connect_to(head, monkeypatch) is head
    assert head.asked == 2


def test_a_head_that_starts_no_process_is_a_sentence_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    head = BusyHead(refusals=9)
    with pytest.raises(ClusterError, match="could not start a process for this command: RuntimeError: Proxy failed to"):
        connect_to(head, monkeypatch)
    assert head.asked == 2

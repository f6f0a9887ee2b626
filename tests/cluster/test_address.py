"""Addresses of clusters: what is meant, and what is refused with a sentence."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from metalmark.cluster.address import ClusterAddress, Entrance, parse_address
from metalmark.errors import UsageError
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

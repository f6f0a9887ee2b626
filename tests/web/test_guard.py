from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from metalmark.web.guard import HEADERS, is_loopback, rules_for
from tests.web.conftest import Ask

ClientOf = Callable[..., TestClient]
TOKEN = "a-long-secret"


@pytest.mark.parametrize("path", ["/", "/nope", "/run/cell000000", "/compare", "/static/page.css", "/static/../app.py"])
def test_every_answer_has_its_headers(ask: Ask, path: str) -> None:
    answer = ask(path)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:9999", "localhost", "LOCALHOST:1", "localhost.", "[::1]:8585"]
)
def test_our_own_names_with_any_port(ask: Ask, host: str) -> None:
    assert ask("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8585", "127.0.0.1.evil.example", "localhost.evil.example", "", "10.0.0.7",
             "[::1].evil.example.", "127.0.0.1@evil.example", "0x7f.1"],
)  # fmt: skip
def test_a_name_that_was_pointed_at_us_is_refused(ask: Ask, host: str) -> None:
    answer = ask("/", headers={"host": host})
    assert answer.status_code == 403
    assert "--host" in answer.text


def test_two_names_at_once_are_refused(ask: Ask) -> None:
    answer = ask("/", headers=[("host", "127.0.0.1"), ("host", "evil.example")])
    assert answer.status_code == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_one_can_only_look(filled: Path, client_of: ClientOf, method: str) -> None:
    for path in ("/", "/run/cell000000", "/static/page.css"):
        assert client_of(filled).request(method, path).status_code == 405
    assert client_of(filled).head("/").status_code == 200


def test_the_token_is_asked_for_and_then_a_cookie_does(filled: Path, client_of: ClientOf) -> None:
    client = client_of(filled, token=TOKEN, cookie="metalmark-8585")
    for path in ("/", "/?token=wrong", "/?token=", "/static/page.css", "/live", f"/run/{TOKEN}"):
        answer = client.get(path)
        assert answer.status_code == 401
        assert TOKEN not in answer.text
    assert client.get("/", headers={"cookie": "metalmark-8585=wrong"}).status_code == 401
    assert client.get("/", headers={"cookie": f"metalmark-8586={TOKEN}"}).status_code == 401
    answer = client.get(f"/run/cell000000?token={TOKEN}&q=a%20b")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/run/cell000000?q=a+b", "the token does not stay in the address"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/").status_code == 200


def test_the_token_leads_to_no_other_server(filled: Path, client_of: ClientOf) -> None:
    client = client_of(filled, token=TOKEN)
    for path in (f"//evil.example/?token={TOKEN}", f"/%5C%5Cevil.example/?token={TOKEN}"):
        location = client.get(f"http://127.0.0.1:8585{path}").headers["location"]
        assert location.startswith("/")
        assert not location.startswith(("//", "/\\"))


def test_which_rules_a_host_has() -> None:
    assert rules_for("127.0.0.1", 1, ask=False).token == ""
    assert len(rules_for("127.0.0.1", 1, ask=True).token) >= 32
    beyond = rules_for("0.0.0.0", 8585, ask=False, own_names=frozenset({"box.local"}))
    assert len(beyond.token) >= 32
    assert beyond.token != rules_for("0.0.0.0", 8585, ask=False).token
    assert beyond.addresses
    assert "box.local" in beyond.hosts
    assert is_loopback("::1")
    assert is_loopback("127.3.4.5")
    assert not is_loopback("192.168.1.2")
    assert not is_loopback("box")


def test_beyond_loopback_an_address_is_no_name(filled: Path, client_of: ClientOf) -> None:
    client = client_of(filled, addresses=True)
    assert client.get("/", headers={"host": "192.168.1.2:8585"}).status_code == 200
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403

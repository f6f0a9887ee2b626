"""Decides who may look, and what a browser may do with what it gets. It comes before every page.

A page of elsewhere can make a browser ask us by a name that it has pointed at this machine (DNS rebinding), so the name
asked for is checked, whatever the port: a tunnel may have another. Bound beyond loopback, a token is asked for too.
"""

import ipaddress
import re
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
TOKEN = "token"

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:/@]+))(?::\d*)?")

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # What was measured may be deleted, and names of runs are the user's own: a browser keeps no copy.
    "cache-control": "no-store",
}


class Rules(Struct, frozen=True, kw_only=True):
    hosts: frozenset[str] = LOOPBACK
    """Host names that the server answers to."""
    addresses: bool = False
    """Whether any numeric address will do: nobody can point one elsewhere, as they can a name."""
    token: str = ""
    """Empty: none is required."""
    cookie: str = "metalmark"


class Guard:
    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refused = self._refusal(scope)
        await (refused or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        named = headers.getlist("host")
        name = host_name(named[0]) if len(named) == 1 else ""
        if name not in self._rules.hosts and not (self._rules.addresses and _address(name)):
            said = ", ".join(sorted(self._rules.hosts))
            return PlainTextResponse(
                f"This is not the name of this server. It answers to: {said}.\n"
                "Open the address that metalmark serve printed, or start it with --host NAME.\n",
                status_code=403,
            )
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("Here one can look, and nothing else.\n", 405, {"allow": "GET, HEAD"})
        return self._unknown(scope, headers) if self._rules.token else None

    def _unknown(self, scope: Scope, headers: Headers) -> Response | None:
        """Return None to whoever has the cookie. The token in an address is answered with the cookie, and the address
        without it."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if any(name == TOKEN and self._is_token(value) for name, value in query):
            rest = urlencode([(name, value) for name, value in query if name != TOKEN])
            # One stroke: two would make the browser go to another server.
            path = "/" + scope["path"].lstrip("/\\")
            answer = RedirectResponse(f"{path}?{rest}" if rest else path, status_code=303)
            answer.set_cookie(self._rules.cookie, self._rules.token, httponly=True, samesite="strict", path="/")
            return answer
        if any(self._is_token(value) for value in _cookies(headers, self._rules.cookie)):
            return None
        return PlainTextResponse(
            "This server asks for its token. Open the address that metalmark serve printed, with ?token= in it.\n",
            status_code=401,
        )

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._rules.token.encode())


def rules_for(host: str, port: int, *, ask: bool, own_names: frozenset[str] = frozenset()) -> Rules:
    """Return the rules of a host. `ask`: require a token on loopback too. `own_names`: what this machine calls itself,
    where other machines can reach it."""
    beyond = not is_loopback(host)
    return Rules(
        hosts=LOOPBACK | {host.lower()} | (own_names if beyond else frozenset()), addresses=beyond,
        token=secrets.token_urlsafe(24) if ask or beyond else "", cookie=f"metalmark-{port}",
    )  # fmt: skip


def is_loopback(host: str) -> bool:
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def host_name(header: str) -> str:
    """Return the name in a Host header, without its port, brackets or final point."""
    found = _HOST.fullmatch(header.strip().lower())
    return "" if found is None else (found[1] or found[2]).removesuffix(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _cookies(headers: Headers, name: str) -> list[str]:
    found = []
    for header in headers.getlist("cookie"):
        try:
            cookies = SimpleCookie(header)
        except CookieError:
            continue
        found += [cookies[name].value] if name in cookies else []
    return found

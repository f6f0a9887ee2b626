"""The server: which address is which page, and the socket it answers on until Ctrl-C. Every page is a GET."""

import asyncio
import logging
import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from metalmark.errors import FormatError, MetalmarkError, StoreError, UsageError
from metalmark.store.address import Address
from metalmark.web.compare_page import compare_page
from metalmark.web.guard import Guard, Rules, is_loopback, rules_for
from metalmark.web.live_page import live_now, live_page, status_now, status_page
from metalmark.web.run_page import find_page, run_page, runs_page, sweep_page
from metalmark.web.shell import cannot, static_file

USUAL_PORT = 8585
BACKLOG = 128
ANYWHERE = {"0.0.0.0", "::", ""}
HALF_OPEN_S = 10.0
"""How long a client may take to send a whole request."""

Answer = Callable[[Request, Address], Response]

PAGES: dict[str, Answer] = {
    "/": runs_page,
    "/run/{id}": run_page,
    "/sweep/{id}": sweep_page,
    "/find/{word}": find_page,
    "/compare": compare_page,
    "/live": live_page,
    "/live/now": live_now,
    "/live/{id}": status_page,
    "/live/{id}/now": status_now,
}


def make_app(store_address: Address, rules: Rules) -> Guard:
    """Return the application. It opens the store for each page, read-only, so that new runs are on the next one."""

    def route(path: str, answer: Answer) -> Route:
        def endpoint(request: Request) -> Response:
            return answer(request, store_address)

        return Route(path, endpoint, methods=["GET"])

    routes = [route(path, answer) for path, answer in {**PAGES, "/static/{name}": _static}.items()]
    handlers = {MetalmarkError: _cannot, HTTPException: _http, Exception: _broken}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), rules)  # type: ignore[arg-type]


def _static(request: Request, _store_address: Address) -> Response:
    if (found := static_file(request.path_params["name"])) is None:
        raise HTTPException(404)
    return Response(found[0], media_type=f"{found[1]}; charset=utf-8")


def _cannot(request: Request, error: MetalmarkError) -> Response:
    """A run that is not there is a 404; runs that can't be compared are a 400."""
    absent = isinstance(error, UsageError) and request.url.path != "/compare"
    status = 404 if absent else 503 if isinstance(error, StoreError) else 500 if isinstance(error, FormatError) else 400
    return cannot(error, status=status)


def _http(_request: Request, error: HTTPException) -> Response:
    if error.status_code == 404:
        missing = UsageError("There is no such page.", hint="The list of runs has links to all pages.")
        return cannot(missing, title="Not found", status=404)
    return PlainTextResponse(f"{error.detail}\n", error.status_code)


def _broken(_request: Request, _error: Exception) -> Response:
    """What went wrong is in the terminal of `metalmark serve`; a page shows no traceback."""
    fault = MetalmarkError("Something went wrong here.", hint="The terminal of `metalmark serve` says more.")
    return cannot(fault, title="Broken", status=500)


def impatient_protocol(limit_s: float) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a limit on how long a connection may be open without a request to answer.

    uvicorn's own limit counts from one answer to the first byte that follows it: a client that sends nothing, or one
    byte now and then, would hold its connection for ever.
    """

    class ImpatientProtocol(H11Protocol):
        _limit: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait_for_request()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._wait_for_request()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._limit is not None:
                self._limit.cancel()
            super().connection_lost(exc)

        def _wait_for_request(self) -> None:
            if self._limit is not None:
                self._limit.cancel()
            self._limit = self.loop.call_later(limit_s, self._close_half_open)

        def _close_half_open(self) -> None:
            answering = self.cycle is not None and not self.cycle.response_complete
            if not answering:
                self.transport.close()

    return ImpatientProtocol


class Server:
    """It is bound when it is made, so that the address printed is right; `run` returns when it is told to stop."""

    def __init__(
        self, store: Address, *, host: str, port: int | None, ask: bool, half_open_s: float = HALF_OPEN_S
    ) -> None:
        self._half_open_s = half_open_s
        self._host, self._socket = host, _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        whole = socket.gethostname().lower()
        first = whole.partition(".")[0]
        own_names = frozenset({whole, first, f"{first}.local"} - {""})
        self._rules = rules_for(host, self.port, ask=ask, own_names=own_names)
        self._app = make_app(store, self._rules)

    @property
    def url(self) -> str:
        """The address to open, with the token where one is required."""
        name = socket.gethostname() if self._host in ANYWHERE else self._host
        host = f"[{name}]" if ":" in name else name
        return f"http://{host}:{self.port}/{f'?token={self._rules.token}' if self._rules.token else ''}"

    @property
    def beyond(self) -> bool:
        """Whether other machines can reach it."""
        return not is_loopback(self._host)

    def run(self) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config = uvicorn.Config(
            self._app, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none",
            timeout_graceful_shutdown=2, backlog=BACKLOG, http=impatient_protocol(self._half_open_s),
        )  # fmt: skip
        try:
            uvicorn.Server(config).run(sockets=[self._socket])
        except KeyboardInterrupt:
            pass  # uvicorn has shut down in order, and raises the signal again
        finally:
            self.close()

    def close(self) -> None:
        self._socket.close()


def _bind(host: str, port: int | None) -> socket.socket:
    """Bind the port that was asked for; else the usual one, or any that is free."""
    if port is None:
        try:
            return _bound(host, USUAL_PORT)
        except (OSError, ValueError):
            port = 0
    try:
        return _bound(host, port)
    except (OSError, ValueError) as error:  # ValueError: a name that has no form in the Internet's names, such as ".."
        why = error.strerror or error if isinstance(error, OSError) else "that is not the name of a host"
        raise UsageError(
            f"{host} port {port} can't be used: {why}.",
            hint="Choose another with --port, or leave --port out for one that is free; --host takes an address of "
            "this machine.",
        ) from error


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made

"""A socket and the server on it, until Ctrl-C."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import uvicorn

from metalmark.errors import UsageError
from metalmark.web.app import make_app
from metalmark.web.guard import is_loopback, rules_for

USUAL_PORT = 8585
BACKLOG = 128
ANYWHERE = {"0.0.0.0", "::", ""}


class Server:
    """Bound when it is made, so that what is printed is true; `run` returns when it is told to stop."""

    def __init__(self, store: Path, *, host: str, port: int | None, ask: bool) -> None:
        self._host, self._socket = host, _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._rules = rules_for(host, self.port, ask=ask, own_names=_own_names())
        self._app = make_app(store, self._rules)

    @property
    def url(self) -> str:
        """To open: with the token, where one is asked for."""
        name = socket.gethostname() if self._host in ANYWHERE else self._host
        place = f"[{name}]" if ":" in name else name
        return f"http://{place}:{self.port}/{f'?token={self._rules.token}' if self._rules.token else ''}"

    @property
    def beyond(self) -> bool:
        """Whether other machines can reach it."""
        return not is_loopback(self._host)

    def run(self) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=2,
            backlog=BACKLOG,
        )
        try:
            uvicorn.Server(config).run(sockets=[self._socket])
        except KeyboardInterrupt:
            pass  # it has ended in order, and raises the signal again for whoever asks
        finally:
            self.close()

    def close(self) -> None:
        self._socket.close()


def _bind(host: str, port: int | None) -> socket.socket:
    """The port that was asked for; else the usual one, or any that is free."""
    if port is None:
        try:
            return _bound(host, USUAL_PORT)
        except OSError:
            port = 0
    try:
        return _bound(host, port)
    except OSError as error:
        raise UsageError(
            f"{host} port {port} can't be used: {error.strerror or error}.",
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


def _own_names() -> frozenset[str]:
    whole = socket.gethostname().lower()
    first = whole.partition(".")[0]
    return frozenset({whole, first, f"{first}.local"} - {""})

"""A client that never ends its request, or never begins one, loses its connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="the extra `web` is not installed")

from uvicorn.server import ServerState  # noqa: E402

from metalmark.web.app import HALF_OPEN_S, impatient_protocol, make_app  # noqa: E402
from metalmark.web.guard import Rules  # noqa: E402

LIMIT_S = 0.2
WHOLE = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = {
    "nothing": b"",
    "half a line": b"GET / HT",
    "half a header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX-",
    "half a body": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc",
    "half a second request": WHOLE + b"GET / HTTP/1.1\r\nHost: loc",
}


async def all_answers(store_file: Path, sent: dict[str, bytes], limit_s: float) -> dict[str, bytes]:
    """Send each of these over a connection of its own, and return what was answered until the server closed it."""
    config = uvicorn.Config(make_app(store_file, Rules()), lifespan="off", log_config=None, timeout_keep_alive=3600)
    config.load()
    protocol, state = impatient_protocol(limit_s), ServerState()

    def accept() -> asyncio.Protocol:
        return protocol(config=config, server_state=state, app_state={})  # type: ignore[call-arg]

    async def answer(port: int, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        answered = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        return answered

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        answers = await asyncio.gather(*(answer(port, data) for data in sent.values()))
    finally:
        server.close()
    return dict(zip(sent, answers, strict=True))


def test_half_open_connections_are_closed(store_file: Path) -> None:
    answers = asyncio.run(all_answers(store_file, {**HALF, "whole": WHOLE}, LIMIT_S))
    assert {name for name, answer in answers.items() if b" 200 OK" in answer} == {"whole", "half a second request"}
    assert b" 405 " in answers["half a body"]
    assert answers["nothing"] == answers["half a line"] == answers["half a header"] == b""
    assert HALF_OPEN_S == 10.0

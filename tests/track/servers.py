"""Servers on loopback: MLflow's own, one that never answers, one that answers 500."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

HOST = "127.0.0.1"
PATIENCE_S = 200.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[str]:
    folder.mkdir()
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1",
             "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "files")],
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    uri = f"http://{HOST}:{port}"
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while not _answers(f"{uri}/health"):
            assert process.poll() is None, (folder / "output.txt").read_text()[-2000:]
            assert time.monotonic() < deadline_s, (folder / "output.txt").read_text()[-2000:]
            time.sleep(0.2)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def hanging_server(port: int) -> Iterator[str]:
    """Takes every connection, and never says a word."""
    with socket.create_server((HOST, port), backlog=64):
        yield f"http://{HOST}:{port}"


class _Refuses(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"error_code": "INTERNAL_ERROR", "message": "the disk is full"}'
        self.send_response(500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None: ...


@contextmanager
def refusing_server() -> Iterator[str]:
    with ThreadingHTTPServer((HOST, 0), _Refuses) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class CuttingProxy(ThreadingHTTPServer):
    """Passes requests on to a server. Those in `cuts`, by the end of their path, arrive there, but the connection is
    cut before their answer, so many times."""

    daemon_threads = True

    def __init__(self, uri: str, cuts: dict[str, int]) -> None:
        super().__init__((HOST, 0), _PassesOn)
        self.behind, self.cuts, self.cut = urlsplit(uri).netloc, dict(cuts), 0

    @property
    def uri(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}"


class _PassesOn(BaseHTTPRequestHandler):
    server: CuttingProxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        connection = http.client.HTTPConnection(self.server.behind, timeout=60)
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        for end, left in self.server.cuts.items():
            if left and urlsplit(self.path).path.endswith(end):
                self.server.cuts[end] -= 1
                self.server.cut += 1
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None: ...


@contextmanager
def cutting_proxy(uri: str, cuts: dict[str, int]) -> Iterator[CuttingProxy]:
    with CuttingProxy(uri, cuts) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False

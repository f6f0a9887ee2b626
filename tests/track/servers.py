"""Servers on loopback: MLflow's own, one that never answers, one that answers 500."""

from __future__ import annotations

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


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False

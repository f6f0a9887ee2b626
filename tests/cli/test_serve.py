from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metalmark.store.store import Store
from tests.conftest import Cli
from tests.processes import ROOT, heed_ctrl_c, metalmark
from tests.samples import record

pytest.importorskip("uvicorn", reason="the extra `web` is not installed")


@pytest.fixture
def stored(store_file: Path) -> Path:
    with Store(store_file) as store:
        store.add(record(id="kept000000"))
    return store_file


@pytest.fixture
def started(stored: Path) -> Iterator[list[subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []
    yield running
    for one in running:
        one.kill()
        one.communicate()
    del stored


def start(running: list[subprocess.Popen[str]], store: Path, *words: str) -> str:
    one = subprocess.Popen(
        metalmark("serve", "--store", store, *words),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    )
    running.append(one)
    assert one.stdout is not None
    return one.stdout.readline().strip()


def get(port: int, path: str = "/") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def port_of(url: str) -> int:
    return int(url.removeprefix("http://").partition(":")[2].partition("/")[0])


def test_it_serves_until_ctrl_c(stored: Path, started: list[subprocess.Popen[str]]) -> None:
    url = start(started, stored, "--port", "0")
    assert url.startswith("http://127.0.0.1:")
    assert "token" not in url
    status, text = get(port_of(url))
    assert status == 200
    assert "kept000000" in text
    started[0].send_signal(signal.SIGINT)
    _, said = started[0].communicate(timeout=60)
    assert started[0].returncode == 0, said
    assert "Stopped." in said
    assert "Traceback" not in said


def test_a_taken_port(stored: Path, cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run = cli("serve", "--store", stored, "--port", taken.getsockname()[1])
    assert run.returncode == 2
    assert "can't be used" in run.stderr
    assert "--port" in run.stderr
    assert "Traceback" not in run.stderr


def test_beyond_loopback_a_token_is_asked_for(stored: Path, started: list[subprocess.Popen[str]]) -> None:
    url = start(started, stored, "--host", "0.0.0.0", "--port", "0")
    token = url.partition("?token=")[2]
    assert len(token) >= 32
    assert get(port_of(url))[0] == 401
    assert get(port_of(url), f"/?token={token}")[0] == 303


@pytest.mark.parametrize("words", [["--host", "no.such.host.invalid"], ["--port", "99999"], ["--host", "8.8.8.8"]])
def test_bad_words(stored: Path, inside: Cli, words: list[str]) -> None:
    run = inside("serve", "--store", stored, *words)
    assert run.returncode == 2
    assert "Traceback" not in run.stderr


def test_without_a_store(cli: Cli, tmp_path: Path) -> None:
    run = cli("serve")
    assert run.returncode == 2
    assert "no store yet" in run.stderr
    assert "metalmark bench" in run.stderr
    (tmp_path / "other").write_text("something else, and longer than nothing")
    assert cli("serve", "--store", tmp_path / "other").returncode == 2


def test_without_the_extra(stored: Path) -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None; sys.argv = ['metalmark', 'serve'];"
        "from metalmark.cli import main; main()"
    )
    environment = {**os.environ, "METALMARK_STORE": str(stored)}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert 'pip install "metalmark[web]"' in run.stderr
    assert "Traceback" not in run.stderr

"""Downloads through the real downloader from a server of the test's own: no test asks the network for anything."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from metalmark.data import fetch as fetching
from metalmark.data.catalog import load
from metalmark.data.fetch import PUBLISHED, PublishedFiles, cache_folder, fetch
from metalmark.errors import FormatError
from tests.data.files import write_idx

CONTENT = {"one.gz": b"first", "two.gz": b"second"}
MD5 = {name: hashlib.md5(data).hexdigest() for name, data in CONTENT.items()}


class Server(ThreadingHTTPServer):
    asked: list[str]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        data = CONTENT.get(self.path.lstrip("/"))
        self.send_response(404 if data is None else 200)
        self.end_headers()
        self.wfile.write(data or b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METALMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache" / "data" / "mnist"


def publish(monkeypatch: pytest.MonkeyPatch, port: int, files: dict[str, str] = MD5, **more: dict[str, str]) -> str:
    address = f"http://127.0.0.1:{port}/"
    monkeypatch.setitem(fetching.PUBLISHED, "mnist", PublishedFiles(address=address, files=files, **more))
    return address


def test_the_cache_is_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache" / "data"
    monkeypatch.delenv("METALMARK_CACHE")
    assert cache_folder().parts[-2:] == ("metalmark", "data")


def test_downloads_once(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, server.server_port)
    found = fetch("mnist")
    assert found == {name: cache / name for name in CONTENT}
    assert {name: path.read_bytes() for name, path in found.items()} == CONTENT
    assert fetch("mnist") == found
    assert server.asked == ["/one.gz", "/two.gz"]
    assert sorted(path.name for path in cache.iterdir()) == ["one.gz", "two.gz"]


def test_downloads_only_what_is_missing(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, server.server_port)
    cache.mkdir(parents=True)
    (cache / "one.gz").write_bytes(CONTENT["one.gz"])
    fetch("mnist")
    assert server.asked == ["/two.gz"]


def test_as_good_and_there_already(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, 9, {"one.gz": MD5["one.gz"]}, instead={"two.gz": MD5["two.gz"]})
    cache.mkdir(parents=True)
    (cache / "two.gz").write_bytes(CONTENT["two.gz"])
    assert fetch("mnist") == {"two.gz": cache / "two.gz"}


def test_offline(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as bound:
        # Bound and not listening: nobody else gets the port, and nobody answers.
        bound.bind(("127.0.0.1", 0))
        address = publish(monkeypatch, bound.getsockname()[1])
        with pytest.raises(FormatError) as caught:
            fetch("mnist")
        assert f"one.gz of mnist can't be downloaded from {address}one.gz: " in caught.value.message
        assert "Connection refused" in caught.value.message
        for name in CONTENT:
            assert f"{address}{name} (MD5 {MD5[name]})" in caught.value.hint
        assert "$METALMARK_CACHE/data/mnist" in caught.value.hint
        assert "--data synthetic" in caught.value.hint
        assert list(cache.iterdir()) == [], "a part of a download was left"
        with pytest.raises(FormatError, match="can't be downloaded"):
            load("mnist", "real")


def test_a_server_without_the_file(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, server.server_port, {"three.gz": "0" * 32})
    with pytest.raises(FormatError, match="the server answered 404"):
        fetch("mnist")


def test_another_file_than_the_official_one_comes(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, server.server_port, {"one.gz": "0" * 32})
    with pytest.raises(FormatError, match=f"its MD5 is {MD5['one.gz']}, not {'0' * 32}.*not kept"):
        fetch("mnist")
    assert list(cache.iterdir()) == []


def test_a_wrong_file_in_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, 9)
    cache.mkdir(parents=True)
    (cache / "one.gz").write_bytes(b"something else")
    found = hashlib.md5(b"something else").hexdigest()
    with pytest.raises(FormatError, match=rf"one\.gz is not .*its MD5 is {found}, not {MD5['one.gz']}") as caught:
        fetch("mnist")
    assert "Delete" in caught.value.hint
    assert (cache / "one.gz").read_bytes() == b"something else", "a user's file was touched"


def test_a_cache_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("METALMARK_CACHE", str(tmp_path / "file"))
    publish(monkeypatch, 9)
    with pytest.raises(FormatError, match="can't be kept in") as caught:
        fetch("mnist")
    assert "METALMARK_CACHE" in caught.value.hint


def test_only_real_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> None:
        raise AssertionError("downloaded unasked")

    monkeypatch.setattr("metalmark.data.catalog.fetch", refuse)
    load("mnist", "synthetic")
    load("mnist", str(write_idx(tmp_path)))
    with pytest.raises(AssertionError, match="unasked"):
        load("mnist", "real")


def test_the_list_of_published_files() -> None:
    assert set(PUBLISHED) == {"mnist", "fashion-mnist", "cifar-10", "flowers-102"}
    for remote in PUBLISHED.values():
        assert remote.address.endswith("/")
        for md5 in {**remote.files, **remote.instead}.values():
            assert len(md5) == 32
            int(md5, 16)


def test_the_catalogue_costs_no_downloader() -> None:
    code = "import sys, metalmark.data.catalog; print(sorted({'pooch', 'requests', 'PIL', 'scipy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"

"""A Ray cluster of several nodes on this machine, with a token, whose nodes can be killed one by one."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import IO

import psutil

from tests.processes import until

HIDING = """import importlib.util
_find = importlib.util.find_spec
_hidden = {"torch", "tensorflow", "jax", "mlx", "keras"}
importlib.util.find_spec = lambda name, package=None: None if name in _hidden else _find(name, package)
"""
"""For the nodes: the doctor would ask every framework that is installed, which takes most of a minute."""
RAY = str(Path(sysconfig.get_path("scripts"), "ray"))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class SmallCluster:
    """A head and other nodes, all of this machine: each is a raylet with resources of its own."""

    def __init__(self) -> None:
        # Sockets have names of at most 103 characters on macOS, so the folder has a short one.
        self.folder = Path(tempfile.mkdtemp(prefix="mmr", dir="/tmp"))
        token, wrong = (self.folder / name for name in ("token", "wrong"))
        for path in (token, wrong):
            path.write_text(secrets.token_hex(32))
            path.chmod(0o600)
        self.environment = {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1", "PYTHONWARNINGS": "ignore",
            # A process that the head starts for a command has half a minute otherwise: other tests run beside this.
            "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "120",
        }  # fmt: skip
        (self.folder / "hiding").mkdir()
        (self.folder / "hiding" / "sitecustomize.py").write_text(HIDING)
        self.wrong_token = {**self.environment, "RAY_AUTH_TOKEN_PATH": str(wrong)}
        self.port, self.client_port = free_port(), free_port()
        self.direct, self.client = f"127.0.0.1:{self.port}", f"ray://127.0.0.1:{self.client_port}"

    def start_head(self) -> None:
        ports = ["--port", str(self.port), "--ray-client-server-port", str(self.client_port)]
        # Above the ports that were found free, which Ray would else take for one of its workers.
        self._start("--head", *ports, "--temp-dir", str(self.folder / "t"), "--include-dashboard=false")

    def start_node(self, *, cpus: int) -> int:
        """Start one more node, and return the process of its raylet."""
        before = set(self.raylets())
        self._start("--address", self.direct, "--resources", '{"other": 1}', cpus=cpus)
        (new,) = set(self.raylets()) - before
        return new

    def _start(self, *words: str, cpus: int = 1) -> None:
        command = [RAY, "start", *words, "--node-ip-address", "127.0.0.1", "--num-cpus", str(cpus),
                   "--min-worker-port", "0", "--max-worker-port", "0",
                   "--include-log-monitor=false", "--object-store-memory", "80000000"]  # fmt: skip
        environment = {**os.environ, **self.environment, "PYTHONPATH": str(self.folder / "hiding")}
        log = self.folder / "start.txt"
        with log.open("wb") as sink:
            code = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=sink,
                stderr=subprocess.STDOUT, timeout=90, check=False,
            ).returncode  # fmt: skip
        assert code == 0, log.read_text()

    def processes(self) -> list[psutil.Process]:
        """Every process of the cluster: all of them were told its folder."""
        return [process for process, _ in self._commands()]

    def raylets(self) -> list[int]:
        return [process.pid for process, words in self._commands() if Path(words[0]).name == "raylet"]

    def agents(self) -> list[int]:
        """Agents of ours, and workers that measure."""
        ours = {"metalmark.app.node", "metalmark.runner.worker"}
        return [process.pid for process, words in self._commands() if ours & set(words)]

    def _commands(self) -> list[tuple[psutil.Process, list[str]]]:
        """Each process with its command, which is read once: a process that has ended meanwhile has none."""
        found = []
        for process in psutil.process_iter():
            try:
                words, variables = process.cmdline(), process.environ()
            except psutil.Error:
                continue
            mine = str(self.folder) in variables.get("RAY_AUTH_TOKEN_PATH", "") or str(self.folder) in " ".join(words)
            if mine and words and process.pid != os.getpid():
                found.append((process, words))
        return found

    def close(self) -> None:
        for process in self.processes():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        until(lambda: not self.processes())
        shutil.rmtree(self.folder, ignore_errors=True)


def metalmark(
    cluster: SmallCluster, store: Path, *words: object, stderr: int | IO[str] = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start a command with the cluster's token."""
    return subprocess.Popen(
        [sys.executable, "-m", "metalmark", *map(str, words)],
        env={**os.environ, **cluster.environment, "METALMARK_STORE": str(store)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True,
    )  # fmt: skip

"""Where a cluster is, and how this process comes to it: every way to fail is a sentence within seconds."""

import importlib.util
import logging
import os
import re
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

from metalmark.errors import ClusterError, NotInstalledError, UsageError

LOCAL = "local-ray"
CLIENT_PORT = 10001
CONNECT_S = 3.0
EXAMPLES = "For example --on ray://10.0.0.5:10001, --on 10.0.0.5:6379 on a machine of the cluster, or --on local-ray."
USUAL_PORTS = "ray://HOST:10001 is the port for commands from outside, HOST:6379 the one for machines of the cluster."
TOKEN = (
    "Use the token of the cluster here too: RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE, with the file that its "
    "nodes were started with."
)
QUICK = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_NUM_REDIS_GET_RETRIES": "3",
    "RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S": "1",
    "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "15",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Ray reports nothing to its makers, and says within seconds that it can't connect. What the user has set already
stays. The period is how long a node waits for a command that has gone away."""
_ADDRESS = re.compile(r"(ray://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::(\d{1,5}))?")


class Entrance(StrEnum):
    LOCAL = "local"
    """A cluster of this machine alone, which begins and ends with the command."""
    CLIENT = "client"
    """The port for commands from outside of the cluster (10001)."""
    DIRECT = "direct"
    """The port of the head (6379), for commands on a machine of the cluster."""


_METHODS = {
    Entrance.CLIENT: "/ray.rpc.RayletDriver/ClusterInfo",
    Entrance.DIRECT: "/ray.rpc.NodeInfoGcsService/CheckAlive",
}


class ClusterAddress(NamedTuple):
    entrance: Entrance
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        scheme = "ray://" if self.entrance is Entrance.CLIENT else ""
        return LOCAL if self.entrance is Entrance.LOCAL else f"{scheme}{self.host}:{self.port}"


def parse_address(text: str) -> ClusterAddress:
    if text == LOCAL:
        return ClusterAddress(Entrance.LOCAL)
    found = _ADDRESS.fullmatch(text.strip())
    port = int(found[3] or 0) if found else 0
    if found is None or port > 65535 or not (found[1] or found[3]):
        raise UsageError(f"--on is the address of a Ray cluster, not {text[:80]!r}.", hint=EXAMPLES)
    if found[1]:
        return ClusterAddress(Entrance.CLIENT, found[2], port or CLIENT_PORT)
    return ClusterAddress(Entrance.DIRECT, found[2], port)


def require_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise NotInstalledError(
            "--on needs Ray, which is not installed: Python finds no package 'ray'.",
            hint='Install it: pip install "metalmark[ray]". It has builds for Linux and for Macs with Apple Silicon, '
            "for Python 3.11 to 3.14.",
        )


def connect(address: ClusterAddress) -> Any:
    """Connect this process to the cluster and return the module `ray`."""
    require_ray()
    if address.entrance is not Entrance.LOCAL:
        _reach(address)
    for name, value in QUICK.items():
        os.environ.setdefault(name, value)
    import ray

    # Else Ray prints what it thinks of a lost node among our results.
    worker = importlib.import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        vars(worker)["print_to_stdstream"] = lambda *_, **__: None
    # Ray configures logging for the whole process, and warns where a command has nothing to decide.
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL, "configure_logging": False}
    try:
        with warnings.catch_warnings(), _silent():
            warnings.simplefilter("ignore")
            if address.entrance is Entrance.LOCAL:
                ray.init(address="local", include_dashboard=False, **quiet)
            else:
                _knock(address)
                try:
                    ray.init(address=str(address), **quiet)
                except ConnectionAbortedError:
                    # The head had half a minute to start a process for this command. It was busy, so once more.
                    ray.init(address=str(address), **quiet)
    except ClusterError:
        raise
    except Exception as error:
        raise _refusal(address, error) from error
    return ray


def _refusal(address: ClusterAddress, error: Exception) -> ClusterError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # Of a failure on the head Ray sends the traceback, whose last line has the reason.
    why = lines[-1 if isinstance(error, ConnectionAbortedError) else 0].partition(". ")[0][:300].rstrip(".")
    if type(error).__name__ == "AuthenticationError":
        return ClusterError(f"Ray finds no token to show to the cluster: {why}.", hint=TOKEN)
    if address.entrance is Entrance.LOCAL:
        return ClusterError(f"Ray can't be started here: {why}.", hint="Try by hand: ray start --head")
    if isinstance(error, ConnectionAbortedError):
        return ClusterError(
            f"The head of the cluster at {address} could not start a process for this command: {why}.",
            hint="Is it busy, or out of memory? The files ray_client_server*.err among its logs say more.",
        )
    hint = "The cluster needs the same Ray and Python as this command; `ray status` on its head says how it is."
    return ClusterError(f"Ray at {address} can't be used: {why}.", hint=hint)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep Ray's own code in C++, which knows no Python logger, from writing to the terminal."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _reach(address: ClusterAddress) -> None:
    try:
        socket.create_connection((address.host.strip("[]"), address.port), CONNECT_S).close()
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise ClusterError(
            f"Nothing listens at {address}: {why}.",
            hint=f"Is the cluster up (ray start --head), and is it this port? {USUAL_PORTS}",
        ) from error


def _knock(address: ClusterAddress) -> None:
    """Make one call that does nothing. Ray itself would try for half a minute before it says what is wrong."""
    try:
        import grpc
        from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled
    except ImportError:  # another Ray, which has no tokens or keeps them elsewhere: then it says so itself, later
        return
    shown = tuple((name.lower(), value) for name, value in get_auth_headers_if_auth_enabled({}).items())
    with grpc.insecure_channel(f"{address.host}:{address.port}") as channel:
        try:
            channel.unary_unary(_METHODS[address.entrance])(b"", timeout=CONNECT_S, metadata=shown)
        except grpc.RpcError as error:
            code = error.code()
            if code is grpc.StatusCode.UNAUTHENTICATED:
                why = "does not take the token of this command" if shown else "wants a token, and this command has none"
                raise ClusterError(f"The cluster at {address} {why}.", hint=TOKEN) from error
            if code is grpc.StatusCode.UNIMPLEMENTED:
                raise ClusterError(f"{address} is another port of Ray's.", hint=f"{USUAL_PORTS} {EXAMPLES}") from error
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise ClusterError(f"What listens at {address} does not answer as Ray does.", hint=EXAMPLES) from error

"""Courier: starts the processes that send, and says in the end what became of it. It waits, within reason."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence

import msgspec

from metalmark.store.place import store_path
from metalmark.track.destination import Destination
from metalmark.track.secret import without_user
from metalmark.track.spool import Delivery, Queue, clear_sent

PATIENCE_S = 10.0
"""How long the end of a run waits for its trackers; what needs longer goes on without it."""
DEFAULTS = {
    # Nothing is uploaded unasked: what these libraries tell their makers is not what the user tracks.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    # MLflow's own are minutes, and it is we who try again.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "GIT_PYTHON_REFRESH": "quiet",
    "PYTHONWARNINGS": "ignore",
}


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one queue at one destination."""

    queue: str
    delivery: Delivery
    going_on: bool
    """Its process still sends."""

    @property
    def text(self) -> str:
        """For the user, in one line; nothing of a run that never began."""
        to = self.delivery.destination
        if self.delivery.done:
            return f"{to.tracker}: {self.delivery.where}" if self.delivery.where else ""
        if self.going_on:
            why = f" ({self.delivery.trouble})" if self.delivery.trouble else ""
            return f"{to.tracker}: still sending{why}; `metalmark track list` shows how far it is."
        why = self.delivery.trouble or "its process ended early"
        return f"{to.tracker}: not sent ({why}). It waits in the queue; send it later: metalmark track sync"

    @property
    def brief(self) -> str:
        """For a record: a server's name is not in it."""
        how = "still being sent" if self.going_on else "not sent yet: metalmark track sync"
        return f"{self.delivery.destination.tracker}: {how}"


class Courier:
    def __init__(self, queues: Sequence[Queue], destinations: Iterable[Destination], *, uri: str = "",
                 once: bool = False) -> None:  # fmt: skip
        """`uri`: MLflow's as given, where it has a password. `once`: one try, even if a run is alive."""
        self._queues = list(queues)
        self._senders = {each.key: self._start(each, uri, once) for each in destinations} if queues else {}

    def _start(self, to: Destination, uri: str, once: bool) -> subprocess.Popen[bytes]:
        environment = {**DEFAULTS, **os.environ}
        # A W&B run of the user's own in this process is none of ours.
        environment.pop("WANDB_SERVICE", None)
        # Offline, a run's artifacts stay where W&B staged them: that is part of the run, so it lies beside it.
        environment.setdefault("WANDB_DATA_DIR", str(store_path().parent / "wandb" / "data"))
        if to.tracker == "mlflow":
            environment["MLFLOW_TRACKING_URI"] = uri or full_uri(to.place)
        folders = [str(queue.folder) for queue in self._queues]
        return subprocess.Popen(
            [sys.executable, "-m", "metalmark.track.sender", to.key, *folders, *(["--once"] if once else [])],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in the terminal, or whatever ends our group, must not cut off what is being sent.
            start_new_session=True,
        )

    def wait(self, patience_s: float | None = PATIENCE_S) -> list[Parcel]:
        deadline_s = None if patience_s is None else time.monotonic() + patience_s
        going_on = set()
        for key, process in self._senders.items():
            try:
                process.wait(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                going_on.add(key)
                # Somebody must hear of its end, or it stays in the system's table as long as we live.
                threading.Thread(target=process.wait, daemon=True, name=f"end-of-{key}").start()
        parcels = [
            Parcel(queue=queue.folder.name, delivery=delivery, going_on=key in going_on or queue.is_sent(key))
            for queue in self._queues
            for delivery in queue.deliveries()
            if (key := delivery.destination.key) in self._senders
        ]
        clear_sent()
        return parcels


def full_uri(place: str) -> str:
    """The URI to use for a place of the queue: the environment's own where it is that one, with its password."""
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    return given if given and without_user(given).rstrip("/") == place.rstrip("/") else place

"""Destination: which tracker, and where. Words of the command line are parsed here, once."""

from __future__ import annotations

import hashlib
import netrc
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from metalmark.errors import NotInstalledError, UsageError
from metalmark.runner.local import expanded
from metalmark.scrub import printable
from metalmark.store.place import store_path
from metalmark.track.secret import redact, without_user

WORDS = ("mlflow", "wandb")
PROJECT = "metalmark"
SERVERS = {"http", "https"}
DATABASES = {"sqlite", "postgresql", "mysql", "mssql"}
MODES = {"online": "online", "run": "online", "offline": "offline", "dryrun": "offline", "disabled": "disabled"}
DEFAULT_HOST = "https://api.wandb.ai"


class Destination(Struct, frozen=True, kw_only=True):
    """As it lies in the queue: nothing secret is in it."""

    tracker: str
    place: str
    """MLflow: the tracking URI without user and password. W&B: online or offline."""
    project: str = PROJECT
    """MLflow calls it experiment."""
    entity: str = ""
    """W&B's; of MLflow, the experiment's number where that was given."""
    folder: str = ""
    """Where W&B writes its files."""

    @property
    def key(self) -> str:
        text = "\0".join((self.place, self.project, self.entity))
        return f"{self.tracker}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def __str__(self) -> str:
        return f"{self.tracker} ({self.place})"


class Wish(Struct, frozen=True, kw_only=True):
    """What `--track` asked for."""

    destinations: tuple[Destination, ...] = ()
    notes: tuple[str, ...] = ()
    uri: str = ""
    """As it was given, with its password: handed to the sending process by its environment, and kept nowhere."""


NOTHING = Wish()


def parse(text: str, environment: Mapping[str, str] | None = None) -> Wish:
    """`mlflow`, `mlflow=URI`, `wandb`, `wandb=online|offline|disabled`, or several by commas."""
    variables = os.environ if environment is None else environment
    found: list[Destination] = []
    notes: list[str] = []
    given_uri = ""
    for piece in (piece.strip() for piece in text.split(",")):
        word, sign, place = piece.partition("=")
        if word not in WORDS or (sign and not place):
            raise UsageError(
                f"There is no tracker {printable(redact(piece))!r}.",
                hint="Write mlflow, mlflow=URI, wandb, wandb=offline, or several: --track mlflow,wandb",
            )
        if find_spec(word) is None:
            raise NotInstalledError(
                f"Tracking with {word} needs the package {word}, which this Python does not have.",
                hint=f"pip install 'metalmark[{word}]'",
            )
        if word == "mlflow":
            uri = place or variables.get("MLFLOW_TRACKING_URI", "") or default_uri()
            destination = _mlflow(uri, variables)
            if destination.place != uri:
                given_uri = uri
            found.append(destination)
        else:
            mode, note = _mode(place, variables)
            notes += [note] if note else []
            if mode != "disabled":
                found.append(_wandb(mode, variables))
    return Wish(destinations=tuple(dict.fromkeys(found)), notes=tuple(notes), uri=given_uri)


def default_uri() -> str:
    return f"sqlite:///{store_path().parent.resolve() / 'mlflow.sqlite3'}"


def database_file(uri: str) -> Path | None:
    """The file of a SQLite URI."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def _mlflow(uri: str, variables: Mapping[str, str]) -> Destination:
    try:
        parts = urlsplit(uri)
        scheme, host, _ = parts.scheme.partition("+")[0], parts.hostname, parts.port
    except ValueError:
        scheme, host = "", None
    shown = printable(without_user(uri) if scheme else redact(uri))
    hint = "For example http://127.0.0.1:5000 or sqlite:////home/me/mlflow.db; without one, a file of Metalmark's."
    if scheme == "file" or (not scheme and (uri.startswith((".", "/", "~")))):
        raise UsageError(
            f"MLflow no longer keeps runs in a plain folder ({shown}).",
            hint=f"Give it a database file: --track mlflow=sqlite:///{shown.removeprefix('file://')}/mlflow.db",
        )
    if scheme in SERVERS and not host:
        raise UsageError(f"{shown!r} names no server.", hint=hint)
    if scheme == "sqlite" and (database_file(uri) is None or not database_file(uri) or uri == "sqlite:///"):
        raise UsageError(f"{shown!r} names no file.", hint=hint)
    if scheme not in SERVERS | DATABASES | {"databricks"} and uri != "databricks":
        raise UsageError(f"{shown!r} is no place that MLflow can keep runs in.", hint=hint)
    return Destination(
        tracker="mlflow",
        place=without_user(uri).rstrip("/") if scheme in SERVERS else without_user(uri),
        project=variables.get("MLFLOW_EXPERIMENT_NAME") or PROJECT,
        entity=variables.get("MLFLOW_EXPERIMENT_ID", ""),
    )


def _mode(given: str, variables: Mapping[str, str]) -> tuple[str, str]:
    """Online only where it can be: W&B would ask for a key in a process that nobody looks at."""
    word = given or variables.get("WANDB_MODE", "")
    if word and word not in MODES:
        source = f"--track wandb={word}" if given else f"WANDB_MODE={word}"
        raise UsageError(f"{printable(source)} is no mode of W&B.", hint="There are: online, offline, disabled.")
    mode = MODES.get(word, "")
    if mode in ("offline", "disabled"):
        return mode, ""
    if has_key(variables):
        return "online", ""
    if mode == "online":
        raise UsageError(
            "W&B online needs an API key, and there is none.",
            hint="Log in once with `wandb login`, set WANDB_API_KEY, or take --track wandb=offline.",
        )
    return "offline", "wandb: no API key was found, so this run is kept offline."


def has_key(variables: Mapping[str, str]) -> bool:
    if variables.get("WANDB_API_KEY") or variables.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(variables.get("WANDB_BASE_URL") or DEFAULT_HOST).netloc
    try:
        return netrc.netrc(variables.get("NETRC") or None).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _wandb(mode: str, variables: Mapping[str, str]) -> Destination:
    return Destination(
        tracker="wandb",
        place=mode,
        project=variables.get("WANDB_PROJECT") or PROJECT,
        entity=variables.get("WANDB_ENTITY", ""),
        folder=str(expanded(variables.get("WANDB_DIR") or str(store_path().parent)).resolve()),
    )

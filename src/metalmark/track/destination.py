"""Destination: which tracker, where it is, and what it may be told.

The text after --track is parsed here, once. Passwords, keys and tokens are kept out of the queue and off the screen.
"""

import hashlib
import netrc
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from metalmark.errors import NotInstalledError, UsageError
from metalmark.runner.values import expanded
from metalmark.scrub import printable
from metalmark.store.address import local_folder, store_address

TRACKERS = ("mlflow", "wandb")
PROJECT = "metalmark"
SERVERS = {"http", "https"}
DATABASES = {"sqlite", "postgresql", "mysql", "mssql"}
MODES = {"online": "online", "run": "online", "offline": "offline", "dryrun": "offline", "disabled": "disabled"}
DEFAULT_HOST = "https://api.wandb.ai"
SECRET_VARIABLES = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "WANDB_API_KEY", "DATABRICKS_TOKEN")
LONGEST_NAME = 200
_USER = re.compile(r"(?<=://)[^/@\s'\"]+@")
_UNFIT = re.compile(r"[^\w.\- :/]", re.ASCII)


class Destination(Struct, frozen=True, kw_only=True):
    """One tracker and where it keeps runs, as the queue stores it: nothing in it is secret."""

    tracker: str
    place: str
    """For MLflow the tracking URI without user and password; for W&B "online" or "offline"."""
    project: str = PROJECT
    """MLflow calls it the experiment."""
    entity: str = ""
    """W&B's entity; for MLflow the experiment's id, where that was given."""
    folder: str = ""
    """Where W&B writes its files."""

    @property
    def key(self) -> str:
        text = "\0".join((self.place, self.project, self.entity))
        return f"{self.tracker}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def __str__(self) -> str:
        return f"{self.tracker} ({self.place})"


class TrackTargets(Struct, frozen=True, kw_only=True):
    """What the text after --track asks for."""

    destinations: tuple[Destination, ...] = ()
    notes: tuple[str, ...] = ()
    uri: str = ""
    """MLflow's URI as given, with its password: the sending process gets it by its environment, and no file has it."""


def parse_track(text: str, environment: Mapping[str, str] | None = None) -> TrackTargets:
    """Parse `mlflow`, `mlflow=URI`, `wandb`, `wandb=online|offline|disabled`, or several separated by commas."""
    variables = os.environ if environment is None else environment
    destinations: list[Destination] = []
    notes: list[str] = []
    given_uri = ""
    for piece in (piece.strip() for piece in text.split(",")):
        tracker, sign, place = piece.partition("=")
        if tracker not in TRACKERS or (sign and not place):
            raise UsageError(
                f"There is no tracker {printable(redact(piece))!r}.",
                hint="Write mlflow, mlflow=URI, wandb, wandb=offline, or several: --track mlflow,wandb",
            )
        if find_spec(tracker) is None:
            raise NotInstalledError(
                f"Tracking with {tracker} needs the package {tracker}, which this Python does not have.",
                hint=f"pip install 'metalmark[{tracker}]'",
            )
        if tracker == "mlflow":
            usual = f"sqlite:///{local_folder(store_address()).resolve() / 'mlflow.sqlite3'}"
            uri = place or variables.get("MLFLOW_TRACKING_URI", "") or usual
            destinations.append(_mlflow(uri, variables))
            if destinations[-1].place != uri:
                given_uri = uri
        else:
            mode, note = _wandb_mode(place, variables)
            notes += [note] if note else []
            if mode != "disabled":
                project, entity = variables.get("WANDB_PROJECT") or PROJECT, variables.get("WANDB_ENTITY", "")
                folder = str(expanded(variables.get("WANDB_DIR") or str(local_folder(store_address()))).resolve())
                destinations.append(
                    Destination(tracker="wandb", place=mode, project=project, entity=entity, folder=folder)
                )
    return TrackTargets(destinations=tuple(dict.fromkeys(destinations)), notes=tuple(notes), uri=given_uri)


def full_uri(place: str) -> str:
    """Return MLFLOW_TRACKING_URI, with its password, where it means that place; else the place itself."""
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    return given if given and without_user(given).rstrip("/") == place.rstrip("/") else place


def database_file(uri: str) -> Path | None:
    """Return the file of a SQLite URI."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def without_user(uri: str) -> str:
    """Cut off `user:password@`, and what follows a question mark, since tokens are passed there."""
    scheme, netloc, path, _, _ = urlsplit(uri)
    return urlunsplit((scheme, netloc.rpartition("@")[2], path, "", "")) if netloc else uri.partition("?")[0]


def redact(text: str) -> str:
    """Remove the secrets that a library may have repeated in its message."""
    for secret in (os.environ.get(name, "") for name in SECRET_VARIABLES):
        text = text.replace(secret, "***") if len(secret) >= 4 else text
    return _USER.sub("", text)


def fit_name(name: str) -> str:
    """Return a name that every tracker accepts; where letters had to go, part of a digest keeps two names apart."""
    parts = [part for part in _UNFIT.sub("_", name).split("/") if part.strip(". ")]
    fitting = "/".join(parts).strip(" /") or "unnamed"
    if fitting[0] == "_":  # W&B keeps those for itself
        fitting = f"x{fitting}"
    if fitting == name and len(name) <= LONGEST_NAME:
        return name
    return f"{fitting[: LONGEST_NAME - 7]}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:6]}"


def fit_text(text: str, longest: int) -> str:
    plain = printable(text).encode(errors="replace").decode()
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"


def _mlflow(uri: str, variables: Mapping[str, str]) -> Destination:
    try:
        parts = urlsplit(uri)
        scheme, host, _ = parts.scheme.partition("+")[0], parts.hostname, parts.port
    except ValueError:
        scheme, host = "", None
    shown = printable(without_user(uri) if scheme else redact(uri))
    hint = "For example http://127.0.0.1:5000 or sqlite:////home/me/mlflow.db. Without a URI, Metalmark keeps a file."
    if scheme == "file" or (not scheme and (uri.startswith((".", "/", "~")))):
        raise UsageError(
            f"MLflow no longer keeps runs in a plain folder ({shown}).",
            hint=f"Give it a database file: --track mlflow=sqlite:///{shown.removeprefix('file://')}/mlflow.db",
        )
    if scheme in SERVERS and not host:
        raise UsageError(f"{shown!r} names no server.", hint=hint)
    if scheme == "sqlite" and (database_file(uri) is None or uri == "sqlite:///"):
        raise UsageError(f"{shown!r} names no file.", hint=hint)
    if scheme not in SERVERS | DATABASES | {"databricks"} and uri != "databricks":
        raise UsageError(f"MLflow cannot keep runs in {shown!r}.", hint=hint)
    place = without_user(uri).rstrip("/") if scheme in SERVERS else without_user(uri)
    project, entity = variables.get("MLFLOW_EXPERIMENT_NAME") or PROJECT, variables.get("MLFLOW_EXPERIMENT_ID", "")
    return Destination(tracker="mlflow", place=place, project=project, entity=entity)


def _wandb_mode(given: str, variables: Mapping[str, str]) -> tuple[str, str]:
    """Return the mode and a note. Online only with a key: W&B would ask for one in a process that nobody looks at."""
    asked = given or variables.get("WANDB_MODE", "")
    if asked and asked not in MODES:
        source = f"--track wandb={asked}" if given else f"WANDB_MODE={asked}"
        raise UsageError(f"{printable(source)} is not a mode of W&B.", hint="There are: online, offline, disabled.")
    mode = MODES.get(asked, "")
    if mode in ("offline", "disabled"):
        return mode, ""
    if _has_key(variables):
        return "online", ""
    if mode == "online":
        raise UsageError(
            "W&B online needs an API key, and there is none.",
            hint="Log in once with `wandb login`, set WANDB_API_KEY, or take --track wandb=offline.",
        )
    return "offline", "wandb: no API key was found, so this run is kept offline."


def _has_key(variables: Mapping[str, str]) -> bool:
    if variables.get("WANDB_API_KEY") or variables.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(variables.get("WANDB_BASE_URL") or DEFAULT_HOST).netloc
    try:
        return netrc.netrc(variables.get("NETRC") or None).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False

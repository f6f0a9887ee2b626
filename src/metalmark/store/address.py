"""The address of a store: a file on this machine, or a database on a server that a team shares."""

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode

from msgspec import Struct

from metalmark.errors import StoreError, UsageError

VARIABLE = "METALMARK_STORE"
NO_HOME = f"Name a file by its whole path, with --store FILE or {VARIABLE}."
SERVER = re.compile(r"(postgres|postgresql)://", re.IGNORECASE)
ANY_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
SECRET = ("password", "sslpassword")
"""Parameters of PostgreSQL that must not be shown."""
EXAMPLE = "For example: --store postgresql://me@db.example.org/metalmark"
MOST_SHOWN = 200


class ServerAddress(Struct, frozen=True):
    """A PostgreSQL database. `url` holds no password, and is what is shown; nothing prints `secrets`."""

    url: str
    secrets: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"ServerAddress({self.url!r})"

    def hidden(self, text: str) -> str:
        """Return a text of others without the passwords of this address."""
        for _, secret in self.secrets:
            for form in {secret, quote(secret, safe=""), quote(secret)} - {""}:
                text = text.replace(form, "***")
        return text


Address = Path | ServerAddress
"""A file is known by its path."""
StoreChoice = str | os.PathLike[str] | ServerAddress | None
"""What a user may give for a store; None for the usual one."""


def store_address(chosen: StoreChoice = None) -> Address:
    """Return where the store is: --store, METALMARK_STORE, or a file under the user's data folder."""
    given = chosen or os.environ.get(VARIABLE)
    if isinstance(given, ServerAddress):
        return given
    if isinstance(given, str) and ANY_SCHEME.match(given):
        return parse_server(given)
    try:
        if given:
            return Path(given).expanduser()
        return data_folder() / "records.sqlite3"
    except RuntimeError as error:
        what = f"The store {given} can't be found" if given else "There is no place for the store"
        raise StoreError(f"{what}: this user's home folder is not known.", hint=NO_HOME) from error


def data_folder() -> Path:
    """Return the folder of this user's data. RuntimeError: it is not known."""
    import platformdirs

    # An older platformdirs leaves the ~ in, and a folder of that name is nobody's wish.
    return Path(platformdirs.user_data_dir("metalmark", appauthor=False)).expanduser()


def parse_server(text: str) -> ServerAddress:
    """Read an address as PostgreSQL's own tools do, and part it from its passwords. What is refused is not shown: a
    password may stand in it."""
    if not SERVER.match(text):
        scheme = text.partition("://")[0][:20]
        raise UsageError(f"A store is a file or a postgresql:// address, not {scheme}://.", hint=EXAMPLE)
    rest = text.partition("://")[2]
    place, mark, query = rest.partition("?")
    hosts, stroke, database = place.partition("/")
    user, sign, hosts = hosts.rpartition("@")
    if "@" in database or "@" in query or "#" in rest or not rest.isprintable() or " " in rest:
        raise UsageError(
            "The address of the store can't be read: it has a character that stands for something else.",
            hint="Write / @ ? # % and spaces of a user, password or name by their codes: %2F %40 %3F %23 %25 %20.",
        )
    user, _, password = user.partition(":")
    pairs = parse_qsl(query, keep_blank_values=True)
    secrets = [("password", unquote(password))] if password else []
    secrets += [pair for pair in pairs if pair[0] in SECRET and pair[1]]
    shown = urlencode([pair for pair in pairs if pair[0] not in SECRET], quote_via=quote, safe="/,=-")
    url = f"postgresql://{user}{sign}{hosts}{stroke}{database}{mark if shown else ''}{shown}"
    return ServerAddress(url, tuple(dict(secrets).items()))


def local_folder(address: Address) -> Path:
    """Return the folder on this machine for what lies beside a store: checkpoints, what waits for trackers, what runs
    now. A server has one for each address, whatever its password."""
    if isinstance(address, Path):
        return address.parent
    words = re.sub(r"[^A-Za-z0-9]+", "-", address.url.partition("@")[2] or address.url.partition("://")[2]).strip("-")
    digest = hashlib.sha256(address.url.encode(errors="surrogateescape")).hexdigest()[:10]
    try:
        return data_folder() / "servers" / f"{words[:40]}-{digest}"
    except RuntimeError as error:
        raise StoreError(
            "There is no place on this machine for what belongs to the store: this user's home folder is not known.",
            hint="Set HOME.",
        ) from error


def live_folder(address: Address) -> Path:
    """Return the folder of live files, which is beside a store's file as SQLite's own helper files are."""
    if isinstance(address, Path):
        return address.with_name(f"{address.name}-live")
    return local_folder(address) / "live"


def spool_file(address: ServerAddress) -> Path:
    """Return the store on this machine for runs that a server did not take."""
    return local_folder(address) / "unsent.sqlite3"

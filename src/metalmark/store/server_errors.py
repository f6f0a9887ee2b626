"""What went wrong with a PostgreSQL server, as a sentence and what to do next."""

import re
from typing import Any

from metalmark.errors import ServerError
from metalmark.store.address import ServerAddress

HERE_INSTEAD = "Measure into a file meanwhile with --store FILE, and send it later: metalmark runs sync --store FILE"
RUNNING = "Check its host and port, and that PostgreSQL runs there."
PASSWORD = (
    "Put it into ~/.pgpass (a line host:port:database:user:password, chmod 600) or into PGPASSWORD, or write it in the "
    "address after the user: postgresql://user:password@host/database"
)
LOST = ("57P01", "57P02", "57P03", "08000", "08003", "08006", "25P03")
"""The server stops, starts, or has given up on the connection."""
AGAIN = ("40001", "40P01", "53300")
"""Two writers were in each other's way, or there are too many connections at the moment."""

CONNECTING: tuple[tuple[str, str, str, bool], ...] = (
    (r"password authentication failed|authentication failed", "the password is wrong, or there is no such user",
     PASSWORD, False),
    (r"no password supplied", "it asks for a password", PASSWORD, False),
    (r'database "(.*)" does not exist', "there is no database {0}", "Make it on the server: createdb {0}", False),
    (r'role "(.*)" does not exist', "there is no user {0}", "Make it on the server: createuser {0}", False),
    (r"no pg_hba.conf entry", "the server does not let this user in from this machine",
     "Whoever runs the server adds a line to its pg_hba.conf.", False),
    (r"permission denied for database", "this user may not connect to it",
     "Whoever owns the database types: GRANT CONNECT ON DATABASE ... TO ...;", False),
    (r"refused|No such file or directory", "nothing listens there", RUNNING, True),
    (r"translate host name|resolve host|not known|nodename nor servname|getaddrinfo", "there is no such host",
     "Check the address.", True),
    (r"timeout expired|timed out", "it did not answer within {wait:g} s", RUNNING, True),
    (r"starting up|shutting down|recovery mode|not yet accepting", "the server is starting or stopping",
     "Try again in a moment.", True),
    (r"too many clients|connection slots", "it has as many connections as it takes", "Try again in a moment.", True),
    (r"unreachable|No route to host", "there is no way to that host", "Check the network.", True),
    (r"SSL|certificate", "no safe connection could be made: {text}", "See sslmode in PostgreSQL's manual.", False),
    (r"invalid|missing \"=\"|URI", "its address can't be read: {text}",
     "For example: --store postgresql://me@db.example.org/metalmark", False),
)  # fmt: skip
"""What libpq says when it can't connect; it gives no code then."""

STATED: dict[str, tuple[str, str]] = {
    "55P03": ("another process has held it locked for {wait:g} s", "Try again in a moment."),
    "53100": ("the server's disk is full", "Free some space there; what was stored before is safe."),
    "25006": ("it is read-only: a standby, or a database that was set so", "Name the server that takes writes."),
    "42P01": ("it holds other tables than a store's", "Make a database for Metalmark: createdb metalmark"),
    "42703": ("it holds other tables than a store's", "Make a database for Metalmark: createdb metalmark"),
    "42P07": ("it holds tables of another program", "Make a database for Metalmark: createdb metalmark"),
    "54000": ("a name is longer than the server takes", ""),
}


def explain(
    error: BaseException | None, address: ServerAddress, *, wait_s: float, connecting: bool, lost: bool
) -> ServerError:
    """Return what to raise for what the driver raised. `connecting`: there was no connection yet; `lost`: there is none
    now."""
    code = str(getattr(error, "sqlstate", None) or "")
    lines = str(error).strip().splitlines() or ["it gave no reason"]
    # Of several hosts or addresses, the last line is of the last one that was tried.
    text = address.hidden(lines[-1] if connecting else lines[0]).rstrip(".")
    if code == "42501":
        why, hint = _rights(text, error, address)
        return ServerError(f"The store {address} can't be used: {why}.", hint=hint)
    passing = lost or code in LOST or code in AGAIN
    why, hint = STATED.get(code, (text, ""))
    why = why.format(wait=wait_s)
    if lost and not code:
        why, hint = f"{'it gave no connection' if connecting else 'the connection was lost'} ({text})", RUNNING
        for pattern, known, next_step, is_passing in CONNECTING if connecting else ():
            found = re.search(pattern, str(error), re.IGNORECASE)
            if found:
                named = tuple(address.hidden(one) for one in found.groups())
                why = known.format(*named, wait=wait_s, text=text)
                hint, passing = next_step.format(*named), is_passing
                break
    if passing:
        hint = f"{hint} {HERE_INSTEAD} {address}".strip()
    return ServerError(f"The store {address} can't be used: {why}.", hint=hint, passing=passing)


def _rights(text: str, error: Any, address: ServerAddress) -> tuple[str, str]:
    """Say which right is missing, and how it is given."""
    found = re.search(r"for (schema|table|relation|database) (\S+)", text)
    kind, name = found.groups() if found else ("", "")
    user = _user(error, address)
    if kind == "schema":
        return (
            f"this user may not make tables in the schema {name}, and there are none of Metalmark yet",
            f"Whoever owns the database types: GRANT USAGE, CREATE ON SCHEMA {name} TO {user};",
        )
    if kind in ("table", "relation"):
        return (
            f"this user has not all rights to the table {name}",
            "Whoever made the tables types, for one who writes: "
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON runs, sweeps, names, metalmark TO {user};\n"
            f"For one who reads: GRANT SELECT ON runs, sweeps, names, metalmark TO {user};",
        )
    return text, f"Whoever owns the database gives the rights to {user} with GRANT."


def _user(error: Any, address: ServerAddress) -> str:
    connection = getattr(error, "pgconn", None)
    user = getattr(connection, "user", b"") or b""
    given = address.url.partition("://")[2].rpartition("@")[0]
    return str(user.decode(errors="replace")) or given or "you"

"""The parent's side of a worker that is several processes: how they are started, where they meet, which of them failed.

Each of them, a rank, leaves a RankReport in the worker's folder when it ends; the first writes the outcome besides, and
the first of each machine tells the progress through a named pipe, since launchers pass on no open files.
"""

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import FormatError, UsageError
from metalmark.machine import cpu
from metalmark.machine.cgroup import limits
from metalmark.model.codec import read_json
from metalmark.model.plan import Plan, World
from metalmark.model.run import Failed, FailureKind
from metalmark.runner.ask import signal_name, tail
from metalmark.runner.events import RANKS_FOLDER, RankExits, RankReport, rank_report_path

LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
PROGRESS, EXITS = "progress", "exits.json"
RETRY_S, CONNECT_S = 0.5, 3.0
MOST_OUTPUT_BYTES = 1 << 20
KILLED_HINT = "SIGKILL from outside is most often the system's out-of-memory killer: try a smaller --batch-size."

# In the summary that torchrun prints when one has failed: "rank      : 1 (local_rank: 1)", "exitcode  : -9 (pid: 7)".
_TORCHRUN_EXIT = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+) \(pid: \d+\)")
_NOBODY_CAME = re.compile(r"(\d+)/(\d+) clients joined")


class Meeting(Struct, frozen=True, kw_only=True):
    """Where the ranks of several machines meet, and which of the machines this is. It is never stored."""

    host: str
    port: int
    node_rank: int = 0
    timeout_s: float = 120.0

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def meeting_here() -> Meeting:
    """Return a place for ranks that are all on this machine: a port of the loopback interface that is free now."""
    return Meeting(host=LOOPBACK, port=free_port())


def free_port() -> int:
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return int(found.getsockname()[1])


def await_meeting(meeting: Meeting) -> None:
    """Refuse an address that this machine can't listen at, if it is the first, or where nobody listens in time."""
    if meeting.node_rank == 0:
        _require_free(meeting)
        return
    until_s = time.monotonic() + meeting.timeout_s
    while True:
        try:
            with socket.create_connection((meeting.host, meeting.port), timeout=CONNECT_S):
                return
        except socket.gaierror as error:
            raise _unknown(meeting) from error
        except OSError as error:
            if time.monotonic() + RETRY_S > until_s:
                raise UsageError(
                    f"Nothing listens at --rdzv {meeting.address}: {error.strerror or 'no answer'}, for "
                    f"{meeting.timeout_s:g} s.",
                    hint="Start the same command with --node-rank 0 on that machine, and check address, port and "
                    "firewall; --rdzv-timeout waits longer.",
                ) from error
        time.sleep(RETRY_S)


def _require_free(meeting: Meeting) -> None:
    try:
        family, kind, _, _, address = socket.getaddrinfo(meeting.host, meeting.port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise _unknown(meeting) from error
    with socket.socket(family, kind) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(address)
        except OSError as error:
            raise UsageError(
                f"--rdzv {meeting.address}: this machine can't listen there: {error.strerror}.",
                hint="--node-rank 0 is for the machine whose address it is; and the port must be free.",
            ) from error


def _unknown(meeting: Meeting) -> UsageError:
    return UsageError(
        f"--rdzv {meeting.address}: no machine of that name is known here.", hint="Write an address: 192.0.2.7:29500"
    )


def torchrun_command(world: World, meeting: Meeting, module: Sequence[str]) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run",
        f"--nproc-per-node={world.nproc}", f"--nnodes={world.nnodes}", f"--node-rank={meeting.node_rank}",
        "--rdzv-backend=static", f"--rdzv-endpoint={meeting.address}",
        f"--rdzv-conf=timeout={max(1, round(meeting.timeout_s))}", "--max-restarts=0", "-m", *module,
    ]  # fmt: skip


def ranks_command(world: World, meeting: Meeting, module: Sequence[str]) -> list[str]:
    where = [str(world.nproc), str(world.nnodes), str(meeting.node_rank), meeting.host, str(meeting.port)]
    return [sys.executable, "-m", "metalmark.runner.ranks", *where, *module]


LAUNCHERS: dict[str, Callable[[World, Meeting, Sequence[str]], list[str]]] = {
    "torchrun": torchrun_command,
    "ranks": ranks_command,
}
"""By the names that `frameworks.toml` has for them."""


def rank_variables(plan: Plan, folder: Path) -> dict[str, str]:
    """Return what the environment of every rank has, besides what its launcher adds."""
    assert isinstance(plan.world, World)
    threads = plan.settings.threads or cpu.cores_each(limits(), plan.world.nproc)
    variables = {RANKS_FOLDER: str(folder), "OMP_NUM_THREADS": str(threads)}
    framework = FRAMEWORKS[plan.framework]
    if framework.threads_variable:
        variables[framework.threads_variable] = str(threads)
    if plan.world.nnodes == 1:
        # Otherwise Gloo looks this machine's name up, which on many Macs has no address.
        variables["GLOO_SOCKET_IFNAME"] = LOOPBACK_INTERFACE
    return variables


class WorkerStart(NamedTuple):
    """How a worker is started, be it one process or several: what to run, and the pipe that its progress comes by."""

    command: list[str]
    progress: int
    """The end that is read here."""
    other_end: int
    inherited: bool
    """Whether the worker gets the other end as an open file, to be closed here. Launchers pass on no open files: ranks
    open the pipe by its name, and the other end keeps it open here while none of them has it."""
    variables: dict[str, str]


def start_alone(module: Sequence[str]) -> WorkerStart:
    reading, writing = os.pipe()
    return WorkerStart([sys.executable, "-m", *module], reading, writing, inherited=True, variables={})


def start_ranks(plan: Plan, meeting: Meeting | None, module: Sequence[str], folder: Path) -> WorkerStart:
    assert isinstance(plan.world, World)
    path = folder / PROGRESS
    os.mkfifo(path, 0o600)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    command = LAUNCHERS[FRAMEWORKS[plan.framework].launcher](plan.world, meeting or meeting_here(), module)
    variables = rank_variables(plan, folder)
    return WorkerStart(command, reading, os.open(path, os.O_WRONLY), inherited=False, variables=variables)


def first_failure(plan: Plan, folder: Path, output: Path, otherwise: Failed, *, oom_killed: bool = False) -> Failed:
    """Return the failure of the rank that failed first. Those of the others follow from it: a rank that waits for one
    that is gone says only that the connection was closed. `otherwise`: where no rank left a trace. `oom_killed`: the
    system says that it killed a process for want of memory."""
    reports = {report.number: report for report in _reports(folder)}
    exits = _exits(folder, output)
    # A rank without a report that was not ended by its launcher ended on the spot: nothing happened before it did.
    silent = [(number, code) for number, code in exits if number not in reports and code not in (0, -signal.SIGTERM)]
    if silent:
        return _ended(*silent[0], plan, output, oom_killed=oom_killed)
    failed = sorted((one for one in reports.values() if one.failure is not None), key=lambda report: report.at_s)
    if not failed:
        return _nobody_came(output) or otherwise
    first = failed[0].failure
    assert first is not None
    everywhere = len(failed) == plan.processes and len({one.failure.message for one in failed if one.failure}) == 1
    return first if everywhere else replace(first, message=f"Rank {failed[0].number} failed: {first.message}")


def _ended(number: int, code: int, plan: Plan, output: Path, *, oom_killed: bool) -> Failed:
    detail = tail(output)
    oom_killed = oom_killed and code == -signal.SIGKILL
    how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code} and no word"
    return Failed(
        kind=FailureKind.OUT_OF_MEMORY if oom_killed else FailureKind.CRASHED,
        message=f"Rank {number} of {plan.processes} {how}; the others were stopped.",
        hint=KILLED_HINT if code == -signal.SIGKILL else "",
        signal=signal_name(-code) if code < 0 else None,
        detail=detail,
    )


def _nobody_came(output: Path) -> Failed | None:
    found = _NOBODY_CAME.search(tail(output, MOST_OUTPUT_BYTES))
    if found is None:
        return None
    return Failed(
        kind=FailureKind.TIMED_OUT,
        message=f"Only {found[1]} of {found[2]} machines came to the meeting.",
        hint="Start the same command with --node-rank 1, 2 ... on the others; --rdzv-timeout waits longer.",
    )


def _reports(folder: Path) -> list[RankReport]:
    found = []
    for path in sorted(folder.glob(rank_report_path(folder, "*").name)):
        try:
            found.append(read_json(path.read_bytes(), RankReport, source=path.name))
        except (FormatError, OSError):
            continue  # killed while it wrote: it is one that left no report
    return found


def _exits(folder: Path, output: Path) -> list[tuple[int, int]]:
    """Return the ranks that have ended and their exit codes, the first one first as far as that is known."""
    path = folder / EXITS
    try:
        return list(read_json(path.read_bytes(), RankExits, source=EXITS).exits)
    except (FormatError, OSError):
        printed = tail(output, MOST_OUTPUT_BYTES)
        return [(int(rank), int(code)) for rank, code in _TORCHRUN_EXIT.findall(printed)]

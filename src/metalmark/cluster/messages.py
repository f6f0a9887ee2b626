"""What passes between the command and the agent on a node: jobs there, replies back, one line of JSON each."""

import msgspec
from msgspec import Struct

from metalmark.backends.base import Probe
from metalmark.doctor.check import Finding
from metalmark.doctor.scene import Scene
from metalmark.model.codec import read_json
from metalmark.model.plan import Plan, Sweep
from metalmark.model.run import Machine
from metalmark.model.tuning import TuningRequest
from metalmark.parity.job import Options
from metalmark.runner.ask import NoAnswer
from metalmark.runner.events import Paused, Progress, Started, TuningProgress


class Hello(Struct, frozen=True, kw_only=True):
    """The first line of an agent. It stays as it is, so that any two versions understand it."""

    metalmark: str
    python: str


class LookJob(Struct, frozen=True, kw_only=True, tag="look"):
    """Say what the node is, and which of these frameworks and devices it has."""

    frameworks: tuple[str, ...] = ()
    probed: tuple[str, ...] = ()
    """Those of which the devices are asked for too, each in a process of its own."""


class FileJob(Struct, frozen=True, kw_only=True, tag="file"):
    """Keep a file of the user's own, until the agent ends."""

    label: str
    """What plans call it."""
    name: str
    digest: str
    data: bytes


class BenchJob(Struct, frozen=True, kw_only=True, tag="bench"):
    """Measure one repeat of a cell."""

    sweep: Sweep
    """Without its plans."""
    plan: Plan
    cell: int
    repeat: int


class ParityJob(Struct, frozen=True, kw_only=True, tag="parity"):
    """Check whether a plan trains the same network as its reference."""

    sweep: Sweep
    plan: Plan
    reference: Plan
    cell: int
    options: Options
    diagnosed: bool


class TuneJob(Struct, frozen=True, kw_only=True, tag="tune"):
    """Search for the fastest settings of a plan: all trials of it."""

    sweep: Sweep
    plan: Plan
    cell: int
    request: TuningRequest
    known: tuple[msgspec.Raw, ...] = ()
    """Runs of the same search, before it was stopped."""


class DoctorJob(Struct, frozen=True, kw_only=True, tag="doctor"):
    """Examine the node."""

    only: tuple[str, ...] = ()


NodeJob = LookJob | FileJob | BenchJob | ParityJob | TuneJob | DoctorJob


class SeenReply(Struct, frozen=True, kw_only=True, tag="seen"):
    machine: Machine
    installed: tuple[str, ...] = ()
    probes: dict[str, Probe | NoAnswer] = {}


class EventReply(Struct, frozen=True, kw_only=True, tag="event"):
    """One of the four."""

    started: Started | None = None
    paused: Paused | None = None
    progress: Progress | None = None
    tuning: TuningProgress | None = None


class RunReply(Struct, frozen=True, kw_only=True, tag="run"):
    """A run that has ended, or one that is further on than when it came before (`replaces`)."""

    run: msgspec.Raw
    replaces: bool = False


class SaidReply(Struct, frozen=True, kw_only=True, tag="said"):
    text: str


class DoctorReply(Struct, frozen=True, kw_only=True, tag="doctor"):
    scene: Scene
    findings: tuple[Finding, ...]


class DoneReply(Struct, frozen=True, kw_only=True, tag="done"):
    """The last reply to every job but a file, which has none."""

    complete: bool = True
    """False: it was stopped."""
    failure: str = ""
    """Why the job could not be done at all."""


NodeReply = SeenReply | EventReply | RunReply | SaidReply | DoctorReply | DoneReply


def encode_line(message: Struct) -> bytes:
    return msgspec.json.encode(message)


def decode_job(line: bytes) -> NodeJob:
    return read_json(line, NodeJob, source="a job for this node")  # type: ignore[arg-type]


def decode_reply(line: bytes) -> NodeReply:
    return read_json(line, NodeReply, source="a reply of a node")  # type: ignore[arg-type]

"""Cluster: the nodes that Ray knows, a host on each, and the loop that lets them do what a Scheduler says.

A host holds all CPUs and GPUs that Ray has on its node, so that no other work of the cluster runs beside a measurement,
and two commands take turns. A node without CPUs for Ray (`ray start --num-cpus 0`) is left alone.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import metalmark
from metalmark.cluster.address import ClusterAddress, connect
from metalmark.cluster.host import NodeHost
from metalmark.cluster.messages import (
    DoneReply,
    FileJob,
    Hello,
    LookJob,
    NodeJob,
    NodeReply,
    SeenReply,
    decode_reply,
    encode_line,
)
from metalmark.cluster.scheduler import CellRepeat, Scheduler
from metalmark.errors import ClusterError, FormatError
from metalmark.model.codec import read_json
from metalmark.model.run import Machine
from metalmark.results.machine_titles import short_title
from metalmark.scrub import printable, scrub

POLL_S = 2.0
STEP_S = 0.5
PATIENCE_S = 30.0
"""How long a node may take to begin; other work of the cluster may hold it."""
SAY_AFTER_S = 5.0
REFRESH_S = 3.0
STOP_S = 10.0
AGENT = "metalmark.app.node"

Say = Callable[[str], None]
Take = Callable[["ClusterNode", CellRepeat, NodeReply], None]
"""It is told each reply to a job."""


@dataclass(kw_only=True)
class ClusterNode:
    id: str
    number: int
    host: Any
    greeted: bool = False
    seen: SeenReply | None = None
    ready: bool = False
    failed: bool = False
    """Whether the job that it does now brought a run that failed."""

    @property
    def machine(self) -> Machine:
        assert self.seen is not None
        return self.seen.machine

    @property
    def title(self) -> str:
        """What it is called in a progress line: a number and a chip, since the names of hosts are personal."""
        return f"node {self.number} ({short_title(self.machine)})" if self.seen else f"node {self.number}"


class Cluster:
    """`with Cluster(parse_address(text), say=say) as cluster:`; then `look`, and then `run` as often as needed."""

    def __init__(self, address: ClusterAddress, *, say: Say, agent: str = AGENT) -> None:
        self._address, self._say, self._agent = address, say, agent
        self._ray: Any = None
        self._known: dict[str, ClusterNode] = {}
        self._waiting: dict[Any, ClusterNode] = {}
        """What every host is asked just now, and whose answer it is."""
        self._numbers: dict[str, int] = {}
        self._stopping = False
        self._look = LookJob()
        self._files: tuple[FileJob, ...] = ()
        self.refused: dict[str, str] = {}
        """Nodes that are not used, each with a sentence."""

    def __enter__(self) -> Self:
        self._ray = connect(self._address)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):  # the cluster may be gone
            for node in self._known.values():
                self._ray.kill(node.host)
        with suppress(Exception):
            self._ray.shutdown()

    @property
    def nodes(self) -> list[ClusterNode]:
        """Those that can be given something to do."""
        return [node for node in self._known.values() if node.ready]

    def look(self, look: LookJob, files: tuple[FileJob, ...] = ()) -> list[ClusterNode]:
        """Ask every node what it is and has; give it the files that jobs will need. Refuses where there is none."""
        self._look, self._files = look, files
        for node in self.nodes:
            node.ready = False
            self._ask_to_look(node)
        self._refresh()
        begin_s, said = time.monotonic(), False
        while self._waiting and time.monotonic() - begin_s < PATIENCE_S:
            for node, _ in self._step():
                node.ready = node.ready or node.seen is not None
            if not said and time.monotonic() - begin_s > SAY_AFTER_S:
                said = True
                slow = ", ".join(f"node {node.number}" for node in self._waiting.values())
                self._say(f"Waiting for {slow}: it starts, or other work of the cluster holds it ...")
        for ref, node in list(self._waiting.items()):
            del self._waiting[ref]
            self._refuse(node, f"it did not begin within {PATIENCE_S:g} s; other work of the cluster may hold it.")
        if not self.nodes:
            reasons = " ".join(dict.fromkeys(self.refused.values()))
            raise ClusterError(
                f"The cluster at {self._address} has no node that can be used. {reasons}".strip(),
                hint="`ray status` on its head shows the nodes and what they are busy with.",
            )
        return self.nodes

    def run(
        self,
        scheduler: Scheduler,
        *,
        job: Callable[[ClusterNode, CellRepeat], NodeJob],
        take: Take,
        admit: Callable[[ClusterNode], None],
        was_pressed: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Let the nodes do what the scheduler says until all is done, or nobody is left who could; return False when
        Ctrl-C ended it. `take` is told each reply; `admit` gives a node to the scheduler."""
        for node in self.nodes:
            admit(node)
        refreshed_s = time.monotonic()
        try:
            while scheduler.open and not was_pressed():
                for identifier, unit in scheduler.assign():
                    self._begin(self._known[identifier], job(self._known[identifier], unit))
                if not scheduler.running and not self._waiting:
                    self._refresh()
                    if not self._waiting:
                        return True  # the rest asks for a node that is not there
                for node, reply in self._step(scheduler):
                    if scheduler.running_on(node.id) is not None:
                        self._take(scheduler, node, reply, take)
                    elif isinstance(reply, DoneReply) and node.seen is not None and not node.ready:
                        node.ready = True
                        self._say(f"{node.title} has joined.")
                        admit(node)
                if time.monotonic() - refreshed_s > REFRESH_S:
                    refreshed_s = time.monotonic()
                    self._refresh()
            if not was_pressed():
                return True
        except KeyboardInterrupt:
            pass
        self._stop(scheduler, take)
        return False

    def _take(self, scheduler: Scheduler, node: ClusterNode, reply: NodeReply, take: Take) -> None:
        unit = scheduler.running_on(node.id)
        assert unit is not None
        if not isinstance(reply, DoneReply):
            take(node, unit, reply)
        elif reply.failure or not (reply.complete or self._stopping):
            why = reply.failure or "somebody stopped it there."
            self._say(f"{node.title}: {why} It is tried again.")
            scheduler.fail(node.id, f"{node.title}: {why}")
        else:
            take(node, unit, reply)
            scheduler.done(node.id, again=not node.failed)

    def _begin(self, node: ClusterNode, job: NodeJob) -> None:
        node.failed = False
        node.host.send.remote(encode_line(job))
        self._waiting[node.host.poll.remote(POLL_S)] = node

    def _stop(self, scheduler: Scheduler, take: Take) -> None:
        """Let every node stop as Ctrl-C does, and take what it still says."""
        self._stopping = True
        for identifier in scheduler.running:
            self._known[identifier].host.stop.remote()
        deadline_s = time.monotonic() + STOP_S
        while scheduler.running and time.monotonic() < deadline_s:
            for node, reply in self._step(scheduler):
                if scheduler.running_on(node.id) is not None:
                    self._take(scheduler, node, reply, take)

    # Nodes that come and go

    def _refresh(self) -> None:
        """Begin a host on every node that is new."""
        # In an order that is the same for every command: Ray's own is by chance.
        for entry in sorted(self._ray.nodes(), key=lambda entry: str(entry["NodeID"])):
            resources, identifier = entry["Resources"], entry["NodeID"]
            if not entry["Alive"] or identifier in self._known or identifier in self.refused:
                continue
            number = self._numbers.setdefault(identifier, len(self._numbers) + 1)
            node = ClusterNode(id=identifier, number=number, host=None)
            if not resources.get("CPU"):
                self.refused[node.id] = f"node {node.number} is left alone: Ray has no CPUs for work on it."
                continue
            self._open(node, resources)

    def _open(self, node: ClusterNode, resources: dict[str, float]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(node.id, soft=False)
        actor = self._ray.remote(NodeHost).options(
            num_cpus=resources["CPU"], num_gpus=resources.get("GPU", 0), scheduling_strategy=here, max_concurrency=4
        )
        node.host = actor.remote(self._agent)
        self._known[node.id] = node
        self._waiting[node.host.poll.remote(PATIENCE_S)] = node

    def _greet(self, node: ClusterNode, line: bytes) -> None:
        """Compare versions before anything else is said."""
        hello, node.greeted = read_json(line, Hello, source="a node's greeting"), True
        here = metalmark.__version__
        if hello.metalmark != here:
            self._refuse(
                node,
                f"it has Metalmark {hello.metalmark}, and this command is {here}: pip install metalmark=={here} there.",
            )
            return
        self._ask_to_look(node)

    def _ask_to_look(self, node: ClusterNode) -> None:
        for file in self._files:
            node.host.send.remote(encode_line(file))
        self._begin(node, self._look)

    def _step(self, scheduler: Scheduler | None = None) -> Iterator[tuple[ClusterNode, NodeReply]]:
        """Wait a moment, and yield what nodes say."""
        if not self._waiting:
            time.sleep(STEP_S / 10)
            return
        ready, _ = self._ray.wait(list(self._waiting), num_returns=1, timeout=STEP_S)
        for ref in ready:
            node = self._waiting.pop(ref)
            try:
                lines = self._ray.get(ref)
            except Exception as error:  # noqa: BLE001  Ray has a dozen kinds, and each means that the node is lost
                self._lose(node, error, scheduler)
                continue
            done = False
            for line in lines:
                try:
                    if not node.greeted:
                        self._greet(node, line)
                        done = True  # it is asked something else by now, or not used
                        continue
                    reply = decode_reply(line)
                except FormatError as error:
                    self._lose(node, error, scheduler)
                    done = True
                    break
                if isinstance(reply, SeenReply):
                    node.seen = reply
                done = done or isinstance(reply, DoneReply)
                yield node, reply
            if not done:
                self._waiting[node.host.poll.remote(POLL_S)] = node

    def _lose(self, node: ClusterNode, error: BaseException, scheduler: Scheduler | None) -> None:
        """Forget a node whose host is gone. If Ray still has the node, a new host is begun on it."""
        reason = _why_lost(error)
        self._known.pop(node.id, None)
        with suppress(Exception):
            self._ray.kill(node.host)
        if not node.ready:
            self._refuse(node, reason)
            return
        cells = len(scheduler.running) if scheduler is not None else 0
        if scheduler is not None:
            scheduler.lose(node.id, f"{node.title} was lost: {reason}")
            moved = cells - len(scheduler.running)
            self._say(f"{node.title} was lost: {reason}{' Its cell is run elsewhere.' if moved else ''}")

    def _refuse(self, node: ClusterNode, reason: str) -> None:
        self._known.pop(node.id, None)
        self.refused[node.id] = f"node {node.number} is not used: {reason}"
        self._say(f"{self.refused[node.id]}")
        if node.host is not None:
            with suppress(Exception):
                self._ray.kill(node.host)


def _why_lost(error: BaseException) -> str:
    """Return Ray's reason in one line."""
    text = str(getattr(error, "cause", None) or error)
    if "No module named 'metalmark'" in text:
        return f"it has no Metalmark: pip install metalmark=={metalmark.__version__} there."
    if "ActorDied" in type(error).__name__ or "Unavailable" in type(error).__name__:
        return "its process or the machine ended."
    last = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return printable(scrub(last[-1] if last else type(error).__name__))[:300].rstrip(".") + "."

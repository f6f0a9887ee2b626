"""The agent on a node of a cluster: `python -m metalmark.app.node`. It does what the lines on its standard input ask
for, as a command on that machine would, and writes what comes of it to its standard output.

It ends when its standard input does, whatever it does at that moment: its workers end with it.
"""

import hashlib
import os
import platform
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

import metalmark
from metalmark.backends.catalog import FRAMEWORKS
from metalmark.cluster.messages import (
    BenchJob,
    DoctorJob,
    DoctorReply,
    DoneReply,
    EventReply,
    FileJob,
    Hello,
    LookJob,
    NodeJob,
    ParityJob,
    RunReply,
    SaidReply,
    SeenReply,
    TuneJob,
    decode_job,
    encode_line,
)
from metalmark.errors import MetalmarkError
from metalmark.machine.awake import kept_awake
from metalmark.machine.identity import identify
from metalmark.machine.orphans import scratch_folder
from metalmark.model.codec import encode
from metalmark.model.plan import Sweep
from metalmark.model.run import Run
from metalmark.runner.ask import in_one_line
from metalmark.runner.events import Event, Paused, Progress, Started, TuningProgress
from metalmark.runner.probing import probe_all
from metalmark.runner.sweeping import Measurer, was_interrupted


class NodeAgent:
    """One per node and command. Files that it is given are kept in `folder`."""

    def __init__(self, out: BinaryIO, folder: Path, *, sleepy: str = "") -> None:
        self._out, self._folder, self._sleepy = out, folder, sleepy
        self._lock = threading.Lock()
        self._paths: dict[str, str] = {}
        self._measurer: tuple[str, Measurer] | None = None
        self._jobs: dict[type, Callable[[Any], bool]] = {
            LookJob: self._look, BenchJob: self._bench, ParityJob: self._parity, TuneJob: self._tune,
            DoctorJob: self._doctor,
        }  # fmt: skip

    def tell(self, message: msgspec.Struct) -> None:
        # Ctrl-C waits until the line is whole.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            with self._lock:
                self._out.write(encode_line(message) + b"\n")
                self._out.flush()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def do(self, job: NodeJob) -> None:
        """Do a job, and say at its end whether it was done; a file is only kept."""
        try:
            if isinstance(job, FileJob):
                self._keep_file(job)
                return
            done = DoneReply(complete=self._jobs[type(job)](job))
        except KeyboardInterrupt:
            done = DoneReply(complete=False)
        except MetalmarkError as error:
            done = DoneReply(failure=f"{error.message} {error.hint}".strip())
        except Exception as error:  # noqa: BLE001  whatever it is, the command must hear of it
            done = DoneReply(failure=in_one_line(error))
        self.tell(done)

    def listen(self, event: Event) -> None:
        """Pass on what a worker tells; the readings of sensors come with the run."""
        if isinstance(event, Started):
            self.tell(EventReply(started=event))
        elif isinstance(event, Paused):
            self.tell(EventReply(paused=event))
        elif isinstance(event, Progress):
            self.tell(EventReply(progress=event))
        elif isinstance(event, TuningProgress):
            self.tell(EventReply(tuning=event))

    def _say(self, text: str) -> None:
        self.tell(SaidReply(text=text))

    # Where a tuning keeps its runs, in place of a store

    def add(self, run: Run) -> None:
        self.tell(RunReply(run=msgspec.Raw(encode(run))))

    def put(self, run: Run) -> None:
        self.tell(RunReply(run=msgspec.Raw(encode(run)), replaces=True))

    # Jobs

    def _keep_file(self, job: FileJob) -> None:
        if hashlib.sha256(job.data).hexdigest() != job.digest:
            raise SystemExit(f"{job.name} arrived damaged.")
        folder = self._folder / job.digest[:16]
        folder.mkdir(exist_ok=True)
        path = folder / Path(job.name).name
        path.write_bytes(job.data)
        self._paths[job.label] = str(path)

    def _look(self, job: LookJob) -> bool:
        installed = tuple(name for name in job.frameworks if not FRAMEWORKS[name].missing())
        probes = probe_all([name for name in job.probed if name in installed]) if job.probed else {}
        self.tell(SeenReply(machine=identify(), installed=installed, probes=probes))
        return True

    def _here(self, sweep: Sweep) -> Sweep:
        """Return the sweep with the paths that the user's own files have on this machine."""
        return msgspec.structs.replace(sweep, paths=self._paths)

    def _bench(self, job: BenchJob) -> bool:
        if self._measurer is None or self._measurer[0] != job.sweep.id:
            self._measurer = (job.sweep.id, Measurer(self._here(job.sweep), sleepy=self._sleepy))
        run = self._measurer[1].measure(job.plan, job.cell, job.repeat, listeners=[self.listen])
        if run is None:
            return False
        self.add(run)
        return not was_interrupted(run)

    def _parity(self, job: ParityJob) -> bool:
        from metalmark.app.parity import check_plan  # it imports NumPy, which a bench does without

        run, complete = check_plan(
            job.plan, job.reference, sweep=self._here(job.sweep), cell=job.cell, options=job.options,
            diagnosed=job.diagnosed, repro=None, listeners=[self.listen],
        )  # fmt: skip
        self.add(run)
        return complete

    def _tune(self, job: TuneJob) -> bool:
        from metalmark.app.tune import make_tuner
        from metalmark.model.codec import decode

        known = [decode(run, source="a run of this search") for run in job.known]
        tuner = make_tuner(
            job.plan, job.request, sweep=self._here(job.sweep), cell=job.cell, store=self, listeners=[self.listen],
            say=self._say, known=known,
        )  # fmt: skip
        tuner.run()
        return not tuner.stopped

    def _doctor(self, job: DoctorJob) -> bool:
        from metalmark.app.doctor import doctor

        diagnosis = doctor(job.only, progress=False)
        self.tell(DoctorReply(scene=diagnosis.scene, findings=diagnosis.findings))
        return True


def main() -> None:
    # Ray blocks Ctrl-C in its own processes, and what is blocked is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # Whatever a library prints must not get between our lines.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            jobs.put(line)
        os._exit(3)  # the command is gone, or the node: nobody would read an answer

    threading.Thread(target=read, daemon=True, name="jobs").start()
    with scratch_folder() as folder, kept_awake() as sleepy:
        agent = NodeAgent(out, folder, sleepy=sleepy)
        agent.tell(Hello(metalmark=metalmark.__version__, python=platform.python_version()))
        while True:
            try:
                agent.do(decode_job(jobs.get()))
            except KeyboardInterrupt:
                continue  # it came between two jobs
            except MetalmarkError as error:
                agent.tell(DoneReply(failure=error.message))


if __name__ == "__main__":
    main()

"""A child process of ours: the pipe that its progress comes by, the one that ties it to us, and its end."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from metalmark.machine.orphans import forget_group, mark, watch_group
from metalmark.runner.events import LIFELINE_FD, PROGRESS_FD
from metalmark.runner.world import WorkerStart


class Child:
    """It leads a process group of its own, by which it is ended with all that it started."""

    def __init__(
        self, start: WorkerStart, *, variables: Mapping[str, str], output: Path, stdin: int = subprocess.DEVNULL
    ) -> None:
        """`variables`: what its environment has besides ours. `output`: the file that gets all that it prints."""
        self.progress = start.progress
        """The end of the pipe that is read here."""
        lifeline_child, self._lifeline = os.pipe()
        self._mark = mark()
        # Without a lifeline, ranks are ended with their group, or by the mark that all of them have.
        pipes = {PROGRESS_FD: start.other_end, LIFELINE_FD: lifeline_child} if start.inherited else {}
        environment = {**os.environ, **variables, **{name: str(fd) for name, fd in pipes.items()}, **self._mark}
        try:
            with output.open("wb") as sink:
                self.process = subprocess.Popen(
                    start.command,
                    env=environment,
                    stdin=stdin,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    pass_fds=tuple(pipes.values()),
                    # Ctrl-C in the terminal is ours to handle; the child is stopped by us, in order.
                    start_new_session=True,
                )
        finally:
            os.close(lifeline_child)
            if start.inherited:
                os.close(start.other_end)
        self._held = () if start.inherited else (start.other_end,)
        self.pid = self.process.pid
        watch_group(self.pid)

    def collect(self) -> int:
        """Return its exit status, after it and its group have been ended."""
        forget_group(self.pid, self._mark)
        return self.process.wait()

    def close(self) -> None:
        for fd in (self.progress, self._lifeline, *self._held):
            os.close(fd)

"""Wait for the exit of a child process and end a process group, where Linux and macOS differ."""

import contextlib
import errno
import os
import select
import sys

import psutil  # type: ignore[import-untyped]


def wait_for_exit(pid: int) -> None:
    """Return when our child `pid` has exited, and leave its exit status to be collected.

    Until the status is collected, the process ID and the process group can't be given to anyone else.
    """
    if sys.platform == "darwin":
        _wait_with_kqueue(pid)
    else:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def signal_group(group: int, number: int) -> None:
    """Send a signal to every process of a group whose leader is our child and is not yet collected.

    A group without a living process is an error on Linux only if the leader is collected; macOS also refuses with
    EPERM then. Neither is a failure: there is nothing left to end.
    """
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def end_tree(pid: int) -> None:
    """End a process that we have started, and all that it started, at once."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        # Asked before it is gone: then they are another's children.
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                each.kill()


if sys.platform == "darwin":
    # os.waitid is missing on macOS before Python 3.13. A kqueue does not collect the exit status either.

    def _wait_with_kqueue(pid: int) -> None:
        exit_event = select.kevent(
            pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD | select.KQ_EV_ONESHOT, select.KQ_NOTE_EXIT
        )
        with contextlib.closing(select.kqueue()) as queue:
            (event,) = queue.control([exit_event], 1, None)
        # Where there is room for an event, kevent reports an error as one. ESRCH: it exited before it could be watched,
        # since our child whose status is not collected can't be missing otherwise.
        if event.flags & select.KQ_EV_ERROR and event.data != errno.ESRCH:
            raise OSError(event.data, os.strerror(event.data))

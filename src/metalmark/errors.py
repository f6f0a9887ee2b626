"""The exception tree.

MetalmarkError                what went wrong, why, and what to type next; shown without a traceback
├── UsageError                the command line or a parameter is wrong                     exit 2
├── NotInstalledError         a framework or an extra is missing                            exit 2
├── StoreError                the store can't be opened, read or written                    exit 2
│   └── ServerError           a store's server failed, or can't be reached                  exit 2
├── ClusterError              a cluster can't be reached, or has nobody who could run a cell  exit 2
├── FormatError               a record, a bundle or a data file is not what it says it is   exit 2
└── CellError                 raised inside a worker; becomes a Failed cell, never an exit code
    ├── UnsupportedError      this framework can't do this on this device
    ├── NodeFailedError       the processes on a machine that stores no run failed                exit 1
    ├── WeightsError          a network's weights are missing, damaged or another network's
    └── WrongResultError      it ran, but its proof of work failed
"""

from collections.abc import Iterable


class MetalmarkError(Exception):
    """An error meant for the user: a sentence of what and why, then one on what to do next."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(hint)  # in a user's own script, Python's traceback is all that shows it


class UsageError(MetalmarkError):
    """The command line or a parameter is wrong."""


class NotInstalledError(MetalmarkError):
    """A framework or an optional dependency is missing."""


class StoreError(MetalmarkError):
    """The store can't be opened, read or written."""


class ServerError(StoreError):
    """The server of a shared store failed, or can't be reached. `passing`: it may take the same a moment later."""

    def __init__(self, message: str, *, hint: str = "", passing: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.passing = passing


class FormatError(MetalmarkError):
    """A record, a bundle or a data file is not what it says it is."""


class ClusterError(MetalmarkError):
    """A cluster can't be reached, or nobody in it can run what was asked for."""


class CellError(MetalmarkError):
    """One cell can't be measured; the sweep goes on."""


class UnsupportedError(CellError):
    """This framework can't do this on this device."""


class NodeFailedError(CellError):
    """The processes of a machine failed that trained together with those of another, which has the run."""

    exit_code = 1


class WeightsError(CellError):
    """A network's weights are missing, damaged or another network's."""


class WrongResultError(CellError):
    """The work was done, but its proof failed: the timing of it means nothing."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """`counted(2, "cell")` is "2 cells"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown word: it names the nearest known one, if one is near."""
    import difflib  # here, since most commands never need it and each import makes all of them start later

    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else "."

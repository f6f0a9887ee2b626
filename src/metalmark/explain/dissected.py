"""DissectedAnatomy: what is alike in frameworks whose session does the parts of its step itself."""

from typing import Generic, Protocol, TypeVar

from metalmark.backends.base import Session
from metalmark.explain.batches import HostBatches
from metalmark.feeds.leaves import Arrays

OWN_STEP = "A step of your own can't be taken apart: only its code knows what its forward pass is."


class DissectedSession(Session, Protocol):
    """A session that can do parts of its step too."""

    @property
    def asynchronous(self) -> bool: ...

    def forward(self) -> None: ...

    def backward(self) -> None: ...

    def place(self, arrays: Arrays) -> None: ...


Dissected = TypeVar("Dissected", bound=DissectedSession)


class DissectedAnatomy(Generic[Dissected]):
    def __init__(self, steps: Dissected, batches: HostBatches) -> None:
        self.session: Session = steps
        self.asynchronous = steps.asynchronous
        self.forward, self.backward = steps.forward, steps.backward
        self._steps, self._batches = steps, batches

    def place(self) -> None:
        self._steps.place(self._batches.first)

    def make(self) -> None:
        self._batches.make()

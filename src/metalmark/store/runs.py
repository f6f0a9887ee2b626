"""RunStore: all that a word can mean in one store, which is a record, a training or a watched loop."""

from __future__ import annotations

from metalmark.store.trainings import TrainingStore
from metalmark.store.watched import WatchedStore


class RunStore(TrainingStore, WatchedStore):
    pass

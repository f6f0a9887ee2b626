"""What both sides of a check compute, in which order, whatever the framework."""

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from metalmark.feeds.leaves import Arrays, leaves_of
from metalmark.model.parity import Quantity, ShortTraining
from metalmark.model.plan import Mode, Plan
from metalmark.model.workload import Workload
from metalmark.parity.base import Named, ParityBackend, See, Subject
from metalmark.parity.distance import Key
from metalmark.parity.job import Case, Curved, Line, MeasuredArray
from metalmark.parity.practice import Practice
from metalmark.parity.truth import Truth
from metalmark.parity.variations import perturb

Record = Callable[[Key, np.ndarray], None]
Tell = Callable[[str, float | None], None]
OTHER_SEED = 10_000
"""Added to a seed for the second of two trainings of the reference: another dropout."""


class Examiner:
    """Runs one side of one check and hands out lines. `ReferenceExaminer` and `CandidateExaminer` say what of it."""

    def __init__(
        self, side: ParityBackend, case: Case, workload: Workload, *, write: Callable[[Line], None], tell: Tell
    ) -> None:
        self._side, self._case, self._workload = side, case, workload
        self._write, self._tell = write, tell
        self._folder = Path(case.folder)
        self._options = case.options
        self._known_as: dict[str, str] = {}
        """The reference's names of this side's parameters, where they have others."""
        self._given: Named = {}
        """The gradients that the optimisers of both sides are given, by the reference's names."""

    def _run(
        self,
        subject: Subject,
        values: Named,
        batches: list[Arrays],
        record: Record,
        phase: str,
        *,
        whole: bool = True,
    ) -> None:
        """Compute every quantity once. `whole`: also what depends on the order of the samples."""
        training = self._case.plan.mode is Mode.TRAINING
        parts = 4 + self._options.steps
        first = batches[0]
        subject.load(values)
        if whole and self._options.layers:
            self._tell(phase, 0.0)
            for mode, quantity in ((False, Quantity.EVAL_OUTPUT), (True, Quantity.TRAIN_OUTPUT)):
                if mode and not training:
                    continue

                def see(name: str, array: np.ndarray, quantity: Quantity = quantity) -> None:
                    record(Key(quantity=quantity, name=name), array)

                self._see_layers(subject, first, mode, see)
            subject.load(values)
        self._tell(phase, 1 / parts)
        if whole:
            for name, array in subject.predict(first):
                record(Key(quantity=Quantity.PREDICTION, name=name), array)
        if not training:
            return
        self._tell(phase, 2 / parts)
        loss, gradients = subject.loss_and_gradients(first)
        record(Key(quantity=Quantity.LOSS, name=""), np.array(loss))
        for name, array in gradients.items():
            record(self._key(Quantity.GRADIENT, name), array)
        self._tell(phase, 3 / parts)
        if gradients:
            given = self._given or {self._common(name): array.astype(np.float32) for name, array in gradients.items()}
            self._run_optimizer(subject, values, given, record)
        self._run_steps(subject, values, batches, record, lambda done: self._tell(phase, (4 + done) / parts))

    def _run_optimizer(self, subject: Subject, values: Named, given: Named, record: Record) -> None:
        """Let the optimiser work on the same gradients on every side: what differs then is the optimiser."""
        own = {name: given[self._common(name)] for name in self._trainable(subject) if self._common(name) in given}
        subject.load(values)
        before = subject.values()
        for step in range(1, self._options.steps + 1):
            subject.apply(own)
            if step in (1, self._options.steps):
                now = subject.values()
                for name in own:
                    record(self._key(Quantity.OPTIMIZER, name, step), _difference(now[name], before[name]))

    def _run_steps(
        self, subject: Subject, values: Named, batches: list[Arrays], record: Record, done: Callable[[int], None]
    ) -> None:
        subject.load(values)
        before = subject.values()
        statistics = [slot.name for slot in subject.slots() if slot.statistic]
        for step, arrays in enumerate(batches, start=1):
            (loss,) = subject.read([subject.train_batch(arrays)])
            done(step)
            if step > 1:
                record(Key(quantity=Quantity.LOSS, name="", steps=step - 1), np.array(loss))
            if step in (1, len(batches)):
                now = subject.values()
                for name in self._trainable(subject):
                    record(self._key(Quantity.UPDATE, name, step), _difference(now[name], before[name]))
                for name in statistics:
                    record(self._key(Quantity.STATISTIC, name, step), now[name])

    def _see_layers(self, subject: Subject, arrays: Arrays, training: bool, see: See) -> None:
        """Show the output of each layer; a layer that runs again is numbered."""
        names: Counter[str] = Counter()

        def named(name: str, array: np.ndarray) -> None:
            names[name] += 1
            see(name if names[name] == 1 else f"{name}#{names[name]}", array)

        subject.layers(arrays, training=training, see=named)

    def _curves(self, subject: Subject, plan: Plan, values: Named, steps: int, *, noise: float | None) -> None:
        """Train for a while with each seed: dropout is on, and the data comes in another order. `noise`: do it twice,
        the second time from weights that are moved by this rounding error, with other random numbers."""
        practice = Practice(self._workload, plan, subject, steps)
        for number in range(self._options.seeds):
            seed = plan.seed + number
            share = number / self._options.seeds
            self._tell("short training", share)
            self._write(Curved(curve=self._trained(subject, values, practice, seed, seed, share)))
            if noise is not None:
                rng = np.random.default_rng([seed, OTHER_SEED])
                moved = {name: perturb(array, noise, rng) for name, array in values.items()}
                curve = self._trained(subject, moved, practice, seed, seed + OTHER_SEED, share)
                self._write(Curved(curve=curve, draw="rounding"))

    def _trained(
        self, subject: Subject, values: Named, practice: Practice, seed: int, random_seed: int, share: float
    ) -> ShortTraining:
        subject.load(values)
        subject.seed(random_seed)
        subject.set_dropout(True)
        try:
            begun = []
            for arrays in practice.batches(seed):
                begun.append(subject.train_batch(arrays))
                self._tell("short training", share)
            losses = subject.read(begun)
        finally:
            subject.set_dropout(False)
        accuracy, held_out = practice.accuracy()
        return ShortTraining(seed=seed, losses=tuple(losses), accuracy=accuracy, held_out=held_out)

    def _batches(self, subject: Subject, plan: Plan) -> list[Arrays]:
        """The batches of the steps: the same on both sides, since both make them from the same seed."""
        made = []
        for number in range(self._options.steps):
            rng = np.random.default_rng([plan.seed, number])
            made.append(leaves_of(subject.recipe.prepare(self._workload.batch(plan.params, rng)))[0])
        return made

    def _gradients_of(self, known: Truth, subject: Subject) -> Named:
        """Return the reference's gradients, which the optimisers of all sides are given."""
        found: Named = {}
        for name in self._trainable(subject):
            key = self._key(Quantity.GRADIENT, name)
            if key in known:
                found[key.name] = np.array(known.array(key), np.float32)
        return found

    def _trainable(self, subject: Subject) -> list[str]:
        return [slot.name for slot in subject.slots() if slot.trainable and not slot.statistic]

    def _common(self, name: str) -> str:
        return self._known_as.get(name, name)

    def _key(self, quantity: Quantity, name: str, steps: int = 0) -> Key:
        return Key(quantity=quantity, name=self._common(name), steps=steps)

    def _comparer(self, known: Truth, draw: str, *, lowered: bool = False) -> Record:
        def compare(key: Key, array: np.ndarray) -> None:
            distance = known.distance(key, array)
            if distance is not None:
                self._write(MeasuredArray(draw=draw, lowered=lowered, distance=distance))

        return compare


def digest_of(batches: list[Arrays]) -> str:
    """Identify the samples whatever their order of axes, which frameworks differ in."""
    digest = hashlib.sha256()
    for arrays in batches:
        for array in arrays:
            digest.update(np.sort(array, axis=None).astype(np.float64).tobytes())
    return digest.hexdigest()


def _difference(now: np.ndarray, before: np.ndarray) -> np.ndarray:
    return now.astype(np.float64) - before.astype(np.float64)

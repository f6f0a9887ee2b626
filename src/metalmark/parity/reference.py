"""The reference's side of a check: the truth, and the noise that the other side is judged by.

The reference runs in float64 and writes every array down as the truth. Then it runs again with what must not matter
changed (its batch permuted, fewer threads, its weights and inputs moved by a rounding error of the candidate's dtype):
how far these are from the truth is the noise.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np

from metalmark.errors import MetalmarkError, UnsupportedError
from metalmark.feeds.leaves import Arrays
from metalmark.model.plan import Dtype, Mode, Plan
from metalmark.model.workload import Workload
from metalmark.parity.base import Named, Subject
from metalmark.parity.distance import LOW, ROUNDING
from metalmark.parity.job import WEIGHTS, Finished, Setup
from metalmark.parity.side import Examiner, Record, digest_of
from metalmark.parity.truth import NotFiniteError, Truth, TruthWriter
from metalmark.parity.variations import permute, perturb
from metalmark.runner.ask import in_one_line

RANDOM = 1e-3
"""Two runs of the reference whose losses are further apart than this share draw random numbers."""
FEWEST_CURVE_STEPS, MOST_CURVE_STEPS = 10, 200


class ReferenceExaminer(Examiner):
    def examine(self) -> None:
        plan, candidate = self._case.reference, self._case.plan
        with self._open_reference(plan) as subject:
            values = subject.values()
            self._require_trainable(subject, plan)
            np.savez(self._folder / WEIGHTS, **values)  # type: ignore[arg-type]  # numpy's own types say no
            batches = self._batches(subject, plan)
            if self._options.quantities:  # of two trainings, their own distance tells
                self._require_deterministic(subject, values, batches)
            truth, notes = Dtype.FLOAT32.value, tuple[str, ...]()
            if self._options.quantities:
                truth, notes = self._write_truth(subject, plan, values, batches)
            steps = self._curve_steps(subject, values, batches)
            self._write(
                Setup(
                    placed_on=subject.placement.device, device_name=subject.placement.name, truth=truth,
                    data_digest=digest_of(batches), curve_steps=steps, notes=(*subject.notes, *notes),
                )
            )  # fmt: skip
            known = self._plain_noise(subject, values, batches, truth) if self._options.quantities else None
        dtype = candidate.settings.dtype
        if known is not None and (dtype not in LOW or not self._run_lowered(plan, dtype, values, known)):
            with self._open_reference(plan) as subject:
                self._perturbed(subject, values, batches, known, dtype)
        if steps:
            with self._open_reference(plan) as subject:
                self._curves(subject, plan, values, steps, noise=ROUNDING[candidate.settings.dtype])
        self._write(Finished())

    def _plain_noise(self, subject: Subject, values: Named, batches: list[Arrays], truth: str) -> Truth:
        """Measure the noise of the reference in its own dtype, and return the truth, which is written by now."""
        known = Truth(self._folder)
        self._given = self._gradients_of(known, subject)
        if truth != Dtype.FLOAT32:
            self._run(subject, values, batches, self._comparer(known, "float32"), "noise: float32")
        if self._options.variations:
            self._run_variations(subject, values, batches, known)
        return known

    @contextmanager
    def _open_reference(
        self, plan: Plan, *, double: bool = False, workload: Workload | None = None
    ) -> Iterator[Subject]:
        with self._side.open(plan, workload or self._workload, double=double) as subject:
            subject.follow(self._case.plan.framework)
            yield subject

    def _write_truth(
        self, subject: Subject, plan: Plan, values: Named, batches: list[Arrays]
    ) -> tuple[str, tuple[str, ...]]:
        """Run in float64 where the network can, else as it is. Return in what, and what a reader should know."""
        writer = TruthWriter(self._folder)
        try:
            with self._open_reference(plan, double=True) as exact:
                self._run(exact, values, batches, writer.add, "the reference in float64")
            writer.close()
            return "float64", ()
        except (NotFiniteError, MemoryError):
            raise
        except MetalmarkError as error:
            reason = error.message
        except Exception as error:  # whatever a network that can't run in float64 raises
            if self._side.is_out_of_memory(error):
                raise
            reason = in_one_line(error)
        writer.close()
        writer = TruthWriter(self._folder)
        self._given = {}
        self._run(subject, values, batches, writer.add, "the reference in float32")
        writer.close()
        return "float32", (f"The reference does not run in float64, so both sides are compared with float32: {reason}",)

    def _run_variations(self, subject: Subject, values: Named, batches: list[Arrays], known: Truth) -> None:
        """Run with what must not matter changed."""
        permuted = [permute(arrays, seed) for seed, arrays in enumerate(batches)]
        self._run(
            subject, values, permuted, self._comparer(known, "permuted batch"), "noise: permuted batch", whole=False
        )
        with self._side.fewer_threads() as changed:
            if changed:
                self._run(subject, values, batches, self._comparer(known, "fewer threads"), "noise: fewer threads")

    def _perturbed(self, subject: Subject, values: Named, batches: list[Arrays], known: Truth, dtype: Dtype) -> None:
        for draw in range(1, self._options.draws + 1):
            name = f"rounding {draw}"
            record = self._comparer(known, name, lowered=dtype is not Dtype.FLOAT32)
            self._run_moved(subject, values, batches, record, dtype, draw, name)

    def _run_moved(
        self, subject: Subject, values: Named, batches: list[Arrays], record: Record, dtype: Dtype, draw: int, name: str
    ) -> None:
        """Run with weights and inputs that are moved by at most one rounding error."""
        rng = np.random.default_rng([self._case.plan.seed, draw])
        moved = {each: perturb(array, ROUNDING[dtype], rng) for each, array in values.items()}
        moved_batches = [_perturbed_inputs(subject, arrays, ROUNDING[dtype], rng) for arrays in batches]
        self._run(subject, moved, moved_batches, record, f"noise: {name}")

    def _run_lowered(self, plan: Plan, dtype: Dtype, values: Named, known: Truth) -> bool:
        """Run the reference in the candidate's dtype: once as it is, then with its weights and inputs moved, and its
        loss in that dtype too where some devices have it so. Return whether the reference's device has this dtype."""
        lowered = msgspec.structs.replace(plan, settings=msgspec.structs.replace(plan.settings, dtype=dtype))
        try:
            with self._open_reference(lowered) as subject:
                batches = self._batches(subject, plan)
                name = f"{dtype.value} on {subject.placement.device}"
                self._run(subject, values, batches, self._comparer(known, name, lowered=True), f"noise: {name}")
        except UnsupportedError:
            return False
        with self._open_reference(lowered, workload=self._side.with_low_loss(self._workload, dtype)) as subject:
            for draw in range(1, self._options.draws + 1):
                moved = f"{name}, moved {draw}"
                record = self._comparer(known, moved, lowered=True)
                self._run_moved(subject, values, batches, record, dtype, draw, moved)
        return True

    def _require_trainable(self, subject: Subject, plan: Plan) -> None:
        if plan.mode is Mode.TRAINING and not any(slot.trainable and not slot.statistic for slot in subject.slots()):
            raise UnsupportedError(
                "The model has no trainable parameters, so no gradients can be compared.",
                hint="Compare its outputs: --mode inference.",
            )

    def _require_deterministic(self, subject: Subject, values: Named, batches: list[Arrays]) -> None:
        """Refuse a reference that does not give the same twice: whatever differs from it would be blamed on others."""
        self._tell("the reference twice", None)
        found: list[list[float]] = []
        for _ in range(2):
            subject.load(values)
            once = [float(np.mean(np.square(array, dtype=np.float64))) for _, array in subject.predict(batches[0])]
            if self._case.plan.mode is Mode.TRAINING:
                once += subject.read([subject.train_batch(batches[0])])
            found.append(once)
        for first, second in zip(*found, strict=True):
            if not (math.isfinite(first) and math.isfinite(second)):
                raise NotFiniteError("its loss or an output")
            if abs(first - second) > RANDOM * max(abs(first), abs(second), 1e-30):
                raise UnsupportedError(
                    f"The reference is not deterministic: the same step gave {first:.6g} and then {second:.6g}.",
                    hint="Dropout is switched off where it is a layer; random numbers that a network draws itself in "
                    "its forward pass can't be. Use a dropout layer, or draw them in the data.",
                )

    def _curve_steps(self, subject: Subject, values: Named, batches: list[Arrays]) -> int:
        """Return how many steps the short trainings have: as many as fit into their time."""
        options = self._options
        if not options.seeds or self._case.plan.mode is not Mode.TRAINING:
            return 0
        if options.curve_steps is not None:
            return options.curve_steps
        subject.load(values)
        subject.read([subject.train_batch(batches[0])])
        begin = time.perf_counter()
        subject.read([subject.train_batch(batches[0])])
        step_s = max(1e-6, time.perf_counter() - begin)
        # Twice for each seed: the second time tells how far two trainings are apart that should be alike.
        return max(FEWEST_CURVE_STEPS, min(MOST_CURVE_STEPS, int(options.curve_s / (2 * options.seeds * step_s))))


def _perturbed_inputs(subject: Subject, arrays: Arrays, rounding: float, rng: np.random.Generator) -> Arrays:
    return tuple(
        perturb(array, rounding, rng) if name.startswith("inputs") else array
        for name, array in zip(subject.layout.names, arrays, strict=True)
    )

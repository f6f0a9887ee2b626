"""The other side of a check: run once as the plan says, and compared with the truth."""

import math
import time

import numpy as np

from metalmark.feeds.leaves import Arrays
from metalmark.model.plan import Mode
from metalmark.parity.base import Named, Subject
from metalmark.parity.carry import pair
from metalmark.parity.job import WEIGHTS, Dropping, Finished, Setup
from metalmark.parity.lines import read_lines
from metalmark.parity.repeats import Repeats
from metalmark.parity.side import Examiner, digest_of
from metalmark.parity.truth import Truth
from metalmark.parity.variations import spread_out


class CandidateExaminer(Examiner):
    def examine(self) -> None:
        plan, quantities = self._case.plan, self._options.quantities
        with np.load(self._folder / WEIGHTS) as file:
            given: Named = {name: file[name] for name in file.files}
        with self._side.open(plan, self._workload) as subject:
            notes: tuple[str, ...] = ()
            values = given
            if plan.framework != self._case.reference.framework:
                shapes = {name: array.shape for name, array in given.items()}
                frameworks = (self._case.reference.framework, plan.framework)
                self._known_as, notes = pair(subject.slots(), shapes, frameworks=frameworks)
                values = {own: given[theirs] for own, theirs in self._known_as.items()}
            batches = self._batches(subject, plan)
            self._write(
                Setup(
                    placed_on=subject.placement.device, device_name=subject.placement.name,
                    data_digest=digest_of(batches), notes=(*subject.notes, *notes),
                )
            )  # fmt: skip
            if not self._options.contiguous:
                batches = [tuple(map(spread_out, arrays)) for arrays in batches]
            if quantities:
                known = Truth(self._folder)
                self._given = self._gradients_of(known, subject)
                self._run(subject, values, batches, self._comparer(known, ""), "this side")
            if quantities and plan.mode is Mode.TRAINING:
                self._look_at_dropout(subject, values, batches[0])
                self._repeat(subject, values, batches[0])
            if plan.mode is Mode.TRAINING:
                steps = self._reference_curve_steps()
                if steps:
                    self._curves(subject, plan, values, steps, noise=None)
        self._write(Finished())

    def _reference_curve_steps(self) -> int:
        lines = read_lines(self._folder, reference=True)
        return next((line.curve_steps for line in lines if isinstance(line, Setup)), 0)

    def _look_at_dropout(self, subject: Subject, values: Named, arrays: Arrays) -> None:
        self._tell("dropout", None)
        subject.load(values)
        subject.seed(self._case.plan.seed)
        for found in subject.dropped(arrays):
            self._write(
                Dropping(
                    name=found.name, rate=found.rate, share=found.share,
                    scale=found.scale if math.isfinite(found.scale) else None, elements=found.elements,
                )
            )  # fmt: skip

    def _repeat(self, subject: Subject, values: Named, arrays: Arrays) -> None:
        options, seen = self._options, Repeats()
        begin, done = time.monotonic(), 0
        while done < options.repeats:
            elapsed = time.monotonic() - begin
            if done > 2 and elapsed > options.repeat_s:
                break
            self._tell("the same step again", min(1.0, max(elapsed / options.repeat_s, done / options.repeats)))
            subject.load(values)
            if options.layers:
                self._see_layers(subject, arrays, True, seen.see)
                subject.load(values)
            loss, gradients = subject.loss_and_gradients(arrays)
            seen.see("loss", np.array(loss))
            for name, array in gradients.items():
                seen.see(f"{name} (gradient)", array)
            done += 1
        if done:
            self._write(seen.line(done))

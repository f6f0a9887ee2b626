"""Proposals: changes that should make a step faster, with what to type, what to write and what each should gain.

A gain that an experiment has measured is the expectation; where none could be made, it is what the step would be
without the share that the change removes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.errors import UnsupportedError, counted
from metalmark.explain.amounts import share_words, time_words
from metalmark.explain.findings import Findings
from metalmark.explain.instructions import device_type, typed, written
from metalmark.model.explanation import Cause, Experiment, ExperimentKind, Proposal, StepShare
from metalmark.model.plan import Feed, Loader, Plan, PlanChange, Scalar, word

LEAST_GAIN = 1.03
"""Less is neither worth a change nor sure."""
LEAST_ERROR = 0.02
"""Two sessions of one process differ by as much, however steady each is."""
LEAST_SHARE = 0.1
"""Of a share that no experiment removed: less is not worth rewriting a script for."""
AS_GOOD = 0.95
"""The smaller of two changes is proposed where it brings this share of what the larger brings."""
MOST_BATCHES = 8
"""A batch that is so many times as large trains another way."""
WORTH_MORE = 1.25
"""Data that lies on the device is proposed where it brings so much more than any loader."""
LOW_FILES = 1024
FILES = "open files"

TITLES = {
    "compile": "compiling the step",
    "graph": "capturing the step as a CUDA graph",
    "fused": "a fused optimiser",
    "channels_last": "channels-last memory layout",
    "pin": "pinned host memory",
    "fewer_waits": "not waiting for the device in every step",
    "several_steps": "several steps per call",
    "sparse": "sparse updates of the embedding",
    "resident": "data that lies on the device",
    "files": "a higher limit on open files",
}
SETTINGS_KINDS = (
    ExperimentKind.COMPILED,
    ExperimentKind.CAPTURED,
    ExperimentKind.FUSED,
    ExperimentKind.DTYPE,
    ExperimentKind.LAYOUT,
)


def proposals_of(
    findings: Findings,
    shares: Sequence[StepShare],
    step_s: float,
    fallbacks: Sequence[str] = (),
    *,
    swapping: bool = False,
) -> tuple[Proposal, ...]:
    """Return all that should make the plan faster, the largest gain first."""
    resident = findings.resident
    if findings.as_asked is None or resident is None or not resident.seconds or step_s <= 0:
        return ()
    expected = Expectation(findings, shares, step_s)
    found = [
        *_of_settings(expected),
        *_of_batches(expected),
        *_of_threads(expected),
        *_of_loaders(expected),
        *_of_shares(expected, fallbacks, swapping=swapping),
    ]
    return ranked(found)


def ranked(found: Sequence[Proposal]) -> tuple[Proposal, ...]:
    """The largest gain first; unknown gains come last. What gains next to nothing, or may lose as well,
    is left out."""
    worth = [each for each in found if each.gain is None or (each.gain >= LEAST_GAIN and (each.low or 0.0) >= 1.0)]
    return tuple(sorted(worth, key=lambda each: (each.gain is None, -(each.gain or each.high or 0.0), each.title)))


class Expectation:
    """What a step would take after a change to its resident part, given how it is fed."""

    def __init__(self, findings: Findings, shares: Sequence[StepShare], step_s: float) -> None:
        assert findings.resident is not None
        assert findings.resident.seconds is not None
        self.findings, self.shares, self.step_s = findings, shares, step_s
        self.plan = findings.plan
        self.resident_s = findings.resident.seconds
        self.resident_error_s = findings.resident.error_s
        self.device_type = device_type(findings.opened.placed_on if findings.opened is not None else "cpu")

    def share(self, cause: Cause) -> StepShare | None:
        return next((each for each in self.shares if each.cause is cause), None)

    def supports(self, change: PlanChange) -> bool:
        """Whether the framework has what is asked for on this device."""
        try:
            changed = change.applied(self.plan)
            FRAMEWORKS[changed.framework].check(changed.settings, self.device_type, changed.loader)
        except UnsupportedError:
            return False
        return True

    def written(self, name: str, value: object = "", **values: object) -> str:
        return written(name, self.plan.framework, value=value, device=self.device_type, **values)

    def after(self, resident_s: float, batches: float = 1.0) -> float:
        """The step as asked if its resident part took so long and a batch had so many times the samples."""
        if not self.findings.pipeline:
            return self.step_s + resident_s - self.resident_s
        input_s = self._seconds(Cause.INPUT)
        moved_s = self._seconds(Cause.TRANSFER) * batches
        loader = self.plan.loader or Loader()
        if loader.workers == 0 or loader.prefetch == 0:
            return input_s * batches + moved_s + resident_s
        # Workers make batches beside the step, so the slower of the two decides.
        made_s = self._made_s(loader) * batches
        return max(moved_s + resident_s + max(0.0, self.step_s - self.resident_s - input_s - moved_s), made_s)

    def _made_s(self, loader: Loader) -> float:
        """How often the loader gives a batch: as often as the step takes one, where it waits for that."""
        if self._seconds(Cause.INPUT) > 0.02 * self.step_s:
            return self.step_s
        made = self.findings.of(ExperimentKind.PRODUCE)
        return made.seconds / loader.workers if made is not None and made.seconds else 0.0

    def _seconds(self, cause: Cause) -> float:
        share = self.share(cause)
        return share.seconds if share is not None else 0.0

    def gains(self, experiment: Experiment, batches: float = 1.0) -> tuple[float, float, float]:
        """The gain in samples per second that an experiment on the resident step lets expect, and its interval."""
        seconds, error_s = self.findings.beside(experiment)
        unsure_s = math.hypot(error_s, self.resident_error_s * seconds / self.resident_s, LEAST_ERROR * seconds)
        gain, low, high = (
            self.step_s * batches / max(self.after(each, batches), 1e-3 * self.step_s)
            for each in (seconds, seconds + unsure_s, max(seconds - unsure_s, 0.05 * seconds))
        )
        return gain, low, high

    def without(self, share: StepShare) -> tuple[float, float, float]:
        """The gain if a share were gone, and its interval."""
        least_s = 0.02 * self.step_s
        left = [
            max(self.step_s - each, least_s)
            for each in (share.seconds, max(0.0, share.seconds - share.error_s), share.seconds + share.error_s)
        ]
        gain, low, high = (self.step_s / each for each in left)
        return gain, low, high


def _of_settings(expected: Expectation) -> Iterator[Proposal]:
    for kind in SETTINGS_KINDS:
        for experiment in expected.findings.every(kind):
            settings = experiment.change.settings
            if not settings or not expected.supports(experiment.change):
                continue
            gain, low, high = expected.gains(experiment)
            name, value = next(iter(settings.items()))
            changes = "; it changes the arithmetic, so check the result: metalmark parity" if name == "dtype" else ""
            yield Proposal(
                title=f"computing in {word(value)}" if name == "dtype" else TITLES.get(name, f"{name} {word(value)}"),
                typed=typed(experiment.change),
                written=expected.written(word(value) if name == "dtype" else name),
                change=experiment.change,
                gain=gain,
                low=low,
                high=high,
                reason=f"{_tried(expected, experiment)}{changes}",
            )


def _of_batches(expected: Expectation) -> Iterator[Proposal]:
    """The smallest batch that brings nearly what the best of a sensible size does."""
    asked = expected.findings.batch_size
    if not asked:
        return
    found = []
    for experiment in expected.findings.every(ExperimentKind.BATCH):
        size = next(iter(experiment.change.params.values()), None)
        if isinstance(size, int) and asked < size <= MOST_BATCHES * asked:
            found.append((*expected.gains(experiment, size / asked), size, experiment))
    if not found:
        return
    best = max(gain for gain, *_ in found)
    gain, low, high, size, experiment = min(
        (each for each in found if each[0] >= AS_GOOD * best), key=lambda each: each[3]
    )
    yield Proposal(
        title=f"a batch of {size}",
        typed=typed(experiment.change),
        written=expected.written("batch_size", size),
        change=experiment.change,
        gain=gain, low=low, high=high,
        reason=f"{_tried(expected, experiment)}, for {size / asked:g} times the samples; a larger batch trains "
        "differently",
    )  # fmt: skip


def _of_threads(expected: Expectation) -> Iterator[Proposal]:
    found = [
        (*expected.gains(each), each)
        for each in expected.findings.every(ExperimentKind.THREADS)
        if expected.supports(each.change) and isinstance(each.change.settings.get("threads"), int)
    ]
    if not found:
        return
    best = max(gain for gain, *_ in found)
    good = [each for each in found if each[0] >= AS_GOOD * best]
    gain, low, high, experiment = min(good, key=lambda each: int(each[3].change.settings["threads"]))
    count = int(experiment.change.settings["threads"])
    yield Proposal(
        title=counted(count, "thread"),
        typed=typed(experiment.change),
        written=expected.written("threads", count),
        change=experiment.change,
        gain=gain, low=low, high=high,
        reason=_tried(expected, experiment),
    )  # fmt: skip


def _of_loaders(expected: Expectation) -> Iterator[Proposal]:
    """The smallest change of the loader that brings nearly what the best one does; else what more workers should."""
    found = []
    for experiment in expected.findings.every(ExperimentKind.LOADER):
        assert experiment.seconds is not None
        if not experiment.change.loader or not expected.supports(experiment.change):
            continue
        before_s = experiment.baseline_s or expected.step_s
        unsure = math.hypot(experiment.error_s / max(experiment.seconds, 1e-12), LEAST_ERROR)
        gain = before_s / max(experiment.seconds, 1e-12)
        found.append((gain, gain * (1 - min(unsure, 0.9)), gain * (1 + unsure), experiment))
    waits = expected.share(Cause.INPUT)
    best = max((gain for gain, *_ in found), default=1.0)
    if found and best >= LEAST_GAIN:
        good = [each for each in found if each[0] >= AS_GOOD * best]
        gain, low, high, experiment = min(good, key=lambda each: _effort(each[3], expected.plan))
        now = expected.plan.loader or Loader()
        changed = {name: value for name, value in experiment.change.loader.items() if getattr(now, name) != value}
        yield _loader_proposal(
            expected, PlanChange(loader=changed), (gain, low, high),
            f"Tried with the loader running: a step takes {time_words(expected.step_s / gain)} instead of "
            f"{time_words(expected.step_s)}",
        )  # fmt: skip
    elif waits is not None and not found:
        yield from _reckoned_workers(expected, waits)
    if waits is None or waits.seconds < LEAST_SHARE * expected.step_s:
        return
    gain, low, high = expected.without(waits)
    if gain >= WORTH_MORE * best and gain >= LEAST_GAIN:
        resident = PlanChange(feed=Feed.RESIDENT)
        yield Proposal(
            title=TITLES["resident"],
            typed=typed(resident),
            written=expected.written("resident"),
            change=resident,
            gain=expected.step_s / expected.resident_s, low=low, high=max(high, expected.step_s / expected.resident_s),
            reason=f"Where the data fits: a step with resident batches takes {time_words(expected.resident_s)}",
        )  # fmt: skip
    yield from _starved(expected, waits)


def _reckoned_workers(expected: Expectation, waits: StepShare) -> Iterator[Proposal]:
    """Without an experiment: batches are made as fast as the workers are many, until the step is the slower one."""
    made = expected.findings.of(ExperimentKind.PRODUCE)
    opened = expected.findings.opened
    cores = opened.usable_cores if opened is not None and opened.usable_cores else 1
    if made is None or not made.seconds or waits.seconds < LEAST_SHARE * expected.step_s:
        return
    now = max(1, (expected.plan.loader or Loader()).workers)
    needed = math.ceil(made.seconds / max(expected.step_s - waits.seconds, 1e-9))
    workers = min(needed, cores)
    if workers <= now:
        return
    after_s = max(expected.step_s - waits.seconds, made.seconds / workers)
    gain = expected.step_s / after_s
    yield _loader_proposal(
        expected, PlanChange(loader={"workers": workers}), (gain, 1 + (gain - 1) / 2, gain * 1.1),
        f"One worker makes a batch in {time_words(made.seconds)}; {workers} side by side make one every "
        f"{time_words(made.seconds / workers)}",
    )  # fmt: skip


def _loader_proposal(
    expected: Expectation, change: PlanChange, gains: tuple[float, float, float], reason: str
) -> Proposal:
    titles = [_loader_title(name, value) for name, value in change.loader.items()]
    lines = [expected.written(name, value) for name, value in change.loader.items()]
    # The line for workers says how many batches are made ahead as well.
    lines = [line for line in lines if line][:1] if "workers" in change.loader else [line for line in lines if line]
    return Proposal(
        title=" and ".join(filter(None, titles)) or "another loader",
        typed=typed(change),
        written="; ".join(lines),
        change=change,
        gain=gains[0], low=gains[1], high=gains[2],
        reason=reason,
    )  # fmt: skip


def _loader_title(name: str, value: Scalar) -> str:
    if name == "workers":
        return counted(int(value), "loader worker")
    return f"{counted(int(value), 'batch', 'batches')} made ahead" if name == "prefetch" else TITLES.get(name, "")


def _effort(experiment: Experiment, plan: Plan) -> tuple[int, int, int]:
    """Fewer workers, then fewer batches made ahead, then fewer changes."""
    loader = plan.loader or Loader()
    change: Mapping[str, Scalar] = experiment.change.loader
    return int(change.get("workers", loader.workers)), int(change.get("prefetch", loader.prefetch)), len(change)


def _starved(expected: Expectation, waits: StepShare) -> Iterator[Proposal]:
    """More workers could not be tried for want of open files."""
    refused = [
        each
        for each in expected.findings.experiments
        if each.kind in (ExperimentKind.LOADER, ExperimentKind.AS_ASKED) and FILES in each.absent.lower()
    ]
    opened = expected.findings.opened
    told = [note for note in (opened.notes if opened is not None else ()) if FILES in note.lower()]
    if not refused and not told:
        return
    gain, _, high = expected.without(waits)
    limit = f"a process may have {opened.open_files:,} files open here, " if opened and opened.open_files else ""
    yield Proposal(
        title=TITLES["files"],
        typed="ulimit -n 4096, then the same command with --workers 4",
        written=expected.written("files"),
        gain=gain, low=1.0, high=high,
        reason=f"More loader workers were refused: {limit}and each batch under way needs several",
    )  # fmt: skip


def _of_shares(expected: Expectation, fallbacks: Sequence[str], *, swapping: bool) -> Iterator[Proposal]:
    """What a change of the script would remove, which Metalmark can't make itself."""
    findings, step_s = expected.findings, expected.step_s
    waits = expected.share(Cause.SYNC)
    if waits is not None and waits.seconds >= LEAST_SHARE / 2 * step_s:
        worst = max(findings.syncs, key=lambda sync: sync.seconds, default=None)
        at = f"; the host waits longest at {worst.where} in {worst.call}" if worst is not None else ""
        yield _removed(
            expected, "fewer_waits", waits, f"Waiting costs {share_words(waits.seconds / step_s)} of a step{at}"
        )
    fallen = expected.share(Cause.FALLBACK)
    if fallbacks and fallen is not None and fallen.seconds > 0:
        names = ", ".join(fallbacks[:5])
        gain, low, high = expected.without(fallen)
        yield Proposal(
            title=f"operations that the device has instead of {names}",
            written=expected.written("fallback", operations=names),
            gain=gain, low=low, high=high,
            reason=f"They ran on the CPU, which takes {share_words(fallen.seconds / step_s)} of a step",
        )  # fmt: skip
    host = expected.share(Cause.HOST)
    if host is not None and findings.asynchronous and host.seconds >= LEAST_SHARE * step_s:
        lines = expected.written("several_steps")
        if lines:
            yield _removed(
                expected, "several_steps", host, "The device waits for the host in every step; it would once in several"
            )
    update = expected.share(Cause.OPTIMIZER)
    embeds = isinstance(findings.counted, tuple) and any("embedding" in each.name for each in findings.counted)
    if update is not None and embeds and update.seconds >= 0.4 * step_s:
        lines = expected.written("sparse")
        if lines:
            yield _removed(
                expected, "sparse", update, "The optimiser updates every row of the embedding, and a batch uses few"
            )
    if swapping:
        size = findings.batch_size or 0
        name = "batch_size"
        half = PlanChange(params={name: int(size) // 2}) if size >= 2 and name in findings.plan.params else None
        yield Proposal(
            title=f"a batch of {int(size) // 2}" if half is not None else "a smaller batch",
            typed=typed(half) if half is not None else "",
            written=expected.written("memory"),
            change=half,
            gain=None,
            reason="The machine swaps; a step that fits into memory does not",
        )  # fmt: skip


def _removed(expected: Expectation, name: str, share: StepShare, reason: str) -> Proposal:
    gain, low, high = expected.without(share)
    return Proposal(title=TITLES[name], written=expected.written(name), gain=gain, low=low, high=high, reason=reason)


def _tried(expected: Expectation, experiment: Experiment) -> str:
    seconds, _ = expected.findings.beside(experiment)
    what = "Tried on resident batches" if expected.findings.pipeline else "Tried"
    return f"{what}: a step takes {time_words(seconds)} instead of {time_words(expected.resident_s)}"

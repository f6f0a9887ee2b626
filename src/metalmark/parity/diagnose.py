"""What a difference depends on: the batch size, one setting at a time, and which part of a compiled network.

Everything is computed in workers. A trial is about the quantity that differed first: is it still outside?
"""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from metalmark.backends.catalog import FRAMEWORKS, version_of
from metalmark.doctor.known_bugs import BUGS, KnownBug
from metalmark.doctor.scene import at_least, older
from metalmark.errors import UnsupportedError
from metalmark.machine.durable import write_struct
from metalmark.machine.orphans import scratch_folder
from metalmark.model.parity import Checked, Compared, FaultDiagnosis, ParityVerdict, Quantity, Trial
from metalmark.model.plan import DEFAULT_SETTINGS, DeviceKind, Dtype, Plan, word
from metalmark.model.run import Failed
from metalmark.parity.examine import Examined, examine_all
from metalmark.parity.job import Options
from metalmark.parity.networks import NetworkParts, PartJob
from metalmark.parity.prefixes import CompiledPart
from metalmark.parity.repro import Shown, scripts
from metalmark.parity.scripts import Setting
from metalmark.runner.ask import NoAnswer, ask
from metalmark.runner.events import Event, Listener, Progress, tell_all

LIMIT_S = 600.0
"""No further trial is begun after so long."""
MOST_AT_ONCE = 6
"""Trials per pair of workers. PyTorch compiles the same function for eight networks at most, then runs it eagerly."""
SLOW_S = 120.0
"""After a check that took so long each trial has workers of its own, so that the limit is kept."""
PART_LIMIT_S = 600.0
OF_LAYERS = (Quantity.EVAL_OUTPUT, Quantity.TRAIN_OUTPUT)
OF_CURVES = (Quantity.CURVE, Quantity.ACCURACY)
OF_COMPILED = (Quantity.PREDICTION, Quantity.LOSS, Quantity.GRADIENT, Quantity.UPDATE)
DESCRIBERS = {"torch": "on_torch", "tensorflow": "on_keras", "jax": "on_keras", "mlx": "on_mlx"}
"""The frameworks whose networks can be described, each with its file in parity/networks."""
WITH_PREFIXES = ("torch", "tensorflow", "mlx")
"""The frameworks whose networks can be compiled in part: those with a file in parity/prefixes."""
ALWAYS_COMPILED = ("jax",)
"""The frameworks that compile every step, so that the reference of a check is compiled too."""
WITH_STRIDES = ("torch",)
"""The frameworks that compute on views; the others copy an array that is not contiguous."""
ONE_BY_ONE = (
    "graph", "fused", "compile_mode", "attention_kernel", "accumulate", "recompute", "conv_search", "environment",
)  # fmt: skip
"""Settings that are taken back, one at a time, where they are on."""
NOT_CONTIGUOUS = "inputs that are not contiguous"
PHASES = {CompiledPart: "compiling parts of the network", NetworkParts: "describing the network"}
SMALL_BATCH = 4
"""A batch that is four times as large as one of these is still cheap to try."""
SECTIONS = 5
"""Sizes that are tried at once lie so close that the range between them is this much smaller."""
BATCH_SIZE = "batch_size"
OF_COMPILED_STEPS = (
    KnownBug(
        device="cpu",
        title="PyTorch on the CPU: the compiled gradient of a convolution can be exactly zero",
        affects="This affects torch.compile where it turns a contiguous convolution to channels_last by itself: "
        "Conv2d, ReLU, MaxPool2d, Flatten and Linear at 256 pixels and batch sizes 2 to 7.",
        avoid=("model.to(memory_format=torch.channels_last)", "export TORCHINDUCTOR_LAYOUT_OPTIMIZATION=0"),
        sources=("the script that --repro writes",),
        first="2.13",
    ),
)
"""Bugs of compiled networks only."""
OF_ANY_STEP = (
    KnownBug(
        framework="tensorflow",
        device="cpu",
        title="Keras on TensorFlow: Adam and RMSprop take too long a step where a batch repeats an embedding's row",
        affects="Keras 3.15 adds up the squares of the gradients of each use, not the square of their sum: a row that "
        "is used 16 times takes a first step four times as long. Gradients are right, and so is SGD.",
        avoid=("tf.convert_to_tensor(gradient) before optimizer.apply",),
        sources=("the rows of the embeddings among the changes of the parameters",),
    ),
)
"""Bugs that only a check of this network shows: the doctor, who does not know it, would warn everyone."""


T = TypeVar("T", bound=Struct)


class DiagnosisStopped(KeyboardInterrupt):
    """Ctrl-C, with what was found out before."""

    def __init__(self, diagnosis: FaultDiagnosis) -> None:
        super().__init__()
        self.diagnosis = diagnosis


class Attempt(NamedTuple):
    """A check that differs from the first one in one thing."""

    change: str
    plan: Plan
    reference: Plan
    options: Options


class Answer(NamedTuple):
    verdict: ParityVerdict
    sigmas: float | None = None
    reason: str = ""


class Inquiry(NamedTuple):
    """The check that differed, and what of it is looked at."""

    plan: Plan
    reference: Plan
    checked: Checked
    suspect: Compared
    options: Options
    paths: dict[str, str]
    listeners: Sequence[Listener]

    @property
    def device_type(self) -> str:
        placed = self.checked.placed_on.lower()
        if "cpu" in placed:
            return DeviceKind.CPU.value
        word = placed.partition(":")[0]
        if word != DeviceKind.GPU.value:
            return word
        if sys.platform == "darwin":
            return DeviceKind.MPS.value
        return DeviceKind.CUDA.value


def diagnose(
    plan: Plan,
    reference: Plan,
    checked: Checked,
    *,
    options: Options,
    paths: dict[str, str],
    listeners: Sequence[Listener],
    repro: Path | None,
) -> FaultDiagnosis:
    """Find out what the first difference of a check depends on. `repro`: also write a script that shows it there."""
    suspect = checked.differences[0]
    inquiry = Inquiry(plan, reference, checked, suspect, reduced(options, suspect), paths, listeners)
    trier = Trier(inquiry)
    found = FaultDiagnosis(known_issues=known_issues(inquiry))
    try:
        found = replace(found, batch_sizes=find_batch_sizes(inquiry, trier))
        found = replace(found, trials=tuple(try_switches(inquiry, trier)))
        found = find_part(inquiry, found)
        if repro is not None:
            found = write_repro(inquiry, found, repro)
    except KeyboardInterrupt:
        raise DiagnosisStopped(_noted(found, "Ctrl-C ended the search for what the difference depends on.")) from None
    return replace(found, notes=(*found.notes, *trier.notes))


def reduced(options: Options, suspect: Compared) -> Options:
    """Return options for a check that still has the quantity that differed, and little else."""
    steps = suspect.steps + 1 if suspect.quantity is Quantity.LOSS else max(1, suspect.steps)
    repeats = suspect.quantity is Quantity.REPEAT
    return replace(
        options, steps=steps, draws=min(2, options.draws), layers=suspect.quantity in OF_LAYERS or repeats,
        repeats=options.repeats if repeats else 0, seeds=options.seeds if suspect.quantity in OF_CURVES else 0,
    )  # fmt: skip


class Trier:
    """Makes checks with one thing changed, several in the same two processes."""

    def __init__(self, inquiry: Inquiry) -> None:
        self._question = inquiry
        self._end_s = time.monotonic() + LIMIT_S
        self._at_once = 1 if inquiry.checked.seconds > SLOW_S else MOST_AT_ONCE
        self.notes: list[str] = []

    def try_all(self, attempts: Sequence[Attempt], phase: str) -> list[Answer]:
        """Return an answer for each. One that ends a process takes only itself along: the rest is tried again."""
        answers: dict[int, Answer] = {}
        while len(answers) < len(attempts):
            left = [number for number in range(len(attempts)) if number not in answers]
            if time.monotonic() > self._end_s:
                note = f"The search ended after {LIMIT_S:.0f} s, before everything was tried."
                self.notes = list(dict.fromkeys([*self.notes, note]))
                answers |= dict.fromkeys(left, Answer(ParityVerdict.UNTESTED, reason="there was no time left"))
                break
            alike = [number for number in left if _variables(attempts[number]) == _variables(attempts[left[0]])]
            chosen = alike[: self._at_once]
            for number, examined in zip(chosen, self._examine([attempts[n] for n in chosen], phase), strict=True):
                answers[number] = answer_of(examined, self._question.suspect)
                if examined.interrupted:
                    raise KeyboardInterrupt
                if isinstance(examined.outcome, Failed):
                    break  # the ones after it were not reached
        return [answers[number] for number in range(len(attempts))]

    def _examine(self, attempts: Sequence[Attempt], phase: str) -> list[Examined]:
        inquiry = self._question
        tell = tell_all(inquiry.listeners)

        def hear(event: Event) -> None:
            tell(replace(event, phase=f"{phase}: {event.phase}") if isinstance(event, Progress) else event)

        return examine_all(
            [(attempt.plan, attempt.reference) for attempt in attempts],
            options=[attempt.options for attempt in attempts],
            paths=inquiry.paths,
            listeners=[hear],
        )


def answer_of(examined: Examined, suspect: Compared) -> Answer:
    """Say whether the quantity that differed first does in this check too."""
    outcome = examined.outcome
    if isinstance(outcome, Failed):
        return Answer(ParityVerdict.UNTESTED, reason=outcome.message.rstrip("."))
    rows = [row for row in outcome.compared if (row.quantity, row.name) == (suspect.quantity, suspect.name)]
    if not rows:
        return Answer(ParityVerdict.UNTESTED, reason="this check does not have the quantity that differed")
    worst = max(rows, key=lambda row: row.sigmas / row.limit)
    sigmas = None if worst.distance is None else worst.sigmas
    if worst.agrees and suspect.distance is not None and _hides(worst, suspect.distance):
        return Answer(ParityVerdict.UNTESTED, sigmas, reason="the noise there is larger than the difference")
    return Answer(ParityVerdict.AGREES if worst.agrees else ParityVerdict.DIFFERS, sigmas)


def _hides(row: Compared, distance: float) -> bool:
    """Whether a row that agrees would agree with such a difference too, or still has most of it."""
    return row.limit * row.sigma >= distance or (row.distance or 0.0) >= distance / 2


def _variables(attempt: Attempt) -> tuple[dict[str, str], ...]:
    return tuple(FRAMEWORKS[p.framework].environment(p.settings) for p in (attempt.plan, attempt.reference))


# Batch sizes.


def find_batch_sizes(inquiry: Inquiry, trier: Trier) -> dict[int, ParityVerdict]:
    """Find the size from which on it differs: powers of two below the one that does, then those in between. Larger
    ones are tried too, since some faults end again."""
    size = inquiry.plan.params.get(BATCH_SIZE)
    if not isinstance(size, int) or isinstance(size, bool):
        return {}
    found = {size: ParityVerdict.DIFFERS}

    def look(sizes: Sequence[int]) -> None:
        attempts = [_with_size(inquiry, each) for each in sizes]
        answers = trier.try_all(attempts, f"batch size {', '.join(map(str, sizes))}") if attempts else []
        found.update(zip(sizes, (answer.verdict for answer in answers), strict=True))

    # The largest first: a network that takes no batch of one ends its process last.
    above = [2 * size, 4 * size] if size <= SMALL_BATCH else [2 * size]
    look([*sorted((2**n for n in range(size.bit_length()) if 2**n < size), reverse=True), *above])
    while True:
        below = [each for each in sorted(found) if each <= size]
        wrong = size
        for each in reversed(below):
            if found[each] is not ParityVerdict.DIFFERS:
                break
            wrong = each
        right = max((each for each in below if each < wrong), default=0)
        between = range(right + 1, wrong)
        if found.get(right) is not ParityVerdict.AGREES or not between:
            return dict(sorted(found.items()))
        stride = max(1, len(between) // (SECTIONS - 1))
        look([each for each in between if (each - right) % stride == 0][: SECTIONS - 1])


def _with_size(inquiry: Inquiry, size: int) -> Attempt:
    plan, reference = (
        replace(each, params={**each.params, BATCH_SIZE: size}) for each in (inquiry.plan, inquiry.reference)
    )
    return Attempt(f"--batch-size {size}", plan, reference, inquiry.options)


# Settings.


def try_switches(inquiry: Inquiry, trier: Trier) -> Iterator[Trial]:
    """Change one setting at a time, where the framework has it on this device."""
    attempts: list[Attempt] = []
    refused: list[Trial] = []
    for attempt in switches(inquiry):
        try:
            plan = attempt.plan
            FRAMEWORKS[plan.framework].check(plan.settings, inquiry.device_type, plan.loader)
            attempts.append(attempt)
        except UnsupportedError as error:
            refused.append(
                Trial(change=attempt.change, verdict=ParityVerdict.UNTESTED, reason=error.message.rstrip("."))
            )
    for attempt, answer in zip(attempts, trier.try_all(attempts, "one setting changed"), strict=True):
        yield Trial(change=attempt.change, verdict=answer.verdict, sigmas=answer.sigmas, reason=answer.reason)
    yield from refused


def switches(inquiry: Inquiry) -> Iterator[Attempt]:
    """Those last that end their process or change it: a network without images can't be channels-last, and the number
    of threads stays as it is set."""
    plan, settings = inquiry.plan, inquiry.plan.settings
    low = settings.dtype is not Dtype.FLOAT32
    changes: list[tuple[str, dict[str, Any]]] = [
        (f"--dtype {Dtype.FLOAT32 if low else Dtype.BFLOAT16}", {"dtype": Dtype.FLOAT32 if low else Dtype.BFLOAT16}),
        ("--compile=off" if settings.compile else "--compile", {"compile": not settings.compile, "compile_mode": ""}),
    ]
    for name in (each for each in ONE_BY_ONE if each in settings.changed()):
        usual = getattr(DEFAULT_SETTINGS, name)
        changes.append((f"--{name.replace('_', '-')}={word(usual) or 'default'}", {name: usual}))
    if plan.framework in WITH_STRIDES:
        yield Attempt(NOT_CONTIGUOUS, plan, inquiry.reference, replace(inquiry.options, contiguous=False))
    changes.append(
        (
            "--channels-last=off" if settings.channels_last else "--channels-last",
            {"channels_last": not settings.channels_last},
        )
    )
    if settings.threads != 1 and inquiry.device_type == DeviceKind.CPU:
        changes.append(("--threads 1", {"threads": 1}))
    for change, values in changes:
        changed = replace(plan, settings=replace(settings, **values))
        yield Attempt(change, changed, inquiry.reference, inquiry.options)


# Known issues.


def known_issues(inquiry: Inquiry) -> tuple[str, ...]:
    """Return the known faults of this version on this device, each a sentence with its source. Whether one of them is
    this one, a reader must see."""
    framework = inquiry.plan.framework
    version = version_of(framework)
    bugs = (*BUGS, *OF_ANY_STEP, *(OF_COMPILED_STEPS if inquiry.plan.settings.compile else ()))
    return tuple(
        f"{bug.title}. {' '.join(bug.affects.split())} See {', '.join(bug.sources)}."
        for bug in bugs
        if (bug.framework, bug.device) == (framework, inquiry.device_type)
        and (bug.first is None or at_least(version, bug.first))
        and (bug.fixed is None or older(version, bug.fixed))
    )


# Parts of a compiled network.


def find_part(inquiry: Inquiry, diagnosis: FaultDiagnosis) -> FaultDiagnosis:
    """Name the shortest part of a compiled network that differs when it is compiled by itself."""
    plan = inquiry.plan
    if not plan.settings.compile or inquiry.suspect.quantity not in OF_COMPILED:
        return diagnosis
    title = FRAMEWORKS[plan.framework].title
    if plan.framework in ALWAYS_COMPILED:
        note = f"{title} compiles both sides, so no part of the network is compiled on one side only."
        return _noted(diagnosis, note)
    if plan.framework not in WITH_PREFIXES:
        return _noted(diagnosis, f"Which part of the compiled network differs is not looked for with {title}.")
    found = _ask(inquiry, f"prefixes.on_{plan.framework}", CompiledPart)
    if isinstance(found, NoAnswer):
        return _noted(diagnosis, f"Which part of the compiled network differs was not found: {found.reason}")
    diagnosis = replace(diagnosis, compiled_until=found.until)
    return _noted(diagnosis, found.note) if found.note else diagnosis


def _ask(inquiry: Inquiry, module: str, kind: type[T]) -> T | NoAnswer:
    """Let a worker answer a question about the network: the framework's file in a package of parity's."""
    plan, suspect = inquiry.plan, inquiry.suspect
    tell_all(inquiry.listeners)(Progress(phase=PHASES[kind], at_s=0.0))
    with scratch_folder() as folder:
        path = folder / "job.json"
        write_struct(path, PartJob(plan=plan, paths=inquiry.paths, quantity=suspect.quantity, name=suspect.name))
        return ask(
            f"metalmark.parity.{module}", str(path), kind,
            environment=FRAMEWORKS[plan.framework].environment(plan.settings), timeout_s=PART_LIMIT_S,
        )  # fmt: skip


def _noted(diagnosis: FaultDiagnosis, note: str) -> FaultDiagnosis:
    return replace(diagnosis, notes=(*diagnosis.notes, note))


# A script that shows it.


def write_repro(inquiry: Inquiry, diagnosis: FaultDiagnosis, path: Path) -> FaultDiagnosis:
    """Try scripts in fresh processes, the shortest network first, and write the first that shows the difference."""
    plan, checked = inquiry.plan, inquiry.checked
    if inquiry.reference.framework != plan.framework:
        return _noted(diagnosis, "No script was written: it would need two frameworks, and one script has one.")
    if plan.framework not in DESCRIBERS:
        title = FRAMEWORKS[plan.framework].title
        return _noted(diagnosis, f"No script was written: networks of {title} can't be described.")
    parts = _ask(inquiry, f"networks.{DESCRIBERS[plan.framework]}", NetworkParts)
    if isinstance(parts, NoAnswer):
        return _noted(diagnosis, f"No script was written, since the network could not be described: {parts.reason}")
    setting = Setting(
        plan=plan, reference_device=checked.reference_placed_on, device=checked.placed_on, suspect=inquiry.suspect
    )
    tried: list[str] = []
    for script in scripts(setting, parts, diagnosis.compiled_until):
        tell_all(inquiry.listeners)(Progress(phase=f"script: {script.what}", at_s=0.0))
        with scratch_folder() as folder:
            trial = folder / "fault.py"
            trial.write_text(script.text, encoding="utf-8")
            shown = ask("metalmark.parity.repro", str(trial), Shown, environment={}, timeout_s=PART_LIMIT_S)
        if isinstance(shown, NoAnswer):
            tried.append(f"{script.what} failed ({shown.reason})")
        elif shown.differs:
            path.write_text(script.text, encoding="utf-8")
            return replace(diagnosis, repro=script.text)
        else:
            tried.append(f"{script.what} showed no difference")
    if not tried:
        return _noted(
            diagnosis,
            "No script was written: this quantity, or this network, can't be made of the framework's own layers alone.",
        )
    return _noted(diagnosis, f"No script was written. Of those that were tried, {'; '.join(tried)}.")

"""Watch a script that is not changed, and keep a run of what was seen."""

import os
import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

import metalmark
from metalmark.errors import StoreError, UsageError, counted
from metalmark.explain.from_watch import explain_watched
from metalmark.explain.sentences import verdict_sentence
from metalmark.machine.identity import identify
from metalmark.machine.steering import steering_variables
from metalmark.model.codec import encode
from metalmark.model.run import Software, new_id, now_utc
from metalmark.model.watch import WatchedRun, WatchedScript, WatchEnding
from metalmark.scrub import scrub
from metalmark.store.address import store_address
from metalmark.store.store import Store
from metalmark.watch.launch import AttendedCommand, attend

NO_FRAMEWORK = "No PyTorch, Keras, JAX or MLX was imported by this script, so no steps were seen."
NO_STEP = "No optimiser step was taken, so there is nothing to time."
NO_HOOK = (
    "Nothing inside the script could be seen: no Python was started, or one that takes no PYTHONPATH (python -S, -I or "
    "-E, or a script that clears it)."
)
SECRET = re.compile(r"(?i)key|token|secret|passw")
LAUNCHERS = ("torch.distributed.", "accelerate.", "deepspeed.")
"""Packages that start a script, whose name tells more than theirs."""
INTERRUPTED = 130


def watch(
    command: Sequence[str],
    *,
    name: str | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: bool = True,  # noqa: ARG001  it shows none; other use cases are called in the same way
) -> tuple[int, WatchedRun]:
    """Run a command to its end, as it was typed, and store what was seen of it. Return its exit code and the run."""
    if not command or not command[0]:
        raise UsageError("There is no command to watch.", hint="metalmark watch -- python train.py")
    if name is not None and not name.strip():
        raise UsageError("--name is empty.", hint="Leave it out: the script's own name is taken.")
    path = store_address(store)
    with Store(path):  # a store that can't be used is no news after hours of training
        started_at = now_utc()
    attended = attend(command)
    run = watched_run(command, attended, name=name, started_at=started_at)
    try:
        with Store(path, spools=True) as opened:
            opened.add(run)
    except StoreError as error:
        unsaved = Path(tempfile.gettempdir(), f"metalmark-unsaved-{run.id}.json")
        unsaved.write_bytes(encode(run))
        note = f"{error.message} {error.hint} The run is in {unsaved}."
        run = msgspec.structs.replace(run, notes=(*run.notes, note))
    return attended.status, run


def watched_run(command: Sequence[str], attended: AttendedCommand, *, name: str | None, started_at: str) -> WatchedRun:
    seen, pid = attended.seen, attended.pid
    leading = seen.leading(pid)
    # Where nothing was seen, how the script ended and what the machine did is still worth a run.
    script = leading.script(seen.described(pid)) if leading is not None else WatchedScript(command="")
    error = leading.error if leading is not None else ""
    curve = leading.losses.curve(attended.begin_s) if leading is not None else None
    ended, ending = _ending(attended)
    return WatchedRun(
        id=new_id(),
        name=scrub(name if name is not None else script_name(command)),
        started_at=started_at,
        elapsed_s=attended.elapsed_s,
        ended=ended,
        error=scrub(error)[:2000] if error and ended is not WatchEnding.COMPLETED else ending,
        machine=identify(),
        software=Software(
            metalmark=metalmark.__version__,
            python=leading.python if leading is not None else "",
            versions=leading.versions if leading is not None else {},
            environment=steering_variables(os.environ),
        ),
        stretches=leading.stretches() if leading is not None else {},
        passes=tuple(leading.passes) if leading is not None else (),
        curves=(curve,) if curve is not None else (),
        telemetry=attended.telemetry,
        notes=tuple(_notes(attended)),
        script=msgspec.structs.replace(
            script, command=command_words(command), exit_code=attended.exit_code, signal=attended.signal
        ),
    )


def _notes(attended: AttendedCommand) -> list[str]:
    seen = attended.seen
    leading = seen.leading(attended.pid)
    notes: list[str] = []
    if leading is None:
        notes.append(NO_HOOK)
    else:
        notes += leading.notes
        if not any(process.frameworks for process in seen.all):
            notes.append(NO_FRAMEWORK)
        elif not leading.steps:
            notes.append(NO_STEP)
        if leading.left_out_passes:
            notes.append(f"{counted(leading.left_out_passes, 'pass', 'passes')} through loaders are not listed.")
    if attended.running:
        processes = ", ".join(map(str, attended.running))
        noun = "process" if len(attended.running) == 1 else "processes"
        processes += " was" if len(attended.running) == 1 else " were"
        notes.append(
            f"The script went into the background: {noun} {processes} still running when it ended. What was seen until "
            "then is kept; nothing is followed from here on."
        )
    if attended.signal and leading is not None and not leading.ended:
        notes.append(f"It was ended by {attended.signal}: its last second may be missing.")
    notes += [f"Metalmark's own hook failed: {trouble}" for trouble in seen.troubles()]
    return [*notes, *attended.notes]


def _ending(attended: AttendedCommand) -> tuple[WatchEnding, str]:
    if attended.exit_code == 0:
        return WatchEnding.COMPLETED, ""
    if attended.signal == "SIGINT" or attended.exit_code == INTERRUPTED:
        return WatchEnding.INTERRUPTED, "stopped by Ctrl-C"
    if attended.signal:
        return WatchEnding.FAILED, f"ended by {attended.signal}"
    return WatchEnding.FAILED, f"exit code {attended.exit_code}"


def command_words(command: Sequence[str]) -> str:
    """Return the command as typed, with paths cut to their last part and without what looks like a password."""
    words: list[str] = []
    hidden = False
    for word in command:
        option, sign, _ = word.partition("=")
        if hidden and not word.startswith("-"):
            word = "***"
        elif word.startswith("-") and sign and SECRET.search(option):
            word = f"{option}=***"
        hidden = word.startswith("-") and not sign and bool(SECRET.search(option))
        words.append(scrub(word))
    return shlex.join(words)[:2000]


def script_name(command: Sequence[str]) -> str:
    """Return what a run is called that was given no name: the script's, the package's, or the command's."""
    for place, word in enumerate(command[1:], 1):
        if word.endswith(".py"):
            return Path(word).stem
        if word == "-m" and place + 1 < len(command) and not command[place + 1].startswith(LAUNCHERS):
            return command[place + 1]
    return Path(command[0]).name


def summary(run: WatchedRun) -> list[str]:
    """Return what to tell after a script has ended: the verdict, what a reader should know, and where the run is."""
    lines = []
    if run.stretches:
        try:
            lines = [verdict_sentence(explain_watched(run))]
        except Exception as error:  # noqa: BLE001  the script has ended, and its exit code matters more
            lines = [f"No verdict could be told: {type(error).__name__}: {error}"]
    return [*lines, *run.notes, f"kept as {run.id}"]

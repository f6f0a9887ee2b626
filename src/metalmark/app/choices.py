"""What was asked for, parsed once: lists, ranges and switches as a command line or a script gives them."""

import inspect
import math
import os
from collections.abc import Callable, Iterable
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from metalmark.backends.catalog import MODE_WITHOUT_COMPILE, find, installed, visible
from metalmark.backends.environment import parse_environment
from metalmark.data.catalog import ACCEPTED, OWN, REAL, SYNTHETIC
from metalmark.errors import NotInstalledError, UsageError, counted
from metalmark.model.plan import ATTENTION_KERNELS, COMPILE_MODES, Cooldown, Dtype, Feed, Loader, Proving, Settings
from metalmark.model.workload import WorkloadInfo
from metalmark.runner.expand import refuse_too_many, require
from metalmark.runner.values import MOST_SIZE, choose, expanded, localise, parse_numbers, parse_switch, split_list

Choice = str | bool | int | float | Iterable[str] | Iterable[bool] | Iterable[int] | Iterable[float]
"""One value, several, or the command line's text for them ("16,64", "8-64x2", "off,on")."""

E = TypeVar("E", bound=StrEnum)

START_METHODS = ("fork", "spawn", "forkserver")
AUTO_COOLDOWN_S = 300.0
MOST_COOLDOWN_S = 86_400.0
MOST_S = 1e9
"""31 years. The clocks that are waited on can't count much further."""
MOST_STEPS = 10**12
MOST_REPEATS = 1000
MOST_SEED = 2**32 - 1
"""The largest that every framework takes."""
THREADS_PER_CORE = 8
LEAST_WORKERS, MOST_PREFETCH = 64, 1000
"""Number of loader workers that any machine may be asked for, and of batches made ahead."""
DEFAULT = "default"
"""What a setting without a word of its own is called in a list."""
ONLY_IN_PYTHON = {"workload", "workloads", "params", "more_params", "progress", "raise_interrupt"}


def listed(value: Choice) -> str:
    """Write values as the command line does: [16, 64] as "16,64", True as "on"."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Iterable):
        return ",".join(listed(each) for each in value)
    return str(value)


def texts(values: dict[str, Choice]) -> dict[str, str]:
    """A workload's parameters as the command line writes them."""
    return {name: listed(value) for name, value in values.items()}


def names_in(workloads: str | Iterable[str]) -> list[str]:
    given = [workloads] if isinstance(workloads, str) else list(workloads)
    return [name for text in given for name in str(text).split(",") if name]


def option_flags(function: Callable[..., Any], *printing: str) -> list[str]:
    """The options of a verb, to suggest one for a word that is close to it: those that its use case takes, and those
    that say only what is `printing`."""
    names = [name for name in inspect.signature(function).parameters if name not in ONLY_IN_PYTHON]
    return [*(f"--{name.replace('_', '-')}" for name in names), "--param", "--json", "--quiet", *printing]


def members(kind: type[E], value: Choice, *, what: str, plural: str) -> list[E]:
    """The members of an enumeration that were named."""
    return [kind(word) for word in choose(listed(value), [one.value for one in kind], what=what, plural=plural)]


def settings_product(
    *,
    dtype: Choice | None = None,
    compile: Choice | None = None,
    graph: Choice | None = None,
    channels_last: Choice | None = None,
    fused: Choice | None = None,
    threads: Choice | None = None,
    compile_mode: Choice | None = None,
    attention_kernel: Choice | None = None,
    accumulate: Choice | None = None,
    recompute: Choice | None = None,
    conv_search: Choice | None = None,
    environment: Choice | None = None,
) -> list[Settings]:
    """Every combination of how a step is run. None: the default."""
    given = {
        "compile": compile, "graph": graph, "channels_last": channels_last, "fused": fused, "recompute": recompute,
        "conv_search": conv_search,
    }  # fmt: skip
    values: dict[str, list[Any]] = {
        "dtype": [Dtype.FLOAT32] if dtype is None else members(Dtype, dtype, what="--dtype", plural="Types"),
        **{name: _switch(value, what=f"--{name.replace('_', '-')}") for name, value in given.items()},
        "threads": [None] if threads is None else parse_threads(threads),
        "compile_mode": _or_default(compile_mode, COMPILE_MODES, what="--compile-mode"),
        "attention_kernel": _or_default(attention_kernel, ATTENTION_KERNELS, what="--attention-kernel"),
        "accumulate": [1] if accumulate is None else parse_parts(accumulate),
        "environment": [""] if environment is None else parse_environments(environment),
    }
    if any(values["compile_mode"]) and True not in values["compile"]:
        raise UsageError(MODE_WITHOUT_COMPILE, hint="Add --compile, or leave --compile-mode out.")
    refuse_too_many(*values.values())
    names = Settings.__struct_fields__
    return [Settings(**dict(zip(names, each, strict=True))) for each in product(*(values[name] for name in names))]


def _switch(value: Choice | None, *, what: str) -> list[bool]:
    return [False] if value is None else parse_switch(listed(value), what=what)


def _or_default(value: Choice | None, words: tuple[str, ...], *, what: str) -> list[str]:
    """Parse a list of words. An empty text is the default, as it is in a run; in a list it is called `default`."""
    if value is None or listed(value) == "":
        return [""]
    chosen = choose(listed(value), (DEFAULT, *words), what=what, plural="It takes")
    return ["" if word == DEFAULT else word for word in chosen]


def parse_environments(value: Choice) -> list[str]:
    """Parse a list, each of whose words is one variable, or several with a blank between them, set together."""
    if listed(value).strip() == "":
        return [""]
    words = split_list(listed(value), what="--environment")
    return list(dict.fromkeys("" if word == DEFAULT else parse_environment(word) for word in words))


def parse_parts(value: Choice) -> list[int]:
    counts = [int(count) for count in parse_numbers(listed(value), what="--accumulate", whole=True)]
    if not 1 <= min(counts) <= max(counts) <= MOST_SIZE:
        wrong = min(counts) if min(counts) < 1 else max(counts)
        raise UsageError(
            f"--accumulate is the number of parts of a batch, from 1 to {MOST_SIZE}, not {wrong}.",
            hint="Write --accumulate 4: a batch of 32 is run as 4 parts of 8.",
        )
    return counts


def parse_threads(value: Choice) -> list[int]:
    """Parse counts of threads. Each costs memory and a place in the system's table, so there is a limit."""
    counts = [int(count) for count in parse_numbers(listed(value), what="--threads", whole=True)]
    if min(counts) < 1:
        raise UsageError(f"--threads must be at least 1, not {min(counts)}.")
    cores = os.cpu_count() or 1
    if max(counts) > THREADS_PER_CORE * cores:
        raise UsageError(
            f"--threads is at most {THREADS_PER_CORE * cores} here, not {max(counts)}.",
            hint=f"This machine has {counted(cores, 'core')}, and {THREADS_PER_CORE} threads for each are the limit.",
        )
    return counts


def parse_seconds(value: float, *, what: str) -> float:
    """Take a number of seconds that a clock can count: finite and above 0."""
    if not (math.isfinite(value) and 0 < value <= MOST_S):
        raise UsageError(
            f"{what} is a number of seconds above 0 and up to {MOST_S:g}, not {value!r}.", hint=f"Write {what} 60."
        )
    return float(value)


def parse_count(value: int, *, what: str, least: int = 1, most: int = MOST_STEPS) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        huge = isinstance(value, int) and abs(value) > 10**18
        what_not = "one so far from 0" if huge else repr(value)[:40]
        raise UsageError(f"{what} is a whole number from {least} to {most}, not {what_not}.", hint=f"Write {what} 5.")
    return value


def parse_data(data: Choice | None) -> tuple[list[str], dict[str, str]]:
    """Return the words for the data, and the path of each that is a file. Empty when not said: each workload has its
    own."""
    if data is None:
        return [], {}
    text, paths = localise(listed(data), fixed=[OWN, REAL, SYNTHETIC, *ACCEPTED], what="--data")
    return split_list(text, what="--data"), paths


def feeds(data_from: Choice | None) -> list[Feed]:
    """Empty when not said: each workload has its own."""
    if data_from is None:
        return []
    return members(Feed, data_from, what="--data-from", plural="It takes")


def loaders(
    *,
    workers: Choice | None = None,
    prefetch: Choice | None = None,
    pin: Choice | None = None,
    start_method: Choice | None = None,
) -> list[Loader]:
    """Every combination of how batches are made ahead. None: the default."""
    usual = Loader()
    counts = parse_numbers(listed(usual.workers if workers is None else workers), what="--workers", whole=True)
    ahead = parse_numbers(listed(usual.prefetch if prefetch is None else prefetch), what="--prefetch", whole=True)
    most_workers = max(LEAST_WORKERS, THREADS_PER_CORE * (os.cpu_count() or 1))
    for name, values, most in (("--workers", counts, most_workers), ("--prefetch", ahead, MOST_PREFETCH)):
        if min(values) < 0:
            raise UsageError(f"{name} must be at least 0, not {min(values)}.")
        if max(values) > most:
            raise UsageError(f"{name} is at most {most} here, not {max(values)}.", hint=f"Write {name} 4.")
    pins = _switch(pin, what="--pin")
    methods = [""]
    if start_method:
        methods = choose(listed(start_method), START_METHODS, what="--start-method", plural="It takes")
    refuse_too_many(counts, ahead, pins, methods)
    return [
        Loader(workers=int(count), prefetch=int(batches), pin=pinned, start_method=method)
        for count, batches, pinned, method in product(counts, ahead, pins, methods)
    ]


def parse_output(value: str | os.PathLike[str], *, what: str, example: str) -> Path:
    """Return the file to write, and refuse now what could not be written after minutes of work."""
    path = expanded(os.fspath(value))
    if path.is_dir() or not path.parent.is_dir():
        why = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        raise UsageError(f"{what} {path.name} {why}.", hint=f"Name a file to write: {what} {example}")
    return path


def parse_proof(value: str) -> Proving:
    words = members(Proving, value, what="--proof", plural="It takes")
    if len(words) > 1:
        raise UsageError(f"--proof takes one word, not {listed(value)!r}.", hint="Write --proof strict.")
    return words[0]


def parse_cooldown(value: str | float | None) -> Cooldown | None:
    if value is None:
        return None
    if value == "auto":
        return Cooldown(limit_s=AUTO_COOLDOWN_S, auto=True)
    limit_s = _number(value)
    if not 0 < limit_s <= MOST_COOLDOWN_S:
        raise UsageError(
            f"--cooldown is auto or seconds up to {MOST_COOLDOWN_S:g}, not {value!r}.",
            hint="Write --cooldown 60: at most a minute between cells.",
        )
    return Cooldown(limit_s=limit_s)


def parse_telemetry(value: str | float | None) -> float | None:
    if value is None or value == "off":
        return None
    hz = _number(value)
    if not 0 < hz <= 100:
        raise UsageError(f"--telemetry is off or samples per second up to 100, not {value!r}.")
    return hz


def parse_accuracy(value: float | None) -> float | None:
    """Take both ways people write it: 0.86 and 86."""
    if value is None:
        return None
    if not 0 < value <= 100:
        raise UsageError(
            f"--target-accuracy is a share (0.86) or a percentage (86), not {value:g}.",
            hint="It is of the validation samples: --target-accuracy 86",
        )
    return value if value <= 1 else value / 100


def choose_frameworks(value: Choice) -> tuple[list[str], bool, list[str]]:
    """Return the frameworks named; for `all` those installed, that it was all, and a line for each that is missing."""
    words = split_list(listed(value), what="--framework")
    if "all" not in words:
        return [find(name).name for name in words], False, []
    present = [framework.name for framework in installed()]
    if not present:
        raise NotInstalledError(
            "No framework is installed.",
            hint='Install one: pip install "metalmark[torch]" (or tensorflow, jax, mlx).',
        )
    absent = [f.name for f in visible() if f.name not in present]
    notes = [f'{name} not run: it is not installed. Install it: pip install "metalmark[{name}]"' for name in absent]
    return present, True, notes


def frameworks_for(info: WorkloadInfo, framework: Choice | None) -> list[str]:
    """Return the frameworks that were named; where none was, the first installed one that the workload has."""
    if framework is not None:
        names, every, _ = choose_frameworks(framework)
        if every:
            return [name for name in names if name in info.frameworks]
        require([info], names)
        return names
    for present in installed():
        if present.name in info.frameworks:
            return [present.name]
    if info.frameworks == ("fake",):
        return ["fake"]
    raise NotInstalledError(
        f"None of the frameworks that {info.name} has is installed.",
        hint=f'Install one: pip install "metalmark[{info.frameworks[0]}]"',
    )


def _number(value: str | float) -> float:
    """Return 0 for what is not a number, which no option takes."""
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError):
        return 0.0

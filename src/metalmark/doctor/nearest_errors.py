"""What an unknown text may be near to: the entries that share its rare words, and what to run next."""

import builtins
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from metalmark.doctor.error_text import FRAMEWORK_MODULES, ErrorText
from metalmark.doctor.known_errors import KnownError
from metalmark.scrub import scrub

MOST_NEAREST = 3
NEAR_ENOUGH = 0.6
"""Of 1, where all words of an entry's expression are in the text."""
FEWEST_WORDS = 2
LINES = 60
"""An error is at the end of a text, or in a line that is called one."""

COLLECTORS = {
    "torch": "python -m torch.utils.collect_env",
    "tensorflow": 'python -c "import tensorflow as tf; print(tf.version.VERSION, tf.config.list_physical_devices())"',
    "keras": 'python -c "import keras; print(keras.__version__, keras.backend.backend())"',
    "jax": 'python -c "import jax; jax.print_environment_info()"',
    "mlx": 'python -c "import mlx.core as mx; print(mx.__version__, mx.default_device())"',
    "transformers": "transformers env",
    "accelerate": "accelerate env",
    "mlflow": "mlflow doctor",
}
"""What each framework prints of itself, and what its maintainers ask for in a report."""

_WORD = re.compile(r"[a-z_][a-z0-9_]{2,40}")
_CALLED_ERROR = re.compile(r"error|fail|exception|abort|fatal|cannot|can't|could not|unable|unsupported|invalid|killed")
_FRAME = re.compile(r"^\s*File \"")
_COMMON_NAMES = {"pytorch": "torch", "tf": "tensorflow", "mps": "torch"}
_EXCEPTIONS = frozenset(name.lower() for name in vars(builtins) if name.endswith(("Error", "Exception", "Warning")))
_NAME_SHARE, _PROSE_SHARE = 0.5, 0.1


class NearEntry(Struct, frozen=True, kw_only=True):
    """A known error that was not recognised in the text, and shares words with it."""

    name: str
    happened: str
    source: str
    shared: tuple[str, ...]
    """The words in common, rarest first."""
    nearness: float


class _Words(Struct, frozen=True, kw_only=True):
    patterns: tuple[frozenset[str], ...]
    name: frozenset[str]
    prose: frozenset[str]


def nearest_errors(text: ErrorText, known: Sequence[KnownError]) -> list[NearEntry]:
    """Return the nearest entries, at most three; none if nothing is near."""
    entries, rarity = _index(known)
    words = _words("\n".join(_telling_lines(text.text)))
    # Two words that no other entry has are as much as an expression of one word can be worth.
    least = 2 * math.log(max(2, len(known)))
    near: list[NearEntry] = []
    for error, entry in zip(known, entries, strict=True):
        best = max(entry.patterns, key=lambda pattern: _worth(pattern & words, rarity), default=frozenset())
        shared = best & words & rarity.keys()
        if len(shared) < FEWEST_WORDS:
            continue
        nearness = _worth(shared, rarity) / max(least, _worth(best, rarity))
        rest = words - shared
        nearness += _NAME_SHARE * _worth(entry.name & rest, rarity) / (2 * least)
        nearness += _PROSE_SHARE * min(1.0, _worth((entry.prose - entry.name) & rest, rarity) / (2 * least))
        if nearness >= NEAR_ENOUGH:
            shown = tuple(sorted(shared, key=lambda word: (-rarity[word], word)))
            near.append(
                NearEntry(
                    name=error.name,
                    happened=error.happened,
                    source=error.source,
                    shared=shown,
                    nearness=round(nearness, 2),
                )
            )
    return sorted(near, key=lambda entry: (-entry.nearness, entry.name))[:MOST_NEAREST]


def collectors(text: ErrorText) -> list[str]:
    """Return the commands with which the frameworks that the text is about describe themselves."""
    names = set(_WORD.findall(text.lowered)) | ({"tf"} if "tf." in text.lowered else set())
    about = set(text.frameworks) | {FRAMEWORK_MODULES.get(name, _COMMON_NAMES.get(name, name)) for name in names}
    return [command for framework, command in COLLECTORS.items() if framework in about]


def _index(known: Sequence[KnownError]) -> tuple[list[_Words], dict[str, float]]:
    """Return the words of each entry, and how rare each word is among all entries."""
    entries = []
    counts: Counter[str] = Counter()
    for error in known:
        patterns = tuple(_words(" ".join(pattern.literals)) for pattern in error.expressions)
        further = (part for cause in error.also for part in (cause.happened, cause.tell, cause.change))
        prose = _words(" ".join([error.happened, error.change, error.tell or "", *further]))
        name = frozenset(error.name.split("-"))
        entries.append(_Words(patterns=patterns, name=name, prose=prose))
        counts.update(name.union(prose, *patterns))
    # That it is a RuntimeError says nothing, however few entries say so.
    return entries, {word: math.log(len(known) / number) for word, number in counts.items() if word not in _EXCEPTIONS}


def _worth(words: frozenset[str], rarity: dict[str, float]) -> float:
    return sum(rarity.get(word, 0.0) for word in words)


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def _telling_lines(text: str) -> Iterator[str]:
    lines = [line for line in text.splitlines() if line.strip() and not _FRAME.match(line)]
    called = [line for line in lines[:-LINES] if _CALLED_ERROR.search(line.lower())]
    yield from (scrub(line) for line in (*called[-LINES:], *lines[-LINES:]))

"""When a training stops and when it writes checkpoints, as a command line or a script says it."""

import math
import re

from metalmark.app.choices import parse_accuracy
from metalmark.errors import UsageError
from metalmark.model.training import ACCURACY, TRAIN_LOSS, VALIDATION_LOSS, Metric, Target
from metalmark.training.derived import falls_by_name
from metalmark.training.folder import CheckpointInterval

ALIASES = {"acc": ACCURACY, "loss": TRAIN_LOSS, "validation_loss": VALIDATION_LOSS, "top-5": "top5"}
DIRECTIONS = {"min": True, "max": False}
_TARGET = re.compile(r"\s*([^=<>:\s]+)\s*(<=|>=|=)\s*([^=<>%\s]+)\s*(%?)\s*")
_INTERVAL = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(min|minutes?|steps?)?\s*")
TARGET_HINT = "For example: --target accuracy=86%, --target val_loss=0.3, or with the direction: --target 'f1>=0.9'"
INTERVAL_HINT = "For example: --checkpoint-every 10 (minutes), or --checkpoint-every 500steps"


def parse_target(text: str | None, accuracy: float | None = None) -> Target | None:
    """Parse NAME=VALUE; `accuracy` is what --target-accuracy says, which means the same."""
    if accuracy is not None:
        if text is not None:
            raise UsageError("--target and --target-accuracy are one and the same.", hint="Give --target alone.")
        share = parse_accuracy(accuracy)
        assert share is not None
        return Target(name=ACCURACY, falls=False, value=share)
    if text is None:
        return None
    found = _TARGET.fullmatch(text)
    if found is None:
        raise UsageError(f"--target takes NAME=VALUE, not {text[:60]!r}.", hint=TARGET_HINT)
    name, sign, number, percent = figure_name(found[1]), found[2], found[3], found[4]
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"--target {text[:60]}: {number[:40]!r} is not a number.", hint=TARGET_HINT)
    if percent:
        value /= 100
    elif name == ACCURACY:
        share = parse_accuracy(value)
        value = share if share is not None else value
    if name == ACCURACY and not 0 < value <= 1:
        raise UsageError(f"--target {text[:60]}: an accuracy is above 0% and at most 100%.", hint=TARGET_HINT)
    return Target(name=name, falls=falls_by_name(name) if sign == "=" else sign == "<=", value=value)


def parse_monitor(text: str | None) -> Metric | None:
    """Parse NAME, NAME:min or NAME:max."""
    if text is None:
        return None
    name, colon, direction = text.strip().partition(":")
    if not name or any(letter in "=<>," or letter.isspace() for letter in name) or (
        colon and direction not in DIRECTIONS
    ):  # fmt: skip
        raise UsageError(
            f"--monitor takes the name of a figure, not {text[:60]!r}.",
            hint="For example: --monitor val_loss, or with the direction: --monitor f1:max",
        )
    name = figure_name(name)
    return Metric(name=name, falls=DIRECTIONS[direction] if colon else falls_by_name(name))


def parse_interval(value: str | float | None) -> CheckpointInterval | None:
    """Parse minutes, or a number of steps."""
    if value is None:
        return None
    found = _INTERVAL.fullmatch(str(value))
    number = float(found[1]) if found is not None else 0.0
    steps = found is not None and (found[2] or "").startswith("step")
    if found is None or not 0 < number < 1e9 or (steps and number != int(number)):
        raise UsageError(
            f"--checkpoint-every takes minutes or a number of steps, not {str(value)[:40]!r}.", hint=INTERVAL_HINT
        )
    return CheckpointInterval(steps=int(number)) if steps else CheckpointInterval(minutes=number)


def figure_name(word: str) -> str:
    """Return the one name of a figure. Keras writes val_ before whatever is of validation."""
    name = ALIASES.get(word, word)
    return name if name == VALIDATION_LOSS else ALIASES.get(name.removeprefix("val_"), name.removeprefix("val_"))

"""What trackers are told of a tuning: the figures of each rung of its ladder, and the best settings."""

from metalmark.model.plan import Scalar
from metalmark.model.run import PARITY_FAILED
from metalmark.model.tuning import Rung, RungStatus, Tuned, TuningRequest, TuningRun
from metalmark.report.text.explain_page import gain_words
from metalmark.report.text.tune_page import parity_words, rate_of, rung_name, settings_words, tuning_sentence
from metalmark.results.derived import flags_of

MOST_REFUSED = 10


def request_params(request: TuningRequest) -> dict[str, Scalar]:
    """Return what was asked for, as far as it says something."""
    asked: dict[str, Scalar | None] = {
        "tune.goal": request.goal.value,
        "tune.time_s": request.time_s,
        "tune.repeats": request.repeats,
        "tune.seconds": request.seconds,
        "tune.steps_planned": request.steps_planned,
        "tune.fixed": ", ".join(request.fixed) or None,
        "tune.memory_limit_bytes": request.memory_limit_bytes,
        "tune.gate": "on" if request.gate else "off",
    }
    return {name: value for name, value in asked.items() if value is not None}


def rung_metrics(rung: Rung) -> dict[str, float | None]:
    """Return the figures of one rung: one row per rung, the baseline first."""
    return {
        "tune/step_ms": None if rung.step_s is None else rung.step_s * 1000,
        "tune/samples_s": rate_of(rung),
        "tune/gain": 1.0 if rung.status is RungStatus.BASELINE else rung.gain,
        "tune/gain_low": rung.low,
        "tune/gain_high": rung.high,
        "tune/first_step_s": rung.first_step_s,
        "tune/peak_bytes": rung.peak_bytes,
        "tune/joules_per_sample": rung.joules_per_sample,
    }


def tuning_metrics(outcome: Tuned) -> dict[str, float | None]:
    """Return what the tuning came to."""
    return {
        "tune/best_gain": outcome.best.gain if len(outcome.ladder) > 1 else 1.0,
        "tune/trials": outcome.trials,
        "tune/elapsed_s": outcome.elapsed_s,
    }


def tuning_tags(run: TuningRun, outcome: Tuned) -> dict[str, str]:
    """Return the best settings, what they gain in a sentence, and each rung with what its checks found."""
    best, flags = outcome.best, flags_of(run)
    refused = [one for one in outcome.others if one.status is RungStatus.DIFFERS][:MOST_REFUSED]
    rungs = {
        f"rung{number}": f"{one.title}: {gain_words(one.gain, one.low, one.high)}, {parity_words(one)}"
        for number, one in enumerate(outcome.ladder[1:], start=1)
    }
    return {
        "best": settings_words(best.change) or best.title,
        "report": tuning_sentence(run),
        "parity": parity_words(best),
        **({"placed_on": outcome.placed_on} if outcome.placed_on else {}),
        **({"device_name": outcome.device_name} if outcome.device_name else {}),
        **rungs,
        **({PARITY_FAILED: "; ".join(map(rung_name, refused))} if refused else {}),
        **({"flags": ", ".join(flag.name for flag in flags)} if flags else {}),
    }

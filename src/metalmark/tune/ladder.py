"""From trials to a ladder: what each setting gained on the way to the best, and what became of the rest."""

from collections.abc import Mapping, Sequence

import msgspec

from metalmark.model.measurement import BenchRun
from metalmark.model.plan import PlanChange, word
from metalmark.model.tuning import Rung, RungStatus, TuningRequest
from metalmark.tune.figures import rung_of

SPEAK_FOR_THEMSELVES = ("dtype", "environment")
"""Settings whose values need no name before them."""


class TriedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a change of the plan: shortly while searching, and longer as a finalist."""

    change: PlanChange
    short: tuple[BenchRun, ...] = ()
    final: tuple[BenchRun, ...] = ()


def change_words(change: PlanChange) -> str:
    """Return a change in the words of a ladder: "bfloat16 + compile + batch 64"."""
    words = []
    for name, value in {**change.settings, **change.loader, **change.params}.items():
        if isinstance(value, bool):
            words.append(name if value else f"no {name}")
        elif name in SPEAK_FOR_THEMSELVES and value:
            words.append(word(value))
        else:
            words.append(f"{'batch' if name == 'batch_size' else name} {word(value)}")
    return " + ".join(words) or "baseline"


def added_words(before: PlanChange, after: PlanChange) -> str:
    """Return what the second change has that the first has not: "+ compile"."""
    parts: dict[str, dict[str, object]] = {}
    for kind in ("settings", "loader", "params"):
        old, new = getattr(before, kind), getattr(after, kind)
        parts[kind] = {name: value for name, value in new.items() if old.get(name) != value}
    return f"+ {change_words(msgspec.convert(parts, PlanChange))}"


def combined(first: PlanChange, second: PlanChange) -> PlanChange:
    return PlanChange(
        settings={**first.settings, **second.settings},
        loader={**first.loader, **second.loader},
        params={**first.params, **second.params},
        feed=second.feed or first.feed,
    )


def ladder_of(
    tried: Sequence[TriedSettings],
    chain: Sequence[PlanChange],
    request: TuningRequest,
    marked: Mapping[bytes, Rung],
) -> tuple[tuple[Rung, ...], tuple[Rung, ...]]:
    """Return the rungs from the baseline to the best (the last of `chain`), and those of all else that was tried.

    `marked`: rungs that the gate has judged, by their change. All are compared with the baseline as it was measured
    last, in turn with the finalists: a disturbance of its first, short process would be in every other gain.
    """
    by_change = {key_of(each.change): each for each in tried}
    baseline = by_change[key_of(PlanChange())]
    on_it = [by_change[key_of(change)] for change in chain]
    ladder: list[Rung] = []
    for place, each in enumerate(on_it):
        last = place == len(on_it) - 1
        title = "baseline" if place == 0 else added_words(on_it[place - 1].change, each.change)
        status = RungStatus.BASELINE if place == 0 else RungStatus.BEST if last else RungStatus.ON_THE_WAY
        ladder.append(_rung(title, each, baseline, request, status, marked))
    rest = [each for each in tried if each not in on_it]
    others = [_rung(change_words(each.change), each, baseline, request, RungStatus.NO_GAIN, marked) for each in rest]
    return tuple(ladder), tuple(others)


def rungs_so_far(
    tried: Sequence[TriedSettings], request: TuningRequest, marked: Mapping[bytes, Rung]
) -> tuple[Rung, ...]:
    """Return a rung of all that has been tried, while no path to a best is known: the baseline first, which is tried
    first, then in the order in which they were."""
    if not tried:
        return ()
    ladder, others = ladder_of(tried, [PlanChange()], request, marked)
    return (*ladder, *others)


def best_so_far(rungs: Sequence[Rung]) -> Rung | None:
    """Return the best of what has been tried, the baseline first; None where nothing is better than the baseline.

    What failed, trains differently, or was no better when it was measured in turn with the baseline, is not it."""
    if not rungs or rungs[0].value is None:
        return None
    left = [rung for rung in rungs[1:] if rung.status is not RungStatus.NO_GAIN or not rung.reason]
    better = [
        (rung.value, place) for place, rung in enumerate(left)
        if rung.value is not None and rung.value < rungs[0].value and rung.status is not RungStatus.DIFFERS
    ]  # fmt: skip
    return left[min(better)[1]] if better else None


def _rung(
    title: str,
    tried: TriedSettings,
    baseline: TriedSettings,
    request: TuningRequest,
    status: RungStatus,
    marked: Mapping[bytes, Rung],
) -> Rung:
    rung = rung_of(title, tried.change, tried.final or tried.short, baseline.final or baseline.short, request, status)
    mark = marked.get(key_of(tried.change))
    if mark is None:
        return rung
    judged = mark.status if rung.status is not RungStatus.FAILED else rung.status
    return msgspec.structs.replace(
        rung, status=judged, parity=mark.parity, curve=mark.curve, reason=mark.reason or rung.reason
    )


def key_of(change: PlanChange) -> bytes:
    return msgspec.json.encode(change, order="sorted")

"""What runs now, as it goes: drawn by the server, fetched again each second by a small script, or by a link."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse

from metalmark.errors import UsageError
from metalmark.model.run import RunKind
from metalmark.report.text.units import duration, figures, size
from metalmark.store.live import LiveStatus, Trace, read_all, read_one
from metalmark.store.sqlite import Store
from metalmark.store.trainings import TrainingStore
from metalmark.web.shell import LIVE_SCRIPT, render, respond

QUIET_S = 5.0
"""A worker that was silent for so long is said to be: it compiles, or it hangs."""
WIDTH, HEIGHT = 300.0, 60.0
FIRST = ("throughput", "_power", "_memory", "_utilisation")
"""What is asked for most stands first."""


class Drawn(Struct, frozen=True, kw_only=True):
    name: str
    now: str
    least: str
    most: str
    points: str
    """Of a line in a box of WIDTH by HEIGHT that begins at 0."""


def live_page(_request: Request, store_path: Path) -> HTMLResponse:
    body = render("live.html", now=_list(store_path), address="/live/now")
    return respond("Running now", body, script=LIVE_SCRIPT, here="Running now")


def live_now(_request: Request, store_path: Path) -> HTMLResponse:
    return HTMLResponse(str(_list(store_path)))


def status_page(request: Request, store_path: Path) -> HTMLResponse:
    word = request.path_params["id"]
    title, now = _one(store_path, word)
    body = render("live.html", now=now, address=f"/live/{word}/now")
    return respond(title, body, script=LIVE_SCRIPT)


def status_now(request: Request, store_path: Path) -> HTMLResponse:
    return HTMLResponse(str(_one(store_path, request.path_params["id"])[1]))


def _list(store_path: Path) -> Markup:
    return render("live_list.html", found=read_all(store_path))


def _one(store_path: Path, word: str) -> tuple[str, Markup]:
    status = read_one(store_path, word)
    if status is not None:
        return f"{status.kind.value.capitalize()} {status.id}", _status(status)
    return f"Ended: {word}", render("live_over.html", address=_result(store_path, word))


def _result(store_path: Path, word: str) -> str:
    """Where what came of it is shown."""
    with Store(store_path, readonly=True) as store:
        if store.rows(sweep=word, limit=1):
            return f"/sweep/{word}"
    with TrainingStore(store_path, readonly=True) as trainings:
        if any(row.id == word for row in trainings.find_trainings(word)):
            return f"/training/{word}"
    raise UsageError(f"Nothing named {word} runs, and nothing of it is stored.", hint="See what runs now, or all runs.")


def _status(status: LiveStatus) -> Markup:
    ordered = sorted(status.traces, key=_place)
    return render(
        "live_status.html",
        status=status,
        address=f"/{'sweep' if status.kind is RunKind.BENCH else 'training'}/{status.id}",
        silent=duration(status.silent_s) if status.silent_s >= QUIET_S else "",
        percent=None if status.share is None else round(min(max(status.share, 0.0), 1.0) * 100),
        things="epochs" if status.kind is RunKind.TRAINING else "runs",
        drawn=[_drawn(trace) for trace in ordered if trace.values],
        width=WIDTH,
        height=HEIGHT,
    )


def _place(trace: Trace) -> int:
    return next((place for place, ending in enumerate(FIRST) if trace.name.endswith(ending)), len(FIRST))


def _drawn(trace: Trace) -> Drawn:
    most = max(trace.values)
    begin, end = trace.at_s[0], trace.at_s[-1]
    across = WIDTH / (end - begin) if end > begin else 0.0
    up = (HEIGHT - 4) / most if most > 0 else 0.0
    points = [
        f"{(at - begin) * across:.1f},{HEIGHT - 2 - max(value, 0.0) * up:.1f}"
        for at, value in zip(trace.at_s, trace.values, strict=False)
    ]
    return Drawn(
        name=trace.name.replace("_", " "),
        now=_shown(trace.values[-1], trace.unit),
        least=_shown(min(trace.values), trace.unit),
        most=_shown(most, trace.unit),
        points=" ".join([*points, f"{WIDTH:.1f},{points[-1].partition(',')[2]}"] if len(points) == 1 else points),
    )


def _shown(value: float, unit: str) -> str:
    return size(value) if unit == "bytes" else f"{figures(value)} {unit}".strip()

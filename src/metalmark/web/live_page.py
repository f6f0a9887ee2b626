"""What runs now: drawn by the server, and fetched again each second by a small script, or by a link."""

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from metalmark.model.run import RunKind
from metalmark.model.tuning import TuningPhase
from metalmark.report.html.page import from_table
from metalmark.report.text.tune_page import rung_line, so_far_table
from metalmark.report.text.units import duration, reading
from metalmark.store.address import Address
from metalmark.store.live import LiveStatus, LiveTuning, Trace, read_all, read_one
from metalmark.tune.ladder import best_so_far
from metalmark.web.run_page import ended_address
from metalmark.web.shell import LIVE_SCRIPT, how_far, render, respond

QUIET_S = 5.0
"""A worker that was silent for longer is called silent: it compiles, or it hangs."""
WIDTH, HEIGHT = 300.0, 60.0
FIRST = ("throughput", "_power", "_memory", "_utilisation")
"""What people look for most comes first."""


def live_page(_request: Request, store_address: Address) -> HTMLResponse:
    body = render("live.html", now=_all(store_address), address="/live/now")
    return respond("Running now", body, script=LIVE_SCRIPT, here="Running now")


def live_now(_request: Request, store_address: Address) -> HTMLResponse:
    return HTMLResponse(str(_all(store_address)))


def status_page(request: Request, store_address: Address) -> HTMLResponse:
    identifier = request.path_params["id"]
    title, now = _one(store_address, identifier)
    body = render("live.html", now=now, address=f"/live/{identifier}/now")
    return respond(title, body, script=LIVE_SCRIPT)


def status_now(request: Request, store_address: Address) -> HTMLResponse:
    return HTMLResponse(str(_one(store_address, request.path_params["id"])[1]))


def _all(store_address: Address) -> Markup:
    return render("live_list.html", found=read_all(store_address), how_far=how_far)


def _one(store_address: Address, identifier: str) -> tuple[str, Markup]:
    status = read_one(store_address, identifier)
    if status is not None:
        return f"{status.kind.value.capitalize()} {status.id}", _status(status)
    return f"Ended: {identifier}", render("live_over.html", address=ended_address(identifier, store_address))


def _status(status: LiveStatus) -> Markup:
    ordered = sorted(status.traces, key=lambda trace: [not trace.name.endswith(ending) for ending in FIRST])
    spent = min(status.elapsed_s / status.limit_s, 1.0) if status.limit_s else 0.0
    return render(
        "live_status.html",
        status=status,
        address=f"/{'find' if status.kind is RunKind.TRAINING else 'sweep'}/{status.id}",
        silent=duration(status.silent_s) if status.silent_s >= QUIET_S else "",
        how_far=how_far,
        spent=round(spent * 100),
        phases=list(TuningPhase),
        tunings=[(tuning, _best(tuning), _tried(tuning)) for tuning in status.tunings],
        percent=None if status.share is None else round(min(max(status.share, 0.0), 1.0) * 100),
        things="epochs" if status.kind is RunKind.TRAINING else "runs",
        drawn=[_drawn(trace) for trace in ordered if trace.values],
        width=WIDTH,
        height=HEIGHT,
    )


def _best(tuning: LiveTuning) -> str:
    """Say what is the best so far and what it gains; the finalists and the gate may still refuse it."""
    best = best_so_far(tuning.rungs)
    if best is None:
        return "" if len(tuning.rungs) < 2 else "nothing is better than the baseline so far"
    return rung_line(best, None)


def _tried(tuning: LiveTuning) -> Markup:
    return from_table(so_far_table(tuning.rungs, tuning.goal), sorts=False, filter=False) if tuning.rungs else Markup()


def _drawn(trace: Trace) -> dict[str, str]:
    """A trace in words, and its `points`: a line in a box of WIDTH by HEIGHT that begins at 0."""
    most = max(trace.values)
    begin, end = trace.at_s[0], trace.at_s[-1]
    across = WIDTH / (end - begin) if end > begin else 0.0
    up = (HEIGHT - 4) / most if most > 0 else 0.0
    points = [
        f"{(at - begin) * across:.1f},{HEIGHT - 2 - max(value, 0.0) * up:.1f}"
        for at, value in zip(trace.at_s, trace.values, strict=False)
    ]
    points += [f"{WIDTH:.1f},{points[-1].partition(',')[2]}"] if len(points) == 1 else []
    values = {"now": trace.values[-1], "least": min(trace.values), "most": most}
    words = {name: reading(value, trace.unit) for name, value in values.items()}
    return {"name": trace.name.replace("_", " "), "points": " ".join(points), **words}

"""What runs now: drawn by the server, and fetched again each second by a small script, or by a link."""

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from metalmark.model.run import RunKind
from metalmark.report.text.units import duration, reading
from metalmark.store.address import Address
from metalmark.store.live import LiveStatus, Trace, read_all, read_one
from metalmark.web.run_page import address_of
from metalmark.web.shell import LIVE_SCRIPT, render, respond

QUIET_S = 5.0
"""A worker that was silent for longer is called silent: it compiles, or it hangs."""
WIDTH, HEIGHT = 300.0, 60.0
FIRST = ("throughput", "_power", "_memory", "_utilisation")
"""What people look for most comes first."""


def live_page(_request: Request, store_address: Address) -> HTMLResponse:
    body = render("live.html", now=render("live_list.html", found=read_all(store_address)), address="/live/now")
    return respond("Running now", body, script=LIVE_SCRIPT, here="Running now")


def live_now(_request: Request, store_address: Address) -> HTMLResponse:
    return HTMLResponse(str(render("live_list.html", found=read_all(store_address))))


def status_page(request: Request, store_address: Address) -> HTMLResponse:
    identifier = request.path_params["id"]
    title, now = _one(store_address, identifier)
    body = render("live.html", now=now, address=f"/live/{identifier}/now")
    return respond(title, body, script=LIVE_SCRIPT)


def status_now(request: Request, store_address: Address) -> HTMLResponse:
    return HTMLResponse(str(_one(store_address, request.path_params["id"])[1]))


def _one(store_address: Address, identifier: str) -> tuple[str, Markup]:
    status = read_one(store_address, identifier)
    if status is not None:
        return f"{status.kind.value.capitalize()} {status.id}", _status(status)
    return f"Ended: {identifier}", render("live_over.html", address=address_of(identifier, store_address))


def _status(status: LiveStatus) -> Markup:
    ordered = sorted(status.traces, key=lambda trace: [not trace.name.endswith(ending) for ending in FIRST])
    return render(
        "live_status.html",
        status=status,
        address=f"/{'sweep' if status.kind is RunKind.BENCH else 'find'}/{status.id}",
        silent=duration(status.silent_s) if status.silent_s >= QUIET_S else "",
        percent=None if status.share is None else round(min(max(status.share, 0.0), 1.0) * 100),
        things="epochs" if status.kind is RunKind.TRAINING else "runs",
        drawn=[_drawn(trace) for trace in ordered if trace.values],
        width=WIDTH,
        height=HEIGHT,
    )


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

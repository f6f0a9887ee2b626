"""The application: which address is which page, and what is said where there is none. Every page is a GET."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from metalmark.errors import FormatError, MetalmarkError, StoreError, UsageError
from metalmark.web.compare_page import compare_page
from metalmark.web.guard import Guard, Rules
from metalmark.web.live_page import live_now, live_page, status_now, status_page
from metalmark.web.run_page import find_page, run_page, sweep_page
from metalmark.web.runs_page import runs_page
from metalmark.web.shell import cannot, static_file
from metalmark.web.training_page import training_page, trainings_page

Answer = Callable[[Request, Path], Response]

PAGES: dict[str, Answer] = {
    "/": runs_page,
    "/run/{id}": run_page,
    "/sweep/{id}": sweep_page,
    "/find/{word}": find_page,
    "/compare": compare_page,
    "/trainings": trainings_page,
    "/training/{id}": training_page,
    "/live": live_page,
    "/live/now": live_now,
    "/live/{id}": status_page,
    "/live/{id}/now": status_now,
}


def make_app(store_path: Path, rules: Rules) -> Guard:
    """`store_path` is opened for each page, read-only: what is stored a moment later is on the next one."""

    def route(path: str, answer: Answer) -> Route:
        def endpoint(request: Request) -> Response:
            return answer(request, store_path)

        return Route(path, endpoint, methods=["GET"])

    routes = [route(path, answer) for path, answer in PAGES.items()]
    routes.append(Route("/static/{name}", _static, methods=["GET"]))
    handlers = {MetalmarkError: _cannot, HTTPException: _http, Exception: _broken}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), rules)  # type: ignore[arg-type]


def _static(request: Request) -> Response:
    found = static_file(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    text, kind = found
    return Response(text, media_type=f"{kind}; charset=utf-8")


def _cannot(request: Request, error: MetalmarkError) -> Response:
    """A page of one run that is not there is a 404; a choice that makes no sense is a 400."""
    absent = isinstance(error, UsageError) and request.url.path != "/compare"
    status = 404 if absent else 503 if isinstance(error, StoreError) else 500 if isinstance(error, FormatError) else 400
    return cannot(error, status=status)


def _http(_request: Request, error: HTTPException) -> Response:
    if error.status_code == 404:
        missing = UsageError("There is no such page.", hint="The list of runs leads everywhere.")
        return cannot(missing, title="Not found", status=404)
    return PlainTextResponse(f"{error.detail}\n", error.status_code)


def _broken(_request: Request, _error: Exception) -> Response:
    """What went wrong is in the terminal of `metalmark serve`; a page shows no traceback."""
    fault = MetalmarkError("Something went wrong here.", hint="The terminal of `metalmark serve` says more.")
    return cannot(fault, title="Broken", status=500)

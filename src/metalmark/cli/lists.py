"""What `bench` makes of its options' lists: settings, loaders, telemetry."""

from __future__ import annotations

from itertools import product
from typing import Any

from metalmark.cli.bench import SWITCHES
from metalmark.errors import UsageError
from metalmark.model.plan import Dtype, Feed, Loader, Settings
from metalmark.model.sweep import Cooldown
from metalmark.runner.values import choose, parse_numbers, parse_switch

START_METHODS = ("fork", "spawn", "forkserver")
AUTO_COOLDOWN_S = 300.0
MOST_COOLDOWN_S = 86_400.0


def settings_product(options: dict[str, Any]) -> list[Settings]:
    """Every combination of how a step is run."""
    dtypes = [
        Dtype(name) for name in choose(options["dtype"], [d.value for d in Dtype], what="--dtype", plural="Types")
    ]
    switches = [
        parse_switch(options[key], what=switch)
        for key, switch in zip(("compile_", "graph", "channels_last", "fused"), SWITCHES, strict=True)
    ]
    threads: list[Any] = [None]
    if options["threads"] is not None:
        threads = parse_numbers(options["threads"], what="--threads", whole=True)
        if min(threads) < 1:
            raise UsageError(f"--threads must be at least 1, not {min(threads)}.")
    return [
        Settings(dtype=dtype, compile=compile_, graph=graph, channels_last=channels_last, fused=fused, threads=count)
        for dtype, compile_, graph, channels_last, fused, count in product(dtypes, *switches, threads)
    ]


def feeds(options: dict[str, Any]) -> list[Feed]:
    """Empty when not said: each workload has its own."""
    if options["feed"] is None:
        return []
    words = choose(options["feed"], [feed.value for feed in Feed], what="--data-from", plural="It takes")
    return [Feed(word) for word in words]


def loaders(options: dict[str, Any]) -> list[Loader]:
    workers = parse_numbers(options["workers"], what="--workers", whole=True)
    prefetch = parse_numbers(options["prefetch"], what="--prefetch", whole=True)
    for name, values in (("--workers", workers), ("--prefetch", prefetch)):
        if min(values) < 0:
            raise UsageError(f"{name} must be at least 0, not {min(values)}.")
    pins = parse_switch(options["pin"], what="--pin")
    methods = [""]
    if options["start_method"]:
        methods = choose(options["start_method"], START_METHODS, what="--start-method", plural="It takes")
    return [
        Loader(workers=int(count), prefetch=int(ahead), pin=pin, start_method=method)
        for count, ahead, pin, method in product(workers, prefetch, pins, methods)
    ]


def parse_cooldown(text: str | None) -> Cooldown | None:
    if text is None:
        return None
    if text == "auto":
        return Cooldown(limit_s=AUTO_COOLDOWN_S, auto=True)
    try:
        limit_s = float(text)
    except ValueError:
        limit_s = 0.0
    if not 0 < limit_s <= MOST_COOLDOWN_S:
        raise UsageError(
            f"--cooldown is auto or seconds up to {MOST_COOLDOWN_S:g}, not {text!r}.",
            hint="Write --cooldown 60: at most a minute between cells.",
        )
    return Cooldown(limit_s=limit_s)


def parse_telemetry(text: str) -> float | None:
    if text == "off":
        return None
    try:
        hz = float(text)
    except ValueError:
        hz = 0.0
    if not 0 < hz <= 100:
        raise UsageError(f"--telemetry is off or samples a second up to 100, not {text!r}.")
    return hz

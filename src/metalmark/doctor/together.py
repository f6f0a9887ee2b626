"""Several slow questions side by side, all within one limit: what gives no answer is left behind and named."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from metalmark.doctor.patience import REMIND_S
from metalmark.model.run import Absent
from metalmark.scrub import scrub

Tell = Callable[[str, float, object], None]
"""tell(name, after_s, answer), as each answer comes, and with WAITING while one has not come for long."""

WAITING: Final = object()


def ask_together(
    questions: Mapping[str, Callable[[], Any]], *, limit_s: float, tell: Tell, remind_s: float = REMIND_S
) -> dict[str, Any]:
    """Answers by name; an Absent for what raised or was not there in time."""
    answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    started_s = time.monotonic()

    def one(name: str, question: Callable[[], Any]) -> None:
        try:
            answer = question()
        except Exception as error:  # noqa: BLE001  whatever a question throws costs only its own answer
            answer = Absent(scrub(f"it raised {type(error).__name__}: {error}")[:300])
        answers.put((name, answer))

    for name, question in questions.items():
        # Daemons: the interpreter's end must not wait for a question that hangs.
        threading.Thread(target=one, args=(name, question), daemon=True, name=f"doctor-{name}").start()
    found: dict[str, Any] = {}
    while len(found) < len(questions):
        wait_s = started_s + min(limit_s, remind_s) - time.monotonic()
        try:
            name, answer = answers.get(timeout=wait_s) if wait_s > 0 else answers.get_nowait()
        except queue.Empty:
            if remind_s >= limit_s:
                break
            for name in questions:
                if name not in found:
                    tell(name, remind_s, WAITING)
            remind_s *= 2
            continue
        found[name] = answer
        tell(name, time.monotonic() - started_s, answer)
    for name in questions:
        if name not in found:
            found[name] = Absent(f"it gave no answer within {limit_s:g} s")
            tell(name, limit_s, found[name])
    return found

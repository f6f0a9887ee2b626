"""Steps as lines that a shell can evaluate, each under a comment that says why."""

from __future__ import annotations

from collections.abc import Sequence

from metalmark.doctor.environment import Deed, Step
from metalmark.scrub import printable

# A hard limit that was lowered can't be raised again in that shell, and without -S bash lowers both.
_LIMIT = "ulimit -S -n {value}"

_POSIX = {Deed.LIMIT: _LIMIT, Deed.SET: "export {name}={value}", Deed.UNSET: "unset {name}"}
_FISH = {Deed.LIMIT: _LIMIT, Deed.SET: "set -gx {name} {value}", Deed.UNSET: "set -e {name}"}

SHELLS: dict[str, dict[Deed, str]] = {"bash": _POSIX, "zsh": _POSIX, "fish": _FISH}
EVALUATE = {
    "bash": 'eval "$(metalmark env)"',
    "zsh": 'eval "$(metalmark env --shell zsh)"',
    "fish": "metalmark env --shell fish | source",
}
NOTHING = "Nothing to set: no limit, thread count or variable here needs a change."


def shell_lines(steps: Sequence[Step], shell: str) -> str:
    words = SHELLS[shell]
    if not steps:
        return _comment(NOTHING)
    lines = [_comment(f"Nothing is changed until you evaluate these lines: {EVALUATE[shell]}")]
    for step in steps:
        lines.append(_comment(step.why if step.deed is not Deed.NOTE else f"{step.name}: {step.why}"))
        if step.deed in words:
            lines.append(words[step.deed].format(name=step.name, value=step.value))
    return "\n".join(lines)


def _comment(text: str) -> str:
    # A line end in here would make the rest of it a command.
    return f"# {' '.join(printable(text).split())}"

"""Writes the part of docs/doctor.md that the checks know: python tools/doctor_pages.py [--check]"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from metalmark.doctor.catalog import CHECKS, FAMILIES, checks_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "doctor.md"
BEGIN, END = "<!-- from the checks -->", "<!-- end -->"


def block() -> str:
    lines = [BEGIN, "| check | the symptom |", "| --- | --- |"]
    lines += [f"| `{check.name}` | {check.title} |" for check in CHECKS.values()]
    lines.append("")
    for family in FAMILIES:
        lines += [f"### {(family.__doc__ or '').splitlines()[0].split(':')[0].rstrip('.')}", ""]
        for check in checks_of(family):
            sources = " ".join(f"[{number}]({source})" for number, source in enumerate(check.sources, 1))
            lines.append(f"- **`{check.name}`**: {check.story}{f' Sources: {sources}' if sources else ''}")
        lines.append("")
    return "\n".join([*lines[:-1], END])


def page_with_block(text: str) -> str:
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block(), text, flags=re.DOTALL)


def main(check: bool) -> int:
    text = PAGE.read_text()
    made = page_with_block(text)
    if made == text:
        return 0
    if check:
        print("Stale: docs/doctor.md. Run: python tools/doctor_pages.py", file=sys.stderr)
        return 1
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))

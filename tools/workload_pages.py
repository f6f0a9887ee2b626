"""Writes the part of each docs/workloads page that the catalogue knows: python tools/workload_pages.py [--check]"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from metalmark.model.plan import word
from metalmark.model.workload import Workload
from metalmark.workloads.catalog import load, shown_names

PAGES = Path(__file__).resolve().parents[1] / "docs" / "workloads"
BEGIN, END = "<!-- from the catalogue -->", "<!-- end -->"


def block(workload: Workload) -> str:
    lines = [BEGIN, f"{workload.title}.", "", f"Frameworks: {', '.join(workload.info.frameworks)}."]
    lines.append(
        f"Modes: {', '.join(workload.modes)}. Batches: {workload.feed.value} unless `--data-from` says otherwise."
    )
    lines.append(f"Data sets: {', '.join(workload.datasets) or 'none; synthetic only'}.")
    lines += ["", "| parameter | default | |", "| --- | --- | --- |"]
    for param in workload.params:
        choices = f" ({', '.join(param.choices)}{', or a path' if param.path else ''})" if param.choices else ""
        lines.append(f"| `--{param.name.replace('_', '-')}` | {word(param.default)} | {param.help}{choices} |")
    if workload.flops is not None:
        params = {param.name: param.default for param in workload.params}
        work = workload.flops(params) / 1e6
        lines += ["", f"One sample's forward pass at the defaults: {work:,.4g} MFLOP, counted analytically."]
    return "\n".join([*lines, END])


def page_with_block(text: str, workload: Workload) -> str:
    made = block(workload)
    if BEGIN in text:
        return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: made, text, flags=re.DOTALL)
    head, _, rest = text.partition("\n")
    return f"{head}\n\n{made}\n{rest}"


def main(check: bool) -> int:
    stale = []
    for name in shown_names():
        workload = load(name)
        path = PAGES / f"{name}.md"
        text = path.read_text() if path.exists() else f"# {name}\n"
        made = page_with_block(text, workload)
        if made != text or not path.exists():
            stale.append(name)
            if not check:
                path.write_text(made)
    if stale and check:
        print(f"Stale: {', '.join(stale)}. Run: python tools/workload_pages.py", file=sys.stderr)
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))

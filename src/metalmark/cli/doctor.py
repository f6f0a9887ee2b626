"""`metalmark doctor`."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from metalmark.doctor.scene import Scene

EPILOG = """\b
Exit code: 0 nothing wrong, 1 warnings, 2 errors. Notes do not count.
With --for: 0 recognised, 1 not. With --bundle: 0 written.

\b
Examples:
  metalmark doctor
  metalmark doctor --only open-files,swap
  metalmark doctor --explain tensorflow-metal-pair
  metalmark doctor --json > doctor.json
  metalmark doctor --for "MPS backend out of memory"
  python train.py 2>&1 | metalmark doctor --for -
  metalmark doctor --bundle doctor.json
"""
COLOURS = {"error": "red", "warning": "yellow", "note": "cyan", "fix": "green"}


@click.command("doctor", epilog=EPILOG)
@click.option("--only", metavar="CHECK", multiple=True, help="Run these checks alone (comma-separated, or repeated).")
@click.option("--explain", metavar="CHECK", help="Tell the long story of a check, with its sources, and stop.")
@click.option("--for", "error", metavar="TEXT|FILE|-", help="Say what an error means and what to change, and stop.")
@click.option("--bundle", metavar="FILE", help="Write what was seen, with every tool's output and no names, and stop.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_context
def command(
    context: click.Context,
    only: tuple[str, ...],
    explain: str | None,
    error: str | None,
    bundle: str | None,
    as_json: bool,
) -> None:
    """Say what this machine can run, what is broken, and what to type to mend it. Nothing is changed."""
    from metalmark.doctor.catalog import CHECKS, examine, exit_code, find
    from metalmark.doctor.collect import collect
    from metalmark.report.text.doctor_page import document, page, story

    width = shutil.get_terminal_size().columns
    if explain is not None:
        click.echo(story(find(explain), width=width))
        return
    if error is not None:
        from metalmark.cli.recognising import answer

        context.exit(answer(error, as_json=as_json))
    names = [name.strip() for text in only for name in text.split(",") if name.strip()]
    checks = [find(name) for name in names] or list(CHECKS.values())
    if bundle is not None:
        from metalmark.doctor.bundle import refuse_unwritable
        from metalmark.runner.local import expanded

        refuse_unwritable(expanded(bundle))
    click.echo("Asking the frameworks, each in a process of its own, and the system's tools ...", err=True)
    scene = collect(_tell)
    if bundle is not None:
        _write(scene, bundle)
        return
    findings = examine(scene, checks)
    if as_json:
        import json

        click.echo(json.dumps(document(scene, findings), indent=2))
    else:
        click.echo(page(scene, findings, width=width, paint=_paint))
    context.exit(exit_code(findings))


def _write(scene: Scene, file: str) -> None:
    from metalmark.doctor.bundle import make_bundle, write_bundle
    from metalmark.runner.local import expanded

    click.echo("Asking the system's tools once more, and the sensors for three seconds ...", err=True)
    made = make_bundle(scene)
    size = write_bundle(expanded(file), made)
    click.echo(
        f"{file}: {size:,} bytes, with the answers of {len(made.answers)} system tools. It holds no name of yours or "
        "of this machine, no path and no serial number; read it before you send it.",
        err=True,
    )
    click.echo(file)


def _tell(name: str, after_s: float, answer: object) -> None:
    """A line for each framework; the tools are too quick to be worth one."""
    from metalmark.backends.base import Probe
    from metalmark.backends.catalog import FRAMEWORKS
    from metalmark.doctor.collect import WAITING, WHY_SLOW
    from metalmark.runner.ask import NoAnswer

    if answer is WAITING and name in FRAMEWORKS:
        click.echo(f"  still waiting for {name} after {after_s:.0f} s: {WHY_SLOW}", err=True)
    if isinstance(answer, Probe | NoAnswer):
        state = "answered" if isinstance(answer, Probe) else "failed"
        click.echo(f"  {name} {state} after {after_s:.1f} s", err=True)


def _paint(text: str, style: str) -> str:
    """click takes the colour out again where nobody would see it."""
    return click.style(text, fg=COLOURS.get(style), bold=style not in ("fix", "note"))

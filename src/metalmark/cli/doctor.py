"""`metalmark doctor`: what this machine can run, what is broken, and what to type."""

import shutil

import click

from metalmark.cli.complete import complete_checks
from metalmark.cli.options import DocumentedCommand, json_option

COLOURS = {"error": "red", "warning": "yellow", "note": "cyan", "fix": "green"}


@click.command("doctor", cls=DocumentedCommand)
@click.option("--only", metavar="CHECK", multiple=True, shell_complete=complete_checks,
              help="Run only these checks (comma-separated, or repeated).")  # fmt: skip
@click.option("--explain", metavar="CHECK", shell_complete=complete_checks,
              help="Explain a check at length, with its sources, and stop.")  # fmt: skip
@click.option("--for", "error", metavar="TEXT|FILE|-", help="Say what an error means and what to change, and stop.")
@click.option("--on", metavar="ray://HOST:PORT|local-ray", help="Examine every node of a Ray cluster.")
@click.option("--bundle", metavar="FILE", help="Write what was seen, with every tool's output and no names, and stop.")
@json_option
def command(only: tuple[str, ...], explain: str | None, error: str | None, on: str | None, bundle: str | None,
            as_json: bool) -> int:  # fmt: skip
    """Say what this machine can run, what is broken, and what to type to mend it. Nothing is changed."""
    width = shutil.get_terminal_size().columns
    if explain is not None:
        from metalmark.doctor.catalog import find
        from metalmark.report.text.doctor_page import story

        click.echo(story(find(explain), width=width))
        return 0
    if error is not None:
        return _recognise(error, as_json=as_json)
    if on is not None:
        return _examine_nodes(on, only, as_json=as_json, width=width)
    if bundle is not None:
        return _write_bundle(bundle)
    from metalmark.app.doctor import doctor
    from metalmark.report.text.doctor_page import page

    diagnosis = doctor(only)
    if as_json:
        import json

        click.echo(json.dumps(diagnosis.document(), indent=2))
    else:
        click.echo(page(diagnosis.scene, diagnosis.findings, width=width, paint=_paint))
    return diagnosis.exit_code


def _examine_nodes(on: str, only: tuple[str, ...], *, as_json: bool, width: int) -> int:
    """Print a section per node, and return the worst exit code."""
    from metalmark.app.doctor import doctor_on
    from metalmark.report.text.doctor_page import page

    found = doctor_on(on, only)
    if as_json:
        import json

        click.echo(json.dumps({title: one.document() for title, one in found.items()}, indent=2))
    else:
        for title, one in found.items():
            click.echo(f"{_paint(title, 'title')}\n\n{page(one.scene, one.findings, width=width, paint=_paint)}\n")
    return max(one.exit_code for one in found.values())


def _recognise(source: str, *, as_json: bool) -> int:
    """SOURCE is the text itself, a file that holds it, or `-` for standard input."""
    from metalmark.doctor.recognise import read_error, recognise, unrecognised
    from metalmark.report.text.doctor_page import error_page, unknown_page

    text = read_error(source)
    matches = recognise(text)
    unknown = None if matches else unrecognised(text)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(unknown or matches), indent=2).decode())
    else:
        click.echo(unknown_page(unknown) if unknown else error_page(matches))
    return 0 if matches else 1


def _write_bundle(file: str) -> int:
    from metalmark.app.doctor import bundle_machine

    data, answers = bundle_machine(None if file == "-" else file)
    click.echo(
        f"{file}: {len(data):,} bytes, with the answers of {answers} system tools. It holds no name of yours or "
        "of this machine, no path and no serial number; read it before you send it.",
        err=True,
    )
    click.echo(data if file == "-" else file)
    return 0


def _paint(text: str, style: str) -> str:
    """Colour a word; click takes the colour out again where nobody would see it."""
    return click.style(text, fg=COLOURS.get(style), bold=style not in ("fix", "note"))

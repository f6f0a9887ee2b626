"""What `doctor --for` does: reads the error's text, says what is known of it."""

from __future__ import annotations

import click


def answer(source: str | None, *, as_json: bool = False) -> int:
    """SOURCE is the text itself, a file that holds it, or `-` (or None) for standard input. 0: recognised; 1: not."""
    from metalmark.doctor.recognise import known_errors, read_error, recognise
    from metalmark.report.text.doctor_page import error_page, unknown_page

    text = read_error(source)
    matches = recognise(text)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(matches), indent=2).decode())
    else:
        click.echo(error_page(matches) if matches else unknown_page(text, len(known_errors())))
    return 0 if matches else 1

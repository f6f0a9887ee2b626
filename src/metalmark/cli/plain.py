"""Text for a terminal or a file whose encoding lacks some of our characters, as with LANG=C: plain ones instead."""

import codecs
from typing import TextIO

NAME = "metalmark-plain"

PLAIN = {
    "•": "*", "·": "|", "…": "...", "–": "-", "—": "-", "−": "-", "×": "x", "±": "+-", "µ": "u", "μ": "u", "°": "",
    "→": "->", "←": "<-", "≥": ">=", "≤": "<=", "≈": "~", "‘": "'", "’": "'", "“": '"', "”": '"', "²": "^2", "✓": "ok",
    "✗": "x", "─": "-", "━": "-", "│": "|", "\u00a0": " ", "\u202f": " ",
    **dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True)),
}  # fmt: skip


def degrade(*streams: TextIO | None) -> None:
    """From now on these streams replace what they can't write, instead of raising UnicodeEncodeError.

    That is any character beyond the stream's encoding, and in UTF-8 a byte of a file's name that is not text.
    """
    codecs.register_error(NAME, _plain)
    for stream in streams:
        reconfigure = getattr(stream, "reconfigure", None)  # a program that calls us may have put another stream there
        if reconfigure is not None:
            reconfigure(errors=NAME)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_replacement, error.object[error.start : error.end])), error.end


def _replacement(character: str) -> str:
    """Return a plain form, or the code as JSON writes it, so that JSON stays what it says."""
    if character in PLAIN:
        return PLAIN[character]
    code = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{code[place : place + 4]}" for place in range(0, len(code), 4))

"""A regular expression of a known error: a space in it is any white space, and most texts are ruled out at a glance.

Hundreds of expressions are searched in a text of hundreds of kilobytes. Each is therefore read once for the words that
every match of it has to contain. Where the text lacks one of them, the expression is not even compiled.
"""

import re
from collections.abc import Iterator
from functools import cached_property

SHORTEST_WORD = 3
MOST_MATCHES = 100
"""An error that is printed at each step is looked at this often, and no further."""

_GROUP = re.compile(r"\((?:\?(?:P<\w+>|P=\w+\)|[:=!>]|<[=!]|[aiLmsux-]+[:)]|#[^)]*\)|\(\w+\)))?")
_QUANTIFIER = re.compile(r"([*+?]|\{(\d*)(?:,\d*)?\})[?+]?")
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|\d{1,3}|.)", re.DOTALL)
_REFUSED = ("(?!", "(?<!")

Required = tuple[frozenset[str], ...]


class ErrorPattern:
    """One expression, as it is written in an entry."""

    def __init__(self, source: str) -> None:
        self.source = source

    @cached_property
    def expression(self) -> re.Pattern[str]:
        return re.compile(self._reading.translated, re.IGNORECASE | re.MULTILINE)

    @cached_property
    def required(self) -> Required:
        """Sets of lower-case words: each text that matches contains at least one word of each set."""
        return self._reading.required

    @property
    def literals(self) -> tuple[str, ...]:
        """All words that it names, in lower case; those in a branch of several too."""
        return tuple(self._reading.literals)

    def matches(self, text: str, lowered: str) -> Iterator[re.Match[str]]:
        """Give the first matches in a text, of which LOWERED is the same in lower case."""
        if self.possible(lowered):
            for number, match in enumerate(self.expression.finditer(text), 1):
                yield match
                if number == MOST_MATCHES:
                    return

    def occurs(self, text: str, lowered: str) -> bool:
        return next(self.matches(text, lowered), None) is not None

    def possible(self, lowered: str) -> bool:
        """Whether a text in lower case has the words without which there is no match."""
        # Plain loops: this is asked a thousand times for each text, and generators would take twice as long.
        for words in self.required:
            for word in words:
                if word in lowered:
                    break
            else:
                return False
        return True

    @cached_property
    def _reading(self) -> "_Reading":
        return _Reading(self.source)


class _Reading:
    """One pass through an expression, which gives both its translation and its words."""

    def __init__(self, source: str) -> None:
        self._source, self._at = source, 0
        self._translated: list[str] = []
        self.literals: list[str] = []
        self.required = self._branches()
        # What is left is a parenthesis that was never opened: the compiler says so.
        self.translated = "".join(self._translated) + source[self._at :]

    def _branches(self, *, behind: bool = False, refused: bool = False) -> Required:
        branches = [self._sequence(behind=behind, refused=refused)]
        while self._take("|"):
            branches.append(self._sequence(behind=behind, refused=refused))
        if len(branches) == 1:
            return branches[0]
        return (frozenset().union(*(branch[0] for branch in branches)),) if all(branches) else ()

    def _sequence(self, *, behind: bool, refused: bool) -> Required:
        candidates: list[frozenset[str]] = []
        run = ""
        while self._at < len(self._source) and self._source[self._at] not in "|)":
            literal, words = self._atom(behind=behind, refused=refused)
            quantifier = self._quantifier()
            optional = quantifier is not None and quantifier[1] != "+" and not int(quantifier[2] or 0)
            if literal and quantifier is None:
                run += literal
                continue
            run = self._end(run + literal if literal and not optional else run, candidates, refused=refused)
            if not optional:
                candidates += words
        self._end(run, candidates, refused=refused)
        # The longest first: it is the rarest, most likely.
        return tuple(sorted(candidates, key=lambda words: -min(map(len, words))))

    def _end(self, run: str, candidates: list[frozenset[str]], *, refused: bool) -> str:
        # Only ASCII: lower() and the compiler need not agree on the case of anything else.
        if len(run) >= SHORTEST_WORD and run.isascii():
            candidates.append(frozenset({run.lower()}))
        if run and not refused:
            self.literals.append(run.lower())
        return ""

    def _atom(self, *, behind: bool, refused: bool) -> tuple[str, Required]:
        """Read one character, class or group: the character if it stands for itself, and the words of a group."""
        character = self._source[self._at]
        if character == " ":
            return self._space(behind=behind)
        if character == "\\" and (escape := _ESCAPE.match(self._source, self._at)):
            if escape[0] == "\\ ":
                self._at += 1
                return self._space(behind=behind)
            self._pass(escape[0])
            return ("" if escape[0][1].isalnum() else escape[0][1]), ()
        if character == "[":
            self._class()
            return "", ()
        if character == "(" and (opening := _GROUP.match(self._source, self._at)):
            self._pass(opening[0])
            if opening[0].endswith(")") and opening[0] != "(" and not opening[0].startswith("(?("):
                return "", ()
            words = self._branches(
                behind=behind or opening[0] in ("(?<=", "(?<!"), refused=refused or opening[0] in _REFUSED
            )
            self._take(")")
            return "", () if opening[0] in _REFUSED or opening[0].startswith("(?(") else words
        self._pass(character)
        return ("" if character in ".^$*+?" else character), ()

    def _space(self, *, behind: bool) -> tuple[str, Required]:
        """A run of spaces; one that is counted, or in a look-behind, stands for one character each."""
        while self._at < len(self._source) and self._source[self._at] == " ":
            self._at += 1
        self._translated.append(r"\s" if behind or _QUANTIFIER.match(self._source, self._at) else r"\s+")
        return "", ()

    def _class(self) -> None:
        end = self._at + 1
        end += self._source.startswith("^", end)
        end += self._source.startswith("]", end)
        while end < len(self._source) and self._source[end] != "]":
            end += 2 if self._source[end] == "\\" else 1
        self._translated.append(self._source[self._at : end + 1].replace(r"\ ", " ").replace(" ", r"\s"))
        self._at = end + 1

    def _quantifier(self) -> re.Match[str] | None:
        quantifier = _QUANTIFIER.match(self._source, self._at)
        if quantifier is None or quantifier[0].startswith("{}"):
            return None
        self._pass(quantifier[0])
        return quantifier

    def _pass(self, part: str) -> None:
        self._translated.append(part)
        self._at += len(part)

    def _take(self, character: str) -> bool:
        taken = self._source.startswith(character, self._at)
        if taken:
            self._pass(character)
        return taken

"""Texts that users posted and the entries were not written after: how many are recognised, how many rightly.

`held_out.toml` has a third of the texts that were collected first; entries were mended once after it had been counted.
`fresh.toml` was collected after that. `names` of a text, where somebody labelled it, holds the entries
that are a right answer. Nothing may be recognised in `ordinary_held_out.toml`: logs that are well, prose, and errors of
other programs.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from metalmark.doctor.known_errors import Weight, known_errors
from metalmark.doctor.recognise import Match, recognise

CORPUS = Path(__file__).with_name("corpus")
LEAST_RECALL = 0.85
LEAST_RIGHT = 0.95
FEWEST_ORDINARY = 100


def texts(name: str) -> list[dict[str, Any]]:
    path = CORPUS / f"{name}.toml"
    if not path.exists():
        pytest.skip(f"tests/doctor/corpus/{name}.toml has not been collected yet")
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["texts"]
    return entries


def answers(text: dict[str, Any]) -> list[Match]:
    """What counts as an answer: a warning that healthy runs print too does not."""
    return [match for match in recognise(text["text"]) if match.weight is not Weight.REMARK]


def by_area(found: list[dict[str, Any]]) -> dict[str, int]:
    """Counts alone: an entry that is written after a text which the message names would make it no longer held out."""
    return dict(Counter(text["area"] for text in found))


@pytest.mark.parametrize("name", ["known", "held_out", "fresh"])
def test_most_texts_are_recognised(name: str) -> None:
    collected = texts(name)
    missed = [text for text in collected if not answers(text)]
    recall = 1 - len(missed) / len(collected)
    assert recall >= LEAST_RECALL, f"{recall:.1%} of {len(collected)}; not recognised: {by_area(missed)}"


def test_nearly_all_answers_are_right() -> None:
    """The first answer counts, since it is the one that is acted on."""
    labelled = [text for text in texts("held_out") if "names" in text]
    if not labelled:
        pytest.skip("the texts have not been labelled with the names of right answers yet")
    assert len(labelled) == len(texts("held_out")), "a text without a label can't be counted"
    given = [(text, matches[0].name) for text in labelled if (matches := answers(text))]
    wrong = [text for text, name in given if name not in text["names"]]
    assert 1 - len(wrong) / len(given) >= LEAST_RIGHT, f"wrong of {len(given)}: {by_area(wrong)}"


def test_labels_are_names_of_entries() -> None:
    names = {error.name for error in known_errors()}
    labels = {name for text in texts("held_out") for name in text.get("names", ())}
    assert labels <= names


@pytest.mark.parametrize("name", ["ordinary", "ordinary_held_out"])
def test_nothing_is_recognised_in_ordinary_texts(name: str) -> None:
    alarms = [match.name for text in texts(name) for match in recognise(text["text"])]
    assert alarms == [], "these entries match too much: anchor their patterns"


def test_there_are_enough_ordinary_texts() -> None:
    assert len(texts("ordinary_held_out")) >= FEWEST_ORDINARY


def test_the_corpus_holds_each_text_once() -> None:
    everything = [
        text for name in ("known", "held_out", "fresh", "ordinary", "ordinary_held_out") for text in texts(name)
    ]
    assert len({text["id"] for text in everything}) == len(everything)
    assert len({" ".join(text["text"].split()) for text in everything}) == len(everything)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.errors import UsageError
from metalmark.model.plan import Device, DeviceKind
from metalmark.model.workload import Param
from metalmark.runner.values import choose, parse_device, parse_numbers, parse_param, parse_switch


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("16", [16]),
        ("16,64", [16, 64]),
        ("16,16", [16]),
        ("1-4", [1, 2, 3, 4]),
        ("8-64*2", [8, 16, 32, 64]),
        ("8-63*2", [8, 16, 32]),
        ("8-64x2", [8, 16, 32, 64]),
        ("8..64x2", [8, 16, 32, 64]),
        ("8..64*2", [8, 16, 32, 64]),
        ("1..4", [1, 2, 3, 4]),
        ("10..50+20", [10, 30, 50]),
        ("10-50+20,7", [10, 30, 50, 7]),
        ("-3", [-3]),
    ],
)
def test_lists_and_ranges(text: str, values: list[int]) -> None:
    assert parse_numbers(text, what="--x", whole=True) == values


def test_fractions_where_they_make_sense() -> None:
    assert parse_numbers("0.5,1-2+0.5", what="--x", whole=False) == [0.5, 1.0, 1.5, 2.0]
    with pytest.raises(UsageError, match="whole numbers"):
        parse_numbers("0.5", what="--x", whole=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "1,,2",
        "4-1",
        "1-9*1",
        "0-9*2",
        "0-9x2",
        "1-9x1",
        "8...64x2",
        "1-2xx2",
        "1-9+0",
        "nan",
        "inf",
        "1-999999",
        "1e400",
    ],
)
def test_nonsense_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="--x"):
        parse_numbers(text, what="--x", whole=True)


@given(st.text(max_size=30))
def test_no_text_raises_anything_but_a_usage_error(text: str) -> None:
    for parse in (
        lambda: parse_numbers(text, what="--x", whole=True),
        lambda: parse_device(text),
        lambda: parse_switch(text, what="--x"),
        lambda: choose(text, ["a"], what="x", plural="Xs"),
    ):
        try:
            parse()
        except UsageError as error:
            said = error.message
        else:
            continue
        assert said


def test_switches() -> None:
    assert parse_switch("off,on", what="--x") == [False, True]
    with pytest.raises(UsageError, match="on or off"):
        parse_switch("maybe", what="--x")


def test_a_parameter_takes_the_type_of_its_default() -> None:
    assert parse_param(Param("size", "base", choices=("base", "tiny")), "tiny,base") == ["tiny", "base"]
    assert parse_param(Param("flag", True), "off") == [False]
    assert parse_param(Param("ms", 1.0), "2") == [2.0]
    with pytest.raises(UsageError, match="did you mean tiny"):
        parse_param(Param("size", "base", choices=("base", "tiny")), "tinny")
    with pytest.raises(UsageError, match="at least 1"):
        parse_param(Param("batch_size", 32, minimum=1), "0")


def test_device_words() -> None:
    assert parse_device("cuda:1") == Device(kind=DeviceKind.CUDA, index=1)
    assert str(parse_device("cuda:1")) == "cuda:1"
    assert parse_device("any") == Device(kind=DeviceKind.ANY)
    for wrong in ("tpu", "cuda:x", "cpu:1", "cuda:-1", ""):
        with pytest.raises(UsageError):
            parse_device(wrong)

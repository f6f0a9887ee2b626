from __future__ import annotations

from pathlib import Path

from metalmark.runner.launch import MOST_OUTPUT_BYTES, fallbacks

SENTENCE = (
    "x.py:1: UserWarning: The operator 'aten::{}' is not currently supported on the MPS backend and will fall back to "
    "run on the CPU. This may have performance implications. (Triggered internally at MPSFallback.mm:11.)\n"
)


def test_each_operation_once_in_the_order_it_was_named(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    text = "".join(SENTENCE.format(name) for name in ("nonzero", "isin.Tensor_Tensor_out", "nonzero"))
    output.write_bytes(b"\xff\xfe rubbish\n" + text.encode() + b"\x00")
    assert fallbacks(output) == ("aten::nonzero", "aten::isin.Tensor_Tensor_out")


def test_an_operation_that_is_refused_is_no_fallback(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    output.write_text("NotImplementedError: The operator 'aten::x' is not currently implemented for the MPS device.")
    assert fallbacks(output) == ()
    assert fallbacks(tmp_path / "missing.txt") == ()


def test_a_flood_of_output_is_read_in_part(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    output.write_bytes(b"x" * MOST_OUTPUT_BYTES + SENTENCE.format("late").encode())
    assert fallbacks(output) == ()

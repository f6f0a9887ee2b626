"""The table of chips: each row by the name its driver gives it, and none for a name that only looks near."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.machine.chips import chips, peak
from metalmark.model.run import Absent, Peak

GIB = 2**30


def found(name: str, *, cores: int | None = None, memory_bytes: int | None = None) -> Peak:
    answer = peak(name, cores=cores, memory_bytes=memory_bytes)
    assert isinstance(answer, Peak), answer
    return answer


def missing(name: str, *, cores: int | None = None, memory_bytes: int | None = None) -> str:
    answer = peak(name, cores=cores, memory_bytes=memory_bytes)
    assert isinstance(answer, Absent), answer
    return answer.reason


def test_every_row_has_a_source_and_how_far_to_trust_it() -> None:
    assert len(chips()) > 40
    assert {chip.peak.confidence for chip in chips()} == {"high", "medium", "low"}
    assert all(chip.peak.source and chip.peak.bandwidth_bytes_per_s for chip in chips())


@pytest.mark.parametrize(
    "chip",
    [chip for chip in chips() if chip.gpu_cores is not None],
    ids=lambda chip: f"{chip.name}, {chip.peak.variant}",
)
def test_every_apple_row_is_found_by_its_cores_and_memory(chip: object) -> None:
    row = next(row for row in chips() if row is chip)
    assert found(row.name, cores=row.gpu_cores, memory_bytes=int(row.memory_gb * GIB)) is row.peak


def test_arithmetic_and_bandwidth_are_in_plain_units() -> None:
    ceiling = found("Apple M1 Pro", cores=16, memory_bytes=32 * GIB)
    assert ceiling.variant == "16-core GPU"
    assert ceiling.flops_per_s == {"float32": pytest.approx(5.308e12)}
    assert ceiling.bandwidth_bytes_per_s == pytest.approx(200e9)
    assert set(found("NVIDIA H200").flops_per_s) == {"float32", "tf32", "bfloat16", "float16"}
    assert set(found("Tesla T4").flops_per_s) == {"float32", "float16"}, "Turing has neither TF32 nor bfloat16"


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("NVIDIA H200", "SXM 141GB"),
        ("NVIDIA H100 80GB HBM3", "SXM5 80GB"),
        ("NVIDIA H100 PCIe", "PCIe 80GB"),
        ("NVIDIA A100-SXM4-40GB", "SXM4 40GB"),
        ("NVIDIA A100-SXM4-80GB", "SXM4 80GB"),
        ("NVIDIA A100 80GB PCIe", "PCIe 80GB"),
        ("Tesla T4", "PCIe"),
        ("Tesla V100-SXM2-16GB", "SXM2"),
        ("Tesla V100-PCIE-32GB", "PCIe"),
        ("NVIDIA GeForce RTX 4090", ""),
    ],
)
def test_the_drivers_names(name: str, variant: str) -> None:
    assert found(name).variant == variant


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H200 NVL",
        "NVIDIA H100 NVL",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GH200 480GB",
        "AMD Radeon Pro 5500M",
        "NVIDIA",
        "",
    ],
)
def test_a_neighbour_s_figures_are_not_taken(name: str) -> None:
    assert "not in the table" in missing(name)


def test_a_chip_that_does_not_say_its_cores_has_no_peak() -> None:
    assert missing("Apple M1") == "Apple M1 is sold as 7-core GPU or 8-core GPU, and the system did not say which it is"
    assert "with 9 GPU cores" in missing("Apple M1", cores=9)


def test_memory_tells_variants_of_the_same_cores_apart() -> None:
    small, large = (
        found("Apple M6", cores=12, memory_bytes=16 * GIB),
        found("Apple M6", cores=12, memory_bytes=24 * GIB),
    )
    assert (small.bandwidth_bytes_per_s, large.bandwidth_bytes_per_s) == (pytest.approx(153e9), pytest.approx(170e9))
    assert small.flops_per_s == {}, "not published: not there, and not 0"
    assert "does not tell" in missing("Apple M6", cores=12)
    assert "does not tell" in missing("Apple M6", cores=12, memory_bytes=512 * GIB)


def test_an_unmounted_name_with_several_variants_is_not_guessed() -> None:
    assert "does not say which" in missing("NVIDIA A100")


@given(st.text(), st.none() | st.integers(), st.none() | st.integers())
def test_any_name_has_an_answer(name: str, cores: int | None, memory_bytes: int | None) -> None:
    assert isinstance(peak(name, cores=cores, memory_bytes=memory_bytes), Peak | Absent)

"""Known errors: each seen in a text as users paste it, none in a log that is well, nothing raised by rubbish."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.doctor.recognise import HEAD_CHARS, TAIL_CHARS, known_errors, legible, recognise
from metalmark.scrub import printable
from tests.doctor.error_samples import HEALTHY, SAMPLES

KNOWN = known_errors()
NAMES = [error.name for error in KNOWN]


def names(text: str) -> list[str]:
    return [match.name for match in recognise(text)]


def test_every_known_error_has_a_sample_and_a_name_of_its_own() -> None:
    assert sorted(SAMPLES) == sorted(NAMES)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_its_sample_is_recognised_first(name: str) -> None:
    assert names(SAMPLES[name])[:1] == [name]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_recognised_within_a_log_that_is_well(name: str) -> None:
    assert names(f"{HEALTHY}{SAMPLES[name]}\n{HEALTHY}")[:1] == [name]


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_happened_what_to_change_and_where_that_is_from(name: str) -> None:
    error = next(error for error in KNOWN if error.name == name)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+|[a-z]+", name)
    assert error.happened.endswith(".")
    assert error.change.endswith(".")
    assert error.source.startswith("https://")
    assert not any("\n" in line for line in error.fix)


def test_a_log_that_is_well_matches_nothing() -> None:
    assert names(HEALTHY) == []
    assert names("") == []


OTHER_WORDS = [
    ("mps-placeholder", "RuntimeError: Tensor for argument weight is on cpu but expected on mps"),
    ("mps-float64", "TypeError: Trying to convert ComplexDouble to the MPS backend but it does not have support"),
    ("tensor-to-numpy", "TypeError: can't convert cuda:1 device type tensor to numpy."),
    ("mps-watermark", "RuntimeError: invalid high watermark ratio 2.5"),
    ("tensorflow-metal-symbol", "dlopen(libmetal_plugin.dylib, 6): Symbol not found: _TF_AssignUpdateVariable"),
    ("xla-on-metal", "UNIMPLEMENTED: Could not find compiler for platform METAL: NOT_FOUND"),
    ("tensorflow-too-late", "RuntimeError: Physical devices cannot be modified after being initialized"),
    (
        "gpu-out-of-memory",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
    ),
    ("gpu-out-of-memory", "ResourceExhaustedError: OOM when allocating tensor with shape[256,256,256]"),
    (
        "cuda-library-missing",
        "W dso_loader.cc:64] Could not load dynamic library 'libcudnn.so.8'; dlerror: libcudnn.so.8: x",
    ),
    ("protobuf-version", "TypeError: Descriptors cannot not be created directly."),
    ("protobuf-version", "VersionError: Detected incompatible Protobuf Gencode/Runtime versions when loading x.proto"),
    (
        "numpy-abi",
        "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header",
    ),
    ("too-many-open-files", "RuntimeError: received 0 items of ancdata"),
    ("shared-memory", "RuntimeError: unable to write to file </torch_4711_12_0>: No space left on device (28)"),
    ("host-out-of-memory", "Epoch 3/5\nKilled\n"),
    ("host-out-of-memory", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 32.0 GiB for an array"),
    ("loader-worker-died", "RuntimeError: DataLoader worker (pid 31) is killed by signal: Killed."),
    ("mixed-devices", "Input type (MPSFloatType) and weight type (torch.FloatTensor) should be the same"),
    (
        "wrong-architecture",
        "(mach-o file, but is an incompatible architecture (have 'arm64', need 'x86_64h' or 'x86_64'))",
    ),
]


@pytest.mark.parametrize(("name", "text"), OTHER_WORDS)
def test_other_words_for_the_same(name: str, text: str) -> None:
    assert names(text)[:1] == [name]


def test_the_cause_comes_before_what_follows_from_it() -> None:
    text = f"{SAMPLES['loader-worker-died']}\n{SAMPLES['nccl-failed']}\n{SAMPLES['too-many-open-files']}"
    assert names(text) == ["too-many-open-files", "loader-worker-died", "nccl-failed"]


def test_a_remark_comes_last_and_the_earlier_of_two_causes_first() -> None:
    text = f"{SAMPLES['mps-fallback']}\n{SAMPLES['mps-float64']}\n{SAMPLES['cuda-illegal-access']}"
    assert names(text) == ["mps-float64", "cuda-illegal-access", "mps-fallback"]


def test_evidence_is_the_line_without_paths() -> None:
    (match,) = recognise(f"first\n{SAMPLES['too-many-open-files']}\nlast")
    assert match.line == 2
    assert match.evidence == "OSError: [Errno 24] Too many open files: '00017.png'"


def test_evidence_of_a_broken_line_is_put_together() -> None:
    (match,) = recognise("x\nRuntimeError: MPS backend out\n   of memory (MPS allocated: 1 GB)\ny")
    assert match.evidence == "RuntimeError: MPS backend out of memory (MPS allocated: 1 GB)"


def test_colours_and_typographic_quotes_do_not_hide_it() -> None:
    assert names("\x1b[1;31mRuntimeError\x1b[0m: \x1b[38;5;9mMPS \x1b[0mbackend out of memory") == ["mps-out-of-memory"]
    assert names("TypeError: can’t convert mps:0 device type tensor to numpy") == ["tensor-to-numpy"]
    assert names("\x1b]0;title\x07RuntimeError:\r\nMPS backend out of memory\r\n") == ["mps-out-of-memory"]


def test_it_is_found_at_either_end_of_a_huge_text_and_at_the_end_of_a_huge_line() -> None:
    filler = "progress 17%\n" * (3 * (HEAD_CHARS + TAIL_CHARS) // 13)
    error = SAMPLES["mps-float64"]
    assert len(legible(filler)) < len(filler)
    assert names(f"{error}\n{filler}") == ["mps-float64"]
    assert names(f"{filler}{error}") == ["mps-float64"]
    assert names(f"{'#' * 3_000_000}{error}") == ["mps-float64"]
    (match,) = recognise(f"{'#' * 3_000_000} {error}")
    assert len(match.evidence) < 300
    assert "float64" in match.evidence


def test_matches_can_be_stored() -> None:
    assert msgspec.json.decode(msgspec.json.encode(recognise(SAMPLES["openmp-twice"])))[0]["name"] == "openmp-twice"


PIECES = st.sampled_from([*SAMPLES.values(), "\x1b[31m", "\x00", "\n", "\r", "'", "DataLoader worker (pid", "</torch_"])


@given(
    st.one_of(st.text(), st.binary().map(lambda data: data.decode("utf-8", "replace")), st.lists(PIECES).map("".join))
)
def test_rubbish_never_raises(text: str) -> None:
    for match in recognise(text):
        assert match.evidence == printable(match.evidence).strip()
        assert 1 <= match.line <= legible(text).count("\n") + 1


@pytest.mark.parametrize("error", KNOWN, ids=NAMES)
def test_no_pattern_matches_nothing(error: object) -> None:
    pattern = next(known for known in KNOWN if known is error).expression
    assert pattern.search("") is None
    assert pattern.search("a b c 1 2 3 ' ( ) . error failed") is None

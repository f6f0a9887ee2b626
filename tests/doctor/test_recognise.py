"""Known errors: each seen in a text as users paste it, none in a log that is well, nothing raised by rubbish."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from metalmark.doctor.error_pattern import ErrorPattern
from metalmark.doctor.error_text import ErrorText, System
from metalmark.doctor.known_errors import KnownError, Weight, known_error, known_errors
from metalmark.doctor.recognise import HEAD_CHARS, TAIL_CHARS, last_error, legible, recognise, unrecognised
from metalmark.scrub import printable
from tests.doctor.error_samples import HEALTHY, SAMPLES

KNOWN = known_errors()
NAMES = [error.name for error in KNOWN]


def names(text: str) -> list[str]:
    return [match.name for match in recognise(text)]


def test_every_known_error_has_a_sample_and_a_name_of_its_own() -> None:
    assert sorted(SAMPLES) == sorted(NAMES)
    assert [name for name, number in Counter(NAMES).items() if number > 1] == []


def test_each_sample_is_recognised_first() -> None:
    answers = {name: names(SAMPLES[name])[:1] for name in NAMES}
    assert {name: first for name, first in answers.items() if first != [name]} == {}


def test_each_is_recognised_within_a_log_that_is_well() -> None:
    # Without the lines that name frameworks and their versions, which are conditions of some entries.
    log = "".join(HEALTHY.splitlines(keepends=True)[2:])
    answers = {name: names(f"{log}{SAMPLES[name]}\n{log}")[:1] for name in NAMES}
    # In so long a text a remark is one of the lines that healthy runs print.
    expected = {error.name: [] if error.weight is Weight.REMARK else [error.name] for error in KNOWN}
    assert {name: first for name, first in answers.items() if first != expected[name]} == {}


def test_each_says_what_happened_what_to_change_and_where_that_is_from() -> None:
    for error in KNOWN:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+|[a-z]+", error.name)
        assert error.happened.endswith("."), error.name
        assert error.change.endswith("."), error.name
        assert error.source.startswith("https://"), error.name
        assert not any("\n" in line for line in error.fix), error.name
        assert all(cause.tell.endswith(".") and cause.change.endswith(".") for cause in error.also), error.name


def test_a_log_that_is_well_matches_nothing() -> None:
    assert names(HEALTHY) == []
    assert names("") == []


OTHER_WORDS = [
    ("mps-placeholder", "RuntimeError: Tensor for argument weight is on cpu but expected on mps"),
    ("mps-complex", "TypeError: Trying to convert ComplexDouble to the MPS backend but it does not have support"),
    ("tensor-to-numpy", "TypeError: can't convert cuda:1 device type tensor to numpy."),
    ("mps-watermark", "RuntimeError: invalid high watermark ratio 2.5"),
    ("tensorflow-metal-symbol", "dlopen(libmetal_plugin.dylib, 6): Symbol not found: _TF_AssignUpdateVariable"),
    ("xla-on-metal", "UNIMPLEMENTED: Could not find compiler for platform METAL: NOT_FOUND"),
    ("tensorflow-too-late", "RuntimeError: Physical devices cannot be modified after being initialized"),
    (
        "jax-out-of-memory",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
    ),
    ("tensorflow-out-of-memory", "ResourceExhaustedError: OOM when allocating tensor with shape[256,256,256]"),
    (
        "cuda-library-missing",
        "W dso_loader.cc:64] Could not load dynamic library 'libcudnn.so.8'; dlerror: libcudnn.so.8: x",
    ),
    ("protobuf-version", "TypeError: Descriptors cannot not be created directly."),
    ("protobuf-version", "VersionError: Detected incompatible Protobuf Gencode/Runtime versions when loading x.proto"),
    (
        "numpy-dtype-size",
        "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88",
    ),
    ("loader-file-descriptors", "RuntimeError: received 0 items of ancdata"),
    ("shared-memory", "RuntimeError: unable to write to file </torch_4711_12_0>: No space left on device (28)"),
    ("process-killed", "Epoch 3/5\nKilled\n"),
    ("host-out-of-memory", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 32.0 GiB for an array"),
    ("loader-worker-died", "RuntimeError: DataLoader worker (pid 31) is killed by signal: Killed."),
    ("mixed-devices", "Input type (MPSFloatType) and weight type (torch.FloatTensor) should be the same"),
    (
        "python-for-intel",
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
    (match,) = recognise("first\nOSError: [Errno 24] Too many open files: '/Users/someone/data/00017.png'\nlast")
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


def test_no_pattern_matches_nothing() -> None:
    for error in KNOWN:
        for pattern in error.expressions:
            assert pattern.expression.search("") is None, error.name
            assert pattern.expression.search("a b c 1 2 3 ' ( ) . error failed") is None, error.name
            # Else it is searched in every text, and is slow in all of them.
            assert pattern.required, f"{error.name}: {pattern.source} has no word that each match contains"


def test_the_conditions_of_each_can_be_read() -> None:
    for error in KNOWN:
        assert all(ErrorPattern(source).expression for source in (*error.needs, *error.unless))
        groups = {group for pattern in error.expressions for group in pattern.expression.groupindex}
        assert {condition.group for condition in error.conditions} <= groups, error.name
        assert error.name not in error.outranks
        assert set(error.outranks) <= set(NAMES), error.name
        for specifier in (*error.versions.values(), error.offered or ""):
            assert specifier == "none" or SpecifierSet(specifier) is not None


def test_words_that_are_looked_for_first_hide_no_match() -> None:
    for error in KNOWN:
        text = legible(SAMPLES[error.name])
        for pattern in error.expressions:
            for match in pattern.expression.finditer(text):
                assert pattern.possible(match[0].lower()), f"{error.name}: {pattern.source}"


def entry(name: str = "made-up", **fields: Any) -> KnownError:
    prose = {"happened": "It broke.", "change": "Mend it.", "source": "https://example.org/"}
    return known_error({"name": name, "patterns": [r"engine stalled"], **prose, **fields})


def found(text: str, *errors: KnownError) -> list[str]:
    return [match.name for match in recognise(text, errors)]


def test_needs_and_unless() -> None:
    error = entry(needs=["torch|mlx", "on a  Mac"], unless=[r"rocket( science)?"])
    assert found("engine stalled\ntorch on\n a Mac", error) == ["made-up"]
    assert found("engine stalled\ntorch", error) == []
    assert found("engine stalled\ntorch on a Mac: rocket", error) == []


@pytest.mark.parametrize(
    ("text", "systems"),
    [
        ("engine stalled", ""),
        ('File "/Users/me/train.py", line 3', "mac"),
        ("dlopen(libtorch.dylib, 6)", "mac"),
        ("_C.cpython-311-darwin.so", "mac"),
        ("Platform: macOS-14.5-arm64-arm-64bit", "mac"),
        ("on my MacBook, an m1 max", "mac"),
        ("It has an M3.", "mac"),
        ("m1 = model(x)", ""),
        ('File "/home/me/train.py", line 3', "other"),
        ("file:///content/data.csv", "other"),
        ("/usr/lib/python3/dist-packages/torch", "other"),
        ("PyTorch 2.4.0+cu121", "other"),
        (r"C:\Users\me\train.py", "other"),
        ("C:/Users/me/train.py", "other"),
        ("/mnt/c/Users/me/train.py", "other"),
        (r"Errors:\n", ""),
        ("https://example.org/home/index.html", ""),
        ("sliding windows", ""),
        ("on Windows and in Colab", "other"),
        ("works on Linux, fails on a Mac", "mac other"),
        ("works on Linux, fails here: /Users/me/train.py", "mac"),
        ("/Users/me/x: no torch==1.13.1+cu116", "mac"),
        ("works on my Mac, fails here: /kaggle/working/train.py", "other"),
        ("/Users/me/train.py and on the server /root/train.py", "mac other"),
        ("/Users/me/x numpy @ file:///home/conda/feedstock_root/numpy", "mac"),
    ],
)
def test_which_system_a_text_shows(text: str, systems: str) -> None:
    shown = ErrorText(text=text)
    assert {system for system in System if shown.shows(system)} == set(systems.split())


def test_the_system_decides() -> None:
    mac, other, not_other = entry("one", system="mac"), entry("two", system="other"), entry(unless_system="other")
    signs = entry("signs", system="mac", system_signs=[r"\bmps\b", "metal"])
    everything = (mac, other, not_other, signs)
    assert found("engine stalled", *everything) == ["made-up"]
    assert found("engine stalled\n/Users/me/train.py", *everything) == ["one", "made-up", "signs"]
    assert found("engine stalled\n/home/me/train.py", *everything) == ["two"]
    assert found("engine stalled, Metal", *everything) == ["made-up", "signs"]


def test_entries_leave_folders_of_a_system_to_the_conditions_on_it() -> None:
    # A check for a folder that the error itself is about, such as the desktop, has more than its first part.
    folders = re.compile(r"/(?:Users|home|root|content|kaggle|workspace)/(?:\||$|\[a-z\])|dist-packages(?:\||$)")
    conditions = {error.name: (*error.needs, *error.unless, *error.system_signs) for error in KNOWN}
    assert [name for name, sources in conditions.items() if any(map(folders.search, sources))] == []
    assert all(ErrorPattern(source).expression for error in KNOWN for source in error.system_signs)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("", True),
        ("torch==2.7.1", True),
        ("torch==2.8.0", False),
        ("PyTorch version: 2.8.0+cu126", False),
        ("PyTorch version (GPU?): 2.3.0 (False)", True),
        ("torch      2.8.0\ntorchvision 0.17.0", False),
        ("torchvision==2.8.0", True),
        ("Downloading torch-2.9.0-cp311-none-macosx_11_0_arm64.whl", False),
        (">>> torch.__version__\n'2.9.1'", False),
        ("It works with PyTorch 2.9.0.", True),
        ("This requires torch 2.8 or later.", True),
        ("torch>=2.8", True),
        ("torch 2.6.0, and in another environment torch 2.9.0", True),
    ],
)
def test_a_version_that_the_text_names_decides(text: str, known: bool) -> None:
    assert bool(found(f"engine stalled\n{text}\n", entry(versions={"torch": "<2.8"}))) is known


@pytest.mark.parametrize(
    ("package", "specifier", "text", "known"),
    [
        ("python", "<3.12", "Python 3.12.1 (main, Dec 7 2023)", False),
        ("python", "<3.12", 'File "/opt/x/lib/python3.13/site-packages/a.py"', False),
        ("python", "<3.12", "C:\\Users\\x\\Python311\\lib\\a.py", True),
        ("python", ">=3.12", "C:\\Users\\x\\Python311\\lib\\a.py", False),
        ("macos", "<14", "macOS 14.5 (23F79)", False),
        ("macos", "<14", "Platform: macOS-13.6.1-arm64-arm-64bit", True),
        ("macos", ">=14", "Platform: macOS-13.6.1-arm64-arm-64bit", False),
        ("macos", "<14", "Runner: macos-14-arm64", False),
        ("macos", "<14", "OS: macOS Sonoma 14.5", False),
        ("macos", "<14", "This is only supported on macOS 14.0", True),
        ("macos", "<14", "BFloat16 needs MacOS 14+", True),
        ("macos", "<14", "Darwin Kernel Version 23.5.0: Wed May 1", False),
        ("macos", ">=14.3", "Darwin Kernel Version 23.5.0: Wed May 1", True),
        ("macos", "<11", "macOS-10.16-x86_64-i386-64bit", True),
        ("macos", ">=11", "macOS-10.16-x86_64-i386-64bit", True),
        ("tensorflow", "<2.16", "tensorflow 2.16.1", False),
        ("tensorflow", "<2.16", "tensorflow-metal 2.17.0", True),
        ("tensorflow-metal", "<1.2", "tensorflow_metal-1.2.0-cp311-cp311-macosx_12_0_arm64.whl", False),
    ],
)
def test_versions_of_python_macos_and_packages(package: str, specifier: str, text: str, known: bool) -> None:
    assert bool(found(f"engine stalled\n{text}\n", entry(versions={package: specifier}))) is known


def test_the_answer_says_for_which_versions_it_holds() -> None:
    error = entry(versions={"torch": "<2.8"})
    (named,), (unnamed,) = recognise("engine stalled, torch==2.1.0", [error]), recognise("engine stalled", [error])
    assert named.holds_for == ("torch <2.8 (the text names 2.1.0)",)
    assert unnamed.holds_for == ("torch <2.8 (the text names no version of it)",)


PIP = "ERROR: Could not find a version that satisfies the requirement {0}==9 (from versions: {1})\n"


def test_pip_s_list_of_versions() -> None:
    patterns = [r"satisfies the requirement (torch|jax)"]
    errors = [
        entry("none-at-all", patterns=patterns, offered="none"),
        entry("only-old", patterns=patterns, offered="<2"),
        entry("new", patterns=patterns, offered=">=2"),
    ]
    assert found(PIP.format("torch", "none"), *errors) == ["none-at-all"]
    assert found(PIP.format("torch", "1.0, 1.13.1"), *errors) == ["only-old"]
    assert found(PIP.format("torch", "1.0, 2.1rc1, not a version"), *errors) == ["only-old", "new"]
    assert found("satisfies the requirement torch", *errors) == []


def test_of_two_lists_of_pip_the_nearest_counts() -> None:
    error = entry(patterns=[r"satisfies the requirement jax"], offered=">=2")
    two = PIP.format("torch", "2.5") + "\n" * 99
    assert found(two + PIP.format("jax", "1.0"), error) == []
    assert found(two + PIP.format("jax", "2.0"), error) == ["made-up"]


SIZES = r"(?P<used>[\d.,]+( \w+)?) used of (?P<limit>[\d.,]+( \w+)?)"


@pytest.mark.parametrize(
    ("condition", "text", "known"),
    [
        ("used == 0", "0 bytes used of 7.93 GB", True),
        ("used == 0", "1.00 KB used of 7.93 GB", False),
        ("used == 1e3", "1.00 KB used of 7.93 GB", True),
        ("used == 1024", "1 KiB used of 7.93 GB", True),
        ("limit < 8e9", "1 KiB used of 7.93 GB", True),
        ("limit < 8 GB", "1 KiB used of 7.93 GiB", False),
        ("used > limit", "900.5 MiB used of 0.5 GiB", True),
        ("used <= limit", "1,024 used of 1024", True),
        ("used != limit", "1 GB used of 1\nGB", False),
        ("used >= 2.10.0", "2.9.1 used of 3", False),
        ("used < 2.10.0", "2.9.1 used of 3", True),
        ("used > 0", "1.2.x.4 apples used of 3", False),
        ("missing > 0", "1 used of 3", False),
    ],
)
def test_numbers_in_the_text_decide(condition: str, text: str, known: bool) -> None:
    assert bool(found(text, entry(patterns=[SIZES], numbers=[condition]))) is known


def test_the_message_whose_numbers_fit_is_the_evidence() -> None:
    (match,) = recognise("5 GB used of 8 GB\n0 GB used of 8 GB\n", [entry(patterns=[SIZES], numbers=["used == 0"])])
    assert match.line == 2


def test_a_condition_is_never_evaluated_as_a_program() -> None:
    with pytest.raises(ValueError, match="not a comparison"):
        found("1 used of 2", entry(patterns=[SIZES], numbers=["__import__('os').getcwd()"]))
    assert found("1 used of 2", entry(patterns=[SIZES], numbers=["used == __import__('os').getcwd()"])) == []


def test_the_specific_one_is_shown_instead_of_the_general_one() -> None:
    general, specific = entry("general"), entry("specific", needs=["cold"], outranks=["general"])
    assert found("engine stalled, cold", general, specific) == ["specific"]
    assert found("engine stalled", general, specific) == ["general"]


def test_two_that_outrank_each_other_are_both_shown() -> None:
    one, two = entry("one", outranks=["two"]), entry("two", outranks=["one"])
    assert found("engine stalled", one, two) == ["one", "two"]


def test_of_equals_the_framework_of_the_traceback_is_first() -> None:
    errors = [entry("tensorflow-stalled"), entry("jax-stalled"), entry("any-stalled", patterns=["stalled"])]
    trace = 'File "/x/lib/python3.11/site-packages/{}/core.py", line 3, in start\nengine stalled'
    assert found("engine stalled", *errors)[0] == "tensorflow-stalled"
    assert found(trace.format("jaxlib"), *errors) == ["jax-stalled", "any-stalled", "tensorflow-stalled"]
    assert found(trace.format("tensorflow"), *errors) == ["tensorflow-stalled", "any-stalled", "jax-stalled"]
    assert found(trace.format("jax"), entry("jax-followed", weight="consequence"), errors[0])[0] == "tensorflow-stalled"


def test_further_causes_come_with_how_to_tell_them_apart() -> None:
    cause = {"happened": "No\nfuel.", "tell": "The lamp\nis red.", "change": "Fill it.", "fix": ["fill"]}
    (match,) = recognise("engine stalled", [entry(tell="The lamp is green.", also=[cause])])
    assert match.tell == "The lamp is green."
    assert [(one.happened, one.tell, one.fix) for one in match.also] == [("No fuel.", "The lamp is red.", ("fill",))]


@pytest.mark.parametrize(
    "fields",
    [
        {"paterns": ["x"]},
        {"fix": "one line"},
        {"also": [{"happened": "x"}]},
        {"system": "linux"},
        {"system_signs": ["mps"]},
        {"system": "mac", "unless_system": "mac"},
    ],
)
def test_a_mistake_in_an_entry_is_named(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="made-up"):
        entry(**fields)


@pytest.mark.parametrize(
    ("pattern", "text", "known"),
    [
        ("a b", "a \n\t b", True),
        ("a ?b", "ab", True),
        ("a *b", "a   b", True),
        ("x[ a]b", "x\tb", True),
        ("(?<!not )engine stalled", "not engine stalled", False),
        ("colou?r ends", "COLOR\nends", True),
        ("(alpha|beta) gamma", "beta gamma", True),
        ("(alpha)? gamma", "a gamma", True),
        (r"\x41lpha beta", "alpha beta", True),
        ("abc{2,3}def", "abccdef", True),
        ("abc{0,3}def", "abdef", True),
        ("{json} broken", "{json} broken", True),
        ("(?P<q>['\"])alpha(?P=q)", "'alpha'", True),
        ("alpha(?!beta|gamma)", "alpha delta", True),
        ("[]x]lpha", "]lpha", True),
        (r"alpha\|beta", "alpha|beta", True),
    ],
)
def test_how_a_pattern_is_read(pattern: str, text: str, known: bool) -> None:
    assert bool(found(text, entry(patterns=[pattern]))) is known


def test_an_unknown_text_gets_the_nearest_entries_and_what_to_run() -> None:
    text = f"{HEALTHY}\nRuntimeError: the MPS backend has run out of its unified memory"
    assert names(text) == []
    unknown = unrecognised(text)
    assert unknown.known == len(KNOWN)
    assert unknown.last_error == "RuntimeError: the MPS backend has run out of its unified memory"
    assert "mps-out-of-memory" in [near.name for near in unknown.nearest]
    assert len(unknown.nearest) <= 3
    assert all({"backend", "memory"} & set(near.shared) for near in unknown.nearest)
    steps = "\n".join(unknown.next_steps)
    assert all(
        command in steps for command in ("metalmark doctor ", "metalmark doctor --bundle", "torch.utils.collect_env")
    )


def test_what_is_far_from_everything_has_no_nearest_entry() -> None:
    for text in ("the lion is loose", "RuntimeError", "", "Traceback (most recent call last):\nValueError: error"):
        assert unrecognised(text).nearest == ()


def test_the_collector_is_that_of_the_framework() -> None:
    steps = "\n".join(unrecognised('File "/x/site-packages/jax/_src/api.py", line 3, in f\nKeyError: 3').next_steps)
    assert "jax.print_environment_info()" in steps
    assert "collect_env" not in steps


def test_the_last_error_of_a_text() -> None:
    assert last_error("ValueError: one\nKeyError: 'two'\nplain end") == "KeyError: 'two'"
    assert last_error("just words\n\n") == "just words"
    assert last_error("") == ""


def test_help_reads_no_entry() -> None:
    code = (
        "import sys; sys.argv = ['metalmark', 'doctor', '--help']\n"
        "from metalmark.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not [name for name in sys.modules if 'known_errors' in name or 'recognise' in name]"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0

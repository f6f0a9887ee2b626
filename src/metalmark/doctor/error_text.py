"""The text of an error, and the facts that can be read from it: versions, pip's list, frameworks, the system, sizes."""

import re
from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property

from msgspec import Struct
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from metalmark.doctor.scene import parse_version

FRAMEWORK_MODULES = {
    "torch": "torch", "functorch": "torch", "torchvision": "torch", "torchaudio": "torch", "tensorflow": "tensorflow",
    "keras": "keras", "tf_keras": "keras", "jax": "jax", "jaxlib": "jax", "flax": "jax", "mlx": "mlx", "mlx_lm": "mlx",
    "mlx_vlm": "mlx",
}  # fmt: skip
"""The framework of each module whose files a traceback may name."""
NONE_OFFERED = "none"

_ALIASES = {
    "torch": ("torch", "pytorch"),
    "tensorflow": ("tensorflow", "tf", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-macos", "tensorflow-intel"),
    "macos": ("macOS", "Mac OS X", "Mac OS", "ProductVersion"),
    "python": ("python", "cpython"),
}
_VERSION = r"\d{1,4}(?:\.\d{1,8}){1,3}(?:(?:a|b|rc|\.?dev|\.?post)\d{1,8})?(?:\+[\w.]{1,40})?"
# One of macOS may be a single number, and `platform.platform()` joins it to the machine's name.
_MACOS_VERSION = r"(?:1[0-9]|2[0-9])(?:\.\d{1,2}){0,2}(?=$|[^\w.]|\.(?!\d))"
_BETWEEN = (
    r"(?: ?={2,3} ?|-(?=\d)|[`'\"]?(?:\.__version__|[ _]version|[ ]ver\.?)?[`'\"]?(?:[ ]\([^)\n]{0,12}\))?"
    r"[ \t]{0,40}(?:[:=@|(][ \t]{0,20}|\n(?=['\"]))?['\"]?v?)"
)
_MACOS_BETWEEN = r"[ :-]{1,6}(?:Big Sur|[A-Z][a-z]{2,10})?[ -]{0,2}(?:version )?"
# Words after which a version is one that is asked for, or was once, and not the one that runs.
_ASKED = re.compile(
    r"\b(?:requires?|needs?|needed|than|to|least|since|before|until|till|from|minimum|compatible with|requirement|"
    r"works? (?:with|on)|(?:compiled|built|build|tested) (?:with|using|for|against|on)|supports?|"
    r"(?:supported|available|fixed|removed|added|introduced|deprecated|new|only) (?:in|on|by|from|since|for))"
    r"[ \t:`'\"(]{1,4}$",
    re.IGNORECASE,
)
_OR_LATER = re.compile(
    r"['\"`]?\)?(?:\+(?!\w)|,? (?:or|and) (?:later|newer|above|higher|greater|up|earlier|older|below|lower)\b)"
)
_PYTHON_FILES = re.compile(
    r"(?:[/\\]python|Python\.framework/Versions/|[/\\]Python(?=3\d{1,2}\\))(3)\.?(\d{1,2})(?=[/\\])"
)
_DARWIN = re.compile(r"\bDarwin(?: Kernel Version|-| )[ :]{0,2}(\d{2})\.\d{1,2}\.\d{1,2}")
_NOT_A_RELEASE = "10.16"
"""What a program built for an old SDK is told on every macOS from 11 on."""

_OFFERED = re.compile(r"\(from versions:([^()]{0,20000})\)")
_MODULE_FILE = re.compile(
    r"(?:(?:site|dist)-packages[/\\](\w+)[/\\]|^\s*File \"[^\"\n]{0,400}[/\\](\w+)[/\\][^/\\\"\n]{1,80}\.py\"|"
    r"^[^\n]{0,60}\b[WEF] (?:external/\w+/)?(tensorflow)/(?:core|compiler|stream_executor|python)/)",
    re.MULTILINE,
)

# Only at the beginning of a path: a folder called content is anywhere else too. Conda's packages name the folder of the
# Linux machine that built them, on every system.
_OTHER_FOLDERS = r"(?<![\w.~-])/(?:home|root|content|kaggle|workspace)/(?!conda/feedstock)"
_DRIVE = r"(?<!\w)(?:[A-Za-z]:(?:\\|/(?!/))|/mnt/[a-z]/)"
_USERS_OF_A_MAC = r"(?<!\w)(?<!\b[A-Za-z]:)/Users/"

_SIZE = re.compile(r"([+-]?(?:\d[\d,]*)?\.?\d+(?:[eE][+-]?\d{1,3})?) ?(?:([kmgtp])(i)?)?(?:b|bytes?)?", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


class System(StrEnum):
    """The kind of system on which a text was printed."""

    MAC = "mac"
    OTHER = "other"
    """Linux or Windows; containers and hosted notebooks are Linux."""


_PRINTED = {
    System.MAC: re.compile(
        rf"{_USERS_OF_A_MAC}|/opt/homebrew\b|/Library/Frameworks/|\.dylib\b|\bosx-(?:arm64|64)\b|"
        r"(?i:mach-o\b|darwin|\bmacos-\d)"
    ),
    System.OTHER: re.compile(rf"{_OTHER_FOLDERS}|{_DRIVE}|\bdist-packages\b|\blinux-gnu\b|\bLinux-\d|\bWindows-\d"),
}
"""What a program prints on one system only: folders, kinds of files, names of platforms."""
_WRITTEN = {
    System.MAC: re.compile(r"(?i:macos|\bmac\b|\bmacbook|\bm[1-5] (?:pro|max|ultra|air|chip)\b)|\bApple|\bM[1-5]\b"),
    System.OTHER: re.compile(r"(?i:\blinux\b|\bubuntu|\bcolab)|\bWindows\b|\d\+cu\d"),
}
"""Names of systems and builds, as people write them. A report from a Mac may also say that all is well on Linux, or
quote a command that asks for a CUDA build."""


class OfferedVersions(Struct, frozen=True, kw_only=True):
    """One list of pip's: what an index offers for this Python and this machine."""

    start: int
    end: int
    versions: tuple[Version, ...]

    def satisfy(self, specifier: str) -> bool:
        if specifier == NONE_OFFERED:
            return not self.versions
        allowed = SpecifierSet(specifier)
        return any(allowed.contains(version, prereleases=True) for version in self.versions)


class ErrorText(Struct, frozen=True, kw_only=True, dict=True):
    """A text that is fit to be searched."""

    text: str

    @cached_property
    def lowered(self) -> str:
        return self.text.lower()

    @cached_property
    def offered(self) -> tuple[OfferedVersions, ...]:
        return tuple(
            OfferedVersions(start=found.start(), end=found.end(), versions=tuple(_listed(found[1])))
            for found in _OFFERED.finditer(self.text)
        )

    @cached_property
    def frameworks(self) -> frozenset[str]:
        """The frameworks whose files are named in it, as in a traceback."""
        modules = (module.lower() for found in _MODULE_FILE.finditer(self.text) for module in found.groups() if module)
        return frozenset(FRAMEWORK_MODULES[module] for module in modules if module in FRAMEWORK_MODULES)

    def shows(self, system: System) -> bool:
        """Whether the text was printed on such a system, as far as it shows; one from two machines shows both."""
        return system in self._systems

    @cached_property
    def _systems(self) -> frozenset[System]:
        """What a program printed decides; only where it shows nothing do the words of people count."""
        printed = frozenset(system for system, signs in _PRINTED.items() if signs.search(self.text))
        return printed or frozenset(system for system, names in _WRITTEN.items() if names.search(self.text))

    @cached_property
    def _named(self) -> dict[str, tuple[Version, ...]]:
        return {}

    def versions(self, package: str) -> tuple[Version, ...]:
        """Return the versions of a package, of `python` or of `macos`, that the text says are in use."""
        if package not in self._named:
            names = set(dict.fromkeys(parse_version(word) for word in self._words_for_versions(package)))
            self._named[package] = tuple(sorted(version for version in names if version is not None))
        return self._named[package]

    def offered_near(self, start: int, end: int) -> OfferedVersions | None:
        """Return pip's list that is nearest to a part of the text."""
        return min(self.offered, key=lambda one: max(one.start - end, start - one.end, 0), default=None)

    def _words_for_versions(self, package: str) -> Iterator[str]:
        macos = package == "macos"
        names = _ALIASES.get(package, (package,))
        lowered = self.lowered
        if any(name.lower() in lowered or name.lower().replace("-", "_") in lowered for name in names):
            spelled = "|".join(re.escape(name).replace(r"\-", "[-_.]").replace(r"\ ", " ") for name in names)
            between, version = (_MACOS_BETWEEN, _MACOS_VERSION) if macos else (_BETWEEN, _VERSION)
            if package == "python":
                between = f"(?:{between})?"
            expression = rf"(?<![\w.@-])(?:{spelled}){between}({version})(?![\w]|\.\w)"
            for found in re.finditer(expression, self.text, re.IGNORECASE):
                before = self.text[max(0, found.start() - 40) : found.start()]
                asked = _ASKED.search(before) or _OR_LATER.match(self.text, found.end())
                if not asked and found[1] != _NOT_A_RELEASE:
                    yield found[1]
        if package == "python":
            yield from (f"{found[1]}.{found[2]}" for found in _PYTHON_FILES.finditer(self.text))
        if macos:
            for found in _DARWIN.finditer(self.text):
                kernel = int(found[1])
                if kernel >= 20:
                    # macOS 11 is Darwin 20, macOS 15 is Darwin 24, and macOS 26 follows with Darwin 25.
                    yield str(kernel - 9 if kernel < 25 else kernel + 1)


def may_satisfy(version: Version, specifier: str) -> bool:
    """Whether a version does; one that is named in part, such as 2.8, does if some 2.8.x does."""
    allowed = SpecifierSet(specifier)
    possible = [version]
    if len(version.release) < 3 and not version.is_prerelease:
        possible.append(Version(f"{version.public}.9999"))
    return any(allowed.contains(one, prereleases=True) for one in possible)


def size_bytes(words: str) -> float | None:
    """Return a size in bytes: "17.93 GB", "384 KiB", "0 bytes", "4096"; KB is 1000 bytes and KiB 1024."""
    found = _SIZE.fullmatch(" ".join(words.split()))
    if found is None:
        return None
    base = 1024 if found[3] else 1000
    return float(found[1].replace(",", "")) * (base ** _POWERS[found[2].lower()] if found[2] else 1)


def _listed(words: str) -> Iterator[Version]:
    for word in words.split(","):
        if (version := parse_version(word.strip())) is not None:
            yield version

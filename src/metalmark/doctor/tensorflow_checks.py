"""TensorFlow on a Mac: a plugin that ended in 2025, and the pairs that load.

`tensorflow_metal_versions.csv` has tensorflow-metal's releases, and names its sources. Where Apple's table and the
check of the wheels' symbols disagree, the symbols win: Apple's text gives 1.1.0 TensorFlow 2.18, whose library lacks
what 1.1.0 links.
"""

import csv
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from metalmark.doctor.check import Finding, check, error, note, warning
from metalmark.doctor.scene import Scene, at_least, older, parse_version, release

PLUGIN_FILE = Path(__file__).with_name("tensorflow_metal_versions.csv")
LAST_MACOS = "2.15.0"
STUBS = {"2.15.1", "2.16.2"}
"""tensorflow-macos releases that contain nothing but a requirement."""
ON = {"1", "true", "yes", "on"}

Minor = tuple[int, int]


class PairVerdict(StrEnum):
    LOADS = "loads"
    FAILS = "fails"
    """Known to fail at import."""
    UNKNOWN = "unknown"
    """Outside of what anybody has stated."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    version: str
    pythons: tuple[Minor, Minor]
    """The oldest and the newest Python that have a wheel."""
    architectures: tuple[str, ...]
    tensorflow: tuple[Minor, Minor]
    """The oldest and the newest TensorFlow that it loads with."""
    fails_from: Minor | None

    def loads(self, tensorflow: Minor) -> PairVerdict:
        if self.fails_from is not None and tensorflow >= self.fails_from:
            return PairVerdict.FAILS
        oldest, newest = self.tensorflow
        return PairVerdict.LOADS if oldest <= tensorflow <= newest else PairVerdict.UNKNOWN

    def has_wheel(self, python: Minor) -> bool:
        return self.pythons[0] <= python <= self.pythons[1]

    @property
    def pin(self) -> str:
        major, minor = self.tensorflow[1]
        # Up to 2.15 the real package for a Mac was tensorflow-macos; `tensorflow` was a stub or absent.
        package = "tensorflow" if (major, minor) >= (2, 15) else "tensorflow-macos"
        return f'pip install "{package}=={major}.{minor}.*" tensorflow-metal=={self.version}'


@cache
def plugins() -> tuple[Plugin, ...]:
    """Return the releases, oldest first."""
    with PLUGIN_FILE.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    stated = {row["tensorflow_metal"]: _stated(row) for row in rows}
    found = []
    for row in rows:
        version = row["tensorflow_metal"]
        # Apple's table has one line per minor release: a patch release is for the same TensorFlow.
        family = [span for other, span in stated.items() if other.split(".")[:2] == version.split(".")[:2]]
        span = stated[version] or next(span for span in family if span is not None)
        tags = [int(tag) for tag in re.findall(r"cp3(\d+)", row["py_tags"])]
        fails = re.search(r"fails >=(\d+)\.(\d+)", row["static_link_check"])
        found.append(
            Plugin(
                version=version,
                pythons=((3, min(tags)), (3, max(tags))),
                architectures=tuple(row["arch"].split("+")),
                tensorflow=span,
                fails_from=(int(fails[1]), int(fails[2])) if fails else None,
            )
        )
    return tuple(found)


def find_plugin(version: str | None) -> Plugin | None:
    wanted = parse_version(version)
    return next((plugin for plugin in plugins() if wanted and parse_version(plugin.version) == wanted), None)


def best_plugin(python: Minor) -> Plugin | None:
    """Return the newest plugin with a wheel for this Python on Apple Silicon."""
    fitting = [p for p in plugins() if p.has_wheel(python) and "arm64" in p.architectures]
    return fitting[-1] if fitting else None


def install_lines(python: Minor) -> tuple[str, ...]:
    """Return what to type for a pair that loads, with a Python that has a wheel."""
    plugin, newest = best_plugin(python), plugins()[-1]
    if plugin is not None:
        return (plugin.pin,)
    major, minor = newest.pythons[1]
    return (f"python{major}.{minor} -m venv .venv", newest.pin.replace("pip install", ".venv/bin/pip install"))


def _stated(row: dict[str, str]) -> tuple[Minor, Minor] | None:
    """Return the range from the first in Apple's table to the last that links; either may be missing."""
    apple = re.match(r"(\d+)\.(\d+)", row["apple_table_tf"])
    linked = re.search(r"ok (\d+)\.(\d+)-(\d+)\.(\d+)", row["static_link_check"])
    minors = [(int(apple[1]), int(apple[2]))] if apple else []
    if linked:
        minors += [(int(linked[1]), int(linked[2])), (int(linked[3]), int(linked[4]))]
    return (min(minors), max(minors)) if minors else None


def real_package(scene: Scene) -> tuple[str, str] | None:
    """Return the distribution that TensorFlow's code came from: `tensorflow` was a stub on a Mac before 2.15.1."""
    tensorflow, macos = scene.version("tensorflow"), scene.version("tensorflow-macos")
    if tensorflow is not None and (macos is None or at_least(tensorflow, "2.15.1")):
        return "tensorflow", tensorflow
    return ("tensorflow-macos", macos) if macos is not None else None


@check("tensorflow-metal-pair")
def pair(scene: Scene) -> Finding | None:
    installed, plugin_version = real_package(scene), scene.version("tensorflow-metal")
    if not scene.mac or installed is None or plugin_version is None:
        return None
    package, version = installed
    minor, plugin = release(version), find_plugin(plugin_version)
    # The probe wins: a GPU that answers is proof that the pair loads.
    if minor is None or plugin is None or scene.present("tensorflow", "mps"):
        return None
    python = scene.python_release()
    verdict = plugin.loads(minor)
    if not plugin.has_wheel(python):
        return error(
            f"tensorflow-metal {plugin_version} has no build for Python {python[0]}.{python[1]}",
            evidence=f"Python {scene.python}; its wheels are for {_span(plugin.pythons)}",
            why="A plugin that was built for another Python does not load.",
            fix=install_lines(python),
        )
    if verdict is PairVerdict.LOADS:
        return None
    evidence = (
        f"{package} {version} with tensorflow-metal {plugin_version}, which loads with {_span(plugin.tensorflow)}"
    )
    both = f"TensorFlow {version} and tensorflow-metal {plugin_version}"
    if verdict is PairVerdict.FAILS:
        return error(
            f"{both} can't load together",
            evidence=evidence,
            why="`import tensorflow` fails on the plugin's missing symbols. It will not be fixed: the plugin's last "
            "release is of January 2025, so TensorFlow has to be the older one.",
            fix=install_lines(python),
        )
    why = "A plugin is built against one TensorFlow; with another it may fail at import or find no GPU."
    return warning(f"{both} are not a pair that Apple lists", evidence=evidence, why=why, fix=install_lines(python))


@check("tensorflow-macos")
def leftovers(scene: Scene) -> Finding | None:
    macos, tensorflow = scene.version("tensorflow-macos"), scene.version("tensorflow")
    if macos is None or not scene.mac:
        return None
    uninstall = "pip uninstall -y tensorflow-macos tensorflow tensorflow-metal"
    again = (uninstall, *install_lines(scene.python_release()))
    if older(macos, "1"):
        return error(
            "The TensorFlow fork of 2021 is installed",
            evidence=f"tensorflow-macos {macos}",
            why="It computed wrongly: evaluate and predict gave chance accuracy after good training, and BatchNorm "
            "gave NaN or a frozen loss. It was withdrawn.",
            fix=again,
        )
    if macos not in STUBS and at_least(tensorflow, "2.15.1"):
        return warning(
            "tensorflow-macos and tensorflow overwrite each other",
            evidence=f"tensorflow-macos {macos} and tensorflow {tensorflow} install the same folder",
            why="Whichever was installed last has overwritten part of the other: what is imported is a mixture.",
            fix=again,
        )
    why = f"Its last real release is {LAST_MACOS}, later ones are empty; `tensorflow` has arm64 wheels since 2.15.1."
    title = "tensorflow-macos is left over from before 2024"
    return note(title, evidence=f"tensorflow-macos {macos}", why=why, fix=again)


@check("tensorflow-no-gpu")
def no_gpu(scene: Scene) -> Finding | None:
    installed = real_package(scene)
    # Under Rosetta, or with a Python that has no wheel, other checks speak.
    if installed is None or scene.translated or not scene.apple_silicon or scene.present("tensorflow", "mps"):
        return None
    python = scene.python_release()
    if best_plugin(python) is None:
        return None
    package, version = installed
    minor = release(version)
    if not scene.has("tensorflow-metal"):
        newest = plugins()[-1]
        fits = minor is not None and newest.loads(minor) is PairVerdict.LOADS and newest.has_wheel(python)
        return warning(
            "TensorFlow has no GPU: its Metal plugin is not installed",
            evidence=f"{package} {version}, no tensorflow-metal",
            why="TensorFlow's own wheels for macOS know the CPU only, and say nothing about it.",
            fix=(f"pip install tensorflow-metal=={newest.version}",) if fits else install_lines(python),
        )
    report = scene.device("tensorflow", "mps")
    plugin = find_plugin(scene.version("tensorflow-metal"))
    # A pair that can't load is the other check's.
    if report is None or plugin is None or minor is None or plugin.loads(minor) is not PairVerdict.LOADS:
        return None
    return warning(
        "TensorFlow finds no GPU although its Metal plugin is installed",
        evidence=f"{package} {version} with tensorflow-metal {plugin.version}; the probe says: {report.reason}",
        why="It trains on the CPU without a message. In a virtual machine, or over ssh without a session, Metal may be "
        "absent.",
        fix=("pip install --force-reinstall --no-deps tensorflow-metal==" + plugin.version,),
    )


@check("keras-metal-wrong")
def keras_pair(scene: Scene) -> Finding | None:
    installed = real_package(scene)
    if installed is None or not scene.mac or not scene.has("tensorflow-metal") or release(installed[1]) != (2, 16):
        return None
    keras = scene.version("keras")
    legacy = scene.environment.get("TF_USE_LEGACY_KERAS", "").lower() in ON and scene.has("tf-keras")
    if not at_least(keras, "3.7") or legacy:
        return None
    return error(
        f"Keras {keras} gave wrong results with this TensorFlow and tensorflow-metal",
        evidence=f"keras {keras}, tensorflow {installed[1]}, tensorflow-metal {scene.version('tensorflow-metal')}",
        why="With this TensorFlow and plugin, the same training was reported to give other results with Keras 3.7 and "
        "newer than with 3.6.",
        fix=(*install_lines(scene.python_release()), "or: pip install tf_keras && export TF_USE_LEGACY_KERAS=1"),
    )


@check("xla-on-metal")
def xla(scene: Scene) -> Finding | None:
    if not scene.present("tensorflow", "mps"):
        return None
    flags = scene.environment.get("TF_XLA_FLAGS", "")
    if "auto_jit" in flags and "auto_jit=0" not in flags:
        return warning(
            "XLA is switched on, and does not exist for Metal",
            evidence=f"TF_XLA_FLAGS={flags}",
            why='A step that is compiled fails with "could not find registered platform with id".',
            fix=("unset TF_XLA_FLAGS",),
        )
    return note(
        "No XLA on Metal",
        evidence=f"tensorflow-metal {scene.version('tensorflow-metal') or ''}".strip(),
        why='jit_compile=True fails with "could not find registered platform with id": leave it out on this machine.',
        fix=("model.compile(..., jit_compile=False)",),
    )


def _span(bounds: tuple[Minor, Minor]) -> str:
    oldest, newest = (".".join(map(str, bound)) for bound in bounds)
    return oldest if oldest == newest else f"{oldest} to {newest}"

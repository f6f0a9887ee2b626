"""TensorFlow on a Mac: a plugin that ended in 2025, and the pairs that load."""

from __future__ import annotations

from collections.abc import Iterator

from metalmark.doctor import tensorflow_metal
from metalmark.doctor.check import Check, Finding, error, issue, note, warning
from metalmark.doctor.scene import Scene
from metalmark.doctor.tensorflow_metal import Minor, Verdict
from metalmark.doctor.versions import at_least, older, release

LAST_MACOS = "2.15.0"
STUBS = {"2.15.1", "2.16.2"}
"""tensorflow-macos releases that hold nothing but a requirement."""
ON = {"1", "true", "yes", "on"}


def real_package(scene: Scene) -> tuple[str, str] | None:
    """The distribution that TensorFlow's code came from: `tensorflow` was a stub on a Mac before 2.15.1."""
    tensorflow, macos = scene.version("tensorflow"), scene.version("tensorflow-macos")
    if tensorflow is not None and (macos is None or at_least(tensorflow, "2.15.1")):
        return "tensorflow", tensorflow
    return ("tensorflow-macos", macos) if macos is not None else None


def pair(scene: Scene) -> Finding | None:
    installed, plugin_version = real_package(scene), scene.version("tensorflow-metal")
    if not scene.mac or installed is None or plugin_version is None:
        return None
    package, version = installed
    minor, plugin = release(version), tensorflow_metal.find(plugin_version)
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
            fix=tensorflow_metal.mend(python),
        )
    if verdict is Verdict.LOADS:
        return None
    evidence = (
        f"{package} {version} with tensorflow-metal {plugin_version}, which loads with {_span(plugin.tensorflow)}"
    )
    mend = tensorflow_metal.mend(python)
    if verdict is Verdict.FAILS:
        return error(
            f"TensorFlow {version} and tensorflow-metal {plugin_version} can't load together",
            evidence=evidence,
            why="`import tensorflow` fails on the plugin's missing symbols. Nobody mends it: the plugin's last release "
            "is of January 2025, so TensorFlow has to be the older one.",
            fix=mend,
        )
    return warning(
        f"TensorFlow {version} and tensorflow-metal {plugin_version} are no pair that Apple lists",
        evidence=evidence,
        why="A plugin is built against one TensorFlow; with another it may fail at import or find no GPU.",
        fix=mend,
    )


def leftovers(scene: Scene) -> Iterator[Finding]:
    macos, tensorflow = scene.version("tensorflow-macos"), scene.version("tensorflow")
    if macos is None or not scene.mac:
        return
    uninstall = "pip uninstall -y tensorflow-macos tensorflow tensorflow-metal"
    again = (uninstall, *tensorflow_metal.mend(scene.python_release()))
    if older(macos, "1"):
        yield error(
            "The TensorFlow fork of 2021 is installed",
            evidence=f"tensorflow-macos {macos}",
            why="It computed wrongly: evaluate and predict gave chance accuracy after good training, and BatchNorm "
            "gave NaN or a frozen loss. It was withdrawn.",
            fix=again,
        )
    elif macos not in STUBS and at_least(tensorflow, "2.15.1"):
        yield warning(
            "tensorflow-macos and tensorflow lie over each other",
            evidence=f"tensorflow-macos {macos} and tensorflow {tensorflow} install the same folder",
            why="Whichever was installed last has overwritten part of the other: what is imported is a mixture.",
            fix=again,
        )
    else:
        yield note(
            "tensorflow-macos is left over from before 2024",
            evidence=f"tensorflow-macos {macos}",
            why=f"Its last real release is {LAST_MACOS}, later ones are empty; `tensorflow` itself has arm64 wheels "
            f"since "
            "2.15.1.",
            fix=again,
        )


def no_gpu(scene: Scene) -> Finding | None:
    installed = real_package(scene)
    # Under Rosetta, or with a Python that has no wheel, other checks speak.
    if installed is None or scene.translated or not scene.apple_silicon or scene.present("tensorflow", "mps"):
        return None
    python = scene.python_release()
    if tensorflow_metal.best(python) is None:
        return None
    package, version = installed
    minor = release(version)
    if not scene.has("tensorflow-metal"):
        newest = tensorflow_metal.plugins()[-1]
        fits = minor is not None and newest.loads(minor) is Verdict.LOADS and newest.has_wheel(python)
        return warning(
            "TensorFlow has no GPU: its Metal plugin is not installed",
            evidence=f"{package} {version}, no tensorflow-metal",
            why="TensorFlow's own wheels for macOS know the CPU only, and say nothing about it.",
            fix=(f"pip install tensorflow-metal=={newest.version}",) if fits else tensorflow_metal.mend(python),
        )
    report = scene.device("tensorflow", "mps")
    plugin = tensorflow_metal.find(scene.version("tensorflow-metal"))
    # A pair that can't load is the other check's.
    if report is None or plugin is None or minor is None or plugin.loads(minor) is not Verdict.LOADS:
        return None
    return warning(
        "TensorFlow finds no GPU although its Metal plugin is installed",
        evidence=f"{package} {version} with tensorflow-metal {plugin.version}; the probe says: {report.reason}",
        why="It trains on the CPU without a word. In a virtual machine, or over ssh without a session, Metal may be "
        "absent.",
        fix=("pip install --force-reinstall --no-deps tensorflow-metal==" + plugin.version,),
    )


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
        why="The same training was reported to end otherwise with Keras 3.7 and newer than with 3.6, on this "
        "TensorFlow and the plugin.",
        fix=(
            *tensorflow_metal.mend(scene.python_release()),
            "or: pip install tf_keras && export TF_USE_LEGACY_KERAS=1",
        ),
    )


def xla(scene: Scene) -> Finding | None:
    if not scene.present("tensorflow", "mps"):
        return None
    flags = scene.environment.get("TF_XLA_FLAGS", "")
    if "auto_jit" in flags and "auto_jit=0" not in flags:
        return warning(
            "XLA is switched on, and Metal has none",
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


CHECKS = (
    Check(
        name="tensorflow-metal-pair",
        title="TensorFlow and tensorflow-metal are a pair that can't load",
        story="tensorflow-metal is a binary plugin that links symbols of TensorFlow's own library. 1.0.1 and 1.1.0 "
        "load with TensorFlow 2.15 to 2.17 and fail at import from 2.18 on (tsl::internal::LogMessage is missing). "
        "1.2.0, the last release (2025-01-31), loads with 2.15 to 2.19 and fails from 2.20 on, whose library lost its "
        "@rpath install name and does not export the symbols. So `pip install tensorflow tensorflow-metal` of today "
        "gives a pair that fails: pin TensorFlow to 2.19 on Python 3.12 or older.",
        sources=(*tensorflow_metal.SOURCES, *issue("tensorflow/tensorflow", 84167, 126380)),
        examine=pair,
    ),
    Check(
        name="tensorflow-macos",
        title="tensorflow-macos is left over",
        story="Until 2.15.0 TensorFlow for Apple Silicon was a package of its own, tensorflow-macos; 2.15.1 and 2.16.2 "
        "of it are empty. `tensorflow` has real arm64 wheels since 2.15.1; its 2.13.1 and 2.14.1 are stubs that "
        "require tensorflow-macos. Both install the folder `tensorflow`, so having both real ones mixes two versions. "
        "The fork of 2021 (0.1alpha, mlcompute) returned chance accuracy after good training and NaN from BatchNorm.",
        sources=(
            "https://pypi.org/project/tensorflow-macos/",
            *issue("apple/tensorflow_macos", 145, 55, 192, 252, 231),
        ),
        examine=leftovers,
    ),
    Check(
        name="tensorflow-no-gpu",
        title="TensorFlow has no GPU on Apple Silicon: the plugin is missing or finds none",
        story="TensorFlow's macOS wheels hold no GPU support. It comes from tensorflow-metal, a plugin found at "
        "import; without it tf.config.list_physical_devices('GPU') is empty and everything runs on the CPU, without a "
        "message. TensorFlow has to be one the plugin loads with: see tensorflow-metal-pair.",
        sources=tensorflow_metal.SOURCES,
        examine=no_gpu,
    ),
    Check(
        name="keras-metal-wrong",
        title="A Keras that is known to compute wrongly with this TensorFlow on Metal",
        story="Keras 3.7 and newer with TensorFlow 2.16.2 and tensorflow-metal 1.2.0 gave other results than 3.6: "
        "one report, closed for want of an answer. TensorFlow "
        "2.16 is the first that brings Keras 3. Go to the newest pair that loads, or back to Keras 2 with tf_keras and "
        "TF_USE_LEGACY_KERAS=1, and compare an accuracy on the CPU with one on the GPU before you trust either.",
        sources=issue("keras-team/keras", 21668),
        examine=keras_pair,
    ),
    Check(
        name="xla-on-metal",
        title="XLA (jit_compile) on tensorflow-metal, which has none",
        story="tensorflow-metal registers no XLA platform: jit_compile=True and TF_XLA_FLAGS=--tf_xla_auto_jit fail "
        'with "could not find registered platform with id". The optimisers of TensorFlow 2.11 and newer run about '
        "three times slower on "
        "the plugin than the legacy ones, and RngReadAndSkip is missing, which breaks the Random* augmentation layers.",
        sources=issue("tensorflow/tensorflow", 58988, 59438, 53505),
        examine=xla,
    ),
)

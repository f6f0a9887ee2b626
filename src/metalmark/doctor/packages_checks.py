"""Installed packages that contradict each other."""

from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement

from metalmark.doctor.check import Finding, check, error, warning
from metalmark.doctor.readers import normalised_name
from metalmark.doctor.scene import Scene, older, parse_version
from metalmark.runner.ask import NoAnswer

# Distribution → the framework that stops working with it.
FRAMEWORK_OF = {
    "torch": "torch",
    "tensorflow": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "keras": "tensorflow",
    "jax": "jax",
    "jaxlib": "jax",
    "mlx": "mlx",
}


@check("package-conflicts")
def conflicts(scene: Scene) -> Iterator[Finding]:
    for package, wanted in scene.requirements.items():
        for text in wanted:
            requirement = applicable(text, scene)
            if requirement is None:
                continue
            name = normalised_name(requirement.name)
            installed = parse_version(scene.version(name))
            if installed is None or requirement.specifier.contains(installed, prereleases=True):
                continue
            broken = isinstance(scene.probes.get(FRAMEWORK_OF.get(package, "")), NoAnswer)
            yield (error if broken else warning)(
                f"{package} and {name} are not compatible",
                evidence=f"{package} {scene.version(package)} requires {name}{requirement.specifier}; {installed} is "
                "installed",
                why="It may fail at import, or later on the first call into what changed.",
                fix=(f'pip install "{name}{requirement.specifier}"', f"pip install --upgrade {package}   # or this"),
            )


@check("numpy-2")
def numpy_2(scene: Scene) -> Finding | None:
    torch, numpy = scene.version("torch"), scene.version("numpy")
    if not older(torch, "2.3") or not scene.has("numpy", "2"):
        return None
    return error(
        f"PyTorch {torch} was built for NumPy 1",
        evidence=f"torch {torch}, numpy {numpy}",
        why='"A module that was compiled using NumPy 1.x cannot be run in NumPy 2": tensor.numpy() and '
        "torch.from_numpy fail.",
        fix=('pip install "numpy<2"', 'pip install --upgrade "torch>=2.3"   # or this, where there is a wheel'),
    )


def applicable(text: str, scene: Scene) -> Requirement | None:
    """Return the requirement if its marker holds on the Scene's machine without any extra."""
    try:
        requirement = Requirement(text)
        if requirement.marker is None:
            return requirement
        major, minor = scene.python_release()
        system = {"darwin": "Darwin", "linux": "Linux", "win32": "Windows"}.get(scene.platform, "")
        environment = {
            "extra": "",
            "sys_platform": scene.platform,
            "platform_system": system,
            "platform_machine": scene.architecture,
            "python_version": f"{major}.{minor}",
            "python_full_version": scene.python,
        }
        return requirement if requirement.marker.evaluate(environment) else None
    except (InvalidRequirement, ValueError, KeyError):  # pip could not read it either
        return None

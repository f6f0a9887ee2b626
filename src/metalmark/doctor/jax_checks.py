"""JAX on a Mac: a CPU framework, whatever is installed beside it."""

from __future__ import annotations

from metalmark.doctor.check import Finding, check, error, issue, note, warning
from metalmark.doctor.scene import Scene

BREAKS_FROM = "0.5.1"


@check(
    "jax-metal",
    "jax-metal is installed: it is dead",
    "https://pypi.org/project/jax-metal/",
    *issue("jax-ml/jax", 27062, 34109),
)
def jax_metal(scene: Scene) -> Finding | None:
    """jax-metal was Apple's experimental plugin. Its last release, 0.1.1, is of October 2024 and breaks from JAX 0.5.1
    on. Uninstall it: JAX then runs on the CPU, correctly."""
    plugin, jax = scene.version("jax-metal"), scene.version("jax")
    if plugin is None:
        return None
    evidence = f"jax-metal {plugin}, jax {jax or 'not installed'}"
    fix = ("pip uninstall -y jax-metal", "pip install --upgrade jax")
    if scene.has("jax", BREAKS_FROM):
        return error(
            "jax-metal is dead and breaks this JAX",
            evidence=evidence,
            why=f"Its last release is 0.1.1 of October 2024; from JAX {BREAKS_FROM} on it fails. On a Mac, JAX runs on "
            f"the CPU.",
            fix=fix,
        )
    return warning(
        "jax-metal is dead",
        evidence=evidence,
        why="Its last release is 0.1.1 of October 2024: it holds JAX back at 0.5.0 and gets no corrections.",
        fix=fix,
    )


@check(
    "jax-on-mac",
    "JAX has no GPU on a Mac",
    "https://docs.jax.dev/en/latest/installation.html",
    "https://pypi.org/project/metaljax/",
)
def jax_on_mac(scene: Scene) -> Finding | None:
    """JAX's own builds for macOS know the CPU only, and Apple's plugin, jax-metal, is dead. Young plugins by others,
    such as metaljax, offer the GPU in beta; Metalmark does not drive them. That is no fault of this machine: it is said
    so that a slow JAX is not taken for a slow GPU."""
    if not scene.apple_silicon or not scene.has("jax") or scene.has("jax-metal"):
        return None
    return note(
        "JAX runs on the CPU here",
        evidence=f"jax {scene.version('jax')} on a Mac",
        why="Apple's plugin for the GPU is dead. Young ones by others (metaljax, in beta) are not JAX's default and "
        "not known to Metalmark. For the GPU use PyTorch (mps) or MLX.",
    )

"""JAX on a Mac: a CPU framework, whatever is installed beside it."""

from metalmark.doctor.check import Finding, check, error, note, warning
from metalmark.doctor.scene import Scene

BREAKS_FROM = "0.5.1"


@check("jax-metal")
def jax_metal(scene: Scene) -> Finding | None:
    plugin = scene.version("jax-metal")
    if plugin is None:
        return None
    breaks = scene.has("jax", BREAKS_FROM)
    fails = f"from JAX {BREAKS_FROM} on it fails. On a Mac, JAX runs on the CPU."
    return (error if breaks else warning)(
        "jax-metal is no longer developed, and breaks this JAX" if breaks else "jax-metal is no longer developed",
        evidence=f"jax-metal {plugin}, jax {scene.version('jax') or 'not installed'}",
        why="Its last release is 0.1.1 of October 2024: "
        + (fails if breaks else "it holds JAX back at 0.5.0 and gets no corrections."),
        fix=("pip uninstall -y jax-metal", "pip install --upgrade jax"),
    )


@check("jax-on-mac")
def jax_on_mac(scene: Scene) -> Finding | None:
    if not scene.apple_silicon or not scene.has("jax") or scene.has("jax-metal"):
        return None
    on_gpu = ",".join(framework for framework in ("torch", "mlx") if scene.present(framework, "mps"))
    return note(
        "JAX runs on the CPU here",
        evidence=f"jax {scene.version('jax')} on a Mac",
        why="Apple's GPU plugin for JAX is no longer developed. Newer plugins by others (metaljax, in beta) are not "
        "part of JAX, and Metalmark does not use them. PyTorch (mps) and MLX use the GPU.",
        fix=(f"metalmark bench mnist-mlp --framework {on_gpu} --device mps   # these use the GPU",)
        if on_gpu
        else ('pip install "metalmark[torch,mlx]"   # these use the GPU',),
    )

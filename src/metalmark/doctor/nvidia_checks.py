"""Beside an NVIDIA GPU: builds that can't use it, a driver that is too old, and others who use it."""

from collections.abc import Iterator

from metalmark.backends.base import Probe
from metalmark.doctor.check import Finding, check, error, note, warning
from metalmark.doctor.scene import Scene, release

INSTALL_TORCH = "https://pytorch.org/get-started/locally/"
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""The first driver that runs a major version of CUDA."""
IDLE_BYTES = 2**30
BUSY_PERCENT = 10

# Distributions whose presence says which CUDA a framework was built for, where its probe does not.
CUDA_PACKAGES = {
    "jax": {"jax-cuda12-plugin": 12, "jax-cuda13-plugin": 13},
    "mlx": {"mlx-cuda": 12, "mlx-cuda-12": 12, "mlx-cuda-13": 13},
}


def cuda_of(scene: Scene, framework: str) -> int | None:
    """Return the major version of CUDA that a framework is built for; None if it is built for none, or unknown."""
    probe = scene.probes.get(framework)
    stated = release(probe.versions.get("cuda")) if isinstance(probe, Probe) else None
    named = [major for package, major in CUDA_PACKAGES.get(framework, {}).items() if scene.has(package)]
    return stated[0] if stated else max(named, default=None)


@check("cpu-only-build")
def cpu_only(scene: Scene) -> Iterator[Finding]:
    gpus = scene.nvidia.gpus if scene.nvidia else ()
    if not gpus or scene.platform != "linux":
        return
    seen = f"{gpus[0].name} is here"
    hidden = scene.environment.get("CUDA_VISIBLE_DEVICES")
    tensorflow = "tensorflow-cpu" if scene.has("tensorflow-cpu") else "tensorflow"
    builds = (
        ("torch", warning, "This PyTorch is a CPU-only build", f"torch {scene.version('torch')} is built without CUDA",
         ("pip uninstall -y torch", _torch_install(scene))),
        ("tensorflow", note, "This TensorFlow is a CPU-only build", f"{tensorflow} {scene.version(tensorflow)}",
         (f"pip uninstall -y {tensorflow}", 'pip install "tensorflow[and-cuda]"')),
        ("jax", note, "This JAX has no CUDA plugin", f"jax {scene.version('jax')}, no jax-cuda plugin",
         (f'pip install "jax[cuda{_major(scene) or 12}]"',)),
    )  # fmt: skip
    for framework, make, title, installed, fix in builds:
        report = scene.device(framework, "cuda")
        if report is not None and not report.present and cuda_of(scene, framework) is None:
            yield make(
                f"{title}, beside an NVIDIA GPU",
                evidence=f"{installed}; {seen}",
                why="Everything it trains runs on the CPU.",
                fix=fix,
            )
    if hidden is not None and hidden.strip() in ("", "-1", "NoDevFiles"):
        yield warning(
            "CUDA_VISIBLE_DEVICES hides every GPU",
            evidence=f"CUDA_VISIBLE_DEVICES={hidden!r}; {seen}",
            why="Every framework believes that there is none, and trains on the CPU.",
            fix=("unset CUDA_VISIBLE_DEVICES",),
        )


@check("driver-too-old")
def driver_too_old(scene: Scene) -> Iterator[Finding]:
    newest = _major(scene)
    if newest is None or scene.nvidia is None:
        return
    for framework in scene.probes:
        needed = cuda_of(scene, framework)
        # The probe wins: a compatibility package lets an old driver run a newer CUDA.
        if needed is None or needed <= newest or scene.present(framework, "cuda"):
            continue
        driver = f"NVIDIA driver {scene.nvidia.driver or 'of unknown version'} runs CUDA up to {newest}"
        least = OLDEST_DRIVER.get(needed)
        yield error(
            f"The NVIDIA driver is too old for this {framework}",
            evidence=f"{driver}; {framework} is built for CUDA {needed}",
            why=f"The GPU can't be used. CUDA {needed} needs driver {least} or newer."
            if least
            else "The GPU can't be used.",
            fix=(
                f"Update the driver to {least} or newer, or:" if least else "Update the driver, or:",
                _older(scene, framework),
            ),
        )


@check("gpu-in-use")
def busy(scene: Scene) -> Iterator[Finding]:
    for number, gpu in enumerate(scene.nvidia.gpus if scene.nvidia else ()):
        used = gpu.used_bytes or 0
        working = (gpu.busy_percent or 0) >= BUSY_PERCENT
        if used < IDLE_BYTES and not working:
            continue
        # In a container the driver counts others' memory and does not show their processes.
        seen = f"{gpu.processes} other process{'es' if gpu.processes != 1 else ''}"
        who = seen if gpu.processes else "processes that are not visible from here"
        share = f", {gpu.busy_percent}% busy" if gpu.busy_percent is not None else ""
        yield warning(
            f"Another process uses GPU {number}",
            evidence=f"{gpu.name}: {used / 2**30:.1f} GiB used by {who}{share}, before anything of ours ran",
            why="Timings taken now are wrong, and less memory is free.",
            fix=("nvidia-smi",),
        )


def _major(scene: Scene) -> int | None:
    return scene.nvidia.cuda[0] if scene.nvidia and scene.nvidia.cuda else None


def _torch_install(scene: Scene) -> str:
    """Return how to install PyTorch: the usual build needs the newest CUDA; for older drivers its page gives others."""
    cuda = scene.nvidia.cuda if scene.nvidia else None
    if cuda is None or cuda >= (13, 0):
        return "pip install --force-reinstall torch"
    name = "11.8" if cuda[0] < 12 else "12.8" if cuda >= (12, 8) else "12.6"
    return f"Choose CUDA {name} at {INSTALL_TORCH} and run the line it gives."


def _older(scene: Scene, framework: str) -> str:
    if framework == "torch":
        return _torch_install(scene)
    if framework in ("jax", "mlx"):
        return f'pip install "{framework}[cuda{_major(scene)}]"'
    return f"install a {framework} that is built for CUDA {_major(scene)}"

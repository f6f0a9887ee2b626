"""Cores, threads and the runtimes that start them."""

from __future__ import annotations

from collections.abc import Iterator

from metalmark.doctor.check import Check, Finding, note, warning
from metalmark.doctor.scene import Scene
from metalmark.machine.tools import to_count

THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
DUPLICATES_OK = "KMP_DUPLICATE_LIB_OK"
BUSY_SHARE = 0.25
LEAST_BUSY_CORES = 0.5


def quota(scene: Scene) -> Finding | None:
    cores, visible = scene.limits.cores, scene.visible_cores
    if cores is None or visible is None or cores >= visible or not _frameworks(scene):
        return None
    threads = to_count(scene.environment.get("OMP_NUM_THREADS"))
    if threads is not None and threads <= cores:
        return None
    return warning(
        "Frameworks start more threads than the container may use cores",
        evidence=f"{visible} cores are visible, the cgroup's quota is {cores}",
        why="They count the visible ones. Threads beyond the quota are stopped by the kernel in the middle of a step: "
        "the CPU is slower than with fewer, and timings jump.",
        fix=(f"export OMP_NUM_THREADS={cores}", f"metalmark bench ... --threads {cores}"),
    )


def oversubscribed(scene: Scene) -> Iterator[Finding]:
    cores = scene.usable_cores
    if cores is None or not _frameworks(scene):
        return
    for name in THREADS:
        threads = to_count(scene.environment.get(name, "").split(",")[0])
        if threads is None or threads <= cores:
            continue
        yield warning(
            f"{name} asks for more threads than there are cores",
            evidence=f"{name}={scene.environment[name]}, {cores} cores usable",
            why="Threads take the cores from each other, and those that wait for a straggler spin.",
            fix=(f"export {name}={cores}",),
        )
    if scene.environment.get("OMP_NUM_THREADS") == "1" and cores > 1:
        yield note(
            "OMP_NUM_THREADS=1: the CPU works on one core",
            evidence=f"OMP_NUM_THREADS=1, {cores} cores usable",
            why="Right for many processes side by side; for one training run on the CPU it is slow. A CPU measured so "
            "is no fair rival to a GPU.",
            fix=(f"export OMP_NUM_THREADS={cores}",),
        )


def openmp(scene: Scene) -> Finding | None:
    kinds: dict[str, list[str]] = {}
    for runtime in scene.openmp:
        kind = "libiomp5" if runtime.library.startswith("libiomp5") else runtime.library.split(".")[0].split("-")[0]
        owner = f"{runtime.library} of {runtime.package}"
        if kind in ("libomp", "libiomp5"):  # GNU's libgomp bears others beside it
            kinds.setdefault(kind, []).append(owner)
    owners = [owner for group in kinds.values() for owner in group]
    allowed = scene.environment.get(DUPLICATES_OK, "").lower() in ("1", "true", "yes", "on")
    seen = ", ".join(owners)
    fix = ("Take all packages from one place, pip or conda, in a fresh environment.",)
    if allowed:
        return warning(
            f"{DUPLICATES_OK} is set: clashing OpenMP runtimes are let through",
            evidence=f"{DUPLICATES_OK}={scene.environment[DUPLICATES_OK]}{f'; installed: {seen}' if seen else ''}",
            why="The runtime's own message says that this may crash or give wrong results in silence.",
            fix=(f"unset {DUPLICATES_OK}", *fix),
        )
    if len(kinds) > 1:
        return warning(
            "Intel's and LLVM's OpenMP runtimes are both installed",
            evidence=seen,
            why='Loaded into one process they abort with "OMP: Error #15" or hang, and each starts its own threads.',
            fix=fix,
        )
    if len(owners) > 1 and scene.mac:
        return note(
            "Several copies of LLVM's OpenMP runtime are installed",
            evidence=seen,
            why="Imported into one process, each starts threads of its own for the same cores; some pairs crash.",
            fix=("Import torch first.", *fix),
        )
    return None


def busy_machine(scene: Scene) -> Finding | None:
    busy, logical, usable = scene.busy_cores, scene.logical_cores, scene.usable_cores
    if busy is None or not logical or not usable:
        return None
    # On a large machine others may be busy and still leave us all that we may use.
    taken = usable - (logical - busy)
    if taken < max(LEAST_BUSY_CORES, BUSY_SHARE * usable):
        return None
    return warning(
        "Other programs are using the processor",
        evidence=f"{busy:.1f} of {logical} cores were busy before anything of ours ran",
        why="Timings taken now are of a shared machine: slower, and different each time.",
        fix=("top   # or Activity Monitor: see who it is, and wait",),
    )


def _frameworks(scene: Scene) -> bool:
    return any(not missing for missing in scene.frameworks.values())


CHECKS = (
    Check(
        name="cpu-quota",
        title="More cores are visible than the container's quota allows",
        story="A cgroup limits CPU time, not the cores a program sees. Frameworks start a thread for each core they "
        "see; when the quota of a period is used up, the kernel stops all of them until the next one. Set the number "
        "of threads to the quota.",
        sources=("https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files",),
        examine=quota,
    ),
    Check(
        name="thread-variables",
        title="BLAS or OpenMP thread variables that do not fit the cores",
        story="OMP_NUM_THREADS, MKL_NUM_THREADS, OPENBLAS_NUM_THREADS, VECLIB_MAXIMUM_THREADS and their like are "
        "inherited from a shell profile, a notebook server or a job script. More threads than cores slow each other "
        "down; with loader workers each worker may start as many again. One thread makes the CPU look slower than it "
        "is.",
        sources=("https://docs.pytorch.org/docs/2.1/notes/cpu_threading_torchscript_inference.html",),
        examine=oversubscribed,
    ),
    Check(
        name="openmp-duplicates",
        title="Several OpenMP runtimes that clash in one process",
        story="PyTorch, scikit-learn and others bring their own copy of an OpenMP runtime. Intel's (libiomp5, from "
        "MKL) and LLVM's (libomp) notice each other and abort with \"OMP: Error #15: Initializing libomp, but found "
        "libiomp5 already "
        'initialized", or hang. KMP_DUPLICATE_LIB_OK=TRUE, the remedy of many articles, is called unsafe by the '
        "message "
        "itself. What installed packages bring is listed; which are loaded depends on what a script imports.",
        sources=("https://github.com/joblib/threadpoolctl/blob/master/multiple_openmp.md",),
        examine=openmp,
    ),
    Check(
        name="busy-machine",
        title="Other programs are using the processor",
        story="The processors' idle time is read over a third of a second before anything of Metalmark's own runs. "
        "Fires when others leave less than three quarters of what this process may use.",
        examine=busy_machine,
    ),
)

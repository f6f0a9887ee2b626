"""What PyTorch's DataLoader needs of the system: open files, shared memory, an importable main module."""

from metalmark.doctor.check import Finding, check, note, warning
from metalmark.doctor.scene import OpenFiles, Scene

FILES_OF_PROCESS = 64
"""About how many are open in a training script before any worker starts."""
FILES_PER_WORKER = 2 * 9
"""Nine per worker, measured on Linux with batches of two tensors (PyTorch 2.13); most scripts have two loaders open
at once, for training and validation."""
MOST_WORKERS = 32
"""More than anybody starts, however many cores there are."""
FEWEST_FILES = 256
RAISED = 4096
LEAST_SHARED_BYTES = 512 * 2**20
FORKSERVER = (3, 14)


def workers_allowed(soft: int) -> int:
    return max(0, (soft - FILES_OF_PROCESS) // FILES_PER_WORKER)


def too_few_files(soft: int, cores: int | None) -> bool:
    """Return whether a loader with one worker per core could run out of files; a Mac's 256 are few for any machine."""
    return soft <= FEWEST_FILES or (cores is not None and workers_allowed(soft) < min(cores, MOST_WORKERS))


def raised_limit(files: OpenFiles) -> int:
    return RAISED if files.hard is None else min(RAISED, files.hard)


@check("open-files")
def open_files(scene: Scene) -> Finding | None:
    limit, cores = scene.open_files, scene.usable_cores
    if limit is None or limit.soft is None or cores is None or not scene.has("torch"):
        return None
    if not too_few_files(limit.soft, cores):
        return None
    allowed, raised = workers_allowed(limit.soft), raised_limit(limit)
    no_use = " Setting the sharing strategy to file_system does nothing on macOS: it is the only one there." * scene.mac
    return warning(
        'The limit on open files is low: loaders with workers fail with "Too many open files"',
        evidence=f"the soft limit is {limit.soft}: about {allowed} loader workers; this machine has {cores} cores",
        why=f"Each worker keeps pipes open, and a file for each tensor that it sends.{no_use}",
        fix=(f"ulimit -S -n {raised}",) if raised > limit.soft else ("Ask for a higher hard limit (ulimit -Hn).",),
    )


@check("spawn-main-guard")
def spawn(scene: Scene) -> Finding | None:
    by_python = scene.platform == "linux" and scene.python_release() >= FORKSERVER
    if not scene.has("torch") or not (scene.mac or by_python):
        return None
    method = "spawn" if scene.mac else "forkserver"
    return note(
        f"Loader workers start by {method}: the main module is imported again in each",
        evidence=f"Python {scene.python} on {'macOS' if scene.mac else 'Linux'}",
        why="A script without a main guard starts itself again in every worker and fails with a RuntimeError about "
        "bootstrapping; data sets must be picklable, and each worker imports torch anew. For light transforms "
        "num_workers=0 is often fastest.",
        fix=('if __name__ == "__main__":', "    train()"),
    )


@check("shared-memory")
def shared_memory(scene: Scene) -> Finding | None:
    size = scene.shared_memory_bytes
    if scene.platform != "linux" or size is None or size >= LEAST_SHARED_BYTES or not scene.has("torch"):
        return None
    return warning(
        "/dev/shm is too small for loader workers",
        evidence=f"/dev/shm has {size / 2**20:.0f} MiB",
        why="Workers pass batches through it: a DataLoader with num_workers > 0 ends with a bus error. 64 MiB is what "
        "a container gets by default.",
        fix=("docker run --shm-size=8g ...   # or --ipc=host", "DataLoader(..., num_workers=0)   # until then"),
    )

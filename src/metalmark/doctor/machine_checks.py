"""The state of the machine: cores and threads, power, heat, memory, disk."""

from collections.abc import Iterator

from metalmark.doctor.check import Finding, check, error, note, warning
from metalmark.doctor.scene import Scene
from metalmark.errors import counted
from metalmark.machine.tools import to_count

THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)  # fmt: skip
DUPLICATES_OK = "KMP_DUPLICATE_LIB_OK"
BUSY_SHARE = 0.25
LEAST_BUSY_CORES = 0.5
GIB = 2**30
LITTLE_CHARGE_PERCENT = 20
LITTLE_FREE_PERCENT = 15
MUCH_SWAP_SHARE = 0.25
SOME_SWAP_BYTES = GIB
LITTLE_DISK_BYTES, NO_DISK_BYTES = 5 * GIB, GIB // 2
LITTLE_CONTAINER_BYTES = 4 * GIB


@check("cpu-quota")
def quota(scene: Scene) -> Finding | None:
    cores, visible = scene.limits.cores, scene.visible_cores
    if cores is None or visible is None or cores >= visible or not scene.any_framework:
        return None
    threads = to_count(scene.environment.get("OMP_NUM_THREADS"))
    if threads is not None and threads <= cores:
        return None
    return warning(
        "Frameworks start more threads than the container may use",
        evidence=f"{visible} cores are visible, the cgroup's quota is {cores}",
        why="They count the visible cores. Threads beyond the quota are stopped by the kernel in the middle of a step: "
        "the CPU is slower than with fewer threads, and timings vary.",
        fix=(f"export OMP_NUM_THREADS={cores}", f"metalmark bench ... --threads {cores}"),
    )


@check("thread-variables")
def oversubscribed(scene: Scene) -> Iterator[Finding]:
    cores = scene.usable_cores
    if cores is None or not scene.any_framework:
        return
    for name in THREADS:
        threads = to_count(scene.environment.get(name, "").split(",")[0])
        if threads is None or threads <= cores:
            continue
        yield warning(
            f"{name} asks for more threads than there are cores",
            evidence=f"{name}={scene.environment[name]}, {counted(cores, 'core')} usable",
            why="The threads compete for the cores, and those that are done keep a core busy while they wait.",
            fix=(f"export {name}={cores}",),
        )
    if scene.environment.get("OMP_NUM_THREADS") == "1" and cores > 1:
        yield note(
            "OMP_NUM_THREADS=1: the CPU works on one core",
            evidence=f"OMP_NUM_THREADS=1, {counted(cores, 'core')} usable",
            why="One thread is right where many processes run side by side, but makes a single training run on the CPU "
            "slow: a comparison with a GPU would not be fair.",
            fix=(f"export OMP_NUM_THREADS={cores}",),
        )


@check("openmp-duplicates")
def openmp(scene: Scene) -> Finding | None:
    kinds: dict[str, list[str]] = {}
    for runtime in scene.openmp:
        kind = "libiomp5" if runtime.library.startswith("libiomp5") else runtime.library.split(".")[0].split("-")[0]
        owner = f"{runtime.library} of {runtime.package}"
        if kind in ("libomp", "libiomp5"):  # GNU's libgomp tolerates others beside it
            kinds.setdefault(kind, []).append(owner)
    owners = [owner for group in kinds.values() for owner in group]
    allowed = scene.environment.get(DUPLICATES_OK, "").lower() in ("1", "true", "yes", "on")
    seen = ", ".join(owners)
    fix = ("Take all packages from one place, pip or conda, in a fresh environment.",)
    if allowed:
        return warning(
            f"{DUPLICATES_OK} is set: clashing OpenMP runtimes are allowed",
            evidence=f"{DUPLICATES_OK}={scene.environment[DUPLICATES_OK]}{f'; installed: {seen}' if seen else ''}",
            why="The runtime's own message says that this may crash, or give wrong results without a message.",
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


@check("busy-machine")
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
        evidence=f"{busy:.1f} of {counted(logical, 'core')} were busy before anything of ours ran",
        why="Timings taken now are of a shared machine: slower, and different each time.",
        fix=("top   # or Activity Monitor: see which program it is, and end it or wait",),
    )


@check("low-power")
def low_power(scene: Scene) -> Finding | None:
    if not scene.low_power:
        return None
    return warning(
        "Low-power mode is on",
        evidence="pmset -g: lowpowermode 1",
        why="It lowers the clocks of CPU and GPU: a benchmark was seen at 61% of its speed.",
        fix=("sudo pmset -a lowpowermode 0",),
    )


@check("battery")
def battery(scene: Scene) -> Finding | None:
    if scene.power is None or not scene.power.on_battery:
        return None
    percent = scene.power.percent
    low = percent is not None and percent <= LITTLE_CHARGE_PERCENT
    from_ups = scene.power.from_ups
    left = f", {percent}% left" if percent is not None else ""
    return (warning if low else note)(
        "This machine runs on the battery of a UPS" if from_ups else "This machine runs on its battery",
        evidence=f"drawing from {'a UPS' if from_ups else 'the battery'}{left}",
        why="Clocks may be lower, and long runs end early: figures taken on battery are not comparable.",
        fix=("Wait until mains power is back.",) if from_ups else ("Connect the power supply.",),
    )


@check("heat")
def heat(scene: Scene) -> Finding | None:
    if scene.heat is None:
        return None
    speed, level = scene.heat.speed_limit_percent, scene.heat.warning_level
    if (speed is None or speed >= 100) and not level:
        return None
    seen = [f"CPU speed limit {speed}%"] if speed is not None and speed < 100 else []
    seen += [f"thermal warning level {level}"] if level else []
    return warning(
        "This machine is too hot: the system slows it down",
        evidence=f"pmset -g therm: {', '.join(seen)}",
        why="Heat alone lowered one benchmark from 0.74 to 0.28. Short runs then look faster than long ones.",
        fix=("Let it cool, give it air, and measure again.",),
    )


@check("memory-pressure")
def memory(scene: Scene) -> Finding | None:
    free = scene.memory_free_percent
    if free is None or free >= LITTLE_FREE_PERCENT:
        return None
    return warning(
        "Little memory is free",
        evidence=f"{free}% of the memory is available",
        why="The next job will be swapped, or killed. On Apple Silicon the GPU uses the same memory.",
        fix=("Close what you do not need, browsers first.",),
    )


@check("swap")
def swap(scene: Scene) -> Finding | None:
    if scene.swap is None or not scene.memory_bytes or scene.swap.used_bytes < SOME_SWAP_BYTES:
        return None
    used = scene.swap.used_bytes
    share = used / scene.memory_bytes
    evidence = (
        f"{used / GIB:.1f} of {scene.swap.total_bytes / GIB:.1f} GiB of swap used; "
        f"{scene.memory_bytes / GIB:.0f} GiB of memory"
    )
    why = "What is in swap was too much for the memory at some time, and has to be read back before it can be used."
    if share >= MUCH_SWAP_SHARE:
        why = f"{why} Steps wait for the disk."
        fix = ("Close programs, or restart.",)
        return warning("Much of the memory is in swap", evidence=evidence, why=why, fix=fix)
    fix = ("Before you measure, close programs that you do not need, browsers first.",)
    return note("Swap is in use", evidence=evidence, why=why, fix=fix)


@check("disk-space")
def disk(scene: Scene) -> Iterator[Finding]:
    for place in scene.disks:
        if place.free_bytes >= LITTLE_DISK_BYTES:
            continue
        full = place.free_bytes < NO_DISK_BYTES
        yield (error if full else warning)(
            "The disk is full" if full else "Little disk space is left",
            evidence=f"{place.free_bytes / GIB:.1f} GiB free for {', '.join(place.folders)}",
            why="Data sets, weights and compiled kernels are kept there; a download that does not fit fails half-way.",
            fix=("export METALMARK_CACHE=/another/disk   # and HF_HOME, TORCH_HOME, TMPDIR for the others",),
        )


@check("container-memory")
def container_memory(scene: Scene) -> Finding | None:
    limit, total = scene.limits.memory_bytes, scene.memory_bytes
    if limit is None or total is None or limit >= total:
        return None
    small = limit < LITTLE_CONTAINER_BYTES
    return (warning if small else note)(
        "The container has little memory" if small else "The container has less memory than programs believe",
        evidence=f"the cgroup allows {limit / GIB:.1f} GiB; the machine shows {total / GIB:.1f} GiB",
        why="A process beyond the limit is killed without a message (exit code 137): Python raises no error.",
        fix=("docker run --memory=16g ...",)
        if small
        else (f"Choose batch sizes for {limit / GIB:.1f} GiB, or start the container with a larger --memory.",),
    )

"""The state of the machine: power, heat, memory, disk."""

from __future__ import annotations

from collections.abc import Iterator

from metalmark.doctor.check import Check, Finding, error, note, warning
from metalmark.doctor.scene import Scene

GIB = 2**30
LITTLE_CHARGE_PERCENT = 20
LITTLE_FREE_PERCENT = 15
MUCH_SWAP_SHARE = 0.25
SOME_SWAP_BYTES = GIB
LITTLE_DISK_BYTES, NO_DISK_BYTES = 5 * GIB, GIB // 2
LITTLE_CONTAINER_BYTES = 4 * GIB


def low_power(scene: Scene) -> Finding | None:
    if not scene.low_power:
        return None
    return warning(
        "Low-power mode is on",
        evidence="pmset -g: lowpowermode 1",
        why="It lowers the clocks of CPU and GPU: a benchmark was seen at 61% of its speed.",
        fix=("sudo pmset -a lowpowermode 0",),
    )


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


def heat(scene: Scene) -> Finding | None:
    if scene.heat is None:
        return None
    speed, level = scene.heat.speed_limit_percent, scene.heat.warning_level
    if (speed is None or speed >= 100) and not level:
        return None
    seen = [f"CPU speed limit {speed}%"] if speed is not None and speed < 100 else []
    seen += [f"thermal warning level {level}"] if level else []
    return warning(
        "This machine is too hot: the system holds it back",
        evidence=f"pmset -g therm: {', '.join(seen)}",
        why="Heat alone took one benchmark from 0.74 to 0.28 of its rate. Short runs then look faster than long ones.",
        fix=("Let it cool, give it air, and measure again.",),
    )


def memory(scene: Scene) -> Finding | None:
    free = scene.memory_free_percent
    if free is None or free >= LITTLE_FREE_PERCENT:
        return None
    return warning(
        "Little memory is free",
        evidence=f"{free}% of the memory is available",
        why="The next job will be swapped, or killed. On Apple Silicon the GPU lives from the same memory.",
        fix=("Close what you do not need, browsers first.",),
    )


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
        title = "Much of the memory is in swap"
        return warning(
            title, evidence=evidence, why=f"{why} Steps stall on the disk.", fix=("Close programs, or restart.",)
        )
    return note("Swap is in use", evidence=evidence, why=why)


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


def container_memory(scene: Scene) -> Finding | None:
    limit, total = scene.limits.memory_bytes, scene.memory_bytes
    if limit is None or total is None or limit >= total:
        return None
    seen = f"the cgroup allows {limit / GIB:.1f} GiB; the machine shows {total / GIB:.1f} GiB"
    small = limit < LITTLE_CONTAINER_BYTES
    return (warning if small else note)(
        "The container has little memory" if small else "The container has less memory than programs believe",
        evidence=seen,
        why="A process beyond the limit is killed without a message (exit code 137): no Python error tells of it.",
        fix=("docker run --memory=16g ...",) if small else (),
    )


CHECKS = (
    Check(
        name="low-power",
        title="Low-power mode is on",
        story="Low-power mode lowers clocks; a benchmark ran at 61% of its speed. pmset -g lists it where the Mac has "
        "it.",
        sources=("https://developer.apple.com/documentation/foundation/processinfo/islowpowermodeenabled",),
        examine=low_power,
    ),
    Check(
        name="battery",
        title="The machine runs on its battery",
        story="On battery the system may lower clocks, and does when little charge is left. For figures that are to be "
        "compared, connect the power supply and say so. A UPS that feeds the machine is a battery too: mains power is "
        "gone.",
        examine=battery,
    ),
    Check(
        name="heat",
        title="The machine is throttled by heat",
        story="pmset -g therm prints only notes while all is well, and limits or a warning level when the system holds "
        "back. Heat moved one benchmark from 0.74 to 0.28. Throttling was also seen with nominal thermal pressure, so "
        "a silent check is no proof: watch the clock while it runs.",
        examine=heat,
    ),
    Check(
        name="memory-pressure",
        title="Little memory is free",
        story="On a Mac the system's own free percentage (memory_pressure -Q), on Linux what the kernel calls "
        "available. Below 15% the next job is swapped or killed.",
        examine=memory,
    ),
    Check(
        name="swap",
        title="Swap is in use",
        story="Some swap is normal on a Mac that has been on for long, and is a note. As much as a quarter of the "
        "memory means that programs do not fit: on Apple Silicon the GPU's tensors are swapped as well, and the GPU "
        "waits for the disk.",
        examine=swap,
    ),
    Check(
        name="disk-space",
        title="Little disk space for data sets, weights and caches",
        story="Looks at the disks behind Metalmark's data sets, the caches of PyTorch, Hugging Face and Keras, and "
        "temporary files. Below 5 GiB is a warning: ImageNet weights and CIFAR-10 fit, BERT-large and a compiler's "
        "cache beside them hardly; below half a GiB is an error.",
        examine=disk,
    ),
    Check(
        name="container-memory",
        title="The container's memory limit is below what programs see",
        story="A cgroup's limit is not what psutil, free or a framework read: they show the whole machine. At the "
        "limit the kernel kills the process, and all that is left is exit code 137.",
        sources=("https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files",),
        examine=container_memory,
    ),
)

"""What the shell should set before a program starts: pure logic on a Scene, which changes nothing."""

from collections.abc import Callable, Iterator
from enum import StrEnum

from msgspec import Struct

from metalmark.doctor.loader_checks import raised_limit, too_few_files
from metalmark.doctor.scene import Scene
from metalmark.doctor.torch_checks import (
    DEFAULT_HIGH,
    DEFAULT_LOW,
    FALLBACK,
    HIGH,
    LOW,
    LOW_SHARE,
    MOST,
    RECOMMENDED,
    SAFE_HIGH,
    fallback_is_on,
    read_watermarks,
)
from metalmark.machine.tools import to_count

_GIB = 2**30
_MIB = 2**20


class ShellAction(StrEnum):
    LIMIT = "limit"
    SET = "set"
    UNSET = "unset"
    NOTE = "note"
    """Something that no line in a shell can do."""


class ShellChange(Struct, frozen=True, kw_only=True):
    action: ShellAction
    name: str
    value: str = ""
    why: str


def _on(value: str) -> bool:
    return value.strip().lower() not in ("", "0", "false", "off", "no")


# Variables that are set and do nothing here, hide a fault, or were meant for an hour of debugging: their names, whether
# they are left over on this machine with this value, and why they should go.
LEFTOVERS: tuple[tuple[tuple[str, ...], Callable[[Scene, str], bool], str], ...] = (
    (
        ("PYTORCH_ENABLE_NNPACK",),
        lambda _, __: True,
        "No PyTorch reads it; torch.backends.nnpack.set_flags(False) is the real switch.",
    ),
    (
        (FALLBACK,),
        lambda scene, value: scene.mac and fallback_is_on(value) is None,
        "PyTorch reads it as a number, and aborts while it is imported where it is not one: 1 or 0, or unset.",
    ),
    (
        (FALLBACK,),
        lambda scene, value: scene.mac and fallback_is_on(value) is True,
        "It lets operations that Metal lacks run on the CPU, with a copy there and back in each step; "
        "without it they stop by name. Keep it if you know which they are.",
    ),
    (
        (FALLBACK, HIGH, LOW, "PYTORCH_MPS_FAST_MATH", "PYTORCH_MPS_PREFER_METAL", "PYTORCH_DEBUG_MPS_ALLOCATOR"),
        lambda scene, _: not scene.mac,
        "It steers Metal, and this is not a Mac: it does nothing here.",
    ),
    (
        ("PYTORCH_DEBUG_MPS_ALLOCATOR",),
        lambda scene, value: scene.mac and _on(value),
        "It prints every allocation, which takes time: for debugging only.",
    ),
    (
        ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUDA_LAUNCH_BLOCKING"),
        lambda scene, _: scene.mac,
        "It steers CUDA, which no Mac has: it does nothing here.",
    ),
    (
        ("CUDA_LAUNCH_BLOCKING",),
        lambda scene, value: not scene.mac and _on(value),
        "It makes the host wait for each kernel, so training is slower: for debugging only.",
    ),
    (
        ("PYTORCH_NO_CUDA_MEMORY_CACHING",),
        lambda scene, _: not scene.mac,
        "It sends each allocation to the driver, so training is slower: for debugging only.",
    ),
    (
        ("KMP_DUPLICATE_LIB_OK",),
        lambda _, value: _on(value),
        "It hides that two OpenMP runtimes are loaded, which can crash or compute wrongly in silence.",
    ),
    (
        ("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION",),
        lambda _, value: value.strip() == "python",
        "It hides that a package does not fit the installed protobuf, and parses slowly; `pip check` names it.",
    ),
    (
        ("TF_CPP_MIN_LOG_LEVEL",),
        lambda _, value: value.strip() == "3",
        "It hides TensorFlow's errors, such as why it found no GPU; 2 hides only its warnings.",
    ),
    (
        ("TF_ENABLE_ONEDNN_OPTS",),
        lambda scene, value: scene.architecture == "x86_64" and not scene.mac and not _on(value),
        "0 silences a line of TensorFlow's log by turning its faster CPU kernels off.",
    ),
    (
        ("TF_XLA_FLAGS",),
        lambda scene, value: scene.mac and "auto_jit" in value and scene.has("tensorflow-metal"),
        "XLA has no compiler for Metal, so what it is asked to compile fails.",
    ),
)


def advise(scene: Scene) -> tuple[ShellChange, ...]:
    """Return limits first, then what to set, then what to unset."""
    return (*_open_files(scene), *_threads(scene), *_watermarks(scene), *_leftovers(scene))


def _open_files(scene: Scene) -> Iterator[ShellChange]:
    files = scene.open_files
    if files is None or files.soft is None or not too_few_files(files.soft, scene.usable_cores):
        return
    target = raised_limit(files)
    here = f"A process may hold {files.soft} files open here, and each loader worker takes its share of them"
    if target > files.soft:
        why = f'{here}: too few end in "Too many open files".'
        yield ShellChange(action=ShellAction.LIMIT, name="open files", value=str(target), why=why)
    else:
        why = f"{here}. Only an administrator can raise the hard limit, {files.hard}: use few workers."
        yield ShellChange(action=ShellAction.NOTE, name="open files", why=why)


def _threads(scene: Scene) -> Iterator[ShellChange]:
    seen, quota, usable = scene.visible_cores, scene.limits.cores, scene.usable_cores
    if seen is None or usable is None:
        return
    over = quota is not None and quota < seen
    why = (
        f"The container may use {usable} of the {seen} cores that programs see: more threads only wait for each other."
    )
    asked = to_count(scene.environment.get("OMP_NUM_THREADS", ""))
    if asked is not None and asked > usable:
        why_fewer = f"It is {asked} now, and {usable} cores may be used: more threads only wait for each other."
        yield ShellChange(action=ShellAction.SET, name="OMP_NUM_THREADS", value=str(usable), why=why_fewer)
    elif over and "OMP_NUM_THREADS" not in scene.environment:
        yield ShellChange(action=ShellAction.SET, name="OMP_NUM_THREADS", value=str(usable), why=why)
    # These two count the cores themselves, and do not read OpenMP's variable.
    own = {"tensorflow": "TF_NUM_INTRAOP_THREADS", "jax": "PJRT_NPROC"}
    for framework, name in own.items():
        if over and _installed(scene, framework) and name not in scene.environment:
            yield ShellChange(
                action=ShellAction.SET,
                name=name,
                value=str(usable),
                why=f"The same for {framework}, which counts for itself.",
            )


def _watermarks(scene: Scene) -> Iterator[ShellChange]:
    if not scene.apple_silicon or scene.translated or not _installed(scene, "torch"):
        return
    problem = _watermark_problem(scene)
    if problem is None:
        return
    high = read_watermarks(scene).high
    chosen = high if HIGH in scene.environment and 0 < high < DEFAULT_LOW else SAFE_HIGH
    yield ShellChange(action=ShellAction.SET, name=HIGH, value=f"{chosen:g}", why=problem)
    why = "Always together with the other: its default, 1.4, is refused above a lower high one."
    yield ShellChange(action=ShellAction.SET, name=LOW, value=f"{chosen * LOW_SHARE:g}", why=why)


def _watermark_problem(scene: Scene) -> str | None:
    """Return what is wrong with PyTorch's limits on Metal's memory, or None."""
    found = read_watermarks(scene)
    if found.out_of_range:
        return f"High {scene.environment[HIGH]} is not from 0 to {MOST:g}: PyTorch will refuse to start."
    if found.high == 0:
        return (
            "0 takes PyTorch's limit on Metal's memory away: a job that is too large makes the Mac swap until it hangs."
        )
    if found.crossed:
        return (
            f'Low {found.low:g} is not from 0 to high {found.high:g}: PyTorch stops with "invalid low watermark ratio".'
        )
    if HIGH not in scene.environment and scene.memory_bytes:
        wired_mb = to_count(scene.sysctl.get("iogpu.wired_limit_mb")) or 0
        recommended = wired_mb * _MIB if wired_mb else RECOMMENDED * scene.memory_bytes
        if DEFAULT_HIGH * recommended > scene.memory_bytes:
            return (
                f"PyTorch's own limit on Metal's memory, 1.7 times what Metal recommends, is about "
                f"{DEFAULT_HIGH * recommended / _GIB:.0f} GiB, and this Mac has {scene.memory_bytes / _GIB:.0f}: "
                f"a job that is too large swaps, instead of saying so."
            )
    return None


def _leftovers(scene: Scene) -> Iterator[ShellChange]:
    for names, left_over, why in LEFTOVERS:
        for name in names:
            value = scene.environment.get(name)
            if value is not None and left_over(scene, value):
                yield ShellChange(action=ShellAction.UNSET, name=name, why=why)


def _installed(scene: Scene, framework: str) -> bool:
    return framework in scene.frameworks and not scene.frameworks[framework]

"""PyTorch on Metal: what is set, what that does, and what Metal does not have."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator

from msgspec import Struct

from metalmark.doctor.check import Finding, check, error, issue, note, warning
from metalmark.doctor.scene import Scene, older
from metalmark.machine.tools import to_count

DOCS = ("https://docs.pytorch.org/docs/stable/mps_environment_variables.html",)
RESERVE = 0.9
FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"
_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]{1,20})")
_LOWEST, _HIGHEST = -(2**31), 2**31 - 1
HIGH, LOW = "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO"
DEFAULT_HIGH, DEFAULT_LOW, MOST = 1.7, 1.4, 2.0
SAFE_HIGH, LOW_SHARE = 1.0, 0.8
"""A high watermark that keeps a job inside the memory, and the low one as a share of it."""
RECOMMENDED = 0.75
"""About what Metal recommends as a working set, as a share of the memory, where no wired limit is set."""
SAFE = f"export {HIGH}={SAFE_HIGH} {LOW}={SAFE_HIGH * LOW_SHARE}"

# Variable → the PyTorch that first read it.
MPS_VARIABLES = {
    FALLBACK: "1.12",
    HIGH: "1.12",
    LOW: "2.0",
    "PYTORCH_DEBUG_MPS_ALLOCATOR": "1.12",
    "PYTORCH_MPS_LOG_PROFILE_INFO": "2.1",
    "PYTORCH_MPS_TRACE_SIGNPOSTS": "2.1",
    "PYTORCH_MPS_PREFER_METAL": "2.3",
    "PYTORCH_MPS_FAST_MATH": "2.5",
}


class Watermarks(Struct, frozen=True, kw_only=True):
    """PyTorch's two limits on Metal's memory, as ratios of what Metal recommends and as PyTorch reads them."""

    high: float
    low: float

    @property
    def out_of_range(self) -> bool:
        return not 0 <= self.high <= MOST

    @property
    def crossed(self) -> bool:
        """Whether the low one is above the high one; a high one of 0 is no limit, and then the range is the bound."""
        return not 0 <= self.low <= (self.high or MOST)

    @property
    def unlimited(self) -> bool:
        return self.high == 0


def read_watermarks(scene: Scene) -> Watermarks:
    return Watermarks(high=_ratio(scene, HIGH, DEFAULT_HIGH), low=_ratio(scene, LOW, DEFAULT_LOW))


def _ratio(scene: Scene, name: str, default: float) -> float:
    if name not in scene.environment:
        return default
    try:
        value = float(scene.environment[name])
    except ValueError:
        return 0.0  # as strtod reads what is not a number
    return value if math.isfinite(value) else MOST + 1


def fallback_is_on(value: str) -> bool | None:
    """Return whether this value lets operations fall back; None where `import torch` aborts on it.

    PyTorch reads it with std::stoi, which throws for what does not begin as a number. It does so while torch is loaded,
    where nobody catches the exception: the process aborts.
    """
    match = _NUMBER.match(value)
    if match is None or not _LOWEST <= int(match[1]) <= _HIGHEST:
        return None
    return int(match[1]) != 0


@check(
    "mps-unavailable",
    "PyTorch has Metal built in, but finds no GPU",
    *issue("pytorch/pytorch", 78343),
    "https://developer.apple.com/metal/pytorch/",
)
def unavailable(scene: Scene) -> Finding | None:
    """torch.backends.mps.is_built() says that the wheel has Metal; is_available() that this Mac gives it a GPU. Built
    and not available means a macOS that is too old (see macos-too-old), a virtual machine without a GPU, or a Python
    under Rosetta. In virtual machines, hosted runners among them, it may be called available although the smallest
    tensor can't be allocated, so the probe allocates one. The probe's own reason is shown."""
    report = scene.device("torch", "mps")
    if not scene.apple_silicon or scene.translated or report is None or report.present:
        return None
    virtual = scene.sysctl.get("kern.hv_vmm_present") == "1" or "virtual machine" in report.reason
    machine = f"macOS {scene.macos or 'of unknown version'}{', in a virtual machine' if virtual else ''}"
    return warning(
        "PyTorch has no Metal GPU on this Apple Silicon Mac",
        evidence=f"torch {scene.version('torch')}, {machine}; the probe says: {report.reason}",
        why="Code that picks the device itself trains on the CPU without a message.",
        fix=("Run on the Mac itself: a virtual machine has no GPU that PyTorch can use.",)
        if virtual
        else (report.fix, "pip install --upgrade --force-reinstall torch"),
    )


@check(
    "mps-fallback",
    "PYTORCH_ENABLE_MPS_FALLBACK hides operations that run on the CPU, or aborts import torch",
    *DOCS,
    "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/mps/MPSFallback.mm",
)
def fallback(scene: Scene) -> Finding | None:
    """With the variable set, an operation that Metal lacks runs on the CPU instead of raising. That is useful to get
    through a first run, and it hides what is slow: the GPU is drained, tensors are copied both ways, and no number says
    so. float64 and complex128 are refused all the same. The value must begin with a number: PyTorch reads it with
    std::stoi while it is imported, so that true, false or an empty value end the process with "stoi: no conversion"."""
    value = scene.environment.get(FALLBACK, "0")
    if not scene.mac or not scene.has("torch") or fallback_is_on(value) is False:
        return None
    if fallback_is_on(value) is None:
        return error(
            f"{FALLBACK} is not a number: import torch aborts",
            evidence=f'{FALLBACK}="{value}"',
            why="PyTorch reads it as a number while it is imported, and the whole process ends where it is "
            "something else: true, false and an empty value too.",
            fix=(f"unset {FALLBACK}", f"export {FALLBACK}=1   # if operations that Metal lacks are to run on the CPU"),
        )
    return warning(
        "MPS fallback is on: operations that Metal lacks run on the CPU without a message",
        evidence=f"{FALLBACK}={value}",
        why="Each such operation waits for the GPU, copies to the CPU and back: a step may be many times slower with "
        "no error, and a timing mixes two devices. It does not help with float64, which stays refused.",
        fix=(f"unset {FALLBACK}   # and see which operation it was", f"export {FALLBACK}=1   # again, if you need it"),
    )


@check("useless-variables", "Variables that articles recommend and nothing reads", *DOCS)
def useless_variables(scene: Scene) -> Iterator[Finding]:
    """PYTORCH_ENABLE_NNPACK is in no PyTorch wheel: torch.backends.nnpack.set_flags(False) is the switch. Names that
    begin with PYTORCH_MPS_ and are not PyTorch's own are typing mistakes or inventions. In the same class, though no
    variable: torch.multiprocessing.set_sharing_strategy('file_system') does nothing on macOS, where it is the only
    strategy there is; against "Too many open files" raise the limit instead (see open-files)."""
    torch = scene.version("torch")
    if torch is None:
        return
    if "PYTORCH_ENABLE_NNPACK" in scene.environment:
        yield note(
            "PYTORCH_ENABLE_NNPACK does nothing",
            evidence=f"PYTORCH_ENABLE_NNPACK={scene.environment['PYTORCH_ENABLE_NNPACK']}",
            why="Articles recommend it; no PyTorch wheel reads it. The switch is "
            "torch.backends.nnpack.set_flags(False).",
            fix=("unset PYTORCH_ENABLE_NNPACK",),
        )
    for name in scene.environment:
        if name.startswith(("PYTORCH_MPS_", "PYTORCH_ENABLE_MPS")) and name not in MPS_VARIABLES:
            near = difflib.get_close_matches(name, MPS_VARIABLES, n=1)
            yield note(
                f"{name} is not a variable that PyTorch reads",
                evidence=f"{name}={scene.environment[name]}",
                why=f"It does nothing.{f' Did you mean {near[0]}?' if near else ''}",
                fix=(f"unset {name}",),
            )
        elif name in MPS_VARIABLES and not scene.mac:
            yield note(
                f"{name} does nothing here",
                evidence=f"{name}={scene.environment[name]} on {scene.platform}",
                why="It steers Metal, and Metal is Apple's.",
                fix=(f"unset {name}",),
            )
        elif older(torch, MPS_VARIABLES.get(name, "0")):
            yield note(
                f"{name} does nothing in this PyTorch",
                evidence=f"{name}={scene.environment[name]}, torch {torch}",
                why=f"PyTorch reads it from {MPS_VARIABLES[name]} on.",
                fix=("pip install --upgrade torch",),
            )


@check("mps-watermarks", "Watermark variables that PyTorch refuses, or that switch its limit off", *DOCS)
def watermark_pair(scene: Scene) -> Finding | None:
    """The high watermark (1.7) and the low one (1.4) are multiples of the memory Metal recommends, about 75% of it. The
    high one must be from 0 to 2, the low one from 0 to the high one; lowering only the high one leaves the low one
    above it, and the first allocation raises "invalid low watermark ratio". A high watermark of 0 means no limit."""
    if not scene.mac or not scene.has("torch") or not {HIGH, LOW} & set(scene.environment):
        return None
    found = read_watermarks(scene)
    shown = ", ".join(f"{name}={scene.environment[name]}" for name in (HIGH, LOW) if name in scene.environment)
    both = (SAFE,)
    if found.out_of_range:
        return error(
            "The high watermark is out of range: PyTorch refuses to use Metal",
            evidence=f"{shown}; it must be from 0 to {MOST:g}",
            why='The first tensor on the GPU fails with "invalid high watermark ratio".',
            fix=both,
        )
    if found.crossed:
        without = "" if LOW in scene.environment else f"; {LOW} is not set, so it is {found.low:g}"
        return error(
            "The low watermark is above the high one: PyTorch refuses to use Metal",
            evidence=f"{shown}{without}",
            why='The first tensor on the GPU fails with "invalid low watermark ratio". Lower both together.',
            fix=both,
        )
    if found.unlimited:
        return warning(
            "PyTorch's memory limit on Metal is switched off",
            evidence=shown,
            why="A job that is too large takes all memory and swap: the whole Mac stalls instead of the job failing.",
            fix=both,
        )
    return None


@check(
    "mps-memory-limit",
    "PyTorch's default limit on Metal is larger than the memory",
    *DOCS,
    *issue("pytorch/pytorch", 164299, 77753, 79840, 121113, 132596, 152344),
)
def memory_limit(scene: Scene) -> Finding | None:
    """1.7 times 75% is 127% of the memory. So a job that does not fit swaps, and slows down by an order of magnitude,
    instead of running out of memory. Some growth is in no counter of PyTorch's: look at the process's footprint. Leaks
    and slowdowns over time have been reported."""
    if not scene.present("torch", "mps") or HIGH in scene.environment:
        return None
    share = RECOMMENDED
    return note(
        "PyTorch may use more than this Mac's memory: jobs that are too large swap instead of failing",
        evidence=f"{HIGH} is not set: the limit is {DEFAULT_HIGH:g} times about {share:.0%} of the memory, "
        f"{DEFAULT_HIGH * share:.0%}",
        why="A job in swap is many times slower and looks like a slow GPU. Lowered limits turn it into an error.",
        fix=(SAFE,),
    )


@check(
    "wired-limit",
    "iogpu.wired_limit_mb was changed",
    "https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.set_wired_limit.html",
)
def wired_limit(scene: Scene) -> Finding | None:
    """The sysctl iogpu.wired_limit_mb sets how much memory the GPU may wire; 0 is the default, about 75% of the memory.
    People raise it to load large models. Above 90% the system itself may stall."""
    limit_mb = to_count(scene.sysctl.get("iogpu.wired_limit_mb"))
    if not scene.mac or not limit_mb or not scene.memory_bytes:
        return None
    share = limit_mb * 2**20 / scene.memory_bytes
    evidence = f"iogpu.wired_limit_mb is {limit_mb}: {share:.0%} of the memory"
    why = "It overrides what Metal recommends (about 75%), and with it every limit PyTorch derives from that."
    fix = ("sudo sysctl iogpu.wired_limit_mb=0   # the default; it is 0 again after a restart anyway",)
    if share > RESERVE:
        title = "The GPU may wire almost all memory"
        return warning(
            title, evidence=evidence, why=f"{why} The system itself is left too little and may stall.", fix=fix
        )
    return note("The GPU's wired memory limit was changed", evidence=evidence, why=why, fix=fix)


@check("mps-pin-memory", "pin_memory gains nothing on MPS", *issue("pytorch/pytorch", 139550, 189690, 181720))
def pin_memory(scene: Scene) -> Finding | None:
    """Pinned memory lets a discrete GPU copy while the CPU goes on. Apple's GPU shares the CPU's memory; PyTorch
    switches pinning off there with a warning; 2.14 can pin, which is no faster yet. non_blocking=True copies on MPS
    have corrupted data before 2.13."""
    if not scene.present("torch", "mps"):
        return None
    return note(
        "pin_memory=True gains nothing on MPS",
        evidence=f"torch {scene.version('torch')} with Metal",
        why="The memory is shared already: PyTorch warns and goes on without, or pins it (2.14) and is no faster. "
        "Before 2.13 non_blocking=True is not safe there either.",
        fix=("DataLoader(..., pin_memory=False)",),
    )


@check("mps-float64", "float64 and complex128 are refused on MPS", *issue("pytorch/pytorch", 122602))
def float64(scene: Scene) -> Finding | None:
    """Apple's GPUs have no double precision. NumPy's default is float64, so torch.from_numpy(array).to('mps') fails; so
    does a model after .double(). Convert before the move. PYTORCH_ENABLE_MPS_FALLBACK does not help."""
    if not scene.present("torch", "mps"):
        return None
    return note(
        "float64 does not exist on MPS",
        evidence=f"torch {scene.version('torch')} with Metal",
        why='NumPy arrays are float64 unless told otherwise, and fail with "Cannot convert a MPS Tensor to float64 '
        'dtype"; '
        "complex128 too. The fallback variable does not help.",
        fix=('tensor = torch.as_tensor(array, dtype=torch.float32, device="mps")',),
    )

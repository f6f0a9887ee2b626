"""PyTorch on Metal: what is set, what that does, and what Metal does not have."""

import math
import re
from collections.abc import Iterator

from msgspec import Struct

from metalmark.doctor.check import Finding, check, error, note, warning
from metalmark.doctor.scene import Scene, older
from metalmark.errors import did_you_mean
from metalmark.machine.tools import to_count

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
    out_of_range: bool
    crossed: bool
    """Whether the low one is above the high one."""


def read_watermarks(scene: Scene) -> Watermarks:
    high, low = _ratio(scene, HIGH, DEFAULT_HIGH), _ratio(scene, LOW, DEFAULT_LOW)
    # A high one of 0 is no limit, and then the range is the bound.
    crossed = not 0 <= low <= (high or MOST)
    return Watermarks(high=high, low=low, out_of_range=not 0 <= high <= MOST, crossed=crossed)


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


@check("mps-unavailable")
def unavailable(scene: Scene) -> Finding | None:
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


@check("mps-fallback")
def fallback(scene: Scene) -> Finding | None:
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


@check("useless-variables")
def useless_variables(scene: Scene) -> Iterator[Finding]:
    torch = scene.version("torch")
    if torch is None:
        return
    if "PYTORCH_ENABLE_NNPACK" in scene.environment:
        yield note(
            "PYTORCH_ENABLE_NNPACK does nothing",
            evidence=f"PYTORCH_ENABLE_NNPACK={scene.environment['PYTORCH_ENABLE_NNPACK']}",
            why="Articles recommend it, no PyTorch reads it. The switch is torch.backends.nnpack.set_flags(False).",
            fix=("unset PYTORCH_ENABLE_NNPACK",),
        )
    for name, value in scene.environment.items():
        seen, unset = f"{name}={value}", (f"unset {name}",)
        if name.startswith(("PYTORCH_MPS_", "PYTORCH_ENABLE_MPS")) and name not in MPS_VARIABLES:
            why = f"It does nothing{did_you_mean(name, MPS_VARIABLES)}"
            yield note(f"{name} is not a variable that PyTorch reads", evidence=seen, why=why, fix=unset)
        elif name in MPS_VARIABLES and not scene.mac:
            why = "It steers Metal, and Metal is Apple's."
            yield note(f"{name} does nothing here", evidence=f"{seen} on {scene.platform}", why=why, fix=unset)
        elif older(torch, MPS_VARIABLES.get(name, "0")):
            yield note(
                f"{name} does nothing in this PyTorch",
                evidence=f"{seen}, torch {torch}",
                why=f"PyTorch reads it from {MPS_VARIABLES[name]} on.",
                fix=("pip install --upgrade torch",),
            )


@check("mps-watermarks")
def watermark_pair(scene: Scene) -> Finding | None:
    if not scene.mac or not scene.has("torch") or not {HIGH, LOW} & set(scene.environment):
        return None
    found = read_watermarks(scene)
    shown = ", ".join(f"{name}={scene.environment[name]}" for name in (HIGH, LOW) if name in scene.environment)
    if found.out_of_range:
        return error(
            "The high watermark is out of range: PyTorch refuses to use Metal",
            evidence=f"{shown}; it must be from 0 to {MOST:g}",
            why='The first tensor on the GPU fails with "invalid high watermark ratio".',
            fix=(SAFE,),
        )
    if found.crossed:
        without = "" if LOW in scene.environment else f"; {LOW} is not set, so it is {found.low:g}"
        return error(
            "The low watermark is above the high one: PyTorch refuses to use Metal",
            evidence=f"{shown}{without}",
            why='The first tensor on the GPU fails with "invalid low watermark ratio". Lower both together.',
            fix=(SAFE,),
        )
    if found.high == 0:
        return warning(
            "PyTorch's memory limit on Metal is switched off",
            evidence=shown,
            why="A job that is too large takes all memory and swap: the whole Mac stalls instead of the job failing.",
            fix=(SAFE,),
        )
    return None


@check("mps-memory-limit")
def memory_limit(scene: Scene) -> Finding | None:
    if not scene.present("torch", "mps") or HIGH in scene.environment:
        return None
    return note(
        "PyTorch may use more than this Mac's memory: jobs that are too large swap instead of failing",
        evidence=f"{HIGH} is not set: the limit is {DEFAULT_HIGH:g} times about {RECOMMENDED:.0%} of the memory, "
        f"{DEFAULT_HIGH * RECOMMENDED:.0%}",
        why="A job in swap is many times slower and looks like a slow GPU. Lowered limits turn it into an error.",
        fix=(SAFE,),
    )


@check("wired-limit")
def wired_limit(scene: Scene) -> Finding | None:
    limit_mb = to_count(scene.sysctl.get("iogpu.wired_limit_mb"))
    if not scene.mac or not limit_mb or not scene.memory_bytes:
        return None
    share = limit_mb * 2**20 / scene.memory_bytes
    evidence = f"iogpu.wired_limit_mb is {limit_mb}: {share:.0%} of the memory"
    why = "It overrides what Metal recommends (about 75%), and with it every limit PyTorch derives from that."
    fix = ("sudo sysctl iogpu.wired_limit_mb=0   # the default; it is 0 again after a restart anyway",)
    if share > RESERVE:
        why = f"{why} The system itself is left too little and may stall."
        return warning("The GPU may wire almost all memory", evidence=evidence, why=why, fix=fix)
    return note("The GPU's wired memory limit was changed", evidence=evidence, why=why, fix=fix)


@check("mps-pin-memory")
def pin_memory(scene: Scene) -> Finding | None:
    if not scene.present("torch", "mps"):
        return None
    return note(
        "pin_memory=True gains nothing on MPS",
        evidence=f"torch {scene.version('torch')} with Metal",
        why="The memory is shared already: PyTorch warns and goes on without, or pins it (2.14) and is no faster. "
        "Before 2.13 non_blocking=True is not safe there either.",
        fix=("DataLoader(..., pin_memory=False)",),
    )


@check("mps-float64")
def float64(scene: Scene) -> Finding | None:
    if not scene.present("torch", "mps"):
        return None
    return note(
        "float64 does not exist on MPS",
        evidence=f"torch {scene.version('torch')} with Metal",
        why='NumPy arrays are float64 by default, and fail with "Cannot convert a MPS Tensor to float64 dtype"; '
        "complex128 too. The fallback variable does not help.",
        fix=('tensor = torch.as_tensor(array, dtype=torch.float32, device="mps")',),
    )

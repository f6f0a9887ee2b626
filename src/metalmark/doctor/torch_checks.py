"""PyTorch on Metal: what is set, what that does, and what Metal does not have."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from metalmark.doctor import watermarks
from metalmark.doctor.check import Check, Finding, error, issue, note, warning
from metalmark.doctor.mps_fallback import FALLBACK, is_on
from metalmark.doctor.scene import Scene
from metalmark.doctor.versions import older
from metalmark.doctor.watermarks import DEFAULT_HIGH, HIGH, LOW
from metalmark.machine.tools import to_count

DOCS = ("https://docs.pytorch.org/docs/stable/mps_environment_variables.html",)
RESERVE = 0.9

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


def unavailable(scene: Scene) -> Finding | None:
    report = scene.device("torch", "mps")
    if not scene.apple_silicon or scene.translated or report is None or report.present:
        return None
    virtual = scene.sysctl.get("kern.hv_vmm_present") == "1" or "virtual machine" in report.reason
    machine = f"macOS {scene.macos or 'of unknown version'}{', in a virtual machine' if virtual else ''}"
    return warning(
        "PyTorch has no Metal GPU on this Apple Silicon Mac",
        evidence=f"torch {scene.version('torch')}, {machine}; the probe says: {report.reason}",
        why="Code that picks the device itself trains on the CPU without a word.",
        fix=("Run on the Mac itself: a virtual machine has no GPU that PyTorch can use.",)
        if virtual
        else (report.fix, "pip install --upgrade --force-reinstall torch"),
    )


def fallback(scene: Scene) -> Finding | None:
    value = scene.environment.get(FALLBACK, "0")
    if not scene.mac or not scene.has("torch") or is_on(value) is False:
        return None
    if is_on(value) is None:
        return error(
            f"{FALLBACK} is not a number: import torch aborts",
            evidence=f'{FALLBACK}="{value}"',
            why="PyTorch reads it as a number while it is imported, and the whole process ends where it is none: "
            "true, false and an empty value too.",
            fix=(f"unset {FALLBACK}", f"export {FALLBACK}=1   # if operations that Metal lacks are to run on the CPU"),
        )
    return warning(
        "MPS fallback is on: operations that Metal lacks run on the CPU in silence",
        evidence=f"{FALLBACK}={value}",
        why="Each such operation waits for the GPU, copies to the CPU and back: a step may be many times slower with "
        "no error, and a timing mixes two devices. It does not help with float64, which stays refused.",
        fix=(f"unset {FALLBACK}   # and see which operation it was", f"export {FALLBACK}=1   # again, if you need it"),
    )


def useless_variables(scene: Scene) -> Iterator[Finding]:
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
                f"{name} is no variable that PyTorch reads",
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


def watermark_pair(scene: Scene) -> Finding | None:
    if not scene.mac or not scene.has("torch") or not {HIGH, LOW} & set(scene.environment):
        return None
    found = watermarks.read(scene)
    shown = ", ".join(f"{name}={scene.environment[name]}" for name in (HIGH, LOW) if name in scene.environment)
    both = (watermarks.SAFE,)
    if found.out_of_range:
        return error(
            "The high watermark is out of range: PyTorch refuses to use Metal",
            evidence=f"{shown}; it must be from 0 to {watermarks.MOST:g}",
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


def memory_limit(scene: Scene) -> Finding | None:
    """The default lets a job grow beyond the memory."""
    if not scene.present("torch", "mps") or HIGH in scene.environment:
        return None
    share = watermarks.RECOMMENDED
    return note(
        "PyTorch may use more than this Mac's memory: jobs that are too large swap instead of failing",
        evidence=f"{HIGH} is not set: the limit is {DEFAULT_HIGH:g} times about {share:.0%} of the memory, "
        f"{DEFAULT_HIGH * share:.0%}",
        why="A job in swap is many times slower and looks like a slow GPU. Lowered limits turn it into an error.",
        fix=(watermarks.SAFE,),
    )


def wired_limit(scene: Scene) -> Finding | None:
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


def float64(scene: Scene) -> Finding | None:
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


CHECKS = (
    Check(
        name="mps-unavailable",
        title="PyTorch has Metal built in, but finds no GPU",
        story="torch.backends.mps.is_built() says that the wheel has Metal; is_available() that this Mac gives it a "
        "GPU. Built and not available means a macOS that is too old (see macos-too-old), a virtual machine without a "
        "GPU, or a Python under Rosetta. In virtual machines, hosted runners among them, it may be called available "
        "although the smallest tensor can't be allocated, so the probe allocates one. The probe's own reason is shown.",
        sources=(*issue("pytorch/pytorch", 78343), "https://developer.apple.com/metal/pytorch/"),
        examine=unavailable,
    ),
    Check(
        name="mps-fallback",
        title="PYTORCH_ENABLE_MPS_FALLBACK hides operations that run on the CPU, or aborts import torch",
        story="With the variable set, an operation that Metal lacks runs on the CPU instead of raising. That is useful "
        "to get through a first run, and it hides what is slow: the GPU is drained, tensors are copied both ways, and "
        "no number says so. float64 and complex128 are refused all the same. The value must begin with a number: "
        "PyTorch reads it with std::stoi while it is imported, so that true, false or an empty value end the process "
        'with "stoi: no conversion".',
        sources=(*DOCS, "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/mps/MPSFallback.mm"),
        examine=fallback,
    ),
    Check(
        name="useless-variables",
        title="Variables that articles recommend and nothing reads",
        story="PYTORCH_ENABLE_NNPACK is in no PyTorch wheel: torch.backends.nnpack.set_flags(False) is the switch. "
        "Names that begin with PYTORCH_MPS_ and are not PyTorch's own are typing mistakes or inventions. In the same "
        "class, though no variable: torch.multiprocessing.set_sharing_strategy('file_system') does nothing on macOS, "
        "where it is the only "
        'strategy there is; against "Too many open files" raise the limit instead (see open-files).',
        sources=DOCS,
        examine=useless_variables,
    ),
    Check(
        name="mps-watermarks",
        title="Watermark variables that PyTorch refuses, or that switch its limit off",
        story="The high watermark (1.7) and the low one (1.4) are multiples of the memory Metal recommends, about 75% "
        "of it. The high one must be from 0 to 2, the low one from 0 to the high one; lowering only the high one "
        "leaves the low one "
        'above it, and the first allocation raises "invalid low watermark ratio". A high watermark of 0 means no '
        "limit.",
        sources=DOCS,
        examine=watermark_pair,
    ),
    Check(
        name="mps-memory-limit",
        title="PyTorch's default limit on Metal is larger than the memory",
        story="1.7 times 75% is 127% of the memory. So a job that does not fit swaps, and slows down by an order of "
        "magnitude, instead of running out of memory. Some growth is in no counter of PyTorch's: look at the process's "
        "footprint. Leaks and slowdowns over time have been reported.",
        sources=(*DOCS, *issue("pytorch/pytorch", 164299, 77753, 79840, 121113, 132596, 152344)),
        examine=memory_limit,
    ),
    Check(
        name="wired-limit",
        title="iogpu.wired_limit_mb was changed",
        story="The sysctl iogpu.wired_limit_mb sets how much memory the GPU may wire; 0 is the default, about 75% of "
        "the memory. People raise it to load large models. Above 90% the system itself may stall.",
        sources=("https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.set_wired_limit.html",),
        examine=wired_limit,
    ),
    Check(
        name="mps-pin-memory",
        title="pin_memory gains nothing on MPS",
        story="Pinned memory lets a discrete GPU copy while the CPU goes on. Apple's GPU shares the CPU's memory; "
        "PyTorch switches pinning off there with a warning; 2.14 can pin, which is no faster yet. non_blocking=True "
        "copies on MPS have corrupted data before 2.13.",
        sources=issue("pytorch/pytorch", 139550, 189690, 181720),
        examine=pin_memory,
    ),
    Check(
        name="mps-float64",
        title="float64 and complex128 are refused on MPS",
        story="Apple's GPUs have no double precision. NumPy's default is float64, so torch.from_numpy(array).to('mps') "
        "fails; so does a model after .double(). Convert before the move. PYTORCH_ENABLE_MPS_FALLBACK does not help.",
        sources=issue("pytorch/pytorch", 122602),
        examine=float64,
    ),
)

"""PyTorch's devices, one class each, with the same method order: what differs between them is here and nowhere else."""

import platform
from functools import cache

import torch

from metalmark.backends.base import HOST_MEMORY, NOT_A_MAC, DeviceReport, absent_device, device_index, unknown_memory
from metalmark.errors import counted
from metalmark.machine import apple
from metalmark.model.plan import Device, DeviceKind
from metalmark.model.run import Absent, DeviceMemory
from metalmark.scrub import scrub

REASON_CHARS = 300
NO_PEAK = Absent(reason="PyTorch has no peak counter for this device; see the process footprint in telemetry")


class TorchDevice:
    """An accelerator that registers itself with PyTorch, as vendors' plugins do; those that PyTorch has itself know
    more."""

    def __init__(self, device_type: str) -> None:
        self.type = device_type

    def report(self) -> DeviceReport:
        return DeviceReport(word="gpu", name=self.type, present=True)

    def name(self, index: int) -> str:
        return f"{self.type}:{index}"

    def synchronize(self, device: torch.device) -> None:
        torch.accelerator.synchronize(device)

    def reset_peak(self, device: torch.device) -> None:
        """Begin the peak anew, where one is kept: not by the CPU, nor by Metal, nor by PyTorch's common interface."""

    def memory(self, device: torch.device) -> DeviceMemory:  # noqa: ARG002
        return unknown_memory(f"PyTorch has no memory counters for {self.type}")


class Cpu(TorchDevice):
    def __init__(self) -> None:
        super().__init__("cpu")

    def report(self) -> DeviceReport:
        return DeviceReport(word="cpu", name=self.name(0), present=True)

    def name(self, index: int) -> str:  # noqa: ARG002
        return f"CPU, {counted(torch.get_num_threads(), 'thread')}"

    def synchronize(self, device: torch.device) -> None:
        """PyTorch's CPU operations are finished when they return: there is no queue to wait for."""

    def memory(self, device: torch.device) -> DeviceMemory:  # noqa: ARG002
        return HOST_MEMORY


class Cuda(TorchDevice):
    def __init__(self) -> None:
        super().__init__("cuda")

    def report(self) -> DeviceReport:
        if torch.cuda.is_available():
            count = torch.cuda.device_count()
            return DeviceReport(word="cuda", name=self.name(0), present=True, count=count)
        if torch.version.cuda is None and torch.version.hip is None:
            reason = "this PyTorch is built without CUDA."
            fix = "With an NVIDIA GPU on Linux or Windows, install PyTorch's CUDA build; see pytorch.org."
        else:
            reason = "PyTorch has CUDA, but finds no usable NVIDIA GPU or driver."
            fix = "Check `nvidia-smi`: it must list a GPU, and its driver must be new enough for CUDA "
            fix += str(torch.version.cuda)
        return DeviceReport(word="cuda", present=False, reason=reason, fix=fix)

    def name(self, index: int) -> str:
        return str(torch.cuda.get_device_name(index))

    def synchronize(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)

    def reset_peak(self, device: torch.device) -> None:
        torch.cuda.reset_peak_memory_stats(device)

    def memory(self, device: torch.device) -> DeviceMemory:
        return DeviceMemory(
            live_bytes=torch.cuda.memory_allocated(device),
            driver_bytes=torch.cuda.memory_reserved(device),
            peak_bytes=torch.cuda.max_memory_allocated(device),
        )


class Mps(TorchDevice):
    def __init__(self) -> None:
        super().__init__("mps")

    def report(self) -> DeviceReport:
        if torch.backends.mps.is_available():
            refusal = metal_refusal()
            if not refusal:
                return DeviceReport(word="mps", name=self.name(0), present=True)
            reason, fix = refusal, "Use --device cpu here."
        elif platform.system() != "Darwin":
            reason, fix = NOT_A_MAC, ""
        elif platform.machine() != "arm64":
            reason = "this Python is x86_64 (an Intel Mac, or Rosetta)."
            fix = "On Apple Silicon install an arm64 Python, then PyTorch again."
        elif not torch.backends.mps.is_built():
            reason, fix = "this PyTorch is built without Metal.", "Install PyTorch's own macOS arm64 wheel."
        else:
            reason = "PyTorch has Metal, but this macOS is too old for it or runs in a machine without a GPU."
            fix = "PyTorch 2.9 and newer need macOS 14."
        return DeviceReport(word="mps", present=False, reason=reason, fix=fix)

    def name(self, index: int) -> str:  # noqa: ARG002
        return "Apple GPU (Metal)"

    def synchronize(self, device: torch.device) -> None:  # noqa: ARG002
        torch.mps.synchronize()

    def memory(self, device: torch.device) -> DeviceMemory:  # noqa: ARG002
        return DeviceMemory(
            live_bytes=torch.mps.current_allocated_memory(),
            driver_bytes=torch.mps.driver_allocated_memory(),
            peak_bytes=NO_PEAK,
        )


KNOWN: dict[str, TorchDevice] = {"cpu": Cpu(), "cuda": Cuda(), "mps": Mps()}


def accelerator() -> str | None:
    """The type of the accelerator PyTorch would use here, or None."""
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    if found is None or (found.type == "mps" and metal_refusal()):
        return None
    return str(found.type)


@cache
def metal_refusal() -> str:
    """Return why Metal gives PyTorch no memory; empty if it does.

    In a virtual machine, PyTorch calls Metal available, and its first allocation of 256 bytes fails.
    """
    try:
        torch.ones(1, device="mps")
        torch.mps.synchronize()
    except RuntimeError as error:
        if apple.is_virtual_mac(apple.read_sysctl()):
            return "this Mac is a virtual machine, whose Metal device gives PyTorch no memory."
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        return scrub(f"Metal gives PyTorch no memory: {said}")[:REASON_CHARS]
    return ""


def resolve(word: Device) -> tuple[torch.device, TorchDevice]:
    """Return PyTorch's device for a device word; raise with the reason where it is absent."""
    if word.kind in (DeviceKind.GPU, DeviceKind.ANY):
        # PyTorch places nothing by itself: what it offers to "any" is its accelerator, else the CPU.
        found = accelerator() or ("cpu" if word.kind is DeviceKind.ANY else None)
        if found is None:
            raise absent_device("PyTorch", word, (KNOWN["cuda"].report(), KNOWN["mps"].report()))
        kind = KNOWN.get(found) or TorchDevice(found)
    else:
        kind = KNOWN[word.kind.value]
        report = kind.report()
        if not report.present:
            raise absent_device("PyTorch", word, (report,))
    if kind.type == "cpu":
        device_index("PyTorch", word, 1)
        return torch.device("cpu"), kind
    return torch.device(kind.type, device_index("PyTorch", word, torch.accelerator.device_count())), kind


def reports() -> tuple[DeviceReport, ...]:
    known = tuple(kind.report() for kind in KNOWN.values())
    found = accelerator()
    return known if found is None or found in KNOWN else (*known, TorchDevice(found).report())

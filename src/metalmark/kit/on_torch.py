"""PyTorch in the user's process: CPU, CUDA, Metal, or an accelerator that registers itself."""

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from metalmark.backends.torch_devices import KNOWN, accelerator
from metalmark.errors import UsageError
from metalmark.feeds.files import FILES_PER_BATCH
from metalmark.kit.frameworks import ChosenDevice, Later, refuse_unless_scalar
from metalmark.kit.loading import enough_files, start_method, why_not_travelling, why_unguarded, workers
from metalmark.machine.cgroup import limits
from metalmark.machine.cpu import usable_cores

ORDER = ("mps", "cuda")
NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64}
PLAIN = (torch.float64, torch.float32, torch.float16)
"""Floating types that NumPy has too."""
FOLD = 1024
SLOTS = 1024
BY_NAME = "file_system"
PREFETCH = 2
"""DataLoader's own."""
_free_slots: dict[torch.dtype, list[torch.Tensor]] = {}
"""Page-locked numbers, which a GPU writes without anyone waiting: taken once, since that itself may wait. Of each type,
since a copy that converts on the way to the host would be waited for."""


def owns(value: Any) -> bool:
    return isinstance(value, torch.Tensor | torch.nn.Module | PackedSequence)


def best_device() -> ChosenDevice:
    absent: list[str] = []
    for word in ORDER:
        report = KNOWN[word].report()
        if report.present:
            why = f"{word} is present: {report.name}."
            break
        absent.append(f"No {word}: {report.reason}")
    else:
        word = accelerator() or "cpu"
        why = "" if word == "cpu" else f"{word} is PyTorch's accelerator."
    return ChosenDevice(word, framework="torch", why=" ".join([why, *absent]).strip())


def move(value: Any, device: Any) -> Any:
    target = _target(device)
    if isinstance(value, torch.nn.Module):
        # What Module.to does, with the one tensor's rule.
        return value._apply(lambda tensor: _moved(tensor, target))
    if isinstance(value, PackedSequence):
        return value._replace(data=_narrowed(value.data, target)).to(target)
    return _moved(value, target)


def from_numpy(array: np.ndarray, device: Any) -> Any:
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return _moved(torch.from_numpy(np.require(native, requirements=["C", "W"])), _target(device))


def to_numpy(value: Any) -> np.ndarray:
    if not isinstance(value, torch.Tensor):
        raise UsageError(f"A {type(value).__name__} is no array.", hint="Give its tensors: module.state_dict(), say.")
    tensor = value.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.cpu()
    if tensor.is_floating_point() and tensor.dtype not in PLAIN:
        tensor = tensor.to(torch.float32)
    array: np.ndarray = tensor.resolve_conj().resolve_neg().numpy()
    return array


def synchronize(values: Sequence[Any]) -> None:  # noqa: ARG001
    found = accelerator()
    if found is None:
        return
    if found != "cuda":
        torch.accelerator.synchronize()
    elif torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            # Only those in use: to ask another GPU would make a context on it.
            if torch.cuda.memory_reserved(index):
                torch.cuda.synchronize(index)


def keep(value: Any) -> Later | float:
    try:
        if value.is_cpu:
            # The CPU's operations are finished when they return.
            return float(value.item())
    except (RuntimeError, AttributeError, TypeError) as error:
        if not isinstance(value, torch.Tensor):
            raise UsageError(f"log() takes numbers; this is a {type(value).__name__}.") from error
        _refuse_unless_real(value)
        raise
    _refuse_unless_real(value)
    scalar = value.detach()
    slot = _take_slot(scalar.dtype) if scalar.is_cuda else None
    return _UnreadScalar(scalar) if slot is None else _CopiedScalar(scalar, slot)


def _refuse_unless_real(value: torch.Tensor) -> None:
    refuse_unless_scalar(value.numel())
    if value.is_complex():
        raise UsageError("log() takes real numbers; this is a complex one.", hint="Log its abs(), say.")


def reader(kind: type) -> Callable[[Any], object] | None:
    """Without an accelerator every tensor is the CPU's; tolist() reads a scalar's memory, which item() dispatches."""
    read = torch.Tensor.tolist
    return read if kind is torch.Tensor and accelerator() is None else None


def _take_slot(dtype: torch.dtype) -> torch.Tensor | None:
    if dtype not in _free_slots:
        _free_slots[dtype] = list(torch.zeros(SLOTS, dtype=dtype).pin_memory())
    free = _free_slots[dtype]
    return free.pop() if free else None


class _CopiedScalar(Later):
    """On its way to the host; the event tells when it is there."""

    def __init__(self, scalar: torch.Tensor, slot: torch.Tensor) -> None:
        self._slot = slot
        slot.copy_(scalar if scalar.ndim == 0 else scalar.reshape(()), non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(scalar.device))

    def ready(self) -> bool:
        return bool(self._event.query())

    def value(self) -> float:
        self._event.synchronize()
        number = float(self._slot)
        _free_slots[self._slot.dtype].append(self._slot)
        return number


class _UnreadScalar(Later):
    """Stays on its device until the loop is over: Metal can't be asked for a number without waiting for all its work.

    Many are folded into one vector, so that a long run does not hold a small tensor for each step.
    """

    loose: ClassVar[dict[torch.device, "list[_UnreadScalar]"]] = {}

    def __init__(self, scalar: torch.Tensor) -> None:
        # A copy: the user may go on adding to this very tensor.
        self._tensor: torch.Tensor | None = scalar.reshape(()).to(torch.float32, copy=True)
        self._numbers: Callable[[], list[float]] | None = None
        self._index = 0
        loose = self.loose.setdefault(scalar.device, [])
        loose.append(self)
        if len(loose) >= FOLD:
            self._fold(loose)

    def value(self) -> float:
        if self._numbers is None:
            assert self._tensor is not None
            self._fold(self.loose[self._tensor.device])
        assert self._numbers is not None
        return self._numbers()[self._index]

    @staticmethod
    def _fold(loose: "list[_UnreadScalar]") -> None:
        numbers = cache(torch.stack([each._tensor for each in loose]).tolist)
        for index, each in enumerate(loose):
            each._tensor, each._numbers, each._index = None, numbers, index
        loose.clear()


def _target(device: Any) -> torch.device:
    return device if isinstance(device, torch.device) else torch.device(str(device))


def _moved(tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
    tensor = _narrowed(tensor, target)
    # Copies that nobody waits for are ordered on CUDA's stream; on Metal they were seen to corrupt (pytorch#139550).
    wait = not (target.type == "cuda" and tensor.device.type == "cpu" and tensor.is_pinned())
    return tensor.to(target, non_blocking=not wait)


def _narrowed(tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
    narrower = NARROWER.get(tensor.dtype)
    if narrower is None or not _refuses(target.type, tensor.dtype):
        return tensor
    _warn_once(target.type)
    return tensor.to(narrower)


@cache
def _refuses(device_type: str, dtype: torch.dtype) -> bool:
    """Asked of the device itself: a table would be wrong for the next accelerator."""
    try:
        torch.empty(0, dtype=dtype, device=device_type)
    except TypeError:
        return True
    except (RuntimeError, AssertionError):
        return False  # there is no such device: the move itself says so best
    return False


@cache
def _warn_once(device_type: str) -> None:
    warnings.warn(
        f"{device_type} has no float64: such tensors become float32 there. Make them float32 in the data set to save "
        "the conversion.",
        stacklevel=2,
    )


def _start_worker(strategy: str, then: Callable[[int], None] | None, number: int) -> None:
    """Begin a worker: it shares as its parent does (a fresh process does not know), then does what the user asks."""
    torch.multiprocessing.set_sharing_strategy(strategy)
    if then is not None:
        then(number)


def make_loader(dataset: Any, given: dict[str, Any]) -> DataLoader:
    options, why = dict(given), {}
    chosen = options.get("multiprocessing_context")
    unguarded = why_unguarded(sys.modules["__main__"])
    method, reason = (None, "") if chosen is not None else start_method(unguarded=unguarded, imported=sys.modules)
    if options.get("num_workers") is None:
        options["num_workers"], why["workers"] = workers(
            cores=usable_cores(limits()),
            method=method or str(chosen),
            iterable=isinstance(dataset, IterableDataset),
            resident=isinstance(dataset, TensorDataset),
            travels=lambda: (
                unguarded or why_not_travelling((dataset, options.get("collate_fn"), options.get("worker_init_fn")))
            ),
        )
    if options.get("pin_memory") is None:
        options["pin_memory"] = torch.cuda.is_available()
        why["pin"] = "CUDA copies from pinned memory" if options["pin_memory"] else "only CUDA gains by it"
    count = options["num_workers"]
    if count:
        if method is not None:
            options["multiprocessing_context"], why["start method"] = method, f"{method}: {reason}"
        options.setdefault("persistent_workers", True)
        prefetch = options.get("prefetch_factor") or PREFETCH
        why["sharing"] = _share(64 + count * (32 + prefetch * FILES_PER_BATCH))
        strategy = torch.multiprocessing.get_sharing_strategy()
        options["worker_init_fn"] = partial(_start_worker, strategy, options.get("worker_init_fn"))
    made = DataLoader(dataset, **options)
    made.why = why
    return made


def _share(needed: int) -> str:
    """Share by open file where there are enough: a killed process leaves nothing behind. Else share by name."""
    trouble = enough_files(needed)
    if trouble and BY_NAME in torch.multiprocessing.get_all_sharing_strategies():
        # Before the first tensor is sent: each one in flight, and each one kept, would hold a file open.
        torch.multiprocessing.set_sharing_strategy(BY_NAME)
    strategy = torch.multiprocessing.get_sharing_strategy()
    return f"{strategy}: {trouble or 'there are files enough'}"

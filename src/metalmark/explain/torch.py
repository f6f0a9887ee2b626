"""PyTorch's step taken apart: its own profiler on the CPU and on CUDA, elsewhere each operation timed by itself."""

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from torch.profiler import ProfilerActivity
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from metalmark.backends.torch import TorchBackend, TorchSession
from metalmark.errors import UnsupportedError
from metalmark.explain.batches import HostBatches
from metalmark.feeds.on_torch import as_tensor
from metalmark.model.explanation import OperationCost, OperationWork, Profile
from metalmark.model.plan import Mode, Plan
from metalmark.model.run import Absent
from metalmark.model.workload import Workload
from metalmark.stats.summary import median

Costs = dict[str, float]
MOST_OPERATIONS = 10
MOST_CHARACTERS = 80
UPDATE = "optimizer"
PROFILED = {"cpu": (ProfilerActivity.CPU,), "cuda": (ProfilerActivity.CPU, ProfilerActivity.CUDA)}
"""What torch.profiler follows on the devices for which it tells the device's own time."""
BY_PROFILER, ONE_BY_ONE = "torch.profiler", "each operation timed by itself"
COMPILED_REGIONS = ("Torch-Compiled Region", "## Call CompiledFxGraph")
COMPILED = "compiled code"
ANNOTATIONS = ("Optimizer.", "ProfilerStep", *COMPILED_REGIONS)
"""Rows of the profiler that span operations, on a GPU with their time."""
ROUNDS = 3
MOST_OF = 0.9
MOST_RECOMPILATIONS = 512
"""Dynamo runs a function uncompiled, with a warning only, once it was compiled eight times. Each of our sessions has
another batch size, dtype or layout."""
NOT_WRITTEN = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
"""They take memory, and leave it as it is."""
NOT_READ = {
    "fill_",
    "zero_",
    "copy_",
    "zeros_like",
    "ones_like",
    "full_like",
    "new_zeros",
    "_foreach_zero_",
    "_foreach_copy_",
}
"""Their first argument gives a shape, or is overwritten as a whole."""
GATHERED = {"embedding", "index", "index_select", "gather", "take"}
"""They read as much of their first argument as they return."""


class DissectedTorchSession(TorchSession):
    """A session that can stop after the forward pass, or before the update."""

    def __init__(self, plan: Plan, workload: Workload, device: torch.device, kind: Any) -> None:
        super().__init__(plan, workload, device, kind)
        self.device, self.plan = device, plan
        self.is_asynchronous = device.type != "cpu"

    def forward(self) -> torch.Tensor:
        if self._forward_loss is None:
            whose = "captured as one graph" if self.plan.settings.graph else "one function of your own"
            raise UnsupportedError(f"the step is {whose}, and can't be taken apart")
        # The last loss holds the activations of its pass, which a step has freed by now.
        self._output = None
        value = self._output = self._forward_loss(self.feeder.take())
        return value

    def backward(self) -> None:
        value = self.forward()
        (value if self._scaler is None else self._scaler.scale(value)).backward()
        self._output = value.detach()

    @contextmanager
    def updates_seen(self, see: Callable[[bool], None]) -> Iterator[None]:
        """Call `see(True)` when an optimiser's step begins, and `see(False)` when it ends."""
        handles = []
        for optimizer in self._optimizers:
            handles.append(optimizer.register_step_pre_hook(lambda *_: see(True)))
            handles.append(optimizer.register_step_post_hook(lambda *_: see(False)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class TorchAnatomy:
    def __init__(self, session: DissectedTorchSession, plan: Plan, workload: Workload, batches: HostBatches) -> None:
        self.session, self._plan, self._workload, self._batches = (session, plan, workload, batches)
        self.asynchronous = session.is_asynchronous
        self._host_batch: tuple[torch.Tensor, ...] | None = None
        self._placed: Any = None

    def forward(self) -> None:
        if self._plan.mode is Mode.INFERENCE:
            self.session.step()
        else:
            self.session.forward()

    def backward(self) -> None:
        self.session.backward()

    def place(self) -> None:
        if self._host_batch is None:
            tensors = tuple(map(as_tensor, self._batches.first))
            pinned = self._plan.loader is not None and self._plan.loader.pin
            self._host_batch = tuple(tensor.pin_memory() for tensor in tensors) if pinned else tensors
        self._placed = self.session.feeder.place(self._host_batch)

    def make(self) -> None:
        tuple(map(as_tensor, self._batches.make()))

    def work(self) -> tuple[OperationWork, ...] | Absent:
        counter = WorkCounter()
        with self._eager() as session, session.updates_seen(counter.in_update), counter:
            session.step()
        return counter.found()

    def profile(self, steps: int) -> Profile | Absent:
        device_type = self.session.device.type
        if device_type == "cpu":
            return self._profile_on_cpu(steps)
        told = self._profile_on_cuda(steps) if device_type == "cuda" else None
        if told is not None:
            return told
        with self._eager() as session:
            timer = OperationTimer(session.synchronize)
            with timer:
                for _ in range(steps):
                    session.step()
        return _profile(ONE_BY_ONE, timer.seconds, timer.calls, steps)

    def trace(self, path: Path, steps: int) -> None:
        device_type = self.session.device.type
        if device_type not in PROFILED:
            raise UnsupportedError(
                f"PyTorch's profiler does not follow {device_type}, so there is no trace to write.",
                hint="On a Mac, Instruments with its Metal System Trace shows what the GPU does.",
            )
        self._record(steps).export_chrome_trace(str(path))

    def _record(self, steps: int) -> torch.profiler.profile:
        session = self.session
        session.step()
        session.synchronize()
        with torch.profiler.profile(activities=PROFILED[session.device.type]) as profiler:
            for _ in range(steps):
                session.step()
            session.synchronize()
        return profiler

    def _profile_on_cpu(self, steps: int) -> Profile:
        """Of several profiles, each operation's median: another process on its core is no cost of an operation."""
        each = max(1, steps // ROUNDS)
        rounds: list[Costs] = []
        calls: Costs = {}
        for _ in range(ROUNDS):
            rows = [row for row in self._record(each).key_averages() if _is_operation(row.key)]
            costs: Costs = defaultdict(float)
            counts: Costs = defaultdict(float)
            for row in rows:
                name = COMPILED if row.key.startswith(COMPILED_REGIONS) else row.key
                costs[name] += row.self_cpu_time_total / 1e6
                counts[name] += row.count
            rounds.append(costs)
            calls |= counts
        seconds = {name: median([found.get(name, 0.0) for found in rounds]) for name in calls}
        return _profile(BY_PROFILER, seconds, calls, each)

    def _profile_on_cuda(self, steps: int) -> Profile | None:
        """Return the GPU's time by operation; by kernel where most were launched by compiled code or a graph; None
        where the profiler saw nothing of the GPU, as without the permission to."""
        operations: tuple[Costs, Costs] = {}, {}
        kernels: tuple[Costs, Costs] = {}, {}
        for row in self._record(steps).key_averages():
            if row.self_device_time_total <= 0 or row.key.startswith(ANNOTATIONS):
                continue
            launched = row.device_type == torch.autograd.DeviceType.CPU
            name = row.key if launched else _kernel_name(row.key)
            for found, amount in zip(
                operations if launched else kernels, (row.self_device_time_total / 1e6, row.count), strict=True
            ):
                found[name] = found.get(name, 0.0) + amount
        if not kernels[0] and not operations[0]:
            return None
        told = operations if sum(operations[0].values()) > MOST_OF * sum(kernels[0].values()) else kernels
        return _profile(BY_PROFILER, *told, steps)

    @contextmanager
    def _eager(self) -> Iterator[DissectedTorchSession]:
        """Give a session whose operations can be seen one by one: this one, unless it is compiled or captured."""
        settings = self._plan.settings
        if not settings.compile and not settings.graph:
            yield self.session
            return
        plan = replace(self._plan, settings=replace(settings, compile=False, compile_mode="", graph=False))
        with SIDE.open(plan, self._workload) as other:
            other.session.step()
            yield other.session


class EachOperation(TorchDispatchMode, ABC):  # type: ignore[misc]
    """Sees every operation of a step, on its way from autograd to the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **options)
        if func.overloadpacket not in FLOPS:
            # In inference, operations that are made of others come here whole.
            with self:
                made = func.decompose(*args, **options)
            if made is not NotImplemented:
                return made
        return self.run(func, args, options)

    @abstractmethod
    def run(self, func: Any, args: Any, options: Any) -> Any:
        """Do one operation, and keep what is to be known of it."""


class WorkCounter(EachOperation):
    """Counts arithmetic and bytes from the shapes of each operation's tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._part = ""
        self._found: dict[tuple[str, str], OperationWork] = {}

    def in_update(self, now: bool) -> None:
        self._part = UPDATE if now else ""

    def run(self, func: Any, args: Any, options: Any) -> Any:
        result = func(*args, **options)
        moved = _bytes_moved(func, args, options, result)
        formula = FLOPS.get(func.overloadpacket)
        if moved or formula is not None:
            flops = float(formula(*args, **options, out_val=result)) if formula is not None else 0.0
            key = self._part, _name(func)
            before = self._found.get(key) or OperationWork(name=key[1], calls=0, flops=0.0, bytes=0.0, part=key[0])
            self._found[key] = replace(
                before, calls=before.calls + 1, flops=before.flops + flops, bytes=before.bytes + moved
            )
        return result

    def found(self) -> tuple[OperationWork, ...]:
        """Return what each kind of operation had to do, that with the most bytes first."""
        return tuple(sorted(self._found.values(), key=lambda work: -work.bytes))


class OperationTimer(EachOperation):
    """Times each operation between two synchronisations, whose own cost is taken off."""

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__()
        self._wait = wait
        self.seconds: Costs = defaultdict(float)
        self.calls: Costs = defaultdict(float)
        wait()
        self._wait_s = min(self._timed(lambda: None)[1] for _ in range(5))

    def run(self, func: Any, args: Any, options: Any) -> Any:
        self._wait()
        result, seconds = self._timed(lambda: func(*args, **options))
        self.calls[_name(func)] += 1
        self.seconds[_name(func)] += max(0.0, seconds - self._wait_s)
        return result

    def _timed(self, call: Callable[[], Any]) -> tuple[Any, float]:
        begin = time.perf_counter()
        result = call()
        self._wait()
        return result, time.perf_counter() - begin


class TorchExplainer(TorchBackend):
    session = DissectedTorchSession

    def __init__(self) -> None:
        self.unchanging: dict[str, str] = {}

    @contextmanager
    def open(self, plan: Plan, workload: Workload) -> Iterator[TorchAnatomy]:  # type: ignore[override]
        threads = torch.get_num_threads()
        if plan.settings.compile:
            _allow_recompilations()
        products, convolutions = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
        try:
            with super().open(plan, workload) as session, HostBatches(plan, workload, session.recipe) as batches:
                assert isinstance(session, DissectedTorchSession)
                yield TorchAnatomy(session, plan, workload, batches)
        finally:
            torch.set_num_threads(threads)
            torch.backends.cuda.matmul.allow_tf32 = products
            torch.backends.cudnn.allow_tf32 = convolutions

    def free_memory(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        elif torch.backends.mps.is_available():
            torch.mps.empty_cache()

    def threads(self) -> int | None:
        return int(torch.get_num_threads())

    def set_threads(self, count: int) -> None:
        torch.set_num_threads(count)


def _allow_recompilations() -> None:
    import torch._dynamo.config as dynamo

    for name in ("recompile_limit", "cache_size_limit", "accumulated_recompile_limit", "accumulated_cache_size_limit"):
        if hasattr(dynamo, name):
            setattr(dynamo, name, MOST_RECOMPILATIONS)


def _linear_flops(inputs: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> int:
    return int(2 * inputs.numel() * weight.shape[0])


def _linear_backward_flops(inputs: torch.Tensor, _: Any, weight: torch.Tensor, wanted: Any, **__: Any) -> int:
    return int(2 * inputs.numel() * weight.shape[0] * sum(map(bool, wanted[:2])))


def _attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward_flops(gradient: torch.Tensor, *tensors: Any, **_: Any) -> int:
    return int(sdpa_backward_flop_count(gradient.shape, *(each.shape for each in tensors[:3])))


def _formulas() -> dict[Any, Callable[..., Any]]:
    """Return PyTorch's own formulas, and those for operations that only the CPU or Metal has."""
    more = {
        "linear": _linear_flops,
        "linear_backward": _linear_backward_flops,
        "_scaled_dot_product_flash_attention_for_cpu": _attention_flops,
        "_scaled_dot_product_attention_math_for_mps": _attention_flops,
        "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward_flops,
    }
    packets = {getattr(torch.ops.aten, name, None): formula for name, formula in more.items()}
    return {**{packet: formula for packet, formula in packets.items() if packet is not None}, **flop_registry}


FLOPS = _formulas()


def _bytes_moved(func: Any, args: Any, options: Any, result: Any) -> float:
    """Return the bytes that an operation reads and writes if nothing stays in a cache; a view moves none."""
    schema = func._schema
    name = schema.name.partition("::")[2]
    if name in NOT_WRITTEN:
        return 0.0
    given = list(zip(schema.arguments, args, strict=False))
    given += [(argument, options[argument.name]) for argument in schema.arguments if argument.name in options]
    read: list[torch.Tensor] = []
    written: list[torch.Tensor] = []
    for number, (argument, value) in enumerate(given):
        tensors = _tensors(value)
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += tensors
        if number == 0 and (name in NOT_READ or name in GATHERED):
            continue
        if argument.name != "out":
            read += tensors
    held = {_storage(tensor) for _, value in given for tensor in _tensors(value)}
    made = [tensor for tensor in _tensors(result) if _storage(tensor) not in held]
    if not made and not written:
        return 0.0
    moved = sum(map(_bytes, read)) + sum(map(_bytes, written)) + sum(map(_bytes, made))
    return float(moved + (sum(map(_bytes, made)) if name in GATHERED else 0))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return (
        [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        if isinstance(value, list | tuple)
        else []
    )


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _bytes(tensor: torch.Tensor) -> int:
    # One that is expanded has fewer bytes than elements.
    return min(int(tensor.nbytes), int(tensor.untyped_storage().nbytes()))


def _name(func: Any) -> str:
    return str(func._schema.name)


def _is_operation(name: str) -> bool:
    if name.startswith("autograd::"):
        return False
    return "::" in name or name.startswith(COMPILED_REGIONS)


def _kernel_name(name: str) -> str:
    """Return the name of a kernel without its return type, and without what its template was given."""
    return name.removeprefix("void ").partition("<")[0].partition("(")[0][:MOST_CHARACTERS] or name[:MOST_CHARACTERS]


def _profile(source: str, seconds: Costs, calls: Costs, steps: int) -> Profile:
    total_s = sum(seconds.values())
    worst = sorted(seconds, key=lambda name: -seconds[name])[:MOST_OPERATIONS]
    operations = tuple(
        OperationCost(
            name=name,
            calls=max(1, round(calls[name] / steps)),
            seconds=seconds[name] / steps,
            share=seconds[name] / total_s if total_s else 0.0,
        )
        for name in worst
    )
    return Profile(source=source, operations=operations, total_s=total_s / steps)


SIDE = TorchExplainer()

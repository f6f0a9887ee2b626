"""What is seen of PyTorch: optimiser steps by its public hooks; loaders, backward passes, waits, copies and
checkpoints by wrapping its functions, each of which still does what it did.

Tensors of other classes than PyTorch's own pass through unseen: they stand for others while something is compiled.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from time import thread_time
from types import CodeType, FunctionType, MethodType
from typing import Any

from metalmark_agent.patches import Patches
from metalmark_agent.recorder import CHECKPOINT, Recorder, clock, place_of

Undo = Callable[[], None]
WAITS = {
    "item": ".item()",
    "tolist": ".tolist()",
    "cpu": ".cpu()",
    "__float__": "float()",
    "__int__": "int()",
    "__index__": "int()",
    "__bool__": "bool()",
    "__repr__": "print",
    "__format__": "format",
}
"""Methods of a tensor that wait for its device, and how to call them in a sentence."""
SYNCHRONIZE = (("cuda", "cuda"), ("mps", "mps"), ("accelerator", "accelerator"), ("xpu", "xpu"))
COMPILED = "The optimiser runs inside of what torch.compile compiled: each step ends where the next one's work begins."
MOST_DEPTH = 4
"""How deep a batch is searched for its first tensor."""


class SeenMethod:
    """Stands for a method of all tensors, and is equal to it: PyTorch and others have tables of methods, and PyTorch
    tells subclasses of tensors which method was called."""

    def __init__(self, call: Any, original: Any, name: str) -> None:
        self.__name__, self.__qualname__, self.__module__ = name, f"Tensor.{name}", "torch"
        self.__doc__, self.__wrapped__ = original.__doc__, original
        self._call = call
        self._root: Any = original._root if isinstance(original, SeenMethod) else original

    def __get__(self, tensor: Any, kind: type | None = None) -> Any:
        return self if tensor is None else MethodType(self._call, tensor)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self._root is (other._root if isinstance(other, SeenMethod) else other)

    def __hash__(self) -> int:
        return hash(self._root)

    def __reduce__(self) -> str:
        return self.__qualname__


class CompiledSteps:
    """Whether an optimiser stepped inside of what torch.compile compiled. No clock can be read there, and no hook be
    called; but what is assigned while it is traced, is assigned each time it runs."""

    def __init__(self) -> None:
        self.stepped = False


class TorchWatch:
    """Tells the recorder what this process's PyTorch does."""

    def __init__(self, recorder: Recorder) -> None:
        import torch

        self._torch, self._recorder = torch, recorder
        self._plain = {torch.Tensor, torch.nn.Parameter}
        self._item = torch.Tensor.item
        self._is_compiling = getattr(torch.compiler, "is_compiling", None) or (lambda: False)
        self._patches = Patches()
        self._busy = False
        """A call that is told as one: what it calls itself is not told again."""
        self._thread = threading.main_thread().ident
        """The thread that trains. What loaders give to others, nobody need wait for."""
        self._steps: list[tuple[int, float]] = []
        self._compiled = CompiledSteps()
        self._scaled: tuple[int, Any] | None = None
        self._switching = False
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._candidate: int | None = None

    def start(self) -> Undo:
        torch, wrap = self._torch, self._wrap
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        loading = torch.utils.data.dataloader
        wrap(loading.DataLoader, "__iter__", self._iterating)
        wrap(loading._BaseDataLoaderIter, "__next__", self._fetching)
        wrap(torch.autograd, "backward", self._backward)
        scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
        wrap(scaler, "scale", self._scaling)
        wrap(torch.nn.Module, "train", self._switched)
        wrap(torch, "save", self._saving)
        for name, call in WAITS.items():
            self._wrap_method(name, self._waiting(call))
        self._wrap_method("to", self._moving(".to()"))
        self._wrap_method("cuda", self._moving(".cuda()"))
        self._wrap_method("copy_", self._copying)
        for module, word in SYNCHRONIZE:
            if hasattr(torch, module):
                wrap(getattr(torch, module), "synchronize", self._synchronizing(f"torch.{word}.synchronize()"))

        handles = [
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ends),
        ]
        self._recorder.before_end.append(lambda: self._count_compiled(clock()))

        def undo() -> None:
            self._count_compiled(clock())
            self._patches.undo()
            for handle in handles:
                handle.remove()

        return undo

    def give_up(self) -> None:
        """This PyTorch has not all that we look for: leave it as it was."""
        self._patches.undo()

    def _wrap(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace a function by one that goes by the same names: what is stored by reference must find it again."""

        def named(original: Any) -> Any:
            made = make(original)
            functools.update_wrapper(made, original)
            made.__module__ = owner.__module__ if isinstance(owner, type) else owner.__name__
            made.__qualname__ = f"{owner.__qualname__}.{name}" if isinstance(owner, type) else name
            return made

        if hasattr(owner, name):
            self._patches.replace(owner, name, named)

    def _wrap_method(self, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        self._patches.replace(self._torch.Tensor, name, lambda original: SeenMethod(make(original), original, name))

    # Steps

    def _step_begins(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._is_compiling():
            return
        key, running = id(optimizer), self._steps
        for place, (other, _) in enumerate(running):
            if other == key:  # it raised the last time
                del running[place:]
                break
        running.append((key, clock()))

    def _step_ends(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._is_compiling():
            self._compiled.stepped = True
            return
        key, running = id(optimizer), self._steps
        while running:
            other, begin = running.pop()
            if other == key:
                break
        else:
            return
        if running:  # an optimiser inside another one's step
            return
        recorder = self._recorder
        if not recorder.device:
            self._describe(optimizer)
        recorder.step(begin, clock(), key=key)

    def _count_compiled(self, at: float) -> None:
        """Count a step that was taken in compiled code, at the first moment at which that can be seen."""
        if self._compiled.stepped:
            self._compiled.stepped = False
            self._recorder.note(COMPILED)
            if not self._recorder.device:
                self._describe(None)
            self._recorder.step(at, at)

    def _describe(self, optimizer: Any) -> None:
        recorder, torch = self._recorder, self._torch
        self._thread = threading.get_ident()
        if recorder.batch_size is None:
            recorder.batch_size = self._candidate
        for group in optimizer.param_groups if optimizer is not None else ():
            for parameter in group["params"]:
                device = parameter.device
                recorder.device = str(device)
                if device.type == "cuda":
                    recorder.device_name = torch.cuda.get_device_name(device)
                return

    def _backward(self, original: Any) -> Callable[..., Any]:
        recorder = self._recorder

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            begin = clock()
            if self._compiled.stepped:
                self._count_compiled(begin)
            result = original(tensors, *args, **kwargs)
            recorder.backward(begin, clock())
            self._loss(tensors)
            return result

        return backward

    def _loss(self, tensors: Any) -> None:
        recorder = self._recorder
        loss = tensors
        if not hasattr(loss, "detach"):
            loss = next(iter(tensors), None) if isinstance(tensors, (tuple, list)) else None
        if recorder.muted or loss is None or type(loss) not in self._plain or loss.numel() != 1:
            return
        scaled, self._scaled = self._scaled, None
        if scaled is not None and scaled[0] == id(loss):
            loss = scaled[1]
        if loss.is_cpu:
            recorder.loss_is(recorder.steps + 1, float(self._item(loss)))
            return
        loss, item = loss.detach(), self._item
        recorder.loss(lambda: item(loss))

    def _scaling(self, original: Any) -> Callable[..., Any]:
        """A gradient scaler multiplies the loss: the loss is what it was before."""

        def scale(scaler: Any, outputs: Any) -> Any:
            result = original(scaler, outputs)
            if type(outputs) in self._plain and result is not outputs:
                self._scaled = id(result), outputs.detach()
            return result

        return scale

    # Loaders

    def _iterating(self, original: Any) -> Callable[..., Any]:
        recorder = self._recorder

        def __iter__(loader: Any) -> Any:  # noqa: N807
            begin, host_s = clock(), thread_time()
            iterator = original(loader)
            if threading.get_ident() != self._thread:
                recorder.waits_known = False
                return iterator
            key = id(iterator)
            recorder.open_pass(key, begin, clock())
            recorder.off_host(thread_time() - host_s)
            workers = len(getattr(iterator, "_workers", ()))
            if workers > recorder.loader_workers:
                recorder.loader_workers = workers
            if iterator not in self._iterators:  # one whose workers stay is there again in each pass
                self._iterators.add(iterator)
                weakref.finalize(iterator, _end_pass, weakref.ref(self), key).atexit = False
            return iterator

        return __iter__

    def _fetching(self, original: Any) -> Callable[..., Any]:
        recorder = self._recorder

        def __next__(iterator: Any) -> Any:  # noqa: N807
            if threading.get_ident() != self._thread:
                return original(iterator)
            begin, host_s = clock(), thread_time()
            if self._compiled.stepped:
                self._count_compiled(begin)
            try:
                batch = original(iterator)
            except StopIteration:
                recorder.end_pass(id(iterator), clock())
                raise
            end = clock()
            recorder.batch(id(iterator), begin, end)
            recorder.off_host(thread_time() - host_s)
            if not recorder.steps:
                self._candidate = _batch_size(batch, self._torch.Tensor)
            return batch

        return __next__

    # Validation and checkpoints

    def _switched(self, original: Any) -> Callable[..., Any]:
        recorder = self._recorder

        def train(module: Any, mode: bool = True) -> Any:
            if self._switching:  # a part of the network that is switched
                return original(module, mode)
            if mode:
                recorder.evaluation_ends(id(module), clock())
            else:
                recorder.evaluation_begins(id(module), clock())
            self._switching = True
            try:
                return original(module, mode)
            finally:
                self._switching = False

        return train

    def _saving(self, original: Any) -> Callable[..., Any]:
        recorder = self._recorder

        storages = (self._torch.storage.TypedStorage, self._torch.storage.UntypedStorage)

        def save(*args: Any, **kwargs: Any) -> Any:
            if self._busy or (args and isinstance(args[0], storages)):  # so are tensors pickled
                return original(*args, **kwargs)
            begin, self._busy = clock(), True
            try:
                return original(*args, **kwargs)
            finally:
                self._busy = False
                recorder.outside(CHECKPOINT, begin, clock())

        return save

    # What waits for the device, and what is copied to it

    def _waiting(self, call: str) -> Callable[[Any], Callable[..., Any]]:
        plain = self._plain

        def make(original: Any) -> Callable[..., Any]:
            def wait(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                if type(tensor) not in plain or tensor.is_cpu or self._busy:
                    return original(tensor, *args, **kwargs)
                return self._waited(call, sys._getframe(1), original, tensor, args, kwargs)

            return wait

        return make

    def _synchronizing(self, call: str) -> Callable[[Any], Callable[..., Any]]:
        def make(original: Any) -> Callable[..., Any]:
            def synchronize(*args: Any, **kwargs: Any) -> Any:
                if self._busy or self._is_compiling():
                    return original(*args, **kwargs)
                return self._waited(call, sys._getframe(1), lambda _: original(*args, **kwargs), None, (), {})

            return synchronize

        return make

    def _waited(self, call: str, frame: Any, original: Any, tensor: Any, args: Any, kwargs: Any) -> Any:
        begin, host_s, self._busy = clock(), thread_time(), True
        try:
            result = original(tensor, *args, **kwargs)
            self._was_waited(call, frame, begin, host_s)
        finally:
            self._busy = False
        return result

    def _was_waited(self, call: str, frame: Any, begin: float, host_s: float) -> None:
        recorder = self._recorder
        if self._compiled.stepped:
            self._count_compiled(begin)
        recorder.sync(call, place_of(frame), begin, clock())
        recorder.off_host(thread_time() - host_s)
        if recorder.pending:
            recorder.read_losses()

    def _moving(self, call: str) -> Callable[[Any], Callable[..., Any]]:
        plain, recorder = self._plain, self._recorder

        def make(original: Any) -> Callable[..., Any]:
            def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                if type(tensor) not in plain or self._busy:
                    return original(tensor, *args, **kwargs)
                from_host = tensor.is_cpu
                begin, host_s = clock(), thread_time() if not from_host else 0.0
                result = original(tensor, *args, **kwargs)
                if type(result) in plain and result.is_cpu is not from_host and not (tensor.is_meta or result.is_meta):
                    if from_host:
                        recorder.copy(tensor.nbytes, begin, clock())
                    elif not kwargs.get("non_blocking"):
                        self._told_wait(call, sys._getframe(1), begin, host_s)
                return result

            return to

        return make

    def _copying(self, original: Any) -> Callable[..., Any]:
        plain, recorder = self._plain, self._recorder

        def copy_(tensor: Any, source: Any, non_blocking: bool = False) -> Any:
            if type(tensor) not in plain or type(source) not in plain or tensor.is_cpu is source.is_cpu or self._busy:
                return original(tensor, source, non_blocking)
            begin, host_s = clock(), thread_time()
            result = original(tensor, source, non_blocking)
            if source.is_cpu and not tensor.is_meta:
                recorder.copy(source.nbytes, begin, clock())
            elif tensor.is_cpu and not (source.is_meta or non_blocking):
                self._told_wait(".copy_()", sys._getframe(1), begin, host_s)
            return result

        return copy_

    def _told_wait(self, call: str, frame: Any, begin: float, host_s: float) -> None:
        self._busy = True
        try:
            self._was_waited(call, frame, begin, host_s)
        finally:
            self._busy = False

    def end_pass(self, key: int) -> None:
        self._recorder.end_pass(key, clock())


def _end_pass(watch: Any, key: int) -> None:
    """A loader's iterator is gone: its loop was left early."""
    there = watch()
    if there is not None:
        there.end_pass(key)


def _batch_size(batch: Any, tensor_type: type, depth: int = 0) -> int | None:
    """The first dimension of the first tensor."""
    if isinstance(batch, tensor_type):
        return int(batch.shape[0]) if batch.dim() else None  # type: ignore[attr-defined]
    if isinstance(batch, Mapping) or hasattr(batch, "values"):
        batch = list(batch.values())
    if depth < MOST_DEPTH and isinstance(batch, (list, tuple)):
        for part in batch:
            found = _batch_size(part, tensor_type, depth + 1)
            if found is not None:
                return found
    return None


def hook(recorder: Recorder) -> Undo:
    watch = TorchWatch(recorder)
    try:
        return watch.start()
    except BaseException:
        watch.give_up()
        raise


def hook_compiler(recorder: Recorder) -> Undo:  # noqa: ARG001
    """Have torch.compile leave our code alone: it is neither to be compiled nor to be counted as a graph break."""
    from torch._dynamo.eval_frame import skip_code

    for name, module in list(sys.modules.items()):
        if name.startswith("metalmark_agent."):
            for code in _codes(vars(module).values(), name):
                skip_code(code)
    return lambda: None


def _codes(values: Any, module: str) -> Iterator[CodeType]:
    """Give the code of a module's functions, of its classes' methods, and of what is defined inside of them."""
    for value in values:
        if isinstance(value, CodeType):
            yield value
            yield from _codes(value.co_consts, module)
        elif isinstance(value, type) and value.__module__ == module:
            yield from _codes(vars(value).values(), module)
        elif isinstance(value, FunctionType) and value.__module__ == module:
            yield from _codes([value.__code__], module)
        elif isinstance(value, property) and value.fget is not None:
            yield from _codes([value.fget], module)


def hook_safetensors(recorder: Recorder) -> Undo:
    """Checkpoints that are written as safetensors."""
    module: Any = sys.modules["safetensors.torch"]
    patches = Patches()

    def saving(original: Any) -> Callable[..., Any]:
        def save(*args: Any, **kwargs: Any) -> Any:
            begin = clock()
            try:
                return original(*args, **kwargs)
            finally:
                recorder.outside(CHECKPOINT, begin, clock())

        return save

    for name in ("save_file", "save_model"):
        patches.replace(module, name, saving)
    return patches.undo

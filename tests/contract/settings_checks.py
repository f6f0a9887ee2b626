"""PyTorch's own settings on the CPU, as checks in one process: `python -m tests.contract.settings_checks ANSWER`."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from metalmark.backends.torch import BACKEND, TorchSession
from metalmark.backends.torch_settings import BatchParts, refuse_combinations, require_convolutions
from metalmark.errors import UnsupportedError
from metalmark.model.plan import Device, DeviceKind, Dtype, Mode, Plan, Settings
from metalmark.model.workload import Batch, Param, Params, Recipe, Workload
from metalmark.workloads.catalog import load

ROWS, WIDTH = 8, 16


class Norm(nn.BatchNorm1d):
    """One that does not ask its own momentum."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return nn.functional.batch_norm(
            states, self.running_mean, self.running_var, self.weight, self.bias, training=self.training, momentum=0.2
        )


class Block(nn.Module):
    """What is easily wrong when it runs twice: statistics and random numbers."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.product, self.norm = nn.Linear(WIDTH, WIDTH), Norm(WIDTH)
        self.dropout = nn.Dropout(rate)
        self.passes = 0

    def forward(self, states: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.passes += 1
        return states + scale * self.dropout(torch.relu(self.norm(self.product(states))))


class Blocks(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))
        self.blocks = nn.ModuleList(Block(rate) for _ in range(3))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            states = block(states, scale=0.5)
        return self.head(states)


def make_batch(params: Params, rng: np.random.Generator) -> Batch:
    size = int(params["batch_size"])
    return Batch(inputs=(rng.standard_normal((size, WIDTH)).astype(np.float32),), targets=rng.integers(0, 4, size=size))


def network(model: Callable[[], nn.Module], **recipe: Any) -> Workload:
    def build(_: Params) -> Recipe:
        return Recipe(
            model=model(), loss=nn.functional.cross_entropy, optimizer=partial(torch.optim.SGD, lr=0.1), **recipe
        )

    return Workload(
        name="own", title="own", params=(Param("batch_size", ROWS),), build={"torch": build}, batch=make_batch
    )


OWN = network(lambda: Blocks(0.3))
NO_NORM = network(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 4)))
GPT = load("gpt")
GPT_PARAMS = {param.name: param.default for param in GPT.params} | {"size": "nano", "seq_len": 8, "batch_size": 2}


def plan_of(workload: Workload, mode: Mode = Mode.TRAINING, **settings: Any) -> Plan:
    params = dict(GPT_PARAMS) if workload is GPT else {"batch_size": ROWS}
    return Plan(
        workload=workload.name, params=params, mode=mode, framework="torch", device=Device(kind=DeviceKind.CPU),
        settings=Settings(**settings),
    )  # fmt: skip


def opened(workload: Workload, mode: Mode = Mode.TRAINING, **settings: Any) -> AbstractContextManager[TorchSession]:
    return BACKEND.open(plan_of(workload, mode, **settings), workload)


def after(workload: Workload, *, steps: int = 1, **settings: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return the losses, and everything that steps change."""
    with opened(workload, **settings) as session:
        losses = []
        for _ in range(steps):
            session.step()
            losses.append(session.proof())
        held = {name: value.clone() for name, value in session._model.state_dict().items()}
        gradients = {f"gradient of {name}": p.grad for name, p in session._model.named_parameters()}
        return losses, held | gradients


def require_same(workload: Workload, *, tolerance: float, steps: int = 1, **settings: Any) -> None:
    common = {name: settings.pop(name) for name in ("dtype",) if name in settings}
    losses, held = after(workload, steps=steps, **common)
    others, theirs = after(workload, steps=steps, **common, **settings)
    np.testing.assert_allclose(others, losses, rtol=tolerance, atol=tolerance)
    for name, value in held.items():
        torch.testing.assert_close(
            theirs[name], value, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def refusal(use: Callable[[], object]) -> str:
    try:
        use()
    except UnsupportedError as error:
        return f"{error.message} {error.hint}"
    raise AssertionError("it was not refused")


def refused(workload: Workload, mode: Mode = Mode.TRAINING, **settings: Any) -> str:
    def use() -> None:
        with opened(workload, mode, **settings) as session:
            session.step()

    return refusal(use)


def check_parts_of_a_batch_train_the_same() -> None:
    for count in (2, 4, 8):
        require_same(NO_NORM, tolerance=1e-6, steps=3, accumulate=count)
    require_same(NO_NORM, tolerance=1e-2, accumulate=4, dtype=Dtype.BFLOAT16)
    require_same(NO_NORM, tolerance=1e-2, accumulate=4, dtype=Dtype.FLOAT16)


def check_a_smaller_last_batch_has_smaller_parts() -> None:
    parts = BatchParts(4, ("inputs", "targets", "rate"), ROWS)
    for rows, sizes in ((8, [2, 2, 2, 2]), (5, [2, 2, 1]), (4, [1, 1, 1, 1]), (1, [1])):
        batch = (torch.arange(2 * rows).reshape(rows, 2), torch.arange(rows), torch.tensor(1.0))
        found = list(parts(batch))
        assert [len(part[0]) for part, _ in found] == [len(part[1]) for part, _ in found] == sizes
        assert torch.equal(torch.cat([part[0] for part, _ in found]), batch[0])
        assert all(part[2] is batch[2] for part, _ in found)
        assert [share * rows for _, share in found] == sizes
    unknown = BatchParts(4, ("inputs", "targets"), None)
    assert "does not divide a batch of 6" in refusal(lambda: list(unknown((torch.ones(6), torch.ones(6)))))
    assert "targets has 4" in refusal(lambda: list(unknown((torch.ones(8), torch.ones(4)))))


def check_recomputed_blocks_train_the_same() -> None:
    require_same(OWN, tolerance=0.0, steps=3, recompute=True)
    require_same(GPT, tolerance=0.0, recompute=True)
    with opened(OWN, recompute=True) as session:
        session.step()
        passes = [block.passes for block in session._model.blocks]
        assert passes == [2, 2, 2], passes
        with torch.no_grad():
            session._model(torch.ones(ROWS, WIDTH))
        assert [block.passes for block in session._model.blocks] == [3, 3, 3], "without a gradient there is one pass"


def check_attention_has_the_kernel_that_was_asked_for() -> None:
    require_same(GPT, tolerance=1e-4, attention_kernel="math")
    for kernel, operation in (("math", "attention_math"), ("flash", "flash_attention_for_cpu")):
        for mode in Mode:
            with opened(GPT, mode, attention_kernel=kernel) as session:
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
                    session.step()
                names = {row.key for row in profiler.key_averages() if "aten::_scaled_dot_product" in row.key}
                assert names
                assert all(operation in name for name in names), names
    assert torch.backends.cuda.math_sdp_enabled(), "a session leaves the choice as it was"
    assert torch.backends.cuda.flash_sdp_enabled(), "a session leaves the choice as it was"


def check_compiled_steps_honour_them() -> None:
    """Without dropout, whose numbers a compiler draws in its own order."""
    steady = network(lambda: Blocks(0.0))
    mode = "max-autotune-no-cudagraphs"
    require_same(steady, tolerance=1e-5, steps=2, recompute=True, compile=True, compile_mode=mode)
    require_same(NO_NORM, tolerance=1e-5, steps=2, accumulate=2, compile=True)


def check_what_has_no_meaning_is_refused() -> None:
    flat = network(lambda: nn.Linear(WIDTH, 4))
    own_step = network(lambda: nn.Linear(WIDTH, 4), step=lambda **_: torch.zeros(()))
    assert "does not divide a batch of 8. Use --accumulate 2" in refused(NO_NORM, accumulate=3)
    assert "inference has no gradients" in refused(NO_NORM, Mode.INFERENCE, accumulate=2)
    assert "step of your own" in refused(own_step, accumulate=2)
    assert "this model has no nn.ModuleList" in refused(flat, recompute=True)
    assert "inference keeps no activations" in refused(OWN, Mode.INFERENCE, recompute=True)
    assert "never calls torch.nn.functional.scaled_dot_product_attention" in refused(flat, attention_kernel="math")
    assert "--compile is off. Add --compile" in refused(flat, compile_mode="max-autotune-no-cudagraphs")
    # On CUDA alone, which the limits ask for first: here the rule alone.
    assert "this model has no nn.Conv" in refusal(lambda: require_convolutions(nn.Linear(WIDTH, 4)))
    for layer in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
        require_convolutions(nn.Sequential(nn.ReLU(), nn.Sequential(layer(1, 1, 1))))

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = nn.Linear(WIDTH, 4)

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            heads = self.product(states)[:, None, None, :]
            rate = 0.5 if self.training else 0.0
            return nn.functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=rate)[:, 0, 0]

    assert "does not take attention of this" in refused(network(Dropping), attention_kernel="flash")


def check_what_a_network_has_nothing_for_is_seen_in_its_steps() -> None:
    """What is said to be idle is what a session with it refuses: a search then need not try it."""
    torch._dynamo.utils.counters.clear()  # of the checks before this one

    def idle(workload: Workload, mode: Mode = Mode.TRAINING, *, steps: int = 1, **settings: Any) -> dict[str, str]:
        with opened(workload, mode, **settings) as session:
            with session.observed() as found:
                for _ in range(steps):
                    session.step()
            return found

    def own_step(inputs: tuple[torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
        return inputs[0].mean() + targets.float().mean()

    flat = network(lambda: nn.Linear(WIDTH, 4))
    images = network(lambda: nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 4, 4), nn.Flatten()))
    asked = {"attention_kernel": "math", "recompute": True, "accumulate": 2, "fused": True, "channels_last": True}
    stepping = network(lambda: nn.Linear(WIDTH, 4), step=own_step)
    workloads = {"flat": flat, "images": images, "blocks": OWN, "step": stepping}
    for name, workload in workloads.items():
        found = idle(workload)
        for setting, value in asked.items():
            if setting in found and (name, setting) != ("step", "attention_kernel"):  # there only steps tell
                assert found[setting] in refused(workload, **{setting: value}), name
            elif setting not in found:
                with opened(workload, **{setting: value}) as session:
                    session.step()
    assert set(idle(flat)) == {"attention_kernel", "channels_last", "conv_search", "recompute"}
    assert set(idle(images)) == {"attention_kernel", "recompute"}
    assert set(idle(OWN, Mode.INFERENCE)) == {"attention_kernel", "channels_last", "conv_search"}
    assert {"fused", "accumulate"} <= set(idle(stepping))
    assert set(idle(GPT)) == {"channels_last", "conv_search"}
    assert "attention_kernel" not in idle(flat, steps=0), "nothing was seen"
    assert idle(flat, compile=True) == {}, "what is compiled must not be traced anew"
    torch._dynamo.utils.counters.clear()
    compiled = network(lambda: torch.compile(nn.Linear(WIDTH, 4), backend="eager"))
    with opened(compiled) as session:
        session.step()
        traced = torch._dynamo.utils.counters["frames"]["total"]
        assert traced
        with session.observed() as found:
            session.step()
        assert set(found) == {"channels_last", "conv_search", "recompute"}, "attention is not looked for"
        assert torch._dynamo.utils.counters["frames"]["total"] == traced


def check_what_excludes_each_other_is_refused() -> None:
    """Both need CUDA, which the limits ask for first: here the rule alone."""
    recipe = Recipe(model=None)
    for mode in ("reduce-overhead", "max-autotune"):
        compiled = {"compile": True, "compile_mode": mode}
        said = refusal(lambda c=compiled: refuse_combinations(plan_of(OWN, graph=True, **c), recipe))
        assert "captures the whole step" in said
        said = refusal(lambda c=compiled: refuse_combinations(plan_of(OWN, accumulate=2, **c), recipe))
        assert "pytorch#169545" in said
    assert "--recompute with --graph" in refusal(
        lambda: refuse_combinations(plan_of(OWN, graph=True, recompute=True), recipe)
    )
    for mode in ("max-autotune-no-cudagraphs", "combo-kernels"):
        refuse_combinations(plan_of(OWN, compile=True, compile_mode=mode, graph=True, accumulate=2), recipe)


def check_cudnn_times_convolutions_only_where_asked() -> None:
    """The switch is the process's own, so each session sets it."""
    torch.backends.cudnn.benchmark = True
    with opened(OWN):
        assert not torch.backends.cudnn.benchmark
    assert "cuDNN is for NVIDIA's GPUs" in refused(OWN, conv_search=True)


NAMES = [name for name in list(globals()) if name.startswith("check_")]


def main(answer: str) -> None:
    results = {}
    for name in NAMES:
        try:
            globals()[name]()
            results[name] = ""
        except BaseException as error:  # noqa: BLE001  a check's failure is the answer
            results[name] = "".join(traceback.format_exception(error))
    Path(answer).write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])

"""PyTorch's trainer: the session that `bench` times, fed by the loop, with its whole state as arrays."""

import warnings
from collections import deque
from typing import Any

import numpy as np
import torch

from metalmark.backends.outputs import call, given_loss, scores, validated
from metalmark.backends.torch import TorchBackend, TorchSession
from metalmark.backends.torch_devices import TorchDevice
from metalmark.backends.torch_world import mean_loss
from metalmark.feeds.leaves import Arrays
from metalmark.feeds.share import share_here
from metalmark.model.nest import map_leaves
from metalmark.model.plan import Plan
from metalmark.model.workload import Workload
from metalmark.training.base import State, optimizer_prefix, with_prefix


class TorchTrainer(TorchSession):
    def __init__(self, plan: Plan, workload: Workload, device: torch.device, kind: TorchDevice) -> None:
        super().__init__(plan, workload, device, kind)
        self._cast, self._share = self._autocast(plan.settings), share_here(plan)
        self._is_captured = plan.settings.graph

    def train_batch(self, arrays: Arrays) -> torch.Tensor:
        if self._share is None:
            loss: torch.Tensor = self._work(self.feeder.place(arrays))
            # A captured step writes each loss to the same place, and losses are read many steps later.
            return loss.clone() if self._is_captured else loss
        part, self._weight = self._share.part(arrays)
        return mean_loss(self._work(self.feeder.place(part)), self._weight)

    def read(self, losses: list[torch.Tensor]) -> list[float]:
        return [float(value) for value in torch.stack(losses).float().cpu().tolist()]

    def evaluate(self, arrays: Arrays) -> tuple[float, Any]:
        batch = self.layout.rebuild(self.feeder.place(arrays))
        self._model.eval()
        try:
            with torch.inference_mode(), self._cast():
                loss, outputs = validated(self.recipe, batch, self._judge)
            return float(loss), map_leaves(_as_float, outputs)
        finally:
            self._model.train()

    def _judge(self, batch: Any) -> tuple[Any, Any]:
        outputs = call(self._model, batch["inputs"])
        return given_loss(self.recipe, outputs, batch["targets"]), scores(outputs)

    def learning_rate(self) -> float:
        return float(self._optimizers[0].param_groups[0]["lr"]) if self._optimizers else 0.0

    def state(self) -> State:
        state = {f"model.{name}": _array(value) for name, value in self._model.state_dict().items()}
        for number, optimizer in enumerate(self._optimizers):
            prefix = optimizer_prefix(number)
            state |= {f"{prefix}{name}": array for name, array in _optimizer_state(optimizer.state_dict()).items()}
        if self._scaler is not None:
            state |= {f"optimizer.scaler.{name}": _array(v) for name, v in self._scaler.state_dict().items()}
        if self._schedule is not None:
            state["optimizer.schedule.steps"] = np.array(self.steps_scheduled)
        state["random.cpu"] = torch.get_rng_state().numpy()
        if self._device.type == "cuda":
            state["random.cuda"] = torch.cuda.get_rng_state(self._device).numpy()
        elif self._device.type == "mps":
            state["random.mps"] = torch.mps.get_rng_state().numpy()
        return state

    def load_state(self, state: State) -> None:
        model = with_prefix("model.", state)
        self._model.load_state_dict({name: torch.from_numpy(array) for name, array in model.items()})
        if self._schedule is not None:
            self._replay_schedule(int(state["optimizer.schedule.steps"]))
        for number, optimizer in enumerate(self._optimizers):
            optimizer.load_state_dict(_loaded(optimizer.state_dict(), with_prefix(optimizer_prefix(number), state)))
        if self._scaler is not None:
            before = self._scaler.state_dict()
            scaler = with_prefix("optimizer.scaler.", state)
            self._scaler.load_state_dict({name: type(before[name])(scaler[name].item()) for name in before})
        torch.set_rng_state(torch.from_numpy(state["random.cpu"]))
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(torch.from_numpy(state["random.cuda"]), self._device)
        elif self._device.type == "mps":
            torch.mps.set_rng_state(torch.from_numpy(state["random.mps"]))

    def _replay_schedule(self, steps: int) -> None:
        """Bring a fresh schedule to where it was: what it holds may be functions, which no file can keep. The rates
        themselves come with the optimiser's state."""
        with warnings.catch_warnings():
            # It warns of schedules that go on before their optimiser does.
            warnings.simplefilter("ignore", UserWarning)
            for _ in range(steps):
                self._schedule.step()
        self.steps_scheduled = steps


class TorchTraining(TorchBackend):
    session = TorchTrainer


def _optimizer_state(saved: dict[str, Any]) -> State:
    state: State = {}
    for number, slots in saved["state"].items():
        for name, value in slots.items():
            if _is_number(value):
                state[f"state.{number}.{name}"] = _array(value)
            elif isinstance(value, (list, deque)) and all(map(_is_number, value)):  # LBFGS keeps a history
                state |= {f"state.{number}.{name}[{place}]": _array(each) for place, each in enumerate(value)}
    for number, group in enumerate(saved["param_groups"]):
        # A schedule may change any of them; the rest of a group says which parameters it has.
        state |= {f"group.{number}.{name}": _array(v) for name, v in group.items() if _is_number(v)}
    return state


def _loaded(saved: dict[str, Any], state: State) -> dict[str, Any]:
    slots: dict[int, dict[str, Any]] = {}
    kept = with_prefix("state.", state)
    # A file gives its names in the order of the alphabet, which puts [10] before [2].
    for name in sorted(kept, key=lambda name: (len(name), name)):
        number, _, slot = name.partition(".")
        mine = slots.setdefault(int(number), {})
        whole, bracket, _ = slot.partition("[")
        if bracket:
            mine.setdefault(whole, []).append(torch.from_numpy(kept[name]))
        else:
            mine[slot] = torch.from_numpy(kept[name])
    saved["state"] = slots
    for name, array in with_prefix("group.", state).items():
        number, _, key = name.partition(".")
        group = saved["param_groups"][int(number)]
        group[key] = type(group[key])(array.item())
    return saved


def _as_float(tensor: torch.Tensor) -> np.ndarray:
    return np.asarray(tensor.float().cpu().numpy())


def _is_number(value: object) -> bool:
    return isinstance(value, (torch.Tensor, bool, int, float))


def _array(value: Any) -> np.ndarray:
    # A copy: PyTorch's arrays share the memory that the next step writes to.
    return np.array(value.detach().cpu().numpy()) if isinstance(value, torch.Tensor) else np.array(value)


TRAINING = TorchTraining()

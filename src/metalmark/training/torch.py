"""PyTorch's trainer: the session that `bench` times, fed by the loop, with its whole state as arrays."""

from typing import Any

import numpy as np
import torch

from metalmark.backends.torch import TorchBackend, TorchSession, logits_of
from metalmark.backends.torch_devices import TorchDevice
from metalmark.feeds.source import Arrays
from metalmark.model.plan import Plan
from metalmark.model.workload import Workload
from metalmark.training.base import State, with_prefix


class TorchTrainer(TorchSession):
    def __init__(self, plan: Plan, workload: Workload, device: torch.device, kind: TorchDevice) -> None:
        super().__init__(plan, workload, device, kind)
        self._cast = self._autocast(plan.settings)

    def train_batch(self, arrays: Arrays) -> torch.Tensor:
        return self._work(*self.feeder.place(arrays))

    def read(self, losses: list[torch.Tensor]) -> list[float]:
        return [float(value) for value in torch.stack(losses).float().cpu().tolist()]

    def evaluate(self, arrays: Arrays) -> tuple[float, np.ndarray]:
        inputs, targets = self.feeder.place(arrays)
        self._model.eval()
        try:
            with torch.inference_mode(), self._cast():
                outputs = logits_of(self._model(*inputs))
                loss = self.recipe.loss(outputs, targets)
            return float(loss.float().cpu()), outputs.float().cpu().numpy()
        finally:
            self._model.train()

    def learning_rate(self) -> float:
        assert self._optimizer is not None
        return float(self._optimizer.param_groups[0]["lr"])

    def state(self) -> State:
        assert self._optimizer is not None
        state = {f"model.{name}": _array(value) for name, value in self._model.state_dict().items()}
        saved = self._optimizer.state_dict()
        for number, slots in saved["state"].items():
            state |= {f"optimizer.state.{number}.{name}": _array(v) for name, v in slots.items() if _is_number(v)}
        for number, group in enumerate(saved["param_groups"]):
            # A schedule may change any of them; the rest of a group says which parameters it has.
            state |= {f"optimizer.group.{number}.{name}": _array(v) for name, v in group.items() if _is_number(v)}
        if self._scaler is not None:
            state |= {f"optimizer.scaler.{name}": _array(v) for name, v in self._scaler.state_dict().items()}
        state["random.cpu"] = torch.get_rng_state().numpy()
        if self._device.type == "cuda":
            state["random.cuda"] = torch.cuda.get_rng_state(self._device).numpy()
        elif self._device.type == "mps":
            state["random.mps"] = torch.mps.get_rng_state().numpy()
        return state

    def load_state(self, state: State) -> None:
        assert self._optimizer is not None
        model = with_prefix("model.", state)
        self._model.load_state_dict({name: torch.from_numpy(array) for name, array in model.items()})
        saved = self._optimizer.state_dict()
        slots: dict[int, dict[str, Any]] = {}
        for name, array in with_prefix("optimizer.state.", state).items():
            number, _, slot = name.partition(".")
            slots.setdefault(int(number), {})[slot] = torch.from_numpy(array)
        saved["state"] = slots
        for name, array in with_prefix("optimizer.group.", state).items():
            number, _, key = name.partition(".")
            group = saved["param_groups"][int(number)]
            group[key] = type(group[key])(array.item())
        self._optimizer.load_state_dict(saved)
        if self._scaler is not None:
            before = self._scaler.state_dict()
            scaler = with_prefix("optimizer.scaler.", state)
            self._scaler.load_state_dict({name: type(before[name])(scaler[name].item()) for name in before})
        torch.set_rng_state(torch.from_numpy(state["random.cpu"]))
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(torch.from_numpy(state["random.cuda"]), self._device)
        elif self._device.type == "mps":
            torch.mps.set_rng_state(torch.from_numpy(state["random.mps"]))


class TorchTraining(TorchBackend):
    session = TorchTrainer


def _is_number(value: object) -> bool:
    return isinstance(value, (torch.Tensor, bool, int, float))


def _array(value: Any) -> np.ndarray:
    # A copy: PyTorch's arrays share the memory that the next step writes to.
    return np.array(value.detach().cpu().numpy()) if isinstance(value, torch.Tensor) else np.array(value)


TRAINING = TorchTraining()

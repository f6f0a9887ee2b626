"""All trained weights of a PyTorch model as one array: one kernel casts them and one updates them, however many layers
there are."""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.func import functional_call

CAST_BY_AUTOCAST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
ALIGNED = 16
"""A multiple of so many numbers keeps what comes after it where matrix units want it."""
CHANNELS_LAST, CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


class Piece(NamedTuple):
    """A weight's part of the array."""

    name: str
    size: int
    shape: tuple[int, ...]

    @property
    def is_image_kernel(self) -> bool:
        """Whether it lies in the array with its channels last."""
        return len(self.shape) == 4

    def flattened(self, weight: torch.Tensor) -> torch.Tensor:
        return (weight.permute(CHANNELS_LAST) if self.is_image_kernel else weight).reshape(-1)

    def shaped(self, part: torch.Tensor) -> torch.Tensor:
        if not self.is_image_kernel:
            return part.view(self.shape)
        return part.view([self.shape[axis] for axis in CHANNELS_LAST]).permute(CHANNELS_FIRST)


class FlatModel(nn.Module):  # type: ignore[misc]
    """A model that computes with parts of the one parameter `whole`, so that its gradient arrives as one array too.

    The model's own parameters are where it began, and nothing trains them. For optimisers that update each number by
    itself, as Adam and SGD do.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model
        named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        cast = cast_by_autocast(model)
        # What is cast comes first, so that it is one stretch; then what would leave the next part misaligned.
        names = sorted(named, key=lambda name: (id(named[name]) not in cast, named[name].numel() % ALIGNED != 0))
        self._pieces = [Piece(name, named[name].numel(), tuple(named[name].shape)) for name in names]
        self._cast = sum(id(weight) in cast for weight in named.values())
        self.whole = nn.Parameter(torch.cat([piece.flattened(named[piece.name].detach()) for piece in self._pieces]))
        for weight in named.values():
            weight.requires_grad_(False)

    def forward(self, *args: Any, **options: Any) -> Any:
        return functional_call(self.inner, self.weights(), args, options)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return each weight by its name, in the dtype in which a layer would take it."""
        device = self.whole.device.type
        if not self._cast or not torch.is_autocast_enabled(device):
            return shaped(self._pieces, self.whole)
        cast, kept = self._pieces[: self._cast], self._pieces[self._cast :]
        half, rest = self.whole.split([sum(piece.size for piece in part) for part in (cast, kept)])
        return {**shaped(cast, half.to(torch.get_autocast_dtype(device))), **shaped(kept, rest)}


def cast_by_autocast(model: nn.Module) -> set[int]:
    """Return the ids of the weights that autocast casts in every step: those of layers that it casts, and no others."""
    owners: dict[int, list[bool]] = {}
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            owners.setdefault(id(weight), []).append(isinstance(module, CAST_BY_AUTOCAST))
    return {each for each, is_cast in owners.items() if all(is_cast)}


def shaped(pieces: list[Piece], flat: torch.Tensor) -> dict[str, torch.Tensor]:
    # One split instead of a slice for each: its gradient is one array, put together at once.
    parts = flat.split([piece.size for piece in pieces])
    return {piece.name: piece.shaped(part) for piece, part in zip(pieces, parts, strict=True)}

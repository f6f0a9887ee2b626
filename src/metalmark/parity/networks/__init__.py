"""A network as calls of its framework's constructors: one file per framework that can describe its networks."""

from msgspec import Struct

from metalmark.model.parity import Quantity
from metalmark.model.plan import Plan


class PartJob(Struct, frozen=True, kw_only=True):
    """What a worker is asked about a network, and for which difference."""

    plan: Plan
    paths: dict[str, str]
    quantity: Quantity
    name: str


class TensorPart(Struct, frozen=True, kw_only=True):
    shape: tuple[int, ...]
    dtype: str
    high: int = 0
    """Of integers: one more than the largest."""
    needs_gradient: bool = False

    @property
    def is_floating(self) -> bool:
        return "float" in self.dtype


class LayerPart(Struct, frozen=True, kw_only=True):
    name: str
    text: str
    """The call that makes it: "nn.Linear(in_features=4, out_features=2, bias=True)"."""
    given: TensorPart | None = None
    """Its input; None where it is not one tensor."""
    rate: float | None = None
    """The share that a dropout layer drops."""


class ParameterPart(Struct, frozen=True, kw_only=True):
    shape: tuple[int, ...]
    size: float
    """Root mean square of its values at the start."""
    gradient_size: float
    optimizer: str
    """The call that makes the optimiser of `parameter`: "torch.optim.SGD([parameter], lr=0.1)"."""


class NetworkParts(Struct, frozen=True, kw_only=True, tag="parts"):
    """A network as calls of its framework's constructors."""

    version: str
    chain: tuple[LayerPart, ...] = ()
    """Its layers, where it is a plain sequence of the framework's own; else nothing."""
    failing: LayerPart | None = None
    """The layer that differs by itself, where it is one of the framework's own."""
    loss: str = ""
    targets: TensorPart | None = None
    outputs: TensorPart | None = None
    """What the loss is computed of; None where it is not one tensor."""
    parameter: ParameterPart | None = None
    compile: str = ""
    """The arguments of the compiler."""

    @property
    def layer_alone(self) -> LayerPart | None:
        """Return the layer that differs, where it can be called by itself."""
        return self.failing if self.failing is not None and self.failing.given is not None else None

"""Scripts that show a difference with a framework alone: one file per framework, which writes what such a script does.

No framework is imported.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from metalmark.model.parity import Compared, Quantity
from metalmark.model.plan import Plan
from metalmark.parity.networks import LayerPart, NetworkParts, ParameterPart

FEW_LAYERS, WIDTH = 6, 110
"""Up to so many layers have a line each; more share lines of this width."""
REPEATS = 5000
IN_EVALUATION = (Quantity.EVAL_OUTPUT, Quantity.PREDICTION)
OF_OUTPUTS = (*IN_EVALUATION, Quantity.TRAIN_OUTPUT)
FORWARD_ONLY = (*OF_OUTPUTS, Quantity.STATISTIC)


class Setting(Struct, frozen=True, kw_only=True):
    """The two sides of a script."""

    plan: Plan
    reference_device: str
    device: str
    suspect: Compared


class ScriptWriter(Protocol):
    """Writes the parts of a script in one framework's words. Each body defines `measure(device, as_checked)`, which
    returns arrays by their names."""

    title: str
    """What the framework is called."""
    identity: str
    """The call that makes a layer that does nothing."""
    total: str
    """The sum of all |values| of `each[name]`."""
    difference: str
    """The relative difference of `found` from `wanted`."""
    ending: str
    """Ends the script with an exit code of `int(differs)`."""

    def imports(self, setting: Setting, body: str) -> str: ...

    def device(self, placed_on: str) -> str:
        """Return the expression that `measure` is given for a device."""

    def dropout_body(self, layer: LayerPart) -> str: ...

    def repeating_body(self, setting: Setting, layer: LayerPart) -> str: ...

    def optimizer_body(self, part: ParameterPart) -> str: ...

    def network_body(self, setting: Setting, parts: NetworkParts, layers: Sequence[LayerPart], loss: str) -> str: ...


def where(true: bool, *lines: str) -> tuple[str, ...]:
    return lines if true else ()


def packed(calls: Sequence[str], few: int = FEW_LAYERS) -> list[str]:
    """Return the lines of a long call: one per layer, or as many in each as fit where there are many."""
    if len(calls) <= few:
        return [f"        {call}," for call in calls]
    lines = [""]
    for call in calls:
        if lines[-1] and len(lines[-1]) + len(call) > WIDTH:
            lines.append("")
        lines[-1] += f" {call}," if lines[-1] else f"        {call},"
    return lines

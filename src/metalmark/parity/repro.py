"""A script that shows a difference with the framework alone: its text, and a process that tries it out.

`python -m metalmark.parity.repro SCRIPT ANSWER` runs a script in a Python of its own and writes whether it shows it.
"""

import math
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from metalmark.machine.durable import write_struct
from metalmark.model.parity import Compared, Quantity
from metalmark.model.plan import Dtype
from metalmark.parity.networks import LayerPart, NetworkParts
from metalmark.parity.scripts import OF_OUTPUTS, WIDTH, ScriptWriter, Setting
from metalmark.parity.scripts.in_keras import KerasWriter
from metalmark.parity.scripts.in_mlx import MlxWriter
from metalmark.parity.scripts.in_torch import TorchWriter
from metalmark.runner.ask import NoAnswer, how_it_ended
from metalmark.scrub import scrub

MOST_LINES = 60
LEAST_TOLERANCE = {Dtype.FLOAT32: 1e-5, Dtype.TF32: 5e-3, Dtype.BFLOAT16: 1e-1, Dtype.FLOAT16: 1e-2}
"""What a script allows at least: its random inputs are not those that the noise was measured with. The gradient of a
rectified layer was seen 6% off in bfloat16 without a fault: rounding switches units on and off."""
OF_PARAMETERS = (Quantity.GRADIENT, Quantity.UPDATE)
LAYER_ALONE = "the layer alone"
DROPOUT_SIGMAS = 6.0
DIFFERS, AGREES = "They differ.", "They do not differ."
"""What scripts print last. Nothing else tells for sure how they ended: a device's driver may crash at the exit."""
WRITERS: dict[str, ScriptWriter] = {
    "torch": TorchWriter(),
    "tensorflow": KerasWriter("tensorflow"),
    "jax": KerasWriter("jax"),
    "mlx": MlxWriter(),
}


class Shown(Struct, frozen=True, kw_only=True, tag="shown"):
    """What a script came to that ran to its end."""

    differs: bool


class Script(Struct, frozen=True, kw_only=True):
    what: str
    """Which part of the network it has."""
    text: str


def scripts(setting: Setting, parts: NetworkParts, until: str) -> Iterator[Script]:
    """Yield scripts that could show the difference, the shortest network first. `until`: the last layer of the
    shortest compiled part that differs."""
    quantity, layer = setting.suspect.quantity, parts.layer_alone
    writer = WRITERS[setting.plan.framework]
    if quantity is Quantity.OPTIMIZER:
        if parts.parameter is not None:
            yield _script(setting, parts, "the optimiser alone", writer.optimizer_body(parts.parameter), "change")
    elif quantity is Quantity.DROPOUT:
        if layer is not None and layer.rate:
            yield _script(setting, parts, LAYER_ALONE, writer.dropout_body(layer), "share dropped")
    elif quantity is Quantity.REPEAT:
        if layer is not None:
            same = replace(setting, reference_device=setting.device)
            yield _script(same, parts, LAYER_ALONE, writer.repeating_body(setting, layer), "outputs")
    else:
        yield from _network_scripts(setting, parts, until)


def _network_scripts(setting: Setting, parts: NetworkParts, until: str) -> Iterator[Script]:
    tried: set[str] = set()
    writer = WRITERS[setting.plan.framework]
    for what, layers, loss in _networks(parts, until, writer.identity):
        name = _judged(setting.suspect, layers, parts.failing, alone=len(layers) == 1, loss=bool(loss))
        if name:
            script = _script(setting, parts, what, writer.network_body(setting, parts, layers, loss), name)
            if script.text not in tried and script.text.count("\n") < MOST_LINES:
                tried.add(script.text)
                yield script


def _networks(parts: NetworkParts, until: str, identity: str) -> Iterator[tuple[str, Sequence[LayerPart], str]]:
    """Yield what each network is, its layers and its loss."""
    if parts.layer_alone is not None:
        yield LAYER_ALONE, (parts.layer_alone,), ""
    if parts.loss and parts.outputs is not None:
        outputs = replace(parts.outputs, needs_gradient=True)
        yield "the loss alone", (LayerPart(name="", text=identity, given=outputs),), parts.loss
    if not parts.chain or parts.chain[0].given is None:
        return
    names = [layer.name for layer in parts.chain]
    ends = [names.index(name) for name in (until, parts.failing.name if parts.failing else "") if name in names]
    if ends:
        yield "the layers up to the one that differs", parts.chain[: max(ends) + 1], ""
    yield "the layers", parts.chain, ""
    if parts.loss:
        yield "the whole network with its loss", parts.chain, parts.loss


def _judged(
    suspect: Compared, layers: Sequence[LayerPart], failing: LayerPart | None, *, alone: bool, loss: bool
) -> str:
    """Return the array of the script that decides; empty where this script has none such."""
    if suspect.quantity is Quantity.LOSS:
        return "loss" if loss else ""
    if suspect.quantity in OF_OUTPUTS:
        return "" if loss else "outputs"
    if failing is None or suspect.quantity in (Quantity.CURVE, Quantity.ACCURACY):
        return ""
    slot = suspect.name.removeprefix(failing.name)[1:]
    numbers = [number for number, layer in enumerate(layers) if layer.name == failing.name]
    if not numbers:
        return ""
    name = slot if alone else f"{numbers[0]}.{slot}"
    return f"gradient of {name}" if suspect.quantity in OF_PARAMETERS else name


def _script(setting: Setting, parts: NetworkParts, what: str, body: str, judged: str) -> Script:
    head = "\n".join(textwrap.wrap(_headline(setting, parts), WIDTH))
    writer = WRITERS[setting.plan.framework]
    blank = "\n\n" if body.startswith("def ") else ""
    there, here = writer.device(setting.reference_device), writer.device(setting.device)
    text = f'''"""{head}

Written by `metalmark parity`. The exit code is 1 where the two differ by more than the tolerance, else 0.
"""

{writer.imports(setting, body)}

TOLERANCE = {_tolerance(setting, parts):.2g}  # root mean square of the differences, relative to that of the reference
{blank}{body}

reference, checked = measure({there}, as_checked=False), measure({here}, as_checked=True)
for name in reference:
    sums = [float({writer.total}) for each in (reference, checked)]
    print(f"{{name}}: the sum of all |values| is {{sums[0]:.6g}} on the reference, {{sums[1]:.6g}} as checked")
wanted, found = reference["{judged}"], checked["{judged}"]
difference = float({writer.difference})
print(f"{judged}: the relative difference is {{difference:.3g}}, the tolerance is {{TOLERANCE}}")
differs = not difference <= TOLERANCE
print("{DIFFERS}" if differs else "{AGREES}", flush=True)
{writer.ending}
'''
    return Script(what=what, text=text)


def _headline(setting: Setting, parts: NetworkParts) -> str:
    """Say in one sentence what a script shows."""
    suspect = setting.suspect
    of = f" of {suspect.name}" if suspect.name else ""
    settings = ", ".join(f"{name} {value}" for name, value in setting.plan.settings.changed().items())
    title = WRITERS[setting.plan.framework].title
    where = f"{title} {parts.version} on {setting.device}{f' ({settings})' if settings else ''}"
    if suspect.quantity is Quantity.REPEAT:
        return (
            f"{where}: the same weights and inputs do not give the same output each time{of and f' (layer{of[3:]})'}."
        )
    return (
        f"{where}: the {suspect.quantity}{of} differs from that on {setting.reference_device} (float32, not compiled)."
    )


def _tolerance(setting: Setting, parts: NetworkParts) -> float:
    suspect, layer = setting.suspect, parts.layer_alone
    if suspect.quantity is Quantity.DROPOUT and layer is not None and layer.given is not None and layer.rate:
        return DROPOUT_SIGMAS * math.sqrt(2 * (1 - layer.rate) / (layer.rate * max(1, math.prod(layer.given.shape))))
    dtype = Dtype.FLOAT32 if suspect.quantity is Quantity.OPTIMIZER else setting.plan.settings.dtype
    # What differs is outside of the noise by definition: a tolerance above half of it would hide it.
    measured = min(suspect.limit * suspect.sigma, (suspect.distance or math.inf) / 2)
    return max(LEAST_TOLERANCE[dtype], measured)


def main(script: str, answer: str) -> None:
    done = subprocess.run(
        [sys.executable, script], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    found: Struct
    if done.stdout.endswith((f"{DIFFERS}\n", f"{AGREES}\n")):
        found = Shown(differs=done.stdout.endswith(f"{DIFFERS}\n"))
    else:
        said = scrub(done.stderr[-4000:]).strip()
        found = NoAnswer(reason=said.splitlines()[-1] if said else how_it_ended(done.returncode), detail=said)
    write_struct(Path(answer), found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

"""What a model takes and returns: how its inputs are given to it, and where in its outputs the loss and the scores are.

No framework is imported.
"""

from collections.abc import Callable, Mapping
from typing import Any

from metalmark.errors import UnsupportedError
from metalmark.model.nest import flatten, is_number
from metalmark.model.workload import Recipe

GIVE_A_LOSS = "Give Recipe(loss=...), or let the model return its loss: alone, as `.loss`, or in a dict as 'loss'."

NOTHING_TO_VALIDATE = "The recipe has a step of its own and nothing to validate with."
GIVE_VALIDATE = "Give Recipe(validate=function) beside `step`: validate(inputs, targets) returns a loss."


def call(model: Any, inputs: Any) -> Any:
    """Call a PyTorch or MLX model: a dict of inputs by name, a tuple or list by position."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def scores(outputs: Any) -> Any:
    """Return what a loss function compares with the targets: models of transformers return an object that has it."""
    found = getattr(outputs, "logits", None)
    return outputs if found is None else found


def own_loss(outputs: Any) -> Any:
    """Return the loss that a model computed itself."""
    found = outputs if is_number(outputs) else getattr(outputs, "loss", None)
    if found is None and isinstance(outputs, Mapping):
        found = outputs.get("loss")
    if found is None and isinstance(outputs, (tuple, list)):
        numbers = [part for part in outputs if is_number(part)]
        found = numbers[0] if len(numbers) == 1 else None
    if found is None:
        raise UnsupportedError(
            f"The recipe has no loss, and the model returns none: it returns {shown(outputs)}.", hint=GIVE_A_LOSS
        )
    return found


def total(losses: Any) -> Any:
    """Return the loss of a user's own step: what it returned, or the sum of its dict."""
    if not isinstance(losses, Mapping):
        return losses
    first, *others = losses.values()
    return sum(others, first)


def require_number(loss: Any) -> None:
    if not is_number(loss):
        raise UnsupportedError(
            f"The loss is {shown(loss)}, not one number.",
            hint="Take its mean: loss(...).mean(), or the loss function's reduction='mean'.",
        )


def shown(outputs: Any) -> str:
    """Describe outputs for a message: "a tuple of float32 (32, 5), float32 (32,)"."""
    if outputs is None:
        return "None"
    leaves, _ = flatten(outputs)
    parts = [f"{getattr(leaf, 'dtype', type(leaf).__name__)} {tuple(getattr(leaf, 'shape', ()))}" for leaf in leaves]
    if len(leaves) == 1 and leaves[0] is outputs:
        return f"an array of {parts[0]}" if hasattr(outputs, "shape") else f"a {type(outputs).__name__}"
    return f"a {type(outputs).__name__} of {', '.join(parts)}"


def validated(recipe: Recipe, batch: Mapping[str, Any], judge: Callable[[Mapping[str, Any]], tuple[Any, Any]]) -> Any:
    """Return the loss of a batch that is not trained on, and the outputs: None where only `validate` knows them.
    `judge(batch)` gives both by the recipe's model and loss."""
    if recipe.validate is not None:
        return total(recipe.validate(**batch)), None
    if recipe.step is not None and recipe.loss is None:
        raise UnsupportedError(NOTHING_TO_VALIDATE, hint=GIVE_VALIDATE)
    return judge(batch)


def given_loss(recipe: Recipe, outputs: Any, targets: Any) -> Any:
    """Return the loss of a PyTorch or MLX model: by the recipe's function, or the model's own."""
    return own_loss(outputs) if recipe.loss is None else recipe.loss(scores(outputs), targets)

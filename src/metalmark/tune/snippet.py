"""The settings of a change as Python source for a user's own loop: one template per framework, no import of Metalmark.

A template is the source with every setting in it, and marks that say when a part of it is kept:

    optimizer.step()  #? -float16                a line, kept unless the dtype is float16
    #? training graph                            the lines until `#? end`, kept for a training step that is captured
    make_step(model{?fused:, fused=True})        a part of a line, kept where the optimiser is fused
    torch.set_num_threads({threads})             a value
    #= contexts torch.autocast("{device}")       what the value {contexts} is from here on

All words of a mark must hold; `a|b` holds where one of them does, and `-a` where `a` does not.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from metalmark.backends.environment import python_lines
from metalmark.explain.instructions import device_type
from metalmark.model.plan import DeviceKind, Dtype, Loader, Plan, PlanChange, word

ENDING = ".py.txt"
HALF = (Dtype.BFLOAT16, Dtype.FLOAT16)
PLAIN = {"dtype": ("float32",), "accumulate": ("1",), "compile_mode": ("default",)}
"""Values of settings that do nothing to a plain loop, besides off and empty ones."""

NAMED = ("dtype", "attention_kernel", "compile_mode")
"""Settings whose values a mark may name."""

NOTES = """\
# Not written for this framework: {other}.  #? other
# As in a plain loop: {off}.  #? off
# The baseline had {inherited} already, which is not part of this text.  #? inherited
# Also changed, in the workload itself: {params}.  #? params
#? ratio
# The learning rate belongs to batches of {batch_before}: begin with {ratio} times the rate for SGD, {root} times for
# Adam, with a warm-up, and compare the loss on data that was held out.
#? end
"""

_DEFINITION = re.compile(r"#= (\w+) (.*)$")
_MARK = re.compile(r" *#\? ([\w|\- ]+)$")
_PART = re.compile(r"\{\?([\w|\- ]+):([^{}]*)\}")
_VALUE = re.compile(r"\{(\w+)\}")


def snippet(plan: Plan, change: PlanChange, *, placed_on: str) -> str:
    """Return Python source that applies a change to a plain loop: `make_step` for training, `make_infer` for inference.

    `placed_on` is the device as the framework names it. A setting that the framework lacks becomes a comment.
    """
    template = _templates().get(plan.framework)
    if template is None:
        return f"# There is nothing to write for {plan.framework}.\n"
    values = _setting_values(plan, change, template, device_type(placed_on))
    values |= _loader_values(plan, change) | _parameter_values(plan, change)
    text = "\n".join(_kept_lines(template + NOTES, values))
    return re.sub(r"\n{4,}", "\n\n\n", text).strip() + "\n"


@cache
def _templates() -> Mapping[str, str]:
    folder = Path(__file__).with_name("snippets")
    return {path.name.removesuffix(ENDING): path.read_text(encoding="utf-8") for path in folder.glob(f"*{ENDING}")}


def _kept_lines(template: str, values: dict[str, str]) -> Iterator[str]:
    """Yield the lines whose marks hold, filled in. A section may lie in another one."""
    sections = [True]
    for line in template.splitlines():
        if definition := _DEFINITION.match(line):
            values[definition[1]] = _filled(definition[2], values)
            continue
        mark = _MARK.search(line)
        if mark is None or mark.start():
            if sections[-1] and (mark is None or _holds(mark[1], values)):
                yield _filled(line[: mark.start()] if mark else line, values)
        elif mark[1] == "end":
            sections.pop()
        else:
            sections.append(sections[-1] and _holds(mark[1], values))


def _holds(mark: str, values: Mapping[str, str]) -> bool:
    return all(any(_is_set(name, values) for name in names.split("|")) for names in mark.split())


def _is_set(name: str, values: Mapping[str, str]) -> bool:
    return bool(values.get(name.removeprefix("-"))) is not name.startswith("-")


def _filled(line: str, values: Mapping[str, str]) -> str:
    line = _VALUE.sub(lambda found: values.get(found[1], ""), line)
    # A part may lie in another one: the innermost have no braces in them and go first.
    while _PART.search(line):
        line = _PART.sub(lambda found: found[2] if _holds(found[1], values) else "", line)
    return line


def _setting_values(plan: Plan, change: PlanChange, template: str, device: str) -> dict[str, str]:
    """Return what a template may ask for of the settings, by name; what is empty or absent does not hold."""
    changed = {name: word(value) for name, value in change.settings.items()}
    # The mode is an argument of the call that compiles: one can't be written without the other.
    if changed.get("compile_mode") and changed.setdefault("compile", "on") == "off":
        del changed["compile_mode"]
    dtype, on_cuda = changed.get("dtype", ""), device == DeviceKind.CUDA.value
    full_float32 = dtype == Dtype.FLOAT32.value and on_cuda
    off = [name for name, value in changed.items() if value in ("off", "", *PLAIN.get(name, ()))]
    values = {name: value for name, value in changed.items() if name not in off}
    other = [name for name in values if name != "dtype" and not re.search(rf"\b{name}\b", template)]
    inherited = {name: value for name, value in plan.settings.changed().items() if name not in changed}
    if "environment" in values:
        values["environment"] = "\n".join(python_lines(values["environment"]))
    if "graph" in values and not on_cuda:
        values["no_graph"] = values.pop("graph")
    return {
        **values,
        **dict.fromkeys((*(values.get(name, "") for name in NAMED), device, plan.mode.value), "on"),
        "device": device,
        "half": dtype if dtype in HALF else "",
        "full_float32": "on" if full_float32 else "",
        "other": _listed(f"{name} {changed[name]}" for name in other),
        "off": _listed(f"{name} {changed[name] or 'off'}" for name in off if not (full_float32 and name == "dtype")),
        "inherited": _listed(f"{name} {value}" for name, value in inherited.items()),
    }


def _loader_values(plan: Plan, change: PlanChange) -> dict[str, str]:
    values = {change.feed.value: "on"} if change.feed is not None else {}
    if not change.loader:
        return values
    loader = replace(plan.loader or Loader(), **change.loader)
    values |= {name: str(getattr(loader, name) or "") for name in ("workers", "prefetch", "start_method")}
    values |= {name: "on" if getattr(loader, name) else "" for name in ("pin", "persistent")}
    return {**values, "loader": "on"}


def _parameter_values(plan: Plan, change: PlanChange) -> dict[str, str]:
    size, size_before = change.params.get("batch_size"), plan.params.get("batch_size")
    others = [f"{name} {word(value)}" for name, value in change.params.items() if name != "batch_size"]
    values = {"batch_size": word(size), "params": _listed(others)}
    if isinstance(size, int) and isinstance(size_before, int):
        ratio = size / size_before
        values |= {"batch_before": word(size_before), "ratio": f"{ratio:.3g}", "root": f"{ratio**0.5:.3g}"}
    return values


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)

"""What machines are called where there are several of them."""

from collections.abc import Iterable

from metalmark.model.run import Machine


def short_title(machine: Machine) -> str:
    """Return what tells machines apart at a glance: the GPU of a machine with one of its own, else the chip."""
    names = [gpu.name for gpu in machine.gpus if gpu.name != machine.chip]
    return names[0] if names else machine.chip


def machine_title(machine: Machine) -> str:
    """Return what kind of machine it is: two with the same title may stand in for each other."""
    gpus = [gpu.name for gpu in machine.gpus if gpu.name != machine.chip]
    counts = [f"{gpus.count(name)} x {name}" if gpus.count(name) > 1 else name for name in dict.fromkeys(gpus)]
    chip = f"{machine.chip} ({machine.variant})" if machine.variant else machine.chip
    return ", ".join([chip, *counts, f"{machine.memory_bytes / 2**30:.0f} GiB", machine.os])


def titles_apart(machines: Iterable[Machine]) -> dict[str, str]:
    """Return for each kind of machine the shortest title that no other kind among these has."""
    kinds = {machine_title(machine): short_title(machine) for machine in machines}
    short = list(kinds.values())
    return {kind: title if short.count(title) == 1 else kind for kind, title in kinds.items()}

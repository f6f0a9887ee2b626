"""Abilities: which nodes can run which plans, by what each node said of its frameworks and devices."""

from collections.abc import Sequence

import msgspec

from metalmark.backends.catalog import FRAMEWORKS
from metalmark.cluster.engine import ClusterNode
from metalmark.model.plan import Plan
from metalmark.results.machine_titles import machine_title
from metalmark.runner.probing import absence


class Abilities:
    """Which nodes can run which plans. Nodes that have the same are asked once, so that thousands cost nothing."""

    def __init__(self, nodes: Sequence[ClusterNode]) -> None:
        self._profiles: dict[bytes, ClusterNode] = {}
        for node in nodes:
            self._profiles.setdefault(_profile(node), node)
        self.titles = {machine_title(node.machine) for node in nodes}
        self._why_not: dict[tuple[bytes, bytes], str | None] = {}
        self._plans: dict[bytes, Plan] = {}
        self._numbers: dict[frozenset[bytes], int] = {}

    def why_not(self, plan: Plan, node: ClusterNode) -> str | None:
        """Return why a node can't run a plan, or None where it can."""
        key = _plan_key(plan), _profile(node)
        if key not in self._why_not:
            self._why_not[key] = _why_not(plan, node)
        return self._why_not[key]

    def reasons(self, plan: Plan) -> str:
        every = dict.fromkeys(self.why_not(plan, node) or "" for node in self._profiles.values())
        return " ".join(filter(None, every))

    def number(self, plan: Plan) -> int:
        """Return a number that plans share which the same nodes can run."""
        can = frozenset(key for key, node in self._profiles.items() if self.why_not(plan, node) is None)
        self._plans.setdefault(_plan_key(plan), plan)
        return self._numbers.setdefault(can, len(self._numbers))

    def of(self, node: ClusterNode) -> frozenset[int]:
        """Return the numbers of what a node can run, also of one that has joined since."""
        profile = _profile(node)
        if profile not in self._profiles:
            able = {_plan_key(plan) for plan in self._plans.values() if self.why_not(plan, node) is None}
            by_number: dict[int, set[bytes]] = {}
            for plan in self._plans.values():
                by_number.setdefault(self.number(plan), set()).add(_plan_key(plan))
            return frozenset(number for number, keys in by_number.items() if keys <= able)
        return frozenset(number for can, number in self._numbers.items() if profile in can)


def installed_on(node: ClusterNode) -> tuple[str, ...]:
    assert node.seen is not None
    return node.seen.installed


def _why_not(plan: Plan, node: ClusterNode) -> str | None:
    if plan.framework not in installed_on(node):
        return f"{node.title}: {FRAMEWORKS[plan.framework].title} is not installed."
    assert node.seen is not None
    failed = absence(plan, node.seen.probes.get(plan.framework))
    return None if failed is None else f"{node.title}: {failed.message}"


def _profile(node: ClusterNode) -> bytes:
    assert node.seen is not None
    return msgspec.json.encode([node.seen.installed, node.seen.probes], order="deterministic")


def _plan_key(plan: Plan) -> bytes:
    return msgspec.json.encode([plan.framework, plan.device, plan.settings, plan.loader])

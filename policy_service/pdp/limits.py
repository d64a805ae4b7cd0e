"""The limit that the rules set on a meter, where their text alone shows it.

Only a forbid with a single meaning counts: open to every principal and resource, with one condition. That condition
compares a meter, or a meter plus what the effect adds, with a number written in the policy. Any other policy has no
limit that a bar could show.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from cedarpy import policies_to_json_str

from policy_service.pdp.rules import PolicySource

_MIRRORED: Final = {"<": ">", "<=": ">="}
_MAX_CHARS: Final = 4_000  # a longer policy is no plain limit


@dataclass(frozen=True, slots=True)
class MeterLimit:
    """A policy that forbids, or asks, as soon as the total would be above ``total``."""

    total: int
    source: PolicySource

    @property
    def asks(self) -> bool:
        """Whether people may still release it."""
        return self.source.gate is not None


def find_limit(
    policies: Iterable[PolicySource],
    *,
    meter: str,
    field: tuple[str, ...],
    action: str,
    groups: frozenset[str],
) -> MeterLimit | None:
    """The lowest limit on a meter for calls of one tool; one that forbids comes before any that asks.

    ``field`` names the member of ``context.input`` the meter sums. An empty field counts calls.
    """
    reachable = {action, *groups}
    found = [
        MeterLimit(total, policy)
        for policy in policies
        if policy.effect == "forbid" and f".{meter}" in policy.text and len(policy.text) <= _MAX_CHARS
        if (total := _total(_tree(policy.text), meter, field, reachable)) is not None
    ]
    return min(found, key=lambda one: (one.asks, one.total), default=None)


@lru_cache(maxsize=1_024)
def _tree(text: str) -> Mapping[str, Any] | None:
    try:
        (tree,) = json.loads(policies_to_json_str(text))["staticPolicies"].values()
    except (ValueError, RecursionError):
        return None  # nested too deep for the engine's JSON
    return dict(tree)


def _total(
    tree: Mapping[str, Any] | None, meter: str, field: tuple[str, ...], reachable: set[str]
) -> int | None:
    if tree is None or tree["principal"] != {"op": "All"} or tree["resource"] != {"op": "All"}:
        return None
    if not _is_about(tree["action"], reachable):
        return None
    match tree["conditions"]:
        case [{"kind": "when", "body": {**body}}] if len(body) == 1:
            ((operator, sides),) = body.items()
        case _:
            return None
    if not isinstance(sides, dict) or sides.keys() != {"left", "right"}:
        return None
    left, right = sides["left"], sides["right"]
    if operator in _MIRRORED:
        operator, left, right = _MIRRORED[operator], right, left
    number = right.get("Value") if operator in (">", ">=") else None
    if type(number) is not int:
        return None
    highest = number if operator == ">" else number - 1  # that the left side may be
    return _with_it(left, highest, meter, field)


def _with_it(left: Any, highest: int, meter: str, field: tuple[str, ...]) -> int | None:
    """The total with the effect, where the left side is that, or is the count before it."""
    before = _path("history", meter)
    this = _path("input", *field) if field else {"Value": 1}
    if left in ({"+": {"left": before, "right": this}}, {"+": {"left": this, "right": before}}):
        return highest
    return highest + 1 if left == before and not field else None


def _path(*names: str) -> dict[str, Any]:
    found: dict[str, Any] = {"Var": "context"}
    for name in names:
        found = {".": {"left": found, "attr": name}}
    return found


def _is_about(scope: Mapping[str, Any], reachable: set[str]) -> bool:
    if scope["op"] == "All":
        return True
    named = scope.get("entities") or [scope["entity"]]
    return any(entity["id"] in reachable for entity in named)

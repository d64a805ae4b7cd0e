"""In what an answer differs from what the author expects, in words.

Rules kept here: only what was written is compared, and that exactly (`policies` alone is a part of them); a policy that
could not be evaluated never counts as one that forbade.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from countersign.contract import DenyCode
from policy_service.domain.decision import Decision
from policy_service.domain.gates import MergedGate, is_stronger, merge
from policy_service.pap.cases.case import Asked, Expected, PeopleCase
from policy_service.pdp.approve import Permission


def decision_differences(expected: Expected, decision: Decision) -> Iterator[str]:
    """Each thing that is not as expected; nothing when the case holds."""
    merged = merge(decision.gates)
    found: dict[str, Any] = {
        "expect": decision.outcome.value,
        "gates": frozenset(gate.policy_id for gate in decision.gates),
        "reasons": _reasons(decision),
        "errors": _erring(decision),
        "step_up": _strongest(merged),
        "valid_for": decision.valid_for,
        "answer_within": min((gate.answer_within for gate in merged), default=None),
    }
    wanted: dict[str, Any] = {
        "expect": expected.outcome,
        "gates": expected.gates,
        "reasons": expected.reasons,
        "errors": expected.errors,
        "step_up": expected.step_up,
        "valid_for": expected.valid_for,
        "answer_within": expected.answer_within,
    }
    for name, value in wanted.items():
        if value is not None and found[name] != value:
            yield f"{name}: found {shown(found[name])}, expected {shown(value)}{_why(name, decision)}"
    yield from _need_differences(expected, merged)
    if missing := expected.policies.difference(determining(decision)):
        yield f"policies: found {shown(determining(decision))}, expected also {shown(missing)}"


def permission_differences(case: PeopleCase, permission: Permission) -> Iterator[str]:
    """The same for one about people."""
    words = {True: "allowed", False: "refused"}
    if permission.alarms:
        yield f"the rules could not be evaluated: {'; '.join(permission.alarms)}"
    elif permission.granted is not case.allowed:
        by = f" by {shown(permission.policies)}" if permission.policies else ""
        yield f"expect: found {words[permission.granted]}{by}, expected {words[case.allowed]}"
    if missing := case.policies.difference(permission.policies):
        yield f"policies: found {shown(permission.policies)}, expected also {shown(missing)}"


def determining(decision: Decision) -> frozenset[str]:
    """The policies that made it so: permits and gates, forbids, or those that erred."""
    return frozenset(decision.policies) | _erring(decision)


def shown(value: Any) -> str:
    """A value as it would be written in the file."""
    if value is None:
        return "nothing"
    if isinstance(value, frozenset | tuple | list):
        return f"[{', '.join(sorted(value))}]"
    return str(value)


def _reasons(decision: Decision) -> frozenset[str]:
    # An erring policy is told by its code, never by its id: it would look like one that forbade.
    error = DenyCode.POLICY_ERROR.value
    return frozenset(
        reason.code if reason.code == error else reason.policy or reason.code for reason in decision.reasons
    )


def _erring(decision: Decision) -> frozenset[str]:
    error = DenyCode.POLICY_ERROR.value
    return frozenset(reason.policy for reason in decision.reasons if reason.code == error and reason.policy)


def _why(name: str, decision: Decision) -> str:
    """What the engine or a source said: these are the author's own values."""
    if name not in {"expect", "reasons"} or not decision.reasons:
        return ""
    return f" ({'; '.join(decision.alarms) or decision.reasons[0].text})"


def _strongest(merged: Iterable[MergedGate]) -> str | None:
    strongest: str | None = None
    for gate in merged:
        if is_stronger(gate.step_up, strongest):
            strongest = gate.step_up
    return strongest


def _need_differences(expected: Expected, merged: tuple[MergedGate, ...]) -> Iterator[str]:
    if expected.needs is None:
        return
    found = {gate.key: gate for gate in merged}
    for key in [*found, *(key for key in expected.needs if key not in found)]:
        gate, wanted = found.get(key), expected.needs.get(key)
        if gate is None:
            yield f"needs: found nothing of {key}, expected {_told(wanted)}"
        elif wanted is None:
            yield f"needs: found {gate.quorum} of {key}, expected nobody"
        elif (asked := _asked(gate) if isinstance(wanted, Asked) else gate.quorum) != wanted:
            yield f"needs: {key}: found {_told(asked)}, expected {_told(wanted)}"


def _asked(gate: MergedGate) -> Asked:
    return Asked(gate.quorum, gate.step_up, gate.reason, gate.shared, gate.answer_within)


def _told(asked: int | Asked | None) -> str:
    if not isinstance(asked, Asked):
        return str(asked)
    extra = [
        f"people: {asked.people}",
        *([f"step_up: {asked.step_up}"] if asked.step_up else []),
        *(["reason: true"] if asked.reason else []),
        *(["shared: true"] if asked.shared else []),
        f"answer_within: {asked.answer_within}",
    ]
    return f"{{{', '.join(extra)}}}"

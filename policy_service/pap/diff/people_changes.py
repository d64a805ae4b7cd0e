"""Who may do what people do here (approve, settle, stop, break the glass): rules tried like those about tools.

Rules kept here: a bundle without rules about approving narrows nothing, so dropping the last one lets everybody of the
asked groups answer; a bundle that begins or ceases to say who does something else is always reported. A rule about
people names gates by id and risks by word, so a gate of a named id that changed, and any other risk, may let somebody
answer whom those rules kept out.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from math import prod
from typing import Any, Final

from cedarpy import pst

from policy_service.domain.person_actions import (
    APPROVE,
    BREAK_GLASS,
    BREAK_GLASS_ALONE,
    RESOURCE_TYPES,
    SETTLE,
    START_AGAIN,
    STOP,
)
from policy_service.domain.policy_request import AgentPrincipal
from policy_service.pap.bundle import Bundle
from policy_service.pap.diff.candidate_values import (
    ENVIRONMENTS,
    UNNAMED_TEXT,
    candidate_sets,
    candidate_times,
    unnamed_text,
)
from policy_service.pap.diff.findings import Direction, Finding
from policy_service.pap.diff.manifest_changes import VersionPair
from policy_service.pap.diff.partition import only_restricts, policy_meaning
from policy_service.pap.diff.paths import Path
from policy_service.pap.diff.policy_inputs import PolicyInputs, literal_members, policies_inputs
from policy_service.pap.diff.tool_side import ABSENT, BASE_NOW
from policy_service.pdp.people import (
    PersonFacts,
    ReviewFacts,
    StopFacts,
    TaskFacts,
    check_approve_rules,
    check_people_rules,
)
from policy_service.pdp.rules import PeopleRules

_MAX_TRIED: Final = 4_000
_MAX_GATES: Final = 4
_PERSONS: Final[tuple[Path, ...]] = (("agent",), ("fact", "agent", "owner"))
_WORDS: Final[Mapping[Path, tuple[str, ...]]] = {
    ("fact", "risk"): ("low", "medium", "high"),
    ("fact", "what"): ("agent", "tool", "everything"),
}
_LOOSENS, _TIGHTENS = Direction.LOOSENING, Direction.TIGHTENING
_BEGUN: Final = {
    APPROVE: (_TIGHTENS, "the bundle begins to narrow who of the asked groups may approve"),
    SETTLE: (_LOOSENS, "the bundle begins to say who may settle, instead of the service"),
    STOP: (_LOOSENS, "the bundle begins to say who may stop, instead of everybody a gate asks"),
    START_AGAIN: (_LOOSENS, "people may end a stop from the web, where only an operator could"),
    BREAK_GLASS: (_LOOSENS, "two people may open what a gate holds, in an emergency"),
    BREAK_GLASS_ALONE: (_LOOSENS, "one person alone may open what a gate holds, in an emergency"),
}
"""What the first rule about something means; without one the service has a rule of its own."""

_ENDED: Final = {
    APPROVE: (_LOOSENS, "the bundle no longer narrows who may approve"),
    SETTLE: (_LOOSENS, "the bundle no longer narrows who may settle"),
    STOP: (_LOOSENS, "the bundle no longer says who may stop; everybody a gate asks may"),
    START_AGAIN: (_TIGHTENS, "nobody may end a stop from the web any more"),
    BREAK_GLASS: (_TIGHTENS, "nobody may open what a gate holds as one of two any more"),
    BREAK_GLASS_ALONE: (_TIGHTENS, "nobody may open what a gate holds alone any more"),
}


def people_rule_changes(before: Bundle, after: Bundle) -> list[Finding]:
    """What changes about who may do what people do."""
    pairs = {
        action: (before.rules.people.get(action), after.rules.people.get(action)) for action in RESOURCE_TYPES
    }
    return [finding for action, pair in pairs.items() for finding in _about(action, pair, before, after)]


def _about(
    action: str, pair: tuple[PeopleRules | None, PeopleRules | None], before: Bundle, after: Bundle
) -> Iterator[Finding]:
    texts = [_texts(rules) for rules in pair]
    if texts[0] == texts[1]:
        return
    names = sorted({name for text in texts for name in text if texts[0].get(name) != texts[1].get(name)})
    files = frozenset(
        policy.file for bundle in (before, after) for name in names if (policy := bundle.policies.get(name))
    )
    subject, may_kind = f'Action::"{action}"', f"who-may-{action}"

    def finding(way: Direction, kind: str, words: str, *lines: str) -> Finding:
        return Finding(way, kind, subject, words, lines, tuple(names), texts, files)

    if pair[0] is None or pair[1] is None:
        way, words = (_BEGUN if pair[0] is None else _ENDED)[action]
        yield finding(way, may_kind, words)
        return
    found: dict[Direction, Finding] = {}
    count = 0
    read = _read(pair)
    for values in _assignments(read):
        count += 1
        might, may = (_may(bundle, action, values) for bundle in (before, after))
        way = Direction.LOOSENING if may else Direction.TIGHTENING
        if might is may or way in found:
            continue
        words = (
            f"somebody may {action} who might not before" if may else f"somebody may not {action} any more"
        )
        example = ", ".join(f"{'.'.join(path)} = {value}" for path, value in sorted(values.items()))
        found[way] = finding(way, may_kind, words, f"for example: {example}")
    yield from found.values()
    changed = [tuple(bundle.policies.get(name) for bundle in (before, after)) for name in names]
    open_question = _why_unproved(read)
    if (
        Direction.LOOSENING not in found
        and open_question
        and not all(only_restricts(*each) for each in changed)
    ):
        words = f"the rules changed, and {count} made-up questions show no loosening: {open_question}"
        yield finding(Direction.LOOSENING, "unproved", words)
    elif not found:
        words = f"the rules changed; {count} made-up questions are answered as before"
        yield finding(Direction.LOOK, may_kind, words)


def _texts(rules: PeopleRules | None) -> dict[str, str]:
    return {name: str(replace(tree, annotations={})) for name, tree in _trees(rules).items()}


def _trees(rules: PeopleRules | None) -> Mapping[str, pst.Template]:
    return {} if rules is None else dict(rules.policies.to_pst().static_policies)


def _read(pair: Iterable[PeopleRules | None]) -> PolicyInputs:
    return policies_inputs(tree for rules in pair for tree in _trees(rules).values())


def _columns(read: PolicyInputs) -> dict[Path, list[Any]]:
    return {path: _values(path, literals, read) for path, literals in sorted(read.literals.items())}


def _why_unproved(read: PolicyInputs) -> str:
    """Why some question might be answered otherwise than those that were tried; empty where none can be."""
    why = list(read.inexact)
    if (size := prod(len(column) for column in _columns(read).values())) > _MAX_TRIED:
        why.append(f"{size} combinations, {_MAX_TRIED} of them tried")
    if len(literal_members(read.literals.get(("fact", "gates"), set()))) > _MAX_GATES:
        why.append("a set compared with many members")
    return "; ".join(why)


def _assignments(read: PolicyInputs) -> Iterator[dict[Path, Any]]:
    columns = _columns(read)
    if prod(len(column) for column in columns.values()) <= _MAX_TRIED:
        for row in product(*columns.values()):
            yield dict(zip(columns, row, strict=True))
        return
    dice = random.Random(0)  # the same questions every time  # noqa: S311
    for _ in range(_MAX_TRIED):
        yield {path: dice.choice(column) for path, column in columns.items()}


def _values(path: Path, literals: set[Any], read: PolicyInputs) -> list[Any]:
    texts = sorted(value for value in literals if isinstance(value, str))
    if path[0] in ("team", "agent-role", "agent-team", "role"):
        return [False, True]
    if path in _WORDS:
        return list(_WORDS[path])
    if path == ("fact", "gates"):
        return list(islice(candidate_sets(literals), 64))  # all there are of up to four
    if path in (("now",), ("fact", "opened_at")):
        return candidate_times(literals)
    if path == ("assurance",):
        return ["oidc", "dev"]
    if path == ("env",):
        return list(ENVIRONMENTS)
    if path in _PERSONS:  # two that may be the same person, or others
        both = {each for one in _PERSONS for each in read.literals.get(one, ()) if isinstance(each, str)}
        nobody = [ABSENT] if path == _PERSONS[1] else []
        return [*sorted(both), *nobody, unnamed_text(both, "someone|else")]
    return [*texts, unnamed_text(texts)]


def _may(bundle: Bundle, action: str, values: Mapping[Path, Any]) -> bool:
    def held(head: str) -> frozenset[str]:
        return frozenset(path[1] for path, value in values.items() if path[0] == head and value is True)

    who = PersonFacts(
        values.get(("agent",), "someone|else"), held("team"), values.get(("assurance",), "oidc")
    )
    now, env = values.get(("now",), BASE_NOW), values.get(("env",), "production")
    if RESOURCE_TYPES[action] == "Stop":
        stop = StopFacts(values.get(("fact", "what"), "agent"), values.get(("fact", "name"), UNNAMED_TEXT))
        return bool(check_people_rules(bundle.rules, action, who, stop, now=now, env=env))
    owner = values.get(("fact", "agent", "owner"), ABSENT)
    name = values.get(("fact", "agent"), "some-agent")
    owned_by = None if owner == ABSENT else owner
    about: dict[str, Any] = {
        "review_id": values.get(("resource",), "r1"),
        "agent": AgentPrincipal(name, owned_by, held("agent-role"), held("agent-team")),
        "tool": values.get(("fact", "tool"), UNNAMED_TEXT),
        "risk": values.get(("fact", "risk"), "medium"),
        "gates": frozenset(values.get(("fact", "gates"), ())),
        "opened_at": values.get(("fact", "opened_at"), BASE_NOW),
    }
    if action == APPROVE:
        return bool(check_approve_rules(bundle.rules, who, ReviewFacts(**about), now=now, env=env))
    task = TaskFacts(**about, kind=values.get(("fact", "kind"), "unknown"))
    what = task if RESOURCE_TYPES[action] == "Task" else ReviewFacts(**about)
    return bool(check_people_rules(bundle.rules, action, who, what, now=now, env=env))


_GATES, _RISK = ("fact", "gates"), ("fact", "risk")


def approver_input_changes(
    before: Bundle, after: Bundle, versions: Iterable[VersionPair]
) -> Iterator[Finding]:
    """What of a review changed that a rule about people reads."""
    read = _read(rules for bundle in (before, after) for rules in bundle.rules.people.values())
    named = _named_gates(read)
    for name in sorted(before.policies.keys() | after.policies.keys()):
        old, new = before.policies.get(name), after.policies.get(name)
        held = [each for each in (old, new) if each is not None]
        asks = any(each.gate is not None for each in held)
        if not asks or (named is not None and name not in named):
            continue
        if old is not None and new is not None and policy_meaning(old) == policy_meaning(new):
            continue
        words = f"the gate {name} changed, and rules about who answers read `resource.gates`"
        content = [None if each is None else policy_meaning(each) for each in (old, new)]
        files = frozenset(each.file for each in held)
        lines = tuple(f"in {each.place}" for each in held)
        yield Finding(Direction.LOOSENING, "gate-id", name, words, lines, (name,), content, files)
    if _RISK in read.literals:
        yield from _risks(versions)


def _risks(versions: Iterable[VersionPair]) -> Iterator[Finding]:
    for pair in versions:
        if pair.before is None or pair.after is None:
            continue
        old, new = pair.before.manifest.risk, pair.after.manifest.risk
        if old is not new:
            words = f"the risk {old} becomes {new}, and rules about who answers read `resource.risk`"
            yield Finding(Direction.LOOSENING, "risk-read", pair.name, words, files=pair.files)


def _named_gates(read: PolicyInputs) -> frozenset[Any] | None:
    """The gates that rules about people name; None where they may mean any."""
    literals = read.literals.get(_GATES)
    if literals is None:
        return frozenset()
    if frozenset() in literals or any("resource.gates" in why for why in read.inexact):
        return None
    return frozenset(literal_members(literals))

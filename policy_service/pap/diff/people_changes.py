"""Changes of rules about actions of people (approve, settle, stop, break-glass), explored like those about tools.

Without rules about approving, all members of the asked groups may approve, so dropping the last rule is a loosening.
The first or last rule about any other action is always reported. A rule about people names gates by id and risks by
word. So a changed gate with a named id, and a changed risk, may admit people that those rules excluded.
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
from policy_service.pap.diff.exploration import only_restricts, policy_meaning
from policy_service.pap.diff.findings import Direction, Finding
from policy_service.pap.diff.manifest_changes import VersionPair
from policy_service.pap.diff.policy_inputs import PolicyInputs, literal_members, policies_inputs
from policy_service.pap.diff.tool_side import ABSENT, BASE_NOW, Path
from policy_service.pdp.people import (
    PersonFacts,
    ReviewFacts,
    StopFacts,
    TaskFacts,
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
    APPROVE: (_TIGHTENS, "the bundle now narrows who of the asked groups may approve"),
    SETTLE: (_LOOSENS, "the bundle now decides who may settle, instead of the service"),
    STOP: (_LOOSENS, "the bundle now decides who may stop, instead of everybody a gate asks"),
    START_AGAIN: (_LOOSENS, "people may now end a stop from the web; before, only an operator could"),
    BREAK_GLASS: (_LOOSENS, "two people may now override a gate in an emergency"),
    BREAK_GLASS_ALONE: (_LOOSENS, "one person alone may now override a gate in an emergency"),
}
"""What the first rule about an action means; without one the service applies its own."""

_ENDED: Final = {
    APPROVE: (_LOOSENS, "the bundle no longer narrows who may approve"),
    SETTLE: (_LOOSENS, "the bundle no longer narrows who may settle"),
    STOP: (_LOOSENS, "the bundle no longer decides who may stop; everybody a gate asks may"),
    START_AGAIN: (_TIGHTENS, "people may no longer end a stop from the web"),
    BREAK_GLASS: (_TIGHTENS, "two people may no longer override a gate in an emergency"),
    BREAK_GLASS_ALONE: (_TIGHTENS, "one person alone may no longer override a gate in an emergency"),
}


def people_rule_changes(before: Bundle, after: Bundle) -> list[Finding]:
    """Changes of the rules about each action of people."""
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
    """Why the tried questions may not cover every answer; empty if they do."""
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
        return list(islice(candidate_sets(literals), 64))  # complete for up to four members
    if path in (("now",), ("fact", "opened_at")):
        return candidate_times(literals)
    if path == ("assurance",):
        return ["oidc", "dev"]
    if path == ("env",):
        return list(ENVIRONMENTS)
    if path in _PERSONS:  # the two may be the same person, or not
        both = {each for one in _PERSONS for each in read.literals.get(one, ()) if isinstance(each, str)}
        absent = [ABSENT] if path == _PERSONS[1] else []
        return [*sorted(both), *absent, unnamed_text(both, "someone|else")]
    return [*texts, unnamed_text(texts)]


def _may(bundle: Bundle, action: str, values: Mapping[Path, Any]) -> bool:
    def held(head: str) -> frozenset[str]:
        return frozenset(path[1] for path, value in values.items() if path[0] == head and value is True)

    def at(*path: str, default: Any) -> Any:
        return values.get(path, default)

    person = PersonFacts(at("agent", default="someone|else"), held("team"), at("assurance", default="oidc"))
    target: StopFacts | ReviewFacts
    if RESOURCE_TYPES[action] == "Stop":
        target = StopFacts(at("fact", "what", default="agent"), at("fact", "name", default=UNNAMED_TEXT))
    else:
        owner = at("fact", "agent", "owner", default=ABSENT)
        name = at("fact", "agent", default="some-agent")
        review = (
            at("resource", default="r1"),
            AgentPrincipal(name, None if owner == ABSENT else owner, held("agent-role"), held("agent-team")),
            at("fact", "tool", default=UNNAMED_TEXT),
            at("fact", "risk", default="medium"),
            frozenset(at("fact", "gates", default=())),
            at("fact", "opened_at", default=BASE_NOW),
        )
        is_task = RESOURCE_TYPES[action] == "Task"
        target = (
            TaskFacts(*review, kind=at("fact", "kind", default="unknown"))
            if is_task
            else ReviewFacts(*review)
        )
    now, env = at("now", default=BASE_NOW), at("env", default="production")
    granted = check_people_rules(bundle.rules, action, person, target, now=now, env=env)
    return action == APPROVE if granted is None else bool(granted)


_GATES, _RISK = ("fact", "gates"), ("fact", "risk")


def approver_input_changes(
    before: Bundle, after: Bundle, versions: Iterable[VersionPair]
) -> Iterator[Finding]:
    """Changes of a review's gates and risk that a rule about people reads."""
    read = _read(rules for bundle in (before, after) for rules in bundle.rules.people.values())
    named = _named_gates(read)
    for name in sorted(before.policies.keys() | after.policies.keys()):
        old, new = before.policies.get(name), after.policies.get(name)
        held = [each for each in (old, new) if each is not None]
        asks = any(each.gate is not None for each in held)
        if not asks or (named is not None and name not in named):
            continue
        if policy_meaning(old) == policy_meaning(new):
            continue
        words = f"the gate {name} changed, and rules about who answers read `resource.gates`"
        content = [policy_meaning(each) for each in (old, new)]
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
    """The gates that rules about people name; None when they may refer to any."""
    literals = read.literals.get(_GATES)
    if literals is None:
        return frozenset()
    if frozenset() in literals or any("resource.gates" in why for why in read.inexact):
        return None
    return frozenset(literal_members(literals))

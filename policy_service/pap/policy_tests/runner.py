"""Run cases: ask each one of the bundle's own rules, by the code that decides in the service, and compare the answer.

Rules kept here: written facts are typed as facts.toml declares them and override the bundle's files, and then
no database and no address is asked; nothing here reads the clock. Only what was written is compared, and that exactly
(`policies` alone may be a part); a policy that could not be evaluated never counts as one that forbade.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from countersign.contract import ContractError, DenyCode, Resource
from policy_service.domain.decision import Decision
from policy_service.domain.gates import MergedGate, is_stronger_step_up, merge
from policy_service.domain.person_actions import APPROVE, RESOURCE_TYPES
from policy_service.domain.policy_request import Facts, PolicyRequest
from policy_service.facts.config import AGENT, FactsConfig
from policy_service.pap.bundle import Bundle
from policy_service.pap.policy_tests.case import AnyCase, Case, ExpectedDecision, ExpectedGate, PeopleCase
from policy_service.pap.problems import BundleError, Problem
from policy_service.pdp.engine import decide
from policy_service.pdp.people import (
    Permission,
    PersonFacts,
    ReviewFacts,
    StopFacts,
    TaskFacts,
    check_approve_rules,
    check_people_rules,
)
from policy_service.pdp.rules import Rules


def decision_differences(expected: ExpectedDecision, decision: Decision) -> Iterator[str]:
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
    for name, value in found.items():
        wanted = expected.outcome if name == "expect" else getattr(expected, name)
        if wanted is not None and wanted != value:
            yield f"{name}: found {format_value(value)}, expected {format_value(wanted)}{_why(name, decision)}"
    yield from _need_differences(expected, merged)
    if missing := expected.policies.difference(determining_policies(decision)):
        yield f"policies: found {format_value(determining_policies(decision))}, expected also {format_value(missing)}"


def permission_differences(case: PeopleCase, permission: Permission) -> Iterator[str]:
    """The same for one about people."""
    words = {True: "allowed", False: "refused"}
    if permission.alarms:
        yield f"the rules could not be evaluated: {'; '.join(permission.alarms)}"
    elif permission.granted is not case.allowed:
        by = f" by {format_value(permission.policies)}" if permission.policies else ""
        yield f"expect: found {words[permission.granted]}{by}, expected {words[case.allowed]}"
    if missing := case.policies.difference(permission.policies):
        yield f"policies: found {format_value(permission.policies)}, expected also {format_value(missing)}"


def determining_policies(decision: Decision) -> frozenset[str]:
    """The policies that made it so: permits and gates, forbids, or those that erred."""
    return frozenset(decision.policies) | _erring(decision)


def format_value(value: Any) -> str:
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
        if is_stronger_step_up(gate.step_up, strongest):
            strongest = gate.step_up
    return strongest


def _need_differences(expected: ExpectedDecision, merged: tuple[MergedGate, ...]) -> Iterator[str]:
    if expected.needs is None:
        return
    found = {gate.key: gate for gate in merged}
    for key in [*found, *(key for key in expected.needs if key not in found)]:
        gate, wanted = found.get(key), expected.needs.get(key)
        if gate is None:
            yield f"needs: found nothing of {key}, expected {_told(wanted)}"
        elif wanted is None:
            yield f"needs: found {gate.quorum} of {key}, expected nobody"
        elif (asked := _need_of(gate) if isinstance(wanted, ExpectedGate) else gate.quorum) != wanted:
            yield f"needs: {key}: found {_told(asked)}, expected {_told(wanted)}"


def _need_of(gate: MergedGate) -> ExpectedGate:
    return ExpectedGate(gate.quorum, gate.step_up, gate.reason, gate.shared, gate.answer_within)


def _told(asked: int | ExpectedGate | None) -> str:
    if not isinstance(asked, ExpectedGate):
        return str(asked)
    extra = [
        f"people: {asked.people}",
        *([f"step_up: {asked.step_up}"] if asked.step_up else []),
        *(["reason: true"] if asked.reason else []),
        *(["shared: true"] if asked.shared else []),
        f"answer_within: {asked.answer_within}",
    ]
    return f"{{{', '.join(extra)}}}"


_NO_TOOL = "0" * 64


@dataclass(frozen=True, slots=True)
class PreparedCase:
    """A case with its facts gathered: it can be asked of many rules. `question` is None for one about people."""

    case: AnyCase
    question: PolicyRequest | None = None

    def ask(self, rules: Rules) -> CaseResult:
        """What these rules say, and in what that differs from what is expected."""
        if isinstance(self.case, PeopleCase):
            permission = _permission(rules, self.case)
            return CaseResult(self.case, permission, tuple(permission_differences(self.case, permission)))
        if self.question is None:
            raise ValueError(f"{self.case.place}: this case was never prepared")
        decision = decide(rules, self.question)
        return CaseResult(self.case, decision, tuple(decision_differences(self.case.expected, decision)))


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A case and what came of it. `differences` is empty when it holds."""

    case: AnyCase
    answer: Decision | Permission
    differences: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the rules answer as the author expects."""
        return not self.differences


def prepare_cases(bundle: Bundle, cases: Sequence[AnyCase]) -> list[PreparedCase]:
    """Gather the facts of every case. Blocks, where a case asks a database.

    Raises:
        BundleError: facts are written that do not fit facts.toml.
    """
    problems: list[Problem] = []
    prepared = asyncio.run(_prepare_all(bundle, cases, problems))
    if problems:
        raise BundleError(problems)
    return prepared


async def _prepare_all(
    bundle: Bundle, cases: Sequence[AnyCase], problems: list[Problem]
) -> list[PreparedCase]:
    return [
        PreparedCase(case, None if isinstance(case, PeopleCase) else await _question(bundle, case, problems))
        for case in cases
    ]


async def _question(bundle: Bundle, case: Case, problems: list[Problem]) -> PolicyRequest:
    manifest = bundle.manifests.get(case.tool)
    for meter in sorted(case.history.keys() - _meters(bundle, case.tool)):
        known = ", ".join(sorted(_meters(bundle, case.tool))) or "none"
        message = f"history: no meter {meter!r} counts {case.tool}; known are {known}"
        problems.append(Problem(case.file, case.line, message))
    if case.facts is None:
        facts = await bundle.facts_for(
            case.tool, case.args, case.args_bytes, agent=case.agent.name, now=case.now
        )
    else:
        facts = _given(bundle, case, problems)
    return PolicyRequest(
        agent=case.agent,
        tool=case.tool,
        tool_digest=manifest.digest if manifest else _NO_TOOL,
        args=case.args,
        facts=facts,
        now=case.now,
        env=case.env,
        txn_size=case.txn_size,
        claimed=case.claimed,
        on_behalf_of=case.on_behalf_of,
        method=case.method,
        history=case.history,
    )


def _meters(bundle: Bundle, tool: str) -> frozenset[str]:
    """The meters a rule about this tool can read."""
    return frozenset(meter.name for meter in bundle.meters.get(tool, ()))


def _given(bundle: Bundle, case: Case, problems: list[Problem]) -> Facts:
    """The bundle's files, and over them what the case says."""
    manifest = bundle.manifests.get(case.tool)
    if manifest is None or case.facts is None:
        return Facts(bundle.digest)
    try:
        resource: Resource = manifest.resource_of(case.args)
    except ContractError:
        return Facts(bundle.digest)
    config = bundle.facts.config
    of_resource, of_agent = bundle.facts.file_attributes(case.tool, resource, case.agent.name)
    return Facts(
        bundle.digest,
        resource=_typed(config, resource.type, {**of_resource, **case.facts.resource}, case, problems),
        agent=_typed(config, AGENT, {**of_agent, **case.facts.agent}, case, problems),
    )


def _typed(
    config: FactsConfig, entity: str, values: Mapping[str, Any], case: Case, problems: list[Problem]
) -> dict[str, Any]:
    declared = config.entities[entity].attributes if entity in config.entities else {}
    typed: dict[str, Any] = {}
    for name, value in values.items():
        try:
            if name not in declared:
                known = ", ".join(declared) or "none"
                raise ValueError(f"facts.toml declares no such attribute of {entity}; known are {known}")
            if value is not None:  # null: the source does not know it
                typed[name] = declared[name].encode(value)
        except (
            ValueError,
            ArithmeticError,
            OSError,
        ) as error:  # a time or a decimal beyond all bounds is no ValueError
            problems.append(Problem(case.file, case.line, f"facts: {name}: {value!r} does not fit: {error}"))
    return typed


def _permission(rules: Rules, case: PeopleCase) -> Permission:
    approver = PersonFacts(case.person, case.groups, case.assurance)
    if case.action == APPROVE:
        return check_approve_rules(
            rules, approver, ReviewFacts(**_asked(rules, case)), now=case.now, env=case.env
        )
    granted = check_people_rules(rules, case.action, approver, _what(rules, case), now=case.now, env=case.env)
    # Without a rule about it the service has one of its own; the bundle says nothing, so neither does a case.
    return Permission(False) if granted is None else granted


def _what(rules: Rules, case: PeopleCase) -> ReviewFacts | StopFacts:
    match RESOURCE_TYPES[case.action]:
        case "Stop":
            return StopFacts(cast("Literal['agent', 'tool', 'everything']", case.what), case.name)
        case "Task":
            return TaskFacts(**_asked(rules, case), kind=case.kind)
        case _:
            return ReviewFacts(**_asked(rules, case))


def _asked(rules: Rules, case: PeopleCase) -> dict[str, Any]:
    return {
        "review_id": "case",
        "agent": case.agent,
        "tool": case.tool,
        "risk": _risk(rules, case.tool),
        "gates": case.gates,
        "opened_at": case.opened_at,
    }


def _risk(rules: Rules, tool: str) -> str:
    return rules.tools[tool].manifest.risk if tool in rules.tools else "high"


STRICTNESS: Final = {"release": 0, "review": 1, "deny": 2}


@dataclass(frozen=True, slots=True)
class CaseFailure:
    """Why a case does not hold; ``stricter`` when the answer is a stricter one."""

    words: str
    stricter: bool = False


def failure_of(answered: CaseResult) -> CaseFailure:
    """What is wrong with an answer that is not the expected one."""
    words, case, answer = "; ".join(answered.differences), answered.case, answered.answer
    if isinstance(case, Case) and isinstance(answer, Decision):
        stricter = STRICTNESS[answer.outcome.value] > STRICTNESS[case.expected.outcome]
        return CaseFailure(words, stricter)
    return CaseFailure(words, isinstance(case, PeopleCase) and case.allowed)

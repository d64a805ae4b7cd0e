"""Run cases against a bundle's rules with the engine of the service, and compare the answers.

Written facts are typed as facts.toml declares, override the bundle's files, and replace queries to databases and hosts.
Nothing here reads the clock. Only written expectations are compared, exactly; `policies` may be a subset. A policy that
could not be evaluated never counts as one that forbade.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from countersign.contract import ContractError, DenyCode, Resource
from policy_service.domain.gates import MergedGate, is_stronger_step_up, merge
from policy_service.domain.person_actions import APPROVE, RESOURCE_TYPES
from policy_service.domain.policy_request import Decision, Facts, PolicyRequest
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
    check_people_rules,
)
from policy_service.pdp.rules import Rules


def decision_differences(expected: ExpectedDecision, decision: Decision) -> Iterator[str]:
    """Each difference from the expectation; empty when the case passes."""
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
    """The same for a case about people."""
    words = {True: "allowed", False: "refused"}
    if permission.alarms:
        yield f"the rules could not be evaluated: {'; '.join(permission.alarms)}"
    elif permission.granted is not case.allowed:
        by = f" by {format_value(permission.policies)}" if permission.policies else ""
        yield f"expect: found {words[permission.granted]}{by}, expected {words[case.allowed]}"
    if missing := case.policies.difference(permission.policies):
        yield f"policies: found {format_value(permission.policies)}, expected also {format_value(missing)}"


def determining_policies(decision: Decision) -> frozenset[str]:
    """The policies that determined the decision: permits and gates, forbids, or those that erred."""
    return frozenset(decision.policies) | _erring(decision)


def format_value(value: Any) -> str:
    """A value as written in a case file."""
    if value is None:
        return "nothing"
    if isinstance(value, frozenset | tuple | list):
        return f"[{', '.join(sorted(value))}]"
    return str(value)


def _reasons(decision: Decision) -> frozenset[str]:
    # An erring policy is reported by code, not by id: by id it would look like one that forbade.
    error = DenyCode.POLICY_ERROR.value
    return frozenset(
        reason.code if reason.code == error else reason.policy or reason.code for reason in decision.reasons
    )


def _erring(decision: Decision) -> frozenset[str]:
    error = DenyCode.POLICY_ERROR.value
    return frozenset(reason.policy for reason in decision.reasons if reason.code == error and reason.policy)


def _why(name: str, decision: Decision) -> str:
    """The text of the engine or of a source. It may be shown: these are the author's own values."""
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
            yield f"needs: found nothing of {key}, expected {_need_text(wanted)}"
        elif wanted is None:
            yield f"needs: found {gate.quorum} of {key}, expected none"
        else:
            asked: int | ExpectedGate = gate.quorum
            if isinstance(wanted, ExpectedGate):
                asked = ExpectedGate(gate.quorum, gate.step_up, gate.reason, gate.shared, gate.answer_within)
            if asked != wanted:
                yield f"needs: {key}: found {_need_text(asked)}, expected {_need_text(wanted)}"


def _need_text(asked: int | ExpectedGate | None) -> str:
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
STRICTNESS: Final = {"release": 0, "review": 1, "deny": 2}


@dataclass(frozen=True, slots=True)
class PreparedCase:
    """A case with its facts, ready to run against any rules. `question` is None for a case about people."""

    case: AnyCase
    question: PolicyRequest | None = None

    def ask(self, rules: Rules) -> CaseResult:
        """Evaluate the case by these rules, and compare the answer."""
        if isinstance(self.case, PeopleCase):
            permission = _permission(rules, self.case)
            return CaseResult(self.case, permission, tuple(permission_differences(self.case, permission)))
        if self.question is None:
            raise ValueError(f"{self.case.place}: this case was never prepared")
        decision = decide(rules, self.question)
        return CaseResult(self.case, decision, tuple(decision_differences(self.case.expected, decision)))


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A case and its answer. `differences` is empty when the case passes."""

    case: AnyCase
    answer: Decision | Permission
    differences: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.differences

    @property
    def words(self) -> str:
        """All differences, for people."""
        return "; ".join(self.differences)

    @property
    def is_stricter(self) -> bool:
        """Whether a differing answer is stricter than expected."""
        if isinstance(self.case, PeopleCase) or not isinstance(self.answer, Decision):
            return isinstance(self.case, PeopleCase) and self.case.allowed
        return STRICTNESS[self.answer.outcome.value] > STRICTNESS[self.case.expected.outcome]

    @property
    def policies(self) -> frozenset[str]:
        """The policies that determined the answer."""
        return (
            determining_policies(self.answer)
            if isinstance(self.answer, Decision)
            else frozenset(self.answer.policies)
        )


def run_cases(bundle: Bundle, cases: Sequence[AnyCase]) -> list[CaseResult]:
    """Run cases against the bundle's own rules; errors as `prepare_cases`."""
    return [case.ask(bundle.rules) for case in prepare_cases(bundle, cases)]


def prepare_cases(bundle: Bundle, cases: Sequence[AnyCase]) -> list[PreparedCase]:
    """Gather the facts of every case. Blocks when a case queries a database.

    Raises:
        BundleError: written facts do not fit facts.toml.
    """
    problems: list[Problem] = []

    async def prepare(case: AnyCase) -> PreparedCase:
        return PreparedCase(case, await _question(bundle, case, problems) if isinstance(case, Case) else None)

    async def prepare_all() -> list[PreparedCase]:
        return [await prepare(case) for case in cases]

    prepared = asyncio.run(prepare_all())
    if problems:
        raise BundleError(problems)
    return prepared


async def _question(bundle: Bundle, case: Case, problems: list[Problem]) -> PolicyRequest:
    manifest = bundle.manifests.get(case.tool)
    meters = {meter.name for meter in bundle.meters.get(case.tool, ())}
    for meter in sorted(case.history.keys() - meters):
        known = ", ".join(sorted(meters)) or "none"
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


def _given(bundle: Bundle, case: Case, problems: list[Problem]) -> Facts:
    """The facts of the bundle's files, overridden by the case."""
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
            if value is not None:  # null: unknown to the source
                typed[name] = declared[name].encode(value)
        except (
            ValueError,
            ArithmeticError,
            OSError,
        ) as error:  # an out-of-range time or decimal raises other errors than ValueError
            problems.append(Problem(case.file, case.line, f"facts: {name}: {value!r} does not fit: {error}"))
    return typed


def _permission(rules: Rules, case: PeopleCase) -> Permission:
    person = PersonFacts(case.person, case.groups, case.assurance)
    granted = check_people_rules(rules, case.action, person, _target(rules, case), now=case.now, env=case.env)
    # Without rules about approving, every member of the group may approve. Without rules about another action the
    # service applies its own, which a case cannot test.
    return Permission(case.action == APPROVE) if granted is None else granted


def _target(rules: Rules, case: PeopleCase) -> ReviewFacts | StopFacts:
    if RESOURCE_TYPES[case.action] == "Stop":
        return StopFacts(cast("Literal['agent', 'tool', 'everything']", case.what), case.name)
    tool = rules.tools.get(case.tool)
    risk = "high" if tool is None else tool.manifest.risk
    review = ("case", case.agent, case.tool, risk, case.gates, case.opened_at)
    return (
        TaskFacts(*review, kind=case.kind) if RESOURCE_TYPES[case.action] == "Task" else ReviewFacts(*review)
    )

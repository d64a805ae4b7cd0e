"""Who may settle a task.

Rules: nobody settles for their own side, whatever the bundle says: a word of theirs would turn what they asked for into
truth; and whoever opened something alone does not review that. Then policy decides, in git like everything else: where
the bundle has rules about ``Action::"settle"``, plain Cedar alone says who. Without such a rule it is whoever a gate of
the effect asks, or, where no gate ever asked about it, whoever some gate of the bundle asks: people already trusted to
weigh effects. A bundle that asks nobody about anything has to name them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, cast

from countersign.contract import TaskKind
from policy_service.domain.people import SETTLE
from policy_service.domain.question import AgentPrincipal
from policy_service.pap.bundle import Bundle
from policy_service.pdp.approve import Approver, TaskFacts, can_do
from policy_service.pdp.rules import UNSEEN
from policy_service.queries.ballots import groups_now, person_key, requesters_side
from policy_service.queries.context import Context
from policy_service.queries.effects import manifest_for
from policy_service.queries.openings import signatures_on
from policy_service.queries.task_cases import TaskCase
from policy_service.queries.voter import Voter, with_missing_groups
from policy_service.queries.words import only_for

_RISK_OF_UNKNOWN = "high"
_NAME_THEM = 'permit (principal in Group::"NAME", action == Action::"settle", resource);'


def why_not_settle(ctx: Context, bundle: Bundle, case: TaskCase, voter: Voter, now: datetime) -> str | None:
    """The sentence that tells this person why they may not settle it, or None when they may."""
    if voter.key == case.agent.owner:
        return f"you own {case.agent.name}; nobody settles for their own side"
    if case.kind is TaskKind.BREAK_GLASS_REVIEW and voter.key in _who_opened(case):
        return "you opened this; somebody else says whether that was justified"
    if voter.key in requesters_side(case.agent, case.snapshot.transaction):
        return "you changed its arguments; nobody settles for their own side"
    groups = groups_now(bundle, voter.key, voter.groups)
    person = Approver(voter.key, groups, cast(Literal["oidc", "dev"], voter.assurance))
    granted = can_do(
        bundle.rules, SETTLE, person, _facts(bundle, case), now=now, env=ctx.settings.environment
    )
    if granted is None:
        return _not_asked(bundle, case, groups, voter)
    if granted:
        return None
    return (
        granted.reason.text if granted.reason is not None else "the policy about settling does not permit you"
    )


def _who_opened(case: TaskCase) -> set[str]:
    signed = signatures_on(case.snapshot, case.effect)
    return {person_key(vote.iss, vote.sub) for vote in signed}


def _facts(bundle: Bundle, case: TaskCase) -> TaskFacts:
    agent = case.agent
    manifest = manifest_for(bundle, case.effect.tool, case.effect.tool_digest)
    return TaskFacts(
        review_id=case.task.task_id,
        agent=AgentPrincipal(agent.name, agent.owner, frozenset(agent.roles), frozenset(agent.teams)),
        tool=case.effect.tool,
        risk=manifest.risk if manifest is not None else _RISK_OF_UNKNOWN,
        gates=frozenset(gate.policy_id for gate in case.gates),
        opened_at=case.task.opened_at,
        kind=case.task.kind,
    )


def _not_asked(bundle: Bundle, case: TaskCase, groups: frozenset[str], voter: Voter) -> str | None:
    gates = () if case.kind is TaskKind.IMPOSSIBLE_QUORUM else case.gates  # the very people who are too few
    of_effect = frozenset[str]().union(*(gate.groups for gate in gates))
    asked = of_effect or bundle.rules.asked | {UNSEEN}
    if groups & asked:
        return None
    if not of_effect and not bundle.rules.asked:
        return f"no policy says who settles tasks; name them in the bundle: {_NAME_THEM}"
    named = sorted(bundle.directory.title_of(group) for group in asked)
    return with_missing_groups(only_for(named, "settle this"), voter)

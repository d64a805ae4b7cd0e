"""A task with everything around it: its case, who may settle it, and what each answer says and will cause.

Rules: nobody settles for their own side, whatever the bundle says: a word of theirs would turn what they asked for
into truth; and whoever opened something alone does not review that. Then policy decides: where the bundle has rules
about ``Action::"settle"``, plain Cedar alone says who. Without such a rule it is whoever a gate of the effect asks,
or, where no gate ever asked about it, whoever some gate of the bundle asks: people already trusted to weigh effects.
A bundle that asks nobody about anything has to name them.

What follows from an answer is computed by the rules that will apply then, on the transaction as it would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, cast

from sqlalchemy import Connection

from countersign.contract import EffectState, TaskAnswer, TaskKind, TxnState
from policy_service.domain.gates import Gate
from policy_service.domain.person_actions import SETTLE
from policy_service.domain.policy_request import AgentPrincipal
from policy_service.domain.settlement import (
    ANSWERS,
    EffectStatus,
    has_missing_effect,
    needs_manual_settlement,
    transaction_state,
    transitions_for,
)
from policy_service.errors import NotFoundError
from policy_service.pap.bundle import Bundle
from policy_service.pdp.people import PersonFacts, TaskFacts, check_people_rules
from policy_service.pdp.rules import UNSEEN
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.effects import gates_of, manifest_for
from policy_service.queries.messages import not_in_groups_text
from policy_service.queries.repository import Snapshot
from policy_service.queries.vote_eligibility import (
    break_glass_signatures,
    current_groups,
    person_key,
    requesters_side,
)
from policy_service.queries.voter import Voter, with_groups_problem
from policy_service.storage.core import find_one
from policy_service.storage.tables import AgentRow, EffectRow, TaskRow


@dataclass(frozen=True)
class TaskContext:
    """A task, the transaction at its revision, the effect it is about, and whose effect that is."""

    task: TaskRow
    snapshot: Snapshot
    effect: EffectRow
    agent: AgentRow

    @property
    def kind(self) -> TaskKind:
        """What is to be settled."""
        return TaskKind(self.task.kind)

    @property
    def state(self) -> EffectState:
        """Where the effect stands."""
        return EffectState(self.effect.state)

    @property
    def forward(self) -> EffectRow:
        """The effect itself, or for a compensation what it was to take back."""
        return self.snapshot.find(self.effect.compensates or "") or self.effect

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Every gate that ever fired on the effect; a compensation has those of what it takes back."""
        return gates_of(self.effect) or gates_of(self.forward)


def read_task_context(conn: Connection, task_id: str) -> TaskContext:
    """One task.

    Raises:
        NotFoundError: there is no such task, or its effect or agent is gone.
    """
    task = find_one(conn, TaskRow, task_id=task_id)
    if task is None:
        raise NotFoundError(f"there is no task {task_id!r}")
    snapshot = repository.require_transaction(conn, task.txn, task.rev)
    case = _case(task, snapshot, repository.agent_of(conn, snapshot.transaction.agent))
    if case is None:
        raise NotFoundError(f"the effect of task {task_id!r} is gone")
    return case


def read_task_contexts(conn: Connection, tasks: Sequence[TaskRow]) -> list[TaskContext]:
    """These tasks, by as many queries as one takes; one whose effect is gone is left out."""
    snapshots = repository.load_all(conn, [(task.txn, task.rev) for task in tasks])
    agents = repository.agents_of(conn, [snapshot.transaction.agent for snapshot in snapshots.values()])
    found = []
    for task in tasks:
        snapshot = snapshots.get((task.txn, task.rev))
        case = snapshot and _case(task, snapshot, agents.get(snapshot.transaction.agent))
        found += [case] if case else []
    return found


def _case(task: TaskRow, snapshot: Snapshot, agent: AgentRow | None) -> TaskContext | None:
    effect = snapshot.find(task.effect_id)
    return None if effect is None or agent is None else TaskContext(task, snapshot, effect, agent)


def settlement_of(case: TaskContext) -> dict[str, Any] | None:
    """What a person said of this task; None while nobody has, and where it settled itself."""
    task_id = case.task.task_id
    return next((said for said in case.effect.settlements if said["task_id"] == task_id), None)


_RISK_OF_UNKNOWN = "high"
_NAME_THEM = 'permit (principal in Group::"NAME", action == Action::"settle", resource);'


def settle_refusal(
    ctx: Context, bundle: Bundle, case: TaskContext, voter: Voter, now: datetime
) -> str | None:
    """The sentence that tells this person why they may not settle it, or None when they may."""
    if voter.key == case.agent.owner:
        return f"you own {case.agent.name}; nobody settles for their own side"
    if case.kind is TaskKind.BREAK_GLASS_REVIEW and voter.key in _who_opened(case):
        return "you opened this; somebody else says whether that was justified"
    if voter.key in requesters_side(case.agent, case.snapshot.transaction):
        return "you changed its arguments; nobody settles for their own side"
    groups = current_groups(bundle, voter.key, voter.groups)
    person = PersonFacts(voter.key, groups, cast(Literal["oidc", "dev"], voter.assurance))
    granted = check_people_rules(
        bundle.rules, SETTLE, person, _facts(bundle, case), now=now, env=ctx.settings.environment
    )
    if granted is None:
        return _not_asked(bundle, case, groups, voter)
    if granted:
        return None
    return (
        granted.reason.text if granted.reason is not None else "the policy about settling does not permit you"
    )


def _who_opened(case: TaskContext) -> set[str]:
    signed = break_glass_signatures(case.snapshot, case.effect)
    return {person_key(vote.iss, vote.sub) for vote in signed}


def _facts(bundle: Bundle, case: TaskContext) -> TaskFacts:
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


def _not_asked(bundle: Bundle, case: TaskContext, groups: frozenset[str], voter: Voter) -> str | None:
    gates = () if case.kind is TaskKind.IMPOSSIBLE_QUORUM else case.gates  # the very people who are too few
    of_effect = frozenset[str]().union(*(gate.groups for gate in gates))
    asked = of_effect or bundle.rules.asked | {UNSEEN}
    if groups & asked:
        return None
    if not of_effect and not bundle.rules.asked:
        return f"no policy says who settles tasks; name them in the bundle: {_NAME_THEM}"
    named = sorted(bundle.directory.title_of(group) for group in asked)
    return with_groups_problem(not_in_groups_text(named, "settle this"), voter)


_UNKNOWN = frozenset({TaskKind.UNKNOWN, TaskKind.RESTORED})


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer, in words."""

    answer: TaskAnswer
    text: str
    follows: str


def choices(case: TaskContext) -> tuple[Choice, ...]:
    """The answers this task takes; none once it is settled."""
    if case.task.state != "open":
        return ()
    return tuple(
        Choice(answer, answer_text(case, answer), _follows(case, answer)) for answer in ANSWERS[case.kind]
    )


def answer_text(case: TaskContext, answer: TaskAnswer) -> str:
    """An answer as a sentence a person could say."""
    if case.effect.kind == "compensate" and answer in {TaskAnswer.FIRED, TaskAnswer.NOT_FIRED}:
        return "It was taken back" if answer is TaskAnswer.FIRED else "It was not taken back"
    return _TEXTS[answer]


_TEXTS = {
    TaskAnswer.FIRED: "It fired",
    TaskAnswer.NOT_FIRED: "It did not happen",
    TaskAnswer.COMPENSATED: "It was taken back by hand",
    TaskAnswer.LEFT_STANDING: "It stays as it is",
    TaskAnswer.RECORD_HOLDS: "The record is right",
    TaskAnswer.REPORT_HOLDS: "The later report is right",
    TaskAnswer.WITHDRAWN: "Withdraw it",
    TaskAnswer.LEFT_WAITING: "Leave it waiting",
    TaskAnswer.JUSTIFIED: "Opening it was justified",
    TaskAnswer.NOT_JUSTIFIED: "Opening it was not justified",
}


def _follows(case: TaskContext, answer: TaskAnswer) -> str:
    if case.kind in _UNKNOWN:
        return (
            _of_compensation(case, answer) if case.effect.kind == "compensate" else _of_unknown(case, answer)
        )
    tool, others = case.effect.tool, len(case.snapshot.effects) - 1
    beside = (
        f" and the {others} beside it are"
        if others > 1
        else " and the one beside it are"
        if others
        else " is"
    )
    return {
        TaskAnswer.COMPENSATED: f"{tool} is recorded as taken back. Nothing is called.",
        TaskAnswer.LEFT_STANDING: f"{tool} is recorded as standing. Nothing takes it back any more.",
        TaskAnswer.RECORD_HOLDS: f"Nothing moves: {tool} stays recorded as {case.effect.state}.",
        TaskAnswer.REPORT_HOLDS: f"Nothing moves: what is recorded as {case.effect.state} stays so, with your word "
        "beside it. What that leaves to be done is done by hand.",
        TaskAnswer.WITHDRAWN: f"It{beside} withdrawn. Nothing fires, and the agent is told.",
        TaskAnswer.LEFT_WAITING: "It goes on waiting, and expires unfired when its time is up. Enough people in these "
        "groups before that, and it goes on by itself.",
        TaskAnswer.JUSTIFIED: f"Nothing moves: {tool} stays recorded as {case.effect.state}, with your word beside it.",
        TaskAnswer.NOT_JUSTIFIED: f"Nothing moves: {tool} stays recorded as {case.effect.state}, with your word "
        "beside it. To stop what has not fired yet, press Stop at the top; what fired is taken back by hand.",
    }[answer]


def _of_compensation(case: TaskContext, answer: TaskAnswer) -> str:
    if answer is TaskAnswer.FIRED:
        return f"{case.forward.tool} is recorded as taken back."
    return f"{case.forward.tool} stands: its compensation failed, and that becomes a task of its own."


def _of_unknown(case: TaskContext, answer: TaskAnswer) -> str:
    to = transitions_for(case.state, answer, spent=case.effect.redeemed_by is not None)[-1]
    after = [
        replace(part, state=to) if effect is case.effect else part
        for effect, part in zip(case.snapshot.effects, case.snapshot.parts(), strict=True)
    ]
    recorded = (
        "It is recorded as fired."
        if to is EffectState.FIRED
        else f"It is recorded as {to.value}; nothing fired."
    )
    return f"{recorded} {_of_transaction(case.snapshot.effects, after)}"


def _of_transaction(effects: Sequence[EffectRow], after: Sequence[EffectStatus]) -> str:
    state = transaction_state(after)
    if any(part.state is EffectState.UNKNOWN for part in after):
        return "Another effect of its transaction is not known yet: nothing is taken back before that is settled."
    if state is TxnState.SETTLED:
        return "The transaction is settled."
    if state is TxnState.ENDED:
        return "Nothing of its transaction stands."
    if not has_missing_effect(after):
        return "What became of the others of its transaction is still to be told."
    due = [
        (effect.tool, str(effect.compensation["tool"]))
        for effect, part in zip(effects, after, strict=True)
        if part.state is EffectState.FIRED and effect.compensation is not None
    ]
    told = [
        f"{undo} is asked for, to take {tool} back, by a release of its own." for tool, undo in reversed(due)
    ]
    if needs_manual_settlement(after):
        told.append("What fired and has no compensation stands: that becomes a task.")
    return " ".join(["The transaction did not go through.", *told])

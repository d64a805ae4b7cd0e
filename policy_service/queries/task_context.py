"""A task with its effect: who may settle it, and what each answer causes.

The requester's side never settles, even if a policy permits it, and a person who used break-glass alone does
not review it. Then the policies decide: if the bundle has rules about ``Action::"settle"``, Cedar alone does.
Otherwise members of the effect's gates may settle, or, if no gate fired, members of any gate of the bundle. A
bundle without gates has to name them.

The consequences of an answer are computed by applying the domain's rules to the state after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from countersign.contract import EffectState, TaskAnswer, TaskKind, TxnState
from policy_service.domain.gates import Gate
from policy_service.domain.person_actions import SETTLE
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
from policy_service.pdp.people import TaskFacts, check_people_rules
from policy_service.pdp.rules import UNSEEN
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.effects import gates_of, manifest_for, principal_of
from policy_service.queries.repository import Snapshot
from policy_service.queries.review_context import not_in_groups_text
from policy_service.queries.vote_eligibility import (
    Voter,
    break_glass_signatures,
    person_key,
    requesters_side,
    with_groups_problem,
)
from policy_service.storage.core import find_one
from policy_service.storage.tables import AgentRow, EffectRow, TaskRow


@dataclass(frozen=True)
class TaskContext:
    """A task, the transaction at its revision, the effect it is about, and the agent."""

    task: TaskRow
    snapshot: Snapshot
    effect: EffectRow
    agent: AgentRow

    @property
    def kind(self) -> TaskKind:
        return TaskKind(self.task.kind)

    @property
    def state(self) -> EffectState:
        """The state of the effect."""
        return EffectState(self.effect.state)

    @property
    def forward(self) -> EffectRow:
        """The effect itself, or the effect that this compensation undoes."""
        return self.snapshot.find(self.effect.compensates or "") or self.effect

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Every gate that ever fired on the effect; for a compensation, those of the effect it undoes."""
        return gates_of(self.effect) or gates_of(self.forward)


def read_task_context(conn: Connection, task_id: str) -> TaskContext:
    """The context of one task.

    Raises:
        NotFoundError: the task, its effect or its agent does not exist.
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
    """The contexts of these tasks, with a constant number of queries; without those whose effect is missing."""
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
    """What a person settled by this task; None if it is open or closed by itself."""
    task_id = case.task.task_id
    return next((said for said in case.effect.settlements if said["task_id"] == task_id), None)


_RISK_OF_UNKNOWN = "high"
_NAME_THEM = 'permit (principal in Group::"NAME", action == Action::"settle", resource);'


def settle_refusal(
    ctx: Context, bundle: Bundle, case: TaskContext, voter: Voter, now: datetime
) -> str | None:
    """Why this person may not settle it, as a sentence; None if they may."""
    if voter.key == case.agent.owner:
        return f"you own {case.agent.name}, so somebody else has to settle this"
    if case.kind is TaskKind.BREAK_GLASS_REVIEW and voter.key in _break_glass_signers(case):
        return "you opened this, so somebody else has to review it"
    if voter.key in requesters_side(case.agent, case.snapshot.transaction):
        return "you changed its arguments, so somebody else has to settle this"
    person = voter.facts(bundle)
    granted = check_people_rules(
        bundle.rules, SETTLE, person, _facts(bundle, case), now=now, env=ctx.settings.environment
    )
    if granted is None:
        return _not_in_gates(bundle, case, person.groups, voter)
    if granted:
        return None
    return "the policy about settling does not permit you" if granted.reason is None else granted.reason.text


def _break_glass_signers(case: TaskContext) -> set[str]:
    signed = break_glass_signatures(case.snapshot, case.effect)
    return {person_key(vote.iss, vote.sub) for vote in signed}


def _facts(bundle: Bundle, case: TaskContext) -> TaskFacts:
    manifest = manifest_for(bundle, case.effect.tool, case.effect.tool_digest)
    return TaskFacts(
        review_id=case.task.task_id,
        agent=principal_of(case.agent),
        tool=case.effect.tool,
        risk=manifest.risk if manifest is not None else _RISK_OF_UNKNOWN,
        gates=frozenset(gate.policy_id for gate in case.gates),
        opened_at=case.task.opened_at,
        kind=case.task.kind,
    )


def _not_in_gates(bundle: Bundle, case: TaskContext, groups: frozenset[str], voter: Voter) -> str | None:
    # The members of unsatisfiable gates are too few, so others settle that.
    gates = () if case.kind is TaskKind.IMPOSSIBLE_QUORUM else case.gates
    of_effect = frozenset[str]().union(*(gate.groups for gate in gates))
    asked = of_effect or bundle.rules.asked | {UNSEEN}
    if groups & asked:
        return None
    if not of_effect and not bundle.rules.asked:
        return f"no policy says who settles tasks; name them in the bundle: {_NAME_THEM}"
    named = sorted(bundle.directory.title_of(group) for group in asked)
    return with_groups_problem(not_in_groups_text(named, "settle this"), voter)


_RESULT = "result:"
_UNKNOWN = frozenset({TaskKind.UNKNOWN, TaskKind.RESTORED})


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer with its text and its consequences."""

    answer: TaskAnswer
    text: str
    follows: str
    wants_result: tuple[str, ...] = ()  # fields of the tool's result that the compensation needs


def choices(case: TaskContext) -> tuple[Choice, ...]:
    """The answers of an open task."""
    if case.task.state != "open":
        return ()
    return tuple(
        Choice(answer, answer_text(case, answer), _consequences(case, answer), _wants_result(case, answer))
        for answer in ANSWERS[case.kind]
    )


def _wants_result(case: TaskContext, answer: TaskAnswer) -> tuple[str, ...]:
    """The fields of the tool's result that its compensation needs."""
    if answer is not TaskAnswer.FIRED or case.effect.compensation is None:
        return ()
    mapping: Mapping[str, str] = case.effect.compensation["map"]
    return tuple(source.removeprefix(_RESULT) for source in mapping.values() if source.startswith(_RESULT))


def answer_text(case: TaskContext, answer: TaskAnswer) -> str:
    """An answer as a sentence."""
    if case.effect.kind == "compensate" and answer in {TaskAnswer.FIRED, TaskAnswer.NOT_FIRED}:
        return "It was undone" if answer is TaskAnswer.FIRED else "It was not undone"
    return _TEXTS[answer]


_TEXTS = {
    TaskAnswer.FIRED: "It fired",
    TaskAnswer.NOT_FIRED: "It did not happen",
    TaskAnswer.COMPENSATED: "It was undone manually",
    TaskAnswer.LEFT_STANDING: "Leave it as it is",
    TaskAnswer.RECORD_HOLDS: "The record is right",
    TaskAnswer.REPORT_HOLDS: "The later report is right",
    TaskAnswer.WITHDRAWN: "Withdraw it",
    TaskAnswer.LEFT_WAITING: "Leave it waiting",
    TaskAnswer.JUSTIFIED: "Break-glass was justified",
    TaskAnswer.NOT_JUSTIFIED: "Break-glass was not justified",
}


def _consequences(case: TaskContext, answer: TaskAnswer) -> str:
    if case.kind in _UNKNOWN:
        return (
            _compensation_consequences(case, answer)
            if case.effect.kind == "compensate"
            else _unknown_consequences(case, answer)
        )
    tool, others = case.effect.tool, len(case.snapshot.effects) - 1
    recorded = f"Nothing changes: {tool} stays recorded as {case.effect.state}"
    withdrawn = f"It and the other {others} of its transaction are" if others else "It is"
    return {
        TaskAnswer.COMPENSATED: f"{tool} is recorded as undone. No tool is called.",
        TaskAnswer.LEFT_STANDING: f"{tool} stays recorded as fired. It will not be undone.",
        TaskAnswer.RECORD_HOLDS: f"{recorded}.",
        TaskAnswer.REPORT_HOLDS: f"{recorded}, with your answer. Correct the consequences manually.",
        TaskAnswer.WITHDRAWN: f"{withdrawn} withdrawn. Nothing fires, and the agent is notified.",
        TaskAnswer.LEFT_WAITING: "It stays open and expires at its deadline. If enough people join the groups before, "
        "it continues automatically.",
        TaskAnswer.JUSTIFIED: f"{recorded}, with your answer.",
        TaskAnswer.NOT_JUSTIFIED: f"{recorded}, with your answer. To stop effects that have not fired, press "
        "Stop at the top; undo what fired manually.",
    }[answer]


def _compensation_consequences(case: TaskContext, answer: TaskAnswer) -> str:
    if answer is TaskAnswer.FIRED:
        return f"{case.forward.tool} is recorded as undone."
    return f"{case.forward.tool} stays fired: its compensation failed, and a new task is opened."


def _unknown_consequences(case: TaskContext, answer: TaskAnswer) -> str:
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
    return f"{recorded} {_transaction_consequences(case.snapshot.effects, after)}"


def _transaction_consequences(effects: Sequence[EffectRow], after: Sequence[EffectStatus]) -> str:
    state = transaction_state(after)
    if any(part.state is EffectState.UNKNOWN for part in after):
        return "Another effect of its transaction is unknown: nothing is undone before that is settled."
    if state is TxnState.SETTLED:
        return "The transaction is settled."
    if state is TxnState.ENDED:
        return "No effect of its transaction remains."
    if not has_missing_effect(after):
        return "The outcomes of the other effects are not reported yet."
    due = [
        (effect.tool, str(effect.compensation["tool"]))
        for effect, part in zip(effects, after, strict=True)
        if part.state is EffectState.FIRED and effect.compensation is not None
    ]
    texts = [f"{undo} is requested to undo {tool}, with its own release." for tool, undo in reversed(due)]
    if needs_manual_settlement(after):
        texts.append("Effects that fired and have no compensation become a task.")
    return " ".join(["The transaction did not complete.", *texts])

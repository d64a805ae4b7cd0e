"""The list of tasks and a task's page, as read models.

A person sees every task of the deployment; whether they may settle it, and why not, is worked out by the rules the
settlement itself applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from sqlalchemy import Connection, func, select
from sqlmodel import col

from countersign.contract import TaskAnswer, reads_result
from policy_service.errors import NotFoundError
from policy_service.pap.bundle import Bundle
from policy_service.queries import records
from policy_service.queries.choices import Choice, answer_text, choices
from policy_service.queries.context import Context
from policy_service.queries.describing import arguments, first_money, sentence
from policy_service.queries.effects import gates_of, manifest_for
from policy_service.queries.openings import count
from policy_service.queries.review_models import Risk, VoteView
from policy_service.queries.reviews import owner_name, siblings_of, timeline_of, vote_view
from policy_service.queries.settlers import why_not_settle
from policy_service.queries.task_cases import TaskCase, read_task, read_tasks, said_of
from policy_service.queries.task_models import (
    ChoiceView,
    OpenTasks,
    SettlementView,
    TaskLine,
    TaskList,
    TaskPage,
)
from policy_service.queries.voter import Voter
from policy_service.storage.tables import EffectRow, TaskRow

_COUNT_CAP = 99  # the tab says "99+" beyond
_RESULT = "result:"


async def count_open(ctx: Context) -> OpenTasks:
    """How many tasks wait for somebody."""
    few = select(col(TaskRow.task_id)).where(col(TaskRow.state) == "open").limit(_COUNT_CAP + 1).subquery()
    found: int = await ctx.db.read(
        lambda conn: conn.execute(select(func.count()).select_from(few)).scalar_one()
    )
    return OpenTasks(min(found, _COUNT_CAP), found > _COUNT_CAP)


async def task_list(ctx: Context, voter: Voter, state: str, cursor: str | None, limit: int) -> TaskList:
    """A page of tasks in a state, the oldest in front."""
    now = ctx.clock()
    return await ctx.db.read(lambda conn: _list(conn, ctx, voter, state, cursor, limit, now))


def _list(
    conn: Connection, ctx: Context, voter: Voter, state: str, cursor: str | None, limit: int, now: datetime
) -> TaskList:
    bundle = ctx.active.current
    found = records.tasks(conn, state=state, after=cursor, limit=limit + 1)
    shown = found[:limit]
    return TaskList(
        rows=tuple(_line(ctx, bundle, case, voter, now) for case in read_tasks(conn, shown)),
        next_cursor=shown[-1].task_id if len(found) > limit else None,
    )


def _line(ctx: Context, bundle: Bundle, case: TaskCase, voter: Voter, now: datetime) -> TaskLine:
    task, effect = case.task, case.effect
    return TaskLine(
        task_id=task.task_id,
        kind=task.kind,
        of_compensation=effect.kind == "compensate",
        text=task.text,
        sentence=sentence(bundle, effect),
        tool=effect.tool,
        agent=effect.agent,
        owner=owner_name(bundle, case.agent.owner),
        amount=first_money(bundle, effect),
        opened_at=task.opened_at,
        can_settle=task.state == "open" and why_not_settle(ctx, bundle, case, voter, now) is None,
        settled_at=task.settled_at,
        settlement=_said(case, said_of(case)),
    )


async def task_page(ctx: Context, voter: Voter, task_id: str) -> TaskPage | None:
    """One task, open or settled; None when there is no such task."""
    now = ctx.clock()
    try:
        return await ctx.db.read(lambda conn: _page(conn, ctx, read_task(conn, task_id), voter, now))
    except NotFoundError:
        return None


def _page(conn: Connection, ctx: Context, case: TaskCase, voter: Voter, now: datetime) -> TaskPage:
    bundle, task, effect, snapshot = ctx.active.current, case.task, case.effect, case.snapshot
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    decision = snapshot.decisions[effect.decision_id]
    review = snapshot.review_of(case.forward)
    of_compensation = effect.kind == "compensate"
    return TaskPage(
        task_id=task.task_id,
        kind=task.kind,
        of_compensation=of_compensation,
        state=task.state,
        text=task.text,
        opened_at=task.opened_at,
        settled_at=task.settled_at,
        effect_id=effect.effect_id,
        rev=effect.rev,
        txn=effect.txn,
        effect_digest=effect.effect_digest,
        effect_state=effect.state,
        call_key=effect.call_key,
        sentence=sentence(bundle, effect),
        risk=cast(Risk, "high" if manifest is None else manifest.risk),
        tool=effect.tool,
        args=arguments(bundle, effect, decision.unseen),
        canonical=effect.args,
        agent=effect.agent,
        agent_owner=owner_name(bundle, case.agent.owner),
        key_kid=snapshot.transaction.jkt,
        seq=effect.seq,
        siblings=siblings_of(bundle, snapshot, case.forward),
        takes_back=sentence(bundle, case.forward) if of_compensation else (),
        review_id=None if review is None else review.review_id,
        votes=_votes(ctx, bundle, case, now),
        commit=decision.commit,
        attempt_id=effect.redeemed_by,
        fire_by=effect.fire_by,
        error=effect.error,
        idempotent=None if manifest is None else manifest.idempotent,
        probe=None if manifest is None else manifest.probe,
        compensation_tool=_undone_by(effect),
        settlements=tuple(filter(None, (_said(case, said) for said in effect.settlements))),
        settlement=_said(case, said_of(case)),
        choices=tuple(_choice(effect, choice) for choice in choices(case)),
        why_not=why_not_settle(ctx, bundle, case, voter, now) if task.state == "open" else None,
        timeline=timeline_of(conn, bundle, effect),
    )


def _undone_by(effect: EffectRow) -> str | None:
    return None if effect.compensation is None else str(effect.compensation["tool"])


def _choice(effect: EffectRow, choice: Choice) -> ChoiceView:
    return ChoiceView(choice.answer.value, choice.text, choice.follows, _wanted(effect, choice.answer))


def _wanted(effect: EffectRow, answer: TaskAnswer) -> tuple[str, ...]:
    """What of the tool's result its compensation cannot do without."""
    if answer is not TaskAnswer.FIRED or effect.compensation is None:
        return ()
    mapping: Mapping[str, str] = effect.compensation["map"]
    if not reads_result(mapping):
        return ()
    return tuple(source.removeprefix(_RESULT) for source in mapping.values() if source.startswith(_RESULT))


def _votes(ctx: Context, bundle: Bundle, case: TaskCase, now: datetime) -> tuple[VoteView, ...]:
    effect, snapshot = case.forward, case.snapshot
    counted = count(ctx, bundle, snapshot, effect, case.agent, gates_of(effect), now)
    return tuple(vote_view(vote, counted) for vote in snapshot.votes_on(effect))


def _said(case: TaskCase, said: Mapping[str, Any] | None) -> SettlementView | None:
    if said is None:
        return None
    return SettlementView(
        answer=answer_text(case, TaskAnswer(said["answer"])),
        person_name=said["name"],
        reason=said["reason"],
        at=datetime.fromisoformat(said["at"]),
        assurance=said["assurance"],
    )

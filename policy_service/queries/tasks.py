"""The task list and the page of a task: the values and how they are read.

Everybody who is signed in can read every task. Whether somebody may settle it is computed with the rules of
the settlement. Texts of agents and tools are returned unchanged; no value is HTML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast

from sqlalchemy import Connection, func, select
from sqlmodel import col

from countersign.contract import TaskAnswer
from countersign.contract.wire import TaskChoice, TaskDetail, TaskPage, TaskView
from policy_service.errors import NotFoundError
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.effects import (
    ArgRow,
    Money,
    Piece,
    arg_rows,
    effect_sentence,
    first_money,
    gates_of,
    manifest_for,
)
from policy_service.queries.queue import CappedCount
from policy_service.queries.review_models import EventLine, Risk, Sibling, VoteLine
from policy_service.queries.reviews import owner_name, siblings_of, timeline_of, vote_line
from policy_service.queries.task_context import (
    Choice,
    TaskContext,
    answer_text,
    choices,
    read_task_context,
    read_task_contexts,
    settle_refusal,
    settlement_of,
)
from policy_service.queries.transaction_views import effect_view, settlement_view
from policy_service.queries.vote_eligibility import Voter, count_votes
from policy_service.storage.tables import EffectRow, TaskRow


@dataclass(frozen=True, slots=True)
class SettlementLine:
    """What a person settled; `answer` is its text."""

    answer: str
    person_name: str
    reason: str
    at: datetime
    assurance: str


@dataclass(frozen=True, slots=True)
class TaskLine:
    """One task in the list."""

    task_id: str
    kind: str
    of_compensation: bool
    text: str
    sentence: tuple[Piece, ...]
    tool: str
    agent: str
    owner: str | None
    amount: Money | None
    opened_at: datetime
    can_settle: bool
    settled_at: datetime | None = None
    settlement: SettlementLine | None = None


@dataclass(frozen=True, slots=True)
class TaskList:
    """A page of tasks, oldest first; `next_cursor` is opaque, None at the end."""

    rows: tuple[TaskLine, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class TaskReadModel:
    """Everything a person needs to settle one task, and its outcome."""

    task_id: str
    kind: str
    of_compensation: bool
    state: str
    text: str
    opened_at: datetime
    settled_at: datetime | None
    effect_id: str
    rev: int
    txn: str
    effect_digest: str
    effect_state: str
    call_key: str
    sentence: tuple[Piece, ...]
    risk: Risk
    tool: str
    args: tuple[ArgRow, ...]
    canonical: bytes
    agent: str
    agent_owner: str | None
    key_kid: str | None
    seq: int
    siblings: tuple[Sibling, ...]
    takes_back: tuple[Piece, ...]  # for a compensation: the sentence of the effect it undoes
    review_id: str | None
    votes: tuple[VoteLine, ...]  # votes on the released effect
    commit: str
    attempt_id: str | None
    fire_by: datetime | None
    error: str | None  # the error of the last report, in the words of its reporter
    idempotent: bool | None  # None: the manifest is not in the bundle
    probe: str | None
    compensation_tool: str | None
    settlements: tuple[SettlementLine, ...]  # all settlements of the effect
    settlement: SettlementLine | None  # of this task
    choices: tuple[Choice, ...]
    why_not: str | None
    timeline: tuple[EventLine, ...]


_COUNT_CAP = 99  # more are shown as "99+"


async def count_open(ctx: Context) -> CappedCount:
    few = select(col(TaskRow.task_id)).where(col(TaskRow.state) == "open").limit(_COUNT_CAP + 1).subquery()
    found: int = await ctx.db.read(
        lambda conn: conn.execute(select(func.count()).select_from(few)).scalar_one()
    )
    return CappedCount(min(found, _COUNT_CAP), found > _COUNT_CAP)


async def task_list(ctx: Context, voter: Voter, state: str, cursor: str | None, limit: int) -> TaskList:
    """A page of tasks in a state, oldest first."""
    now = ctx.clock()
    return await ctx.db.read(lambda conn: _list(conn, ctx, voter, state, cursor, limit, now))


def _list(
    conn: Connection, ctx: Context, voter: Voter, state: str, cursor: str | None, limit: int, now: datetime
) -> TaskList:
    bundle = ctx.active.current
    found = repository.list_tasks(conn, state=state, after=cursor, limit=limit + 1)
    shown = found[:limit]
    return TaskList(
        rows=tuple(_line(ctx, bundle, case, voter, now) for case in read_task_contexts(conn, shown)),
        next_cursor=shown[-1].task_id if len(found) > limit else None,
    )


def _line(ctx: Context, bundle: Bundle, case: TaskContext, voter: Voter, now: datetime) -> TaskLine:
    task, effect = case.task, case.effect
    return TaskLine(
        task_id=task.task_id,
        kind=task.kind,
        of_compensation=effect.kind == "compensate",
        text=task.text,
        sentence=effect_sentence(bundle, effect),
        tool=effect.tool,
        agent=effect.agent,
        owner=owner_name(bundle, case.agent.owner),
        amount=first_money(bundle, effect),
        opened_at=task.opened_at,
        can_settle=task.state == "open" and settle_refusal(ctx, bundle, case, voter, now) is None,
        settled_at=task.settled_at,
        settlement=_settlement_line(case, settlement_of(case)),
    )


async def task_page(ctx: Context, voter: Voter, task_id: str) -> TaskReadModel | None:
    """One task, open or settled; None if it does not exist."""
    now = ctx.clock()
    try:
        return await ctx.db.read(lambda conn: _page(conn, ctx, read_task_context(conn, task_id), voter, now))
    except NotFoundError:
        return None


def _page(conn: Connection, ctx: Context, case: TaskContext, voter: Voter, now: datetime) -> TaskReadModel:
    bundle, task, effect, snapshot = ctx.active.current, case.task, case.effect, case.snapshot
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    decision = snapshot.decisions[effect.decision_id]
    review = snapshot.review_of(case.forward)
    of_compensation = effect.kind == "compensate"
    return TaskReadModel(
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
        sentence=effect_sentence(bundle, effect),
        risk=cast(Risk, "high" if manifest is None else manifest.risk),
        tool=effect.tool,
        args=arg_rows(bundle, effect, decision.unseen),
        canonical=effect.args,
        agent=effect.agent,
        agent_owner=owner_name(bundle, case.agent.owner),
        key_kid=snapshot.transaction.jkt,
        seq=effect.seq,
        siblings=siblings_of(bundle, snapshot, case.forward),
        takes_back=effect_sentence(bundle, case.forward) if of_compensation else (),
        review_id=None if review is None else review.review_id,
        votes=_votes(ctx, bundle, case, now),
        commit=decision.commit,
        attempt_id=effect.redeemed_by,
        fire_by=effect.fire_by,
        error=effect.error,
        idempotent=None if manifest is None else manifest.idempotent,
        probe=None if manifest is None else manifest.probe,
        compensation_tool=_compensation_tool(effect),
        settlements=tuple(filter(None, (_settlement_line(case, said) for said in effect.settlements))),
        settlement=_settlement_line(case, settlement_of(case)),
        choices=choices(case),
        why_not=settle_refusal(ctx, bundle, case, voter, now) if task.state == "open" else None,
        timeline=timeline_of(conn, bundle, effect),
    )


def _compensation_tool(effect: EffectRow) -> str | None:
    return None if effect.compensation is None else str(effect.compensation["tool"])


def _votes(ctx: Context, bundle: Bundle, case: TaskContext, now: datetime) -> tuple[VoteLine, ...]:
    effect, snapshot = case.forward, case.snapshot
    counted = count_votes(ctx, bundle, snapshot, effect, case.agent, gates_of(effect), now)
    return tuple(vote_line(vote, counted) for vote in snapshot.votes_on(effect))


def _settlement_line(case: TaskContext, said: Mapping[str, Any] | None) -> SettlementLine | None:
    if said is None:
        return None
    return SettlementLine(
        answer=answer_text(case, TaskAnswer(said["answer"])),
        person_name=said["name"],
        reason=said["reason"],
        at=datetime.fromisoformat(said["at"]),
        assurance=said["assurance"],
    )


async def task_list_view(
    ctx: Context, *, state: str, kind: str | None, cursor: str | None, limit: int
) -> TaskPage:
    """Tasks in a state, of one kind or of all, oldest first."""
    found = await ctx.db.read(
        lambda conn: repository.list_tasks(conn, state=state, kind=kind, after=cursor, limit=limit + 1)
    )
    shown = found[:limit]
    cases = await ctx.db.read(lambda conn: read_task_contexts(conn, shown))
    return TaskPage(
        tasks=tuple(_task_view(ctx, case) for case in cases),
        next=shown[-1].task_id if len(found) > limit else None,
    )


async def load_task_detail(ctx: Context, voter: Voter, task_id: str) -> TaskDetail:
    """One task for the person who settles it.

    Raises:
        NotFoundError: there is no such task.
    """
    return task_detail(ctx, voter, await ctx.db.read(lambda conn: read_task_context(conn, task_id)))


def task_detail(ctx: Context, voter: Voter, case: TaskContext) -> TaskDetail:
    bundle, now, effect = ctx.active.current, ctx.clock(), case.effect
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    is_open = case.task.state == "open"
    return TaskDetail(
        task=_task_view(ctx, case),
        effect=effect_view(ctx, case.agent, case.snapshot, effect, for_people=True),
        choices=tuple(TaskChoice(answer=c.answer, text=c.text, follows=c.follows) for c in choices(case)),
        attempt_id=effect.redeemed_by,
        fire_by=effect.fire_by,
        error=effect.error,
        idempotent=None if manifest is None else manifest.idempotent,
        compensation_tool=None if effect.compensation is None else effect.compensation["tool"],
        owner=case.agent.owner,
        why_not=settle_refusal(ctx, bundle, case, voter, now) if is_open else None,
    )


def _task_view(ctx: Context, case: TaskContext) -> TaskView:
    task, said = case.task, settlement_of(case)
    return TaskView(
        task_id=task.task_id,
        kind=case.kind,
        text=task.text,
        opened_at=task.opened_at,
        state=cast(Literal["open", "settled"], task.state),
        url=task_url(ctx, task.task_id),
        txn=task.txn,
        effect_id=task.effect_id,
        rev=task.rev,
        agent=case.effect.agent,
        tool=case.effect.tool,
        settled_at=task.settled_at,
        settlement=None if said is None else settlement_view(said, for_people=True),
    )


def task_url(ctx: Context, task_id: str) -> str:
    """The page on which people settle a task."""
    return f"{ctx.settings.public_url}/tasks/{task_id}"

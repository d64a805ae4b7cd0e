"""Tasks as the wire's read models."""

from __future__ import annotations

from typing import Literal, cast

from countersign.contract.wire import TaskChoice, TaskDetail, TaskPage, TaskView
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.effects import manifest_for
from policy_service.queries.task_context import (
    TaskContext,
    choices,
    read_task_context,
    read_task_contexts,
    settle_refusal,
    settlement_of,
)
from policy_service.queries.transaction_views import effect_view, settlement_view
from policy_service.queries.voter import Voter


async def task_list_view(
    ctx: Context, *, state: str, kind: str | None, cursor: str | None, limit: int
) -> TaskPage:
    """Tasks in a state, of a kind or of all, oldest first."""
    found = await ctx.db.read(
        lambda conn: repository.list_tasks(conn, state=state, kind=kind, after=cursor, limit=limit + 1)
    )
    shown = found[:limit]
    cases = await ctx.db.read(lambda conn: read_task_contexts(conn, shown))
    return TaskPage(
        tasks=tuple(_view(ctx, case) for case in cases),
        next=shown[-1].task_id if len(found) > limit else None,
    )


async def load_task_detail(ctx: Context, voter: Voter, task_id: str) -> TaskDetail:
    """One task with what is known, for the person who settles it.

    Raises:
        NotFoundError: no such task.
    """
    return task_detail(ctx, voter, await ctx.db.read(lambda conn: read_task_context(conn, task_id)))


def task_detail(ctx: Context, voter: Voter, case: TaskContext) -> TaskDetail:
    """One case, the same way."""
    bundle, now, effect = ctx.active.current, ctx.clock(), case.effect
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    is_open = case.task.state == "open"
    return TaskDetail(
        task=_view(ctx, case),
        effect=effect_view(ctx, bundle, case.agent, case.snapshot, effect, now, for_people=True),
        choices=tuple(TaskChoice(answer=c.answer, text=c.text, follows=c.follows) for c in choices(case)),
        attempt_id=effect.redeemed_by,
        fire_by=effect.fire_by,
        error=effect.error,
        idempotent=None if manifest is None else manifest.idempotent,
        compensation_tool=None if effect.compensation is None else effect.compensation["tool"],
        owner=case.agent.owner,
        why_not=settle_refusal(ctx, bundle, case, voter, now) if is_open else None,
    )


def _view(ctx: Context, case: TaskContext) -> TaskView:
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
    """Where people settle a task."""
    return f"{ctx.settings.public_url}/tasks/{task_id}"

"""/v1/tasks: tasks that need a human answer, for signed-in people's programs."""

from __future__ import annotations

from typing import Literal

from fastapi import Path, Query

from countersign.contract import TaskKind, canonicalize
from countersign.contract.wire import SettleRequest, TaskDetail, TaskPage
from policy_service.channels.http.api import Api, ApiRoutes, Cursor, Limit
from policy_service.identity.sessions import Session
from policy_service.queries.tasks import load_task_detail, task_detail, task_list_view
from policy_service.queries.vote_eligibility import voter_from_person
from policy_service.workflow.tasks.settle import Settlement, settle

TaskId = Path(min_length=1, max_length=64, description="The task's id.")
State = Query(default="open", description="Open or settled tasks.")
Kind = Query(default=None, description="Only tasks of this kind.")


routes = ApiRoutes(prefix="/v1", tags=["tasks"])


@routes.person("GET /tasks")
async def list_tasks(
    api: Api,
    _: Session,
    state: Literal["open", "settled"] = State,
    kind: TaskKind | None = Kind,
    cursor: str | None = Cursor,
    limit: int | None = Limit,
) -> TaskPage:
    """List tasks, the oldest first."""
    rows = api.ctx.settings.rows(limit)
    wanted = None if kind is None else kind.value
    return await task_list_view(api.ctx, state=state, kind=wanted, cursor=cursor, limit=rows)


@routes.person("GET /tasks/{task_id}", 404)
async def get_task(api: Api, session: Session, task_id: str = TaskId) -> TaskDetail:
    """Read a task, open or settled, with what is known about it."""
    return await load_task_detail(api.ctx, voter_from_person(session.person), task_id)


@routes.person("POST /tasks/{task_id}/settle")
async def settle_task(
    api: Api, session: Session, payload: SettleRequest, task_id: str = TaskId
) -> TaskDetail:
    """Settle a task. The first answer counts; repeating the same answer has no effect."""
    voter = voter_from_person(session.person)
    word = Settlement(
        task_id=task_id,
        answer=payload.answer,
        effect_digest=payload.effect_digest,
        effect_state=payload.effect_state.value,
        reason=payload.reason,
        channel="api",
        result=None if payload.result is None else canonicalize(payload.result),
    )
    return task_detail(api.ctx, voter, await settle(api.ctx, voter, word))

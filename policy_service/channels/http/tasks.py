"""/v1/tasks: what a person must settle, for people's own programs, by the session of a signed-in person."""

from __future__ import annotations

from typing import Literal

from fastapi import Path, Query

from countersign.contract import TaskKind, canonicalize
from countersign.contract.wire import SettleRequest, TaskDetail, TaskPage
from policy_service.channels.http.api import Api
from policy_service.channels.http.api_routes import ApiRoutes
from policy_service.channels.http.reviews import Cursor, Limit
from policy_service.identity.sessions import Session
from policy_service.queries import task_views
from policy_service.queries.voter import voter_from_person
from policy_service.workflow.tasks.settle import Settlement, settle

TaskId = Path(min_length=1, max_length=64, description="The task's id.")
State = Query(default="open", description="Those still to settle, or those that are settled.")
Kind = Query(default=None, description="Those of one kind only.")


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
    """What a person must settle, oldest first."""
    rows = api.ctx.settings.rows(limit)
    wanted = None if kind is None else kind.value
    return await task_views.task_list_view(api.ctx, state=state, kind=wanted, cursor=cursor, limit=rows)


@routes.person("GET /tasks/{task_id}", 404)
async def get_task(api: Api, session: Session, task_id: str = TaskId) -> TaskDetail:
    """One task with what is known, open or settled."""
    return await task_views.load_task_detail(api.ctx, voter_from_person(session.person), task_id)


@routes.person("POST /tasks/{task_id}/settle")
async def settle_task(api: Api, session: Session, wish: SettleRequest, task_id: str = TaskId) -> TaskDetail:
    """Settle a task; the first word stands, and the same word again is the same word."""
    voter = voter_from_person(session.person)
    word = Settlement(
        task_id=task_id,
        answer=wish.answer,
        effect_digest=wish.effect_digest,
        effect_state=wish.effect_state.value,
        reason=wish.reason,
        channel="api",
        result=None if wish.result is None else canonicalize(wish.result),
    )
    return task_views.task_detail(api.ctx, voter, await settle(api.ctx, voter, word))

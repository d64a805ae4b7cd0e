"""/v1/tasks: what a person must settle, for people's own programs, by the session of a signed-in person."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Path, Query, Request, Response

from countersign.contract import TaskKind, canonicalize
from countersign.contract.wire import SettleRequest, TaskDetail, TaskPage
from policy_service.channels.http import docs
from policy_service.channels.http.api import api_of
from policy_service.channels.http.bodies import answer, read_model
from policy_service.channels.http.reviews import CSRF, ORIGIN, Cursor, Limit
from policy_service.workflow.reviews.voter import voter_for
from policy_service.workflow.tasks.settle import Word, settle
from policy_service.workflow.told import task_views

TaskId = Path(min_length=1, max_length=64, description="The task's id.")
State = Query(default="open", description="Those still to settle, or those that are settled.")
Kind = Query(default=None, description="Those of one kind only.")


routes = APIRouter(prefix="/v1", tags=["tasks"])


@routes.get(
    "/tasks",
    response_model=TaskPage,
    summary="What a person must settle, oldest first",
    responses=docs.problems(400, 401, 421, 503),
    openapi_extra={"security": docs.PERSON},
)
async def list_tasks(
    request: Request,
    state: Literal["open", "settled"] = State,
    kind: TaskKind | None = Kind,
    cursor: str | None = Cursor,
    limit: int | None = Limit,
) -> Response:
    api = api_of(request)
    await api.gate.person(request)
    rows = api.ctx.settings.rows(limit)
    wanted = None if kind is None else kind.value
    return answer(await task_views.page(api.ctx, state=state, kind=wanted, cursor=cursor, limit=rows))


@routes.get(
    "/tasks/{task_id}",
    response_model=TaskDetail,
    summary="One task with what is known, open or settled",
    responses=docs.problems(400, 401, 404, 421, 503),
    openapi_extra={"security": docs.PERSON},
)
async def get_task(request: Request, task_id: str = TaskId) -> Response:
    api = api_of(request)
    session = await api.gate.person(request)
    return answer(await task_views.detail(api.ctx, voter_for(session.person), task_id))


@routes.post(
    "/tasks/{task_id}/settle",
    response_model=TaskDetail,
    summary="Settle a task; the first word stands, and the same word again is the same word",
    responses=docs.problems(400, 401, 403, 404, 409, 413, 415, 421, 503),
    openapi_extra=docs.with_parameters(docs.body_of(SettleRequest), CSRF, ORIGIN) | {"security": docs.PERSON},
)
async def settle_task(request: Request, task_id: str = TaskId) -> Response:
    api = api_of(request)
    session, body = await api.gate.person_who_writes(request)
    wish, voter = read_model(SettleRequest, body), voter_for(session.person)
    word = Word(
        task_id=task_id,
        answer=wish.answer,
        effect_digest=wish.effect_digest,
        effect_state=wish.effect_state.value,
        reason=wish.reason,
        channel="api",
        result=None if wish.result is None else canonicalize(wish.result),
    )
    return answer(task_views.told(api.ctx, voter, await settle(api.ctx, voter, word)))

"""The routes of tasks: the list, a task with what is known, the form by which a person settles it.

The same rules as everywhere here: a GET changes nothing, a POST carries the session's token and comes from our own
page, and the form names the bytes and the state that were read. The word is judged nowhere here: the workflow decides.
"""

from fastapi import Request, Response

from countersign.contract import ContractError, TaskAnswer, canonicalize, load
from policy_service.channels.web import live
from policy_service.channels.web.drawing.task_views import changed_since, list_context, task_context
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages
from policy_service.channels.web.ports import EventFeed, QueueSource, Said
from policy_service.channels.web.signing_in import sent_by, signed_in
from policy_service.errors import InvalidRequestError, NotFoundError
from policy_service.workflow.words import require_short

PAGE_OF_TASKS = 50
_EVENTS_COUNTED = 200
_STATES = ("open", "settled")
_FIELDS = frozenset({"csrf_token", "answer", "effect_digest", "effect_state", "reason"})
_OPTIONAL = frozenset({"result", "seen"})


def add_tasks(router: PageRoutes, pages: Pages, source: QueueSource, feed: EventFeed) -> None:
    """Give a router the pages of tasks."""

    @router.page("/tasks")
    async def tasks(request: Request) -> Response:
        session = await pages.session(request)
        if session is None:
            return pages.go("/sign-in?next=/tasks")
        index = await feed.latest()  # read before the rows: what comes between is announced, not lost
        state, cursor = request.query_params.get("state", "open"), request.query_params.get("cursor")
        if state not in _STATES:
            raise InvalidRequestError(f"tasks are 'open' or 'settled', not {state!r}")
        found = await source.task_list(session.person, state, cursor, PAGE_OF_TASKS)
        context = {**list_context(found, pages.now()), "state": state, "index": index}
        return await pages.draw(request, "tasks.html", session=session, **context)

    @router.get("/tasks/live")
    async def tasks_live(request: Request) -> Response:
        session = await signed_in(pages, request, touch=False)
        batch = await feed.events_after(session.person, live.index_of(request, "since"), _EVENTS_COUNTED)
        fresh, settled = live.tell(batch.events, "task")
        return await pages.draw(request, "tasks_live.html", fresh=fresh, settled=settled)

    @router.page("/tasks/{task_id}")
    async def task(request: Request, task_id: str) -> Response:
        session = await pages.session(request)
        if session is None:
            return pages.go(f"/sign-in?next=/tasks/{task_id}")
        index = await feed.latest()
        page = await source.task_page(task_id, session.person)
        if page is None:
            raise NotFoundError(f"there is no task {task_id!r} that you may see")
        heavy = len(page.canonical)
        context = await pages.beside(heavy, lambda: task_context(page, pages.now()))
        return await pages.draw(request, "task.html", heavy=heavy, session=session, index=index, **context)

    @router.get("/tasks/{task_id}/live")
    async def task_live(request: Request, task_id: str) -> Response:
        session = await signed_in(pages, request, touch=False)
        page = await source.task_page(task_id, session.person)
        changed = "" if page is None else changed_since(page, request.query_params.get("shown", ""))
        return await pages.draw(request, "task_live.html", changed=changed, task_id=task_id)

    @router.post("/tasks/{task_id}/settle")
    async def settle(request: Request, task_id: str) -> Response:
        session, form = await sent_by(pages, request, _FIELDS, _OPTIONAL, undone="nothing was settled")
        await source.settle_task(session.person, task_id, _read_word(form))
        return pages.go(f"/tasks/{task_id}")


def _read_word(fields: dict[str, str]) -> Said:
    """Raises InvalidRequestError (`wrong_answer` among others)."""
    return Said(
        answer=_answer(fields["answer"]),
        effect_digest=fields["effect_digest"],
        effect_state=fields["effect_state"],
        reason=_reason(fields["reason"]),
        result=_result(fields.get("result", "")),
    )


def _answer(value: str) -> TaskAnswer:
    try:
        return TaskAnswer(value)
    except ValueError as error:
        raise InvalidRequestError(f"{value!r} is no answer to any task", code="wrong_answer") from error


def _reason(value: str) -> str:
    return require_short(value.replace("\r\n", "\n").strip())


def _result(value: str) -> bytes | None:
    """What the tool answered, as the person knows it: JSON under the same strict rules as everything here."""
    if not value.strip():
        return None
    try:
        return canonicalize(load(value.strip().encode("utf-8", "surrogatepass")))
    except ContractError as error:
        raise InvalidRequestError(f"the result is not JSON we can keep: {error}") from error

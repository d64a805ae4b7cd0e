"""The routes of tasks: the list, one task, and the form that settles it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import Request, Response

from countersign.contract import ContractError, TaskAnswer, TaskKind, canonicalize, load
from policy_service.channels.presentation.arguments import arg_views, canonical_view, fold, matches_canonical
from policy_service.channels.presentation.formatting import is_unknown_outcome, question_text, span_words
from policy_service.channels.web import sse
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.channels.web.presenters.review_page import argument_warnings, timeline_line
from policy_service.errors import InvalidRequestError, NotFoundError
from policy_service.queries.review_context import require_text_length
from policy_service.queries.tasks import TaskLine, TaskList, TaskReadModel, task_list, task_page
from policy_service.workflow.tasks.settle import Settlement, settle


@dataclass(frozen=True, slots=True)
class TaskQuestion:
    """The question of a task, its label and its icon."""

    text: str
    tag: str
    icon: str


_LABELS = {
    TaskKind.UNKNOWN: ("Unknown", "unknown"),
    TaskKind.RESTORED: ("Restored", "unknown"),
    TaskKind.COMPENSATION_FAILED: ("Not undone", "alert"),
    TaskKind.COMPENSATION_DUE: ("To undo", "refresh"),
    TaskKind.STANDING: ("Fired alone", "alert"),
    TaskKind.CONTRADICTION: ("Two reports", "swap"),
    TaskKind.BREAK_GLASS_REVIEW: ("Break-glass", "alert"),
    TaskKind.IMPOSSIBLE_QUORUM: ("No quorum", "people"),
}


def task_question(task: TaskLine | TaskReadModel) -> TaskQuestion:
    kind = TaskKind(task.kind)
    undone = task.of_compensation and is_unknown_outcome(kind)  # the question is about the compensation
    return TaskQuestion(
        question_text(kind, of_compensation=task.of_compensation),
        *_LABELS[TaskKind.UNKNOWN if undone else kind],
    )


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """A row with its question and how long it has been open."""

    row: TaskLine
    question: TaskQuestion
    open_for: str


def list_context(tasks: TaskList, now: datetime) -> dict[str, Any]:
    """The variables of `tasks.html`, without those of the session."""
    entries = tuple(TaskEntry(row, task_question(row), span_words(now - row.opened_at)) for row in tasks.rows)
    return {"tasks": tasks, "entries": entries}


def task_context(page: TaskReadModel, now: datetime) -> dict[str, Any]:
    """The variables of `task.html`, without those of the session."""
    args = arg_views(page)
    return {
        "page": page,
        "args": args,
        "bytes": canonical_view(page),
        "broken": not matches_canonical(page),
        "warnings": argument_warnings(args),
        "question": task_question(page),
        "open_for": span_words(now - page.opened_at),
        "signed": tuple(vote for vote in page.votes if vote.counted and vote.verdict == "approve"),
        "glass": tuple(vote for vote in page.votes if vote.verdict == "break_glass"),
        "earlier": _earlier(page),
        "said": fold(page.error) if page.error else None,
        "timeline": tuple(timeline_line(event, now) for event in page.timeline),
        "shown": page_fingerprint(page),
    }


def _earlier(page: TaskReadModel) -> Sequence[Any]:
    """Settlements of this effect by other tasks."""
    return tuple(said for said in page.settlements if said != page.settlement)


def page_fingerprint(page: TaskReadModel) -> str:
    """The state that others can change. The page sends it when it asks for updates."""
    return f"{page.state}-{page.effect_state}-{len(page.settlements)}"


def change_notice(page: TaskReadModel, shown: str) -> str:
    """What changed since the page was rendered; "" if nothing did."""
    if page_fingerprint(page) == shown:
        return ""
    if page.settlement is not None:
        return "It was settled, show it"
    return (
        "There is nothing left to settle, show it" if page.state != "open" else "It has changed, load again"
    )


PAGE_OF_TASKS = 50
_EVENTS_COUNTED = 200
_STATES = ("open", "settled")
_FIELDS = frozenset({"answer", "effect_digest", "effect_state", "reason"})
_OPTIONAL = frozenset({"result", "seen"})


routes = PageRoutes()


@routes.page("/tasks")
async def list_tasks(pages: Pages, request: Request, session: PageSession) -> Response:
    index = pages.ctx.feed.index  # read before the rows, so that changes in between are announced
    state, cursor = request.query_params.get("state", "open"), request.query_params.get("cursor")
    if state not in _STATES:
        raise InvalidRequestError(f"tasks are 'open' or 'settled', not {state!r}")
    found = await task_list(pages.ctx, session.voter, state, cursor, PAGE_OF_TASKS)
    context = {**list_context(found, pages.now()), "state": state, "index": index}
    return await pages.draw(request, "tasks.html", session=session, **context)


@routes.get("/tasks/live")
async def tasks_live(pages: Pages, request: Request, session: PageSession) -> Response:
    batch = await sse.read_events(pages.ctx.feed, sse.index_param(request, "since"), _EVENTS_COUNTED)
    fresh, settled = sse.count_changes(batch.events, "task")
    return await pages.draw(request, "tasks_live.html", fresh=fresh, settled=settled)


@routes.page("/tasks/{task_id}")
async def show_task(pages: Pages, request: Request, session: PageSession, task_id: str) -> Response:
    index = pages.ctx.feed.index
    page = await task_page(pages.ctx, session.voter, task_id)
    if page is None:
        raise NotFoundError(f"there is no task {task_id!r} that you may see")
    heavy = len(page.canonical)
    context = await pages.run_pure(heavy, lambda: task_context(page, pages.now()))
    return await pages.draw(request, "task.html", heavy=heavy, session=session, index=index, **context)


@routes.get("/tasks/{task_id}/live")
async def task_live(pages: Pages, request: Request, session: PageSession, task_id: str) -> Response:
    page = await task_page(pages.ctx, session.voter, task_id)
    changed = "" if page is None else change_notice(page, request.query_params.get("shown", ""))
    return await pages.draw(request, "task_live.html", changed=changed, task_id=task_id)


@routes.form("/tasks/{task_id}/settle", _FIELDS, _OPTIONAL, undone="nothing was settled")
async def settle_task(
    pages: Pages, _: Request, session: PageSession, form: dict[str, str], task_id: str
) -> Response:
    await settle(pages.ctx, session.voter, _read_settlement(task_id, form))
    return pages.go(f"/tasks/{task_id}")


def _read_settlement(task_id: str, fields: dict[str, str]) -> Settlement:
    """Raises InvalidRequestError (`wrong_answer` among others)."""
    return Settlement(
        task_id,
        answer=_answer(fields["answer"]),
        effect_digest=fields["effect_digest"],
        effect_state=fields["effect_state"],
        reason=_reason(fields["reason"]),
        channel="web",
        result=_result(fields.get("result", "")),
    )


def _answer(value: str) -> TaskAnswer:
    try:
        return TaskAnswer(value)
    except ValueError as error:
        raise InvalidRequestError(f"{value!r} is not an answer of any task", code="wrong_answer") from error


def _reason(value: str) -> str:
    return require_text_length(value.replace("\r\n", "\n").strip())


def _result(value: str) -> bytes | None:
    """The tool's response as the person knows it, as strict JSON."""
    if not value.strip():
        return None
    try:
        return canonicalize(load(value.strip().encode("utf-8", "surrogatepass")))
    except ContractError as error:
        raise InvalidRequestError(f"the result is not JSON we can keep: {error}") from error

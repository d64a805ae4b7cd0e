"""From tasks' read models to what their templates need: the question, its look, the folds. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from countersign.contract import TaskKind
from countersign.contract.wire import MAX_TEXT_CHARS
from policy_service.channels.showing.arguments import arg_views, canonical_bytes, folded, same_bytes
from policy_service.channels.showing.questions import is_doubt, question_text
from policy_service.channels.showing.wording import span_words
from policy_service.channels.web.drawing.views import timeline_line, warned
from policy_service.queries.tasks import TaskLine, TaskList, TaskPage


@dataclass(frozen=True, slots=True)
class Question:
    """What nobody but a person can tell, in one sentence, and its look."""

    text: str
    tag: str
    icon: str


_LOOKS = {
    TaskKind.UNKNOWN: ("Unknown", "unknown"),
    TaskKind.RESTORED: ("Restored", "unknown"),
    TaskKind.COMPENSATION_FAILED: ("Not undone", "alert"),
    TaskKind.COMPENSATION_DUE: ("To undo", "refresh"),
    TaskKind.STANDING: ("Stands", "alert"),
    TaskKind.CONTRADICTION: ("Two reports", "swap"),
    TaskKind.BREAK_GLASS_REVIEW: ("Break-glass", "alert"),
    TaskKind.IMPOSSIBLE_QUORUM: ("No quorum", "people"),
}


def question(task: TaskLine | TaskPage) -> Question:
    """What is asked of people."""
    kind = TaskKind(task.kind)
    undone = task.of_compensation and is_doubt(kind)  # whatever the doubt came of, it is about the undoing
    return Question(
        question_text(kind, of_compensation=task.of_compensation),
        *_LOOKS[TaskKind.UNKNOWN if undone else kind],
    )


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """A row with its question and how long it has been open."""

    row: TaskLine
    question: Question
    open_for: str


def list_context(tasks: TaskList, now: datetime) -> dict[str, Any]:
    """Everything `tasks.html` draws, but for what belongs to the session."""
    entries = tuple(TaskEntry(row, question(row), span_words(now - row.opened_at)) for row in tasks.rows)
    return {"tasks": tasks, "entries": entries}


def task_context(page: TaskPage, now: datetime) -> dict[str, Any]:
    """Everything `task.html` draws, but for what belongs to the session."""
    args = arg_views(page)
    return {
        "page": page,
        "args": args,
        "bytes": canonical_bytes(page),
        "broken": not same_bytes(page),
        "warnings": warned(args),
        "question": question(page),
        "open_for": span_words(now - page.opened_at),
        "signed": tuple(vote for vote in page.votes if vote.counted and vote.verdict == "approve"),
        "glass": tuple(vote for vote in page.votes if vote.verdict == "break_glass"),
        "earlier": _earlier(page),
        "said": folded(page.error) if page.error else None,
        "timeline": tuple(timeline_line(event, now) for event in page.timeline),
        "shown": shown_as(page),
        "max_reason": MAX_TEXT_CHARS,
    }


def _earlier(page: TaskPage) -> Sequence[Any]:
    """What people said of this effect by other tasks."""
    return tuple(said for said in page.settlements if said != page.settlement)


def shown_as(page: TaskPage) -> str:
    """What others can change of a task, in one word, for the page to name when it asks what is new."""
    return f"{page.state}-{page.effect_state}-{len(page.settlements)}"


def changed_since(page: TaskPage, shown: str) -> str:
    """What to say beside a page that was drawn as `shown`; nothing when it would be drawn so again."""
    if shown_as(page) == shown:
        return ""
    if page.settlement is not None:
        return "Settled while you read, show it"
    return (
        "Nothing is left to settle, show it"
        if page.state != "open"
        else "It changed while you read, load again"
    )

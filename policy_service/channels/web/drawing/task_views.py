"""From tasks' read models to what their templates need: the question, its look, the folds. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from policy_service.channels.showing.arguments import arg_views, canonical_bytes, folded, same_bytes
from policy_service.channels.showing.signing import MAX_REASON_CHARS
from policy_service.channels.showing.wording import span_words
from policy_service.channels.web.drawing.views import timeline_line, warned
from policy_service.workflow.reading.tasks import TaskLine, TaskList, TaskPage


@dataclass(frozen=True, slots=True)
class Question:
    """What nobody but a person can tell, in one sentence, and its look."""

    text: str
    tag: str
    icon: str


_QUESTIONS = {
    "unknown": Question("We do not know whether this fired", "Unknown", "unknown"),
    "restored": Question(
        "We do not know whether this fired: what this service remembers was put back", "Restored", "unknown"
    ),
    "compensation_failed": Question("This fired, and could not be taken back", "Not undone", "alert"),
    "compensation_due": Question("This fired, and nobody has taken it back", "To undo", "refresh"),
    "standing": Question("This fired, and what belongs to it did not", "Stands", "alert"),
    "contradiction": Question("Two reports of this differ", "Two reports", "swap"),
    "break_glass_review": Question(
        "One person opened this alone, in an emergency: was it justified?", "Break-glass", "alert"
    ),
    "impossible_quorum": Question("Nobody can approve this as things stand", "No quorum", "people"),
}
_UNDO = Question("We do not know whether this was taken back", "Unknown", "unknown")


def question(task: TaskLine | TaskPage) -> Question:
    """What is asked of people."""
    if task.of_compensation and task.kind in {"unknown", "restored"}:
        return _UNDO
    return _QUESTIONS[task.kind]


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
        "max_reason": MAX_REASON_CHARS,
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

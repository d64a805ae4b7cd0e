"""What people read of tasks: the frozen values behind the list and the page, by the same rules as ``reviews.py``.

No value is HTML, nothing is shortened, and text that an agent or a tool wrote arrives exactly as it was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from policy_service.queries.pieces import ArgRow, Money, Piece
from policy_service.queries.review_models import EventLine, Risk, Sibling, VoteView


@dataclass(frozen=True, slots=True)
class SettlementView:
    """What a person said. `answer` is the sentence they pressed."""

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
    settlement: SettlementView | None = None


@dataclass(frozen=True, slots=True)
class TaskList:
    """A page of tasks, the oldest in front; `next_cursor` is opaque, None at the end."""

    rows: tuple[TaskLine, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class OpenTasks:
    """How many tasks are open, capped."""

    total: int = 0
    capped: bool = False


@dataclass(frozen=True, slots=True)
class ChoiceView:
    """One answer, what it says, and what it will cause."""

    answer: str
    text: str
    follows: str
    wants_result: tuple[str, ...] = ()  # what the compensation takes from the tool's result


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Everything one person needs to settle one task, and what became of it."""

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
    takes_back: tuple[Piece, ...]  # of a compensation: the sentence of what it was to take back
    review_id: str | None
    votes: tuple[VoteView, ...]  # of those who released it
    commit: str
    attempt_id: str | None
    fire_by: datetime | None
    error: str | None  # what was reported last, in the words of whoever fired it
    idempotent: bool | None  # None: the bundle no longer holds the manifest
    probe: str | None
    compensation_tool: str | None
    settlements: tuple[SettlementView, ...]  # of the effect, other tasks' too
    settlement: SettlementView | None  # of this task
    choices: tuple[ChoiceView, ...]
    why_not: str | None
    timeline: tuple[EventLine, ...]

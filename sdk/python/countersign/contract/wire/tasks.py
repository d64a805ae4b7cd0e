"""Tasks as people's programs read them: what nobody but a person can settle."""

from typing import Literal

from pydantic import Field

from countersign.contract.states import TaskAnswer, TaskKind

from .answers import EffectView, Settlement
from .base import Digest, Instant, Many, Name, Text, WireModel


class TaskView(WireModel):
    """Something a person must settle."""

    task_id: Name
    kind: TaskKind
    text: str
    opened_at: Instant
    state: Literal["open", "settled"]
    url: str = Field(description="Where people settle it.")
    txn: Digest
    effect_id: Digest
    rev: int = Field(ge=1)
    agent: Name
    tool: Name
    settled_at: Instant | None = None
    settlement: Settlement | None = Field(
        default=None,
        description="What a person said; absent where it settled itself, by a late report or in time.",
    )


class TaskPage(WireModel):
    """`GET /v1/tasks`: one page, by key."""

    tasks: Many[TaskView]
    next: str | None = Field(default=None, description="Give this as `cursor` for the next page.")


class TaskChoice(WireModel):
    """One answer a task takes, and what it will cause."""

    answer: TaskAnswer
    text: str
    follows: str


class TaskDetail(WireModel):
    """`GET /v1/tasks/{task_id}`: one task with what is known, for the person who settles it."""

    task: TaskView
    effect: EffectView
    choices: Many[TaskChoice] = Field(default=(), description="Empty once it is settled.")
    attempt_id: Name | None = Field(default=None, description="The attempt it was redeemed under.")
    fire_by: Instant | None = None
    error: Text | None = Field(default=None, description="What the redeemer said last.")
    idempotent: bool | None = Field(
        default=None, description="By the reviewed manifest; absent where it is gone."
    )
    compensation_tool: Name | None = Field(default=None, description="What takes it back.")
    owner: str | None = None
    why_not: str | None = Field(default=None, description="Why you may not settle it.")

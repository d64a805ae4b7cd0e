"""Formatting of times, counts and names: English, UTC, independent of the locale.

Pure: `now` is a parameter. Counts are exact and amounts are not rounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from countersign.contract import TaskKind

_QUESTIONS: Final = {
    TaskKind.UNKNOWN: "We do not know whether this fired",
    TaskKind.RESTORED: "We do not know whether this fired: the service was restored from a backup",
    TaskKind.COMPENSATION_FAILED: "This fired and could not be undone",
    TaskKind.COMPENSATION_DUE: "This fired and has not been undone",
    TaskKind.STANDING: "This fired, and other effects of its transaction did not",
    TaskKind.CONTRADICTION: "Two reports of this differ",
    TaskKind.BREAK_GLASS_REVIEW: "One person used break-glass alone: was it justified?",
    TaskKind.IMPOSSIBLE_QUORUM: "No person can approve this at the moment",
}
_UNKNOWN_OUTCOMES: Final = frozenset({TaskKind.UNKNOWN, TaskKind.RESTORED})


def is_unknown_outcome(kind: TaskKind) -> bool:
    """Whether the task asks what happened."""
    return kind in _UNKNOWN_OUTCOMES


def question_text(kind: TaskKind, *, of_compensation: bool) -> str:
    """The question of a task; an unknown compensation is about the compensation, not the effect."""
    if of_compensation and is_unknown_outcome(kind):
        return "We do not know whether this was undone"
    return _QUESTIONS[kind]


SOON = timedelta(minutes=15)  # below this the ring turns red


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time left: in words, as a clock time and as a percentage."""

    words: str
    clock: str
    iso: str
    percent: int
    soon: bool
    over: bool


def deadline_of(opened_at: datetime, answer_by: datetime, now: datetime) -> Deadline:
    """`answer_by` itself is too late: windows are half open."""
    left, whole = answer_by - now, answer_by - opened_at
    over = left <= timedelta(0)
    percent = 0 if over or whole <= timedelta(0) else min(100, max(1, round(100 * (left / whole))))
    words = "time is up" if over else span_words(left)
    return Deadline(words, clock_time(answer_by, now), iso(answer_by), percent, left < SOON, over)


def span_words(span: timedelta) -> str:
    """`2 h 41 min`, `12 min`, `3 d 4 h`: at most two units, rounded down, at least a minute."""
    minutes = max(0, int(span.total_seconds())) // 60
    if minutes < 1:
        return "under 1 min"
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min"


def age_words(age: timedelta) -> str:
    """The age of a fact."""
    seconds = max(0, int(age.total_seconds()))
    if seconds < 1:
        return "read just then"
    return f"{seconds} s old" if seconds < 60 else f"{span_words(age)} old"


def clock_time(at: datetime, now: datetime) -> str:
    """`17:07`, with the date if it is not today."""
    if at.date() == now.date():
        return f"{at:%H:%M}"
    return f"{at.day} {at:%b}, {at:%H:%M}" if at.year == now.year else f"{at.day} {at:%b %Y}, {at:%H:%M}"


def iso(at: datetime) -> str:
    """RFC 3339, to the second."""
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def as_sentence(detail: str) -> str:
    """An error text as a sentence: capitalized, with a full stop."""
    text = detail[:1].upper() + detail[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


def join_or(names: Sequence[str]) -> str:
    """`finance`, `finance or cfo`, `finance, cfo or board`."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """`1 vote`, `2 votes`, `18,442 bytes`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def short_digest(value: str, groups: int = 4) -> str:
    """`7c1e 09af 4b52 d8e0 … 31fa`; other texts are returned unchanged."""
    if len(value) < 40 or not all(char in "0123456789abcdef" for char in value):
        return value
    return " ".join(value[i : i + 4] for i in range(0, 4 * groups, 4)) + " … " + value[-4:]


def initials(name: str) -> str:
    """Two letters for an avatar."""
    words = [word for word in name.split() if word[0].isalnum()]
    return (words[0][0] + (words[-1][0] if len(words) > 1 else "")).upper() if words else "?"

"""What came of the operator's own trial of Slack."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that Slack did not take: its method, the code, and what to do about it."""

    method: str
    error: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it. ``socket_mode`` is None where the settings do not have it."""

    team_id: str | None
    bot_user: str | None
    posted: bool
    socket_mode: bool | None
    failures: tuple[Failure, ...]

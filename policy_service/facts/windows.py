"""The time a meter looks back over: the last so many hours, or the day, week or month of a place.

A rolling window counts what was reserved less than its length ago. A calendar window begins at local midnight (of
Monday, of the first), wherever the clocks of that place were changed in between. Neither has an end: what bears a later
time than now, because a clock was put back since, counts too, or putting a clock back would free a budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from policy_service.domain.durations import parse_duration

CALENDAR: Final = ("day", "week", "month")
MIN_ROLLING: Final = timedelta(minutes=1)
"""A shorter window holds back nobody: a submission takes about as long."""

_TICK: Final = timedelta(microseconds=1)  # what times are stored to


class Window(Protocol):
    """Since when a meter counts."""

    def first(self, at: datetime) -> datetime:
        """The first moment that counts for somebody who looks at the moment ``at``; both aware."""

    def ends(self, at: datetime) -> datetime | None:
        """When what counts at the moment ``at`` counts no more, all of it at once; None where it leaves bit by bit."""

    @property
    def words(self) -> str:
        """The window as its author wrote it."""


@dataclass(frozen=True, slots=True)
class Rolling:
    """The last so long, up to now."""

    length: timedelta
    words: str

    def first(self, at: datetime) -> datetime:
        """What is exactly as old as the window is long has left it."""
        return at.astimezone(UTC) - self.length + _TICK

    def ends(self, at: datetime) -> None:
        """Never all at once."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """The day, week or month it is in one place."""

    unit: str
    zone: ZoneInfo

    def first(self, at: datetime) -> datetime:
        """Local midnight. One that the clocks skip is the moment they skip it; of one that comes twice, the first."""
        return self._midnight(self._first_day(at))

    def ends(self, at: datetime) -> datetime:
        """The first moment of the next one."""
        first = self._first_day(at)
        if self.unit == "month":
            return self._midnight((first + timedelta(days=31)).replace(day=1))
        return self._midnight(first + timedelta(days=7 if self.unit == "week" else 1))

    def _first_day(self, at: datetime) -> date:
        day = at.astimezone(self.zone).date()
        if self.unit == "week":
            return day - timedelta(days=day.weekday())
        return day.replace(day=1) if self.unit == "month" else day

    def _midnight(self, day: date) -> datetime:
        return datetime(day.year, day.month, day.day, tzinfo=self.zone).astimezone(UTC)

    @property
    def words(self) -> str:
        """The unit and where."""
        return f"{self.unit}, {self.zone.key}"


def parse_window(text: str, timezone: str | None) -> Window:
    """The window of a meter.

    Raises:
        ValueError: it is none, it is too short or too long, or the time zone is not known or not wanted.
    """
    if text in CALENDAR:
        return Calendar(text, _zone("UTC" if timezone is None else timezone))
    try:
        length = parse_duration(text)
    except ValueError as error:
        raise ValueError(f'window: {error}; or "day", "week" or "month"') from error
    if length < MIN_ROLLING:
        raise ValueError(f"window: {text!r} is shorter than a minute, and counts next to nothing")
    if timezone is not None:
        raise ValueError(f'timezone belongs to a window of "day", "week" or "month"; {text!r} rolls, drop it')
    return Rolling(length, text)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError) as error:  # ZoneInfoNotFoundError is a KeyError, and asked for apart
        raise ValueError(f"timezone: {name!r} is no name of a time zone; {_LIKE}") from error
    except KeyError as error:
        raise ValueError(f"timezone: {name!r} is not known to this host; {_LIKE}") from error


_LIKE: Final = 'write one like "Europe/Berlin"'

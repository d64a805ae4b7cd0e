"""Windows of meters: rolling hours, and calendar periods across clock changes."""

from datetime import UTC, datetime, timedelta

import pytest

from policy_service.facts.meters import parse_window


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


FIRST: dict[str, tuple[str, str | None, str, str]] = {
    "what is as old as the window": ("24h", None, "2026-11-21T12:00:00Z", "2026-11-20T12:00:00.000001Z"),
    "a day begins at midnight": ("day", None, "2026-11-21T12:00:00Z", "2026-11-21T00:00:00Z"),
    "midnight itself is of the new day": ("day", None, "2026-11-21T00:00:00Z", "2026-11-21T00:00:00Z"),
    "the moment before is of the old one": ("day", None, "2026-11-20T23:59:59.999999Z", "2026-11-20T00:00:00Z"),
    "in winter Berlin is an hour ahead": ("day", "Europe/Berlin", "2026-01-10T23:30:00Z", "2026-01-10T23:00:00Z"),
    "in summer two": ("day", "Europe/Berlin", "2026-07-10T22:30:00Z", "2026-07-10T22:00:00Z"),
    "a day of 23 hours": ("day", "Europe/Berlin", "2026-03-29T21:59:00Z", "2026-03-28T23:00:00Z"),
    "a day of 25 hours": ("day", "Europe/Berlin", "2026-10-25T22:59:00Z", "2026-10-24T22:00:00Z"),
    "a week begins on Monday": ("week", "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-22T23:00:00Z"),
    "on Monday, today": ("week", None, "2026-11-23T00:00:00Z", "2026-11-23T00:00:00Z"),
    "on Sunday, six days ago": ("week", None, "2026-11-22T23:00:00Z", "2026-11-16T00:00:00Z"),
    "a month by the clock it had": ("month", "Europe/Berlin", "2026-10-31T12:00:00Z", "2026-09-30T22:00:00Z"),
    "a skipped midnight": ("day", "Africa/Cairo", "2026-04-24T12:00:00Z", "2026-04-23T22:00:00Z"),
    "the first of two midnights": ("day", "America/Havana", "2026-11-01T05:30:00Z", "2026-11-01T04:00:00Z"),
}  # fmt: skip


@pytest.mark.parametrize(("window", "zone", "now", "first"), FIRST.values(), ids=FIRST)
def test_a_window_begins(window: str, zone: str | None, now: str, first: str) -> None:
    assert parse_window(window, zone).first(at(now)) == at(first)


NEXT = {
    "a day of 25 hours": ("day", "Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-25T23:00:00Z"),
    "a day that is about to end": ("day", None, "2026-11-22T23:59:59Z", "2026-11-23T00:00:00Z"),
    "a week": ("week", None, "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
    "a month of 28 days": ("month", None, "2026-02-10T00:00:00Z", "2026-03-01T00:00:00Z"),
    "the last of a year": ("month", "Europe/Berlin", "2026-12-31T12:00:00Z", "2026-12-31T23:00:00Z"),
}


@pytest.mark.parametrize(("window", "zone", "now", "following"), NEXT.values(), ids=NEXT)
def test_a_window_ends_where_the_next_begins(window: str, zone: str | None, now: str, following: str) -> None:
    found = parse_window(window, zone)
    assert (found.ends(at(now)), found.first(at(following))) == (at(following), at(following))


def test_a_rolling_window_never_ends_at_once() -> None:
    assert parse_window("24h", None).ends(at("2026-11-22T12:00:00Z")) is None


def test_no_moment_of_two_years_is_before_its_own_window() -> None:
    many = {"day": range(731, 735), "week": range(104, 108), "month": range(24, 27)}
    for zone in "Europe/Berlin America/Havana Africa/Cairo Australia/Lord_Howe".split():
        for unit, expected in many.items():
            window, begins = parse_window(unit, zone), set()
            for hour in range(2 * 366 * 24):
                now = at("2026-01-01T00:30:00Z") + timedelta(hours=hour)
                first = window.first(now)
                assert first <= now
                begins.add(first)
            assert len(begins) in expected


WRONG: dict[str, tuple[str, str | None, str]] = {
    "no window": ("soon", None, "'soon' is not a duration"),
    "a year": ("year", None, '"day", "week" or "month"'),
    "nothing": ("0h", None, "between one second"),
    "too long": ("400d", None, "366 days"),
    "too short": ("59s", None, "shorter than a minute"),
    "a zone where nothing is local": ("24h", "Europe/Berlin", "timezone belongs to"),
    "an unknown time zone": ("day", "Europe/Atlantis", "'Europe/Atlantis' is not known"),
    "a path": ("day", "../etc/passwd", "'../etc/passwd' is no name of a time zone"),
    "an empty name": ("day", "", "time zone"),
}


@pytest.mark.parametrize(("window", "zone", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_window_is_refused(window: str, zone: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        parse_window(window, zone)
    assert message in str(refused.value)

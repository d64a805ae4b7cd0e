"""Ids that sort by time: where a moment begins among them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from policy_service.storage.ids import first_id, new_id


def test_every_id_of_a_moment_or_later_is_not_less_than_its_first() -> None:
    now = datetime(2026, 11, 21, 22, 0, 0, 1500, tzinfo=UTC)

    assert first_id("dec", now) <= new_id("dec", now) < first_id("dec", now + timedelta(milliseconds=1))
    assert new_id("dec", now - timedelta(milliseconds=1)) < first_id("dec", now)

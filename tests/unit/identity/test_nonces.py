"""A nonce is for this minute or the one before, of this deployment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from policy_service.identity.nonces import Nonces

PERIOD = 60
MINUTE = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)  # a whole number of periods since 1970
NONCES = Nonces(b"s" * 32, PERIOD)


TIMES = {
    "at once": (0, 0, True),
    "at the end of its minute": (0, 59.999, True),
    "in the next minute": (0, 60, True),
    "at the very end of the next minute": (0, 119.999, True),
    "two minutes on": (0, 120, False),
    "made late, shown in the minute after the next": (59.9, 120, False),
    "from the future": (60, 59, False),
}


@pytest.mark.parametrize(("made_at_s", "shown_at_s", "accepted"), TIMES.values(), ids=TIMES.keys())
def test_two_minutes_are_valid(made_at_s: float, shown_at_s: float, accepted: bool) -> None:
    nonce = NONCES.current(MINUTE + timedelta(seconds=made_at_s))
    assert NONCES.accepts(nonce, MINUTE + timedelta(seconds=shown_at_s)) is accepted


def test_the_same_minute_has_one_nonce_and_the_next_another() -> None:
    first = NONCES.current(MINUTE)
    assert first == NONCES.current(MINUTE + timedelta(seconds=59))
    assert first != NONCES.current(MINUTE + timedelta(seconds=60))


def test_replicas_with_the_same_secret_alone_take_each_others_nonces() -> None:
    assert Nonces(b"s" * 32, PERIOD).accepts(NONCES.current(MINUTE), MINUTE)
    assert not Nonces(b"t" * 32, PERIOD).accepts(NONCES.current(MINUTE), MINUTE)


@pytest.mark.parametrize(
    "nonce", ["", "x", "ä" * 24, "\udc80", NONCES.current(MINUTE)[:-1], NONCES.current(MINUTE) + "="]
)
def test_anything_else_is_refused(nonce: str) -> None:
    assert not NONCES.accepts(nonce, MINUTE)

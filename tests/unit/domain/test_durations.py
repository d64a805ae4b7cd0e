"""Durations of annotations and configuration."""

from datetime import timedelta

import pytest

from policy_service.domain.durations import parse_duration

GOOD = {
    "1s": timedelta(seconds=1),
    "90s": timedelta(seconds=90),
    "30m": timedelta(minutes=30),
    "4h": timedelta(hours=4),
    "7d": timedelta(days=7),
    "366d": timedelta(days=366),
}
BAD = {
    "nothing": "", "no unit": "4", "no number": "h", "zero": "0h", "negative": "-4h", "signed": "+4h",
    "a fraction": "1.5h", "two units": "1h30m", "a space": "4 h", "an ISO duration": "PT4H", "a capital unit": "4H",
    "weeks": "2w", "a newline": "4h\n", "other digits": "４h", "more than a year": "367d", "a flood": "9" * 400 + "d",
}  # fmt: skip


@pytest.mark.parametrize(("text", "duration"), GOOD.items())
def test_a_duration_is_a_number_and_a_unit(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not"):
        parse_duration(text)

"""Durations of annotations and configuration."""

import pytest

from policy_service.domain.durations import parse_duration

GOOD = {"1s": 1, "90s": 90, "30m": 1_800, "4h": 14_400, "7d": 604_800, "366d": 31_622_400}
BAD = {
    "nothing": "", "no unit": "4", "no number": "h", "zero": "0h", "negative": "-4h", "signed": "+4h",
    "a fraction": "1.5h", "two units": "1h30m", "a space": "4 h", "an ISO duration": "PT4H", "a capital unit": "4H",
    "weeks": "2w", "a newline": "4h\n", "other digits": "４h", "more than a year": "367d", "a flood": "9" * 400 + "d",
}  # fmt: skip


def test_a_duration_is_a_number_and_a_unit() -> None:
    assert {text: parse_duration(text).total_seconds() for text in GOOD} == GOOD


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not"):
        parse_duration(text)

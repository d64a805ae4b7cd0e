"""Typed values as the engine takes them; what would be rounded is refused."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import cedarpy
import pytest

from policy_service.domain.cedar_values import datetime_value, decimal_value

DECIMALS = {
    "0": "0.0", "-0": "-0.0", "12": "12.0", "1.5": "1.5", "0.0001": "0.0001", "-3.1400": "-3.14", "1E+3": "1000.0",
    "922337203685477.5807": "922337203685477.5807",
}  # fmt: skip
NO_DECIMALS = "0.00001 12.55555 1E-5 922337203685477.5808 1E+300 NaN Infinity -Infinity".split()


@pytest.mark.parametrize(("number", "text"), DECIMALS.items())
def test_a_decimal_is_written_as_cedar_reads_it(number: str, text: str) -> None:
    assert decimal_value(Decimal(number)) == {"__extn": {"fn": "decimal", "arg": text}}
    assert _engine_takes("decimal", text)


@pytest.mark.parametrize("number", NO_DECIMALS)
def test_a_number_cedar_would_round_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match=r"more than 4 decimal places|beyond"):
        decimal_value(Decimal(number))


def test_a_time_is_written_in_utc_to_the_millisecond() -> None:
    eastern = timezone(timedelta(hours=-5))
    moment = datetime(2024, 5, 15, 15, 0, 0, 123_999, tzinfo=eastern)
    assert datetime_value(moment)["__extn"]["arg"] == "2024-05-15T20:00:00.123Z"
    for each in (moment, datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)):
        assert _engine_takes("datetime", datetime_value(each)["__extn"]["arg"])


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        datetime_value(datetime(2024, 5, 15, 15, 0))  # noqa: DTZ001 - that it is naive is the point


def _engine_takes(function: str, text: str) -> bool:
    policy = f'permit (principal, action, resource) when {{ {function}("{text}") == {function}("{text}") }};'
    request = {"principal": 'U::"a"', "action": 'Action::"a"', "resource": 'U::"a"', "context": {}}
    result = cedarpy.is_authorized(request, policy, [])
    return bool(result.allowed) and not result.diagnostics.errors

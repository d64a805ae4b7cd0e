"""Money text, durations, and typed values as the Cedar engine reads them."""

import locale
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import cedarpy
import pytest

from policy_service.domain import values
from policy_service.domain.policy_request import datetime_value, decimal_value

TEXTS = {(124_000, "USD"): "$1,240.00", (5, "USD"): "$0.05", (-124_000, "EUR"): "-€1,240.00"}
TEXTS |= {(124_000, "JPY"): "¥124,000", (124_000, "KWD"): "KWD 124.000", (1, "KWD"): "KWD 0.001"}
TEXTS |= {(124_000, "CHF"): "CHF 1,240.00", (2**53 - 1, "USD"): "$90,071,992,547,409.91", (0, "EUR"): "€0.00"}


def test_money_text() -> None:
    assert {amount: values.money_text(*amount) for amount in TEXTS} == TEXTS


def test_money_text_ignores_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    grouped = {"decimal_point": ",", "thousands_sep": ".", "grouping": [3, 0]}
    monkeypatch.setattr(locale, "localeconv", lambda: grouped)
    assert values.money_text(124_000, "EUR") == "€1,240.00"


def test_only_currency_codes_are_accepted() -> None:
    others = ["usd", "US$", "EUR 1", "USD\u202e", "ＵＳＤ", "\u0415UR", "", "USDT", "EUR\n", "12A", "US"]
    assert not any(map(values.is_currency, others)) and all(map(values.is_currency, ("USD", "CHF", "XTS")))


DURATIONS = {"1s": 1, "90s": 90, "30m": 1_800, "4h": 14_400, "7d": 604_800, "366d": 31_622_400}
NO_DURATIONS = {
    "nothing": "", "no unit": "4", "no number": "h", "zero": "0h", "negative": "-4h", "signed": "+4h",
    "a fraction": "1.5h", "two units": "1h30m", "a space": "4 h", "an ISO duration": "PT4H", "a capital unit": "4H",
    "weeks": "2w", "a newline": "4h\n", "other digits": "４h", "more than a year": "367d", "a flood": "9" * 400 + "d",
}  # fmt: skip


def test_durations_are_parsed() -> None:
    assert {text: values.parse_duration(text).total_seconds() for text in DURATIONS} == DURATIONS


@pytest.mark.parametrize("text", NO_DURATIONS.values(), ids=NO_DURATIONS)
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not"):
        values.parse_duration(text)


DECIMALS = {
    "0": "0.0", "-0": "-0.0", "12": "12.0", "1.5": "1.5", "0.0001": "0.0001", "-3.1400": "-3.14", "1E+3": "1000.0",
    "922337203685477.5807": "922337203685477.5807",
}  # fmt: skip
NO_DECIMALS = "0.00001 12.55555 1E-5 922337203685477.5808 1E+300 NaN Infinity -Infinity".split()


@pytest.mark.parametrize(("number", "text"), DECIMALS.items())
def test_a_decimal_is_written_for_cedar(number: str, text: str) -> None:
    assert decimal_value(Decimal(number)) == {"__extn": {"fn": "decimal", "arg": text}}
    assert _engine_takes("decimal", text)


@pytest.mark.parametrize("number", NO_DECIMALS)
def test_a_number_cedar_would_round_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match=r"more than 4 decimal places|outside"):
        decimal_value(Decimal(number))


def test_a_time_is_written_in_utc_to_the_millisecond() -> None:
    moment = datetime(2024, 5, 15, 15, 0, 0, 123_999, tzinfo=timezone(timedelta(hours=-5)))
    assert datetime_value(moment)["__extn"]["arg"] == "2024-05-15T20:00:00.123Z"
    for each in (moment, datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)):
        assert _engine_takes("datetime", datetime_value(each)["__extn"]["arg"])


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        datetime_value(datetime(2024, 5, 15, 15, 0))  # noqa: DTZ001  a naive time is the input


def _engine_takes(function: str, text: str) -> bool:
    policy = f'permit (principal, action, resource) when {{ {function}("{text}") == {function}("{text}") }};'
    request = {"principal": 'U::"a"', "action": 'Action::"a"', "resource": 'U::"a"', "context": {}}
    result = cedarpy.is_authorized(request, policy, [])
    return bool(result.allowed) and not result.diagnostics.errors

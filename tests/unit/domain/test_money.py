"""Amounts read the same for everybody: minor units, an ISO code, one fixed way to write them."""

import locale

import pytest

from policy_service.domain.money import is_currency, money_text

TEXTS = {
    (124_000, "USD"): "$1,240.00",
    (5, "USD"): "$0.05",
    (-124_000, "EUR"): "-€1,240.00",
    (124_000, "JPY"): "¥124,000",
    (124_000, "KWD"): "KWD 124.000",
    (1, "KWD"): "KWD 0.001",
    (124_000, "CHF"): "CHF 1,240.00",
    (9_007_199_254_740_991, "USD"): "$90,071,992,547,409.91",
    (0, "EUR"): "€0.00",
}


def test_an_amount_is_written_one_way() -> None:
    assert {amount: money_text(*amount) for amount in TEXTS} == TEXTS


def test_no_locale_moves_a_point(monkeypatch: pytest.MonkeyPatch) -> None:
    grouped = {"decimal_point": ",", "thousands_sep": ".", "grouping": [3, 0]}
    monkeypatch.setattr(locale, "localeconv", lambda: grouped)
    assert money_text(124_000, "EUR") == "€1,240.00"


def test_what_only_looks_like_a_code_is_none() -> None:
    codes = ["usd", "US$", "EUR 1", "USD\u202e", "ＵＳＤ", "\u0415UR", "", "USDT", "EUR\n", "12A", "US"]
    assert [code for code in [*codes, "USD", "CHF", "XTS"] if is_currency(code)] == ["USD", "CHF", "XTS"]

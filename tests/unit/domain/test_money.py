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


@pytest.mark.parametrize(("amount", "text"), TEXTS.items(), ids=TEXTS.values())
def test_an_amount_is_written_one_way(amount: tuple[int, str], text: str) -> None:
    assert money_text(*amount) == text


def test_no_locale_moves_a_point(monkeypatch: pytest.MonkeyPatch) -> None:
    grouped = {"decimal_point": ",", "thousands_sep": ".", "grouping": [3, 0]}
    monkeypatch.setattr(locale, "localeconv", lambda: grouped)
    assert money_text(124_000, "EUR") == "€1,240.00"


@pytest.mark.parametrize(
    "code", ["usd", "US$", "EUR 1", "USD\u202e", "ＵＳＤ", "\u0415UR", "", "USDT", "EUR\n", "12A"]
)
def test_what_only_looks_like_a_code_is_none(code: str) -> None:
    assert not is_currency(code)


@pytest.mark.parametrize("code", ["USD", "CHF", "XTS"])
def test_a_code_is_three_capital_letters(code: str) -> None:
    assert is_currency(code)

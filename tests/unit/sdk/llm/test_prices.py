"""What tokens cost: exact, from a file, and unknown where the file does not say."""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import countersign.llm
from countersign import SettingsError
from countersign.llm.prices import PICOS, Price, Prices, load_prices
from countersign.llm.shapes import Billed

DAY = date(2026, 11, 23)
EXAMPLE = Path(countersign.llm.__file__).parent / "example-prices.toml"


def price(models: str = "m", **changes: Any) -> Price:
    given: dict[str, Any] = {"currency": "USD", "valid_from": date(2026, 1, 1), "input": "3", "output": "15"}
    return Price(models, **given | changes)


def written(folder: Path, text: str) -> Path:
    path = folder / "prices.toml"
    path.write_text(text)
    return path


COSTS = {
    "nothing": (Billed(0, 0, 0, 0), "0"),
    "one token in": (Billed(1, 0, 0, 0), "0.0000001"),
    "one token out": (Billed(0, 0, 0, 1), "0.000000333333"),
    "each kind at its price": (Billed(1_000_000, 1_000_000, 1_000_000, 1_000_000), "0.583333"),
    "a hundred calls of three tokens add up": (Billed(300, 0, 0, 0), "0.00003"),
}


@pytest.mark.parametrize(("billed", "cost"), COSTS.values(), ids=COSTS.keys())
def test_a_cost_is_exact(billed: Billed, cost: str) -> None:
    """As floats, 0.1 and 0.025 a million would not add up to what they are."""
    row = price(input="0.1", output="0.333333", cached_input="0.025", cache_write="0.125")
    found = row.cost(billed)
    assert found is not None and Decimal(found) / PICOS == Decimal(cost)


@pytest.mark.parametrize("picos", [1, 65, 129, 130, 249, 251, 258])
def test_the_finest_prices_are_exact_for_each_token(picos: int) -> None:
    """By way of a float most of these would lose a pico of each token."""
    assert price(input=Decimal(picos).scaleb(-6)).cost(Billed(3, 0, 0, 0)) == 3 * picos


def test_cached_tokens_without_a_price_of_their_own_cost_what_input_costs() -> None:
    assert price().cost(Billed(10, 90, 0, 0)) == price().cost(Billed(100, 0, 0, 0))


def test_writing_to_a_cache_without_a_price_has_an_unknown_cost() -> None:
    assert price().cost(Billed(10, 0, 1, 0)) is None
    assert price(cache_write="0").cost(Billed(10, 0, 1, 0)) == price().cost(Billed(10, 0, 0, 0))


def test_the_most_a_call_can_cost_takes_the_dearest_kind_of_input() -> None:
    row = price(cached_input="0.3", cache_write="6")
    assert row.most(1_000_000, 1_000_000) == 21 * PICOS
    assert all(
        (row.cost(one) or 0) <= row.most(100, 50)
        for one in (
            Billed(100, 0, 0, 50),
            Billed(0, 100, 0, 50),
            Billed(0, 0, 100, 50),
            Billed(30, 30, 40, 50),
        )
    )


LIST = Prices(
    [
        price("example-*", input="9"),
        price("example-small*", input="2"),
        price("example-small*", input="1", valid_from=date(2026, 6, 1)),
        price("example-small*", input="0.5", valid_from=date(2026, 11, 24)),
        price("example-small-exact", input="7"),
    ]
)
FOUND = {
    "the longest pattern": ("example-small-2", DAY, "1"),
    "an exact name": ("example-small-exact", DAY, "7"),
    "a price of before a change": ("example-small", date(2026, 5, 31), "2"),
    "the day of a change": ("example-small", date(2026, 6, 1), "1"),
    "the day before one to come": ("example-small", date(2026, 11, 23), "1"),
    "that day": ("example-small", date(2026, 11, 24), "0.5"),
    "a shorter pattern": ("example-large", DAY, "9"),
    "a model nobody prices": ("other", DAY, None),
    "another case is another name": ("Example-small", DAY, None),
    "before any price": ("example-small", date(2025, 12, 31), None),
}


@pytest.mark.parametrize(("model", "day", "expected"), FOUND.values(), ids=FOUND.keys())
def test_which_price_counts(model: str, day: date, expected: str | None) -> None:
    found = LIST.find(model, day)
    assert (None if found is None else found.input) == (None if expected is None else Decimal(expected))


ANSWERED = {
    "it says nothing": ("m", None, True),
    "the same": ("m", "m", True),
    "a dated name of it": ("m", "m-2026-01-15", True),
    "another model": ("m", "other", False),
    "another model that begins alike": ("m", "mini", False),
}


@pytest.mark.parametrize(("asked", "answered", "known"), ANSWERED.values(), ids=ANSWERED.keys())
def test_one_that_answers_for_another_has_no_price(asked: str, answered: str | None, known: bool) -> None:
    assert (Prices([price("m")]).of_answer(asked, answered, DAY) is not None) is known


def test_the_model_that_answered_has_its_own_price_first() -> None:
    found = Prices([price("m"), price("m-2026-01-15", input="1")]).of_answer("m", "m-2026-01-15", DAY)
    assert found is not None and found.input == 1


HEAD = '[[price]]\nmodels = "m"\ncurrency = "USD"\nvalid_from = 2026-01-01\n'
REFUSED = {
    "no TOML": ("[[price]", "is no TOML"),
    "another table": ("[prices]\nx = 1\n", "nothing else"),
    "a member nobody knows": (HEAD + "input = 1\noutput = 1\ninptu = 2\n", "has no 'inptu'"),
    "no output": (HEAD + "input = 1\n", "output"),
    "a negative price": (HEAD + "input = -1\noutput = 1\n", "must be from 0"),
    "not a number": (HEAD + "input = nan\noutput = 1\n", "must be from 0"),
    "an endless number": (HEAD + "input = inf\noutput = 1\n", "must be from 0"),
    "true": (HEAD + "input = true\noutput = 1\n", "must be a whole number"),
    "a word": (HEAD + 'input = "much"\noutput = 1\n', "is no number"),
    "finer than a millionth": (HEAD + "input = 0.0000001\noutput = 1\n", "decimal places"),
    "dearer than can be": (HEAD + "input = 10001\noutput = 1\n", "from 0 to 10000"),
    "no currency": (HEAD.replace('"USD"', '""') + "input = 1\noutput = 1\n", "three capital letters"),
    "a currency in small letters": (
        HEAD.replace("USD", "usd") + "input = 1\noutput = 1\n",
        "three capital letters",
    ),
    "a day as text": (
        HEAD.replace("2026-01-01", '"2026-01-01"') + "input = 1\noutput = 1\n",
        "must be a day",
    ),
    "a moment": (
        HEAD.replace("2026-01-01", "2026-01-01T00:00:00Z") + "input = 1\noutput = 1\n",
        "must be a day",
    ),
    "no models": (HEAD.replace('"m"', '""') + "input = 1\noutput = 1\n", "pattern"),
    "the same twice": (2 * (HEAD + "input = 1\noutput = 1\n"), "stands there twice"),
}


@pytest.mark.parametrize(("text", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_a_file_that_cannot_be_taken_is_refused_whole(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=re.escape(why)):
        load_prices(written(tmp_path, text))


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_prices(tmp_path / "none.toml")
    with pytest.raises(SettingsError, match="larger than"):
        load_prices(written(tmp_path, "#" * (1024 * 1024 + 1)))


def test_a_float_of_a_file_is_the_decimal_that_stands_there(tmp_path: Path) -> None:
    rows = load_prices(written(tmp_path, HEAD + "input = 0.1\noutput = 1\n"))
    found = rows.find("m", DAY)
    assert found is not None and found.input == Decimal("0.1")


def test_a_float_in_code_is_refused() -> None:
    with pytest.raises(SettingsError, match=re.escape("like '12.50'")):
        price(input=0.1)


def test_the_example_says_that_it_is_one_and_of_when() -> None:
    first = EXAMPLE.read_text().splitlines()[0]
    assert first.startswith("# AN EXAMPLE, of 2026-")
    prices = load_prices(EXAMPLE)
    assert prices.find("example-small", DAY) is not None
    assert prices.find("gpt-4o", DAY) is None

"""A response is read as its vendor counts and priced from a file; what neither says is unknown, and never zero."""

import re
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import countersign.llm
from countersign import SettingsError, Usage, UsageUnknown
from countersign.llm.prices import PICOS, Price, Prices, load_prices
from countersign.llm.usage import Billed, read_usage
from tests.fakes import llm_answers as answers
from tests.fakes.llm_answers import SECRET, as_object, google_object, with_count, without

CHAT = Usage(
    provider="openai", model="example-small-2026-01-15", finish_reasons=("stop",), input_tokens=1200,
    output_tokens=300, cached_tokens=1024, reasoning_tokens=192, billed=Billed(176, 1024, 0, 300),
)  # fmt: skip
RESPONSES = Usage(
    provider="openai", model="example-large-2026-02-01", finish_reasons=("max_output_tokens",), input_tokens=500,
    output_tokens=250, cached_tokens=128, reasoning_tokens=200, billed=Billed(372, 128, 0, 250),
)  # fmt: skip
MESSAGE = Usage(
    provider="anthropic", model="example-opus-20260301", finish_reasons=("end_turn",), input_tokens=100,
    output_tokens=150, cached_tokens=2000, written_tokens=400, reasoning_tokens=90, billed=Billed(100, 2000, 400, 150),
)  # fmt: skip
GEMINI = Usage(
    provider="google", model="example-flash-001", finish_reasons=("STOP",), input_tokens=600, output_tokens=40,
    cached_tokens=512, reasoning_tokens=160, billed=Billed(113, 512, 0, 200),
)  # fmt: skip
LOCAL = Usage(
    provider="ollama", model="example-local:8b", finish_reasons=("stop",), input_tokens=26, output_tokens=298,
    billed=Billed(26, 0, 0, 298),
)  # fmt: skip

READ: dict[str, tuple[Any, Usage]] = {
    "chat completions": (answers.OPENAI_CHAT, CHAT),
    "responses": (answers.OPENAI_RESPONSES, RESPONSES),
    "Anthropic": (answers.ANTHROPIC, MESSAGE),
    "Ollama": (answers.OLLAMA, LOCAL),
}
OBJECTS = {f"{name}, an object": (as_object(answer), usage) for name, (answer, usage) in READ.items()}
READ |= OBJECTS | {
    "Google, over the wire": (answers.GOOGLE, GEMINI),
    "Google, its client": (google_object(), GEMINI),
}


@pytest.mark.parametrize(("answer", "expected"), READ.values(), ids=READ.keys())
def test_every_vendor_is_read_as_it_counts(answer: Any, expected: Usage) -> None:
    """W21 of AgentRelay: usage with attributes raised AttributeError, after the call was paid for."""
    assert read_usage(answer) == expected


@pytest.mark.parametrize("to", [lambda one: one, as_object], ids=["dict", "object"])
def test_the_last_usage_of_a_stream_is_read(to: Any) -> None:
    chunk = read_usage(to(answers.OPENAI_STREAM_END))
    assert (chunk.billed, chunk.cached_tokens, chunk.finish_reasons) == (Billed(20, 0, 0, 7), None, ())
    event = read_usage(to(answers.OPENAI_STREAM_COMPLETED))
    assert (event.billed, event.finish_reason) == (Billed(372, 128, 0, 250), "completed")
    delta = read_usage(to(answers.ANTHROPIC_STREAM_END))
    assert (delta.billed, delta.finish_reason, delta.model) == (Billed(30, 0, 0, 12), "tool_use", None)


def test_google_totals_cover_responses_without_candidates() -> None:
    blocked = read_usage(answers.GOOGLE_BLOCKED)
    assert (blocked.output_tokens, blocked.billed) == (0, Billed(9, 0, 0, 0))
    thoughts = read_usage(without(answers.GOOGLE, "usageMetadata", "candidatesTokenCount"))
    assert (thoughts.output_tokens, thoughts.billed) == (40, Billed(113, 512, 0, 200))


def test_several_choices_finish_for_several_reasons() -> None:
    (one,) = answers.OPENAI_CHAT["choices"]
    two = answers.OPENAI_CHAT | {"choices": [one, one | {"finish_reason": "length"}]}
    assert read_usage(two).finish_reasons == ("stop", "length")


THOUGHT = {"message": {"content": "Done.", "reasoning_content": SECRET}}
REASONED = {
    "responses": (answers.OPENAI_RESPONSES, SECRET),
    "Anthropic": (as_object(answers.ANTHROPIC), SECRET),
    "Google": (google_object(), SECRET),
    "Ollama": (answers.OLLAMA, SECRET),
    "chat completions of others": (answers.OPENAI_CHAT | {"choices": [THOUGHT]}, SECRET),
    "chat completions keep theirs": (answers.OPENAI_CHAT, None),
}


@pytest.mark.parametrize(("answer", "said"), REASONED.values(), ids=REASONED.keys())
def test_reasoning_is_read_only_on_request(answer: Any, said: str | None) -> None:
    assert read_usage(answer).reasoning is None
    assert SECRET not in repr(read_usage(answer))
    assert read_usage(answer, reasoning=True).reasoning == said


def prompt(tokens: Any) -> dict[str, Any]:
    return with_count(answers.OPENAI_CHAT, tokens, "usage", "prompt_tokens")


CACHED = ("usage", "prompt_tokens_details", "cached_tokens")
TOTAL = ("usageMetadata", "totalTokenCount")
UNREADABLE: dict[str, tuple[Any, str]] = {
    "nothing": (None, "usage.prompt_tokens"),
    "text": ("Done.", "usage.prompt_tokens"),
    "an empty dict": ({}, "done=true with prompt_eval_count"),
    "a mock that has every attribute": (MagicMock(), "usage_metadata.prompt_token_count"),
    "a chunk before the last": (answers.OPENAI_STREAM_END | {"usage": None}, "usage.prompt_tokens"),
    "an event before the last": ({"type": "response.output_text.delta", "delta": "Do"}, "usage.input_tokens"),
    "a chunk of Ollama before the last": (answers.OLLAMA | {"done": False}, "done=true"),
    "no completion": (without(answers.OPENAI_CHAT, "usage", "completion_tokens"), "completion_tokens"),
    "a prompt of true tokens": (prompt(True), "usage.prompt_tokens"),
    "a prompt of -1 tokens": (prompt(-1), "usage.prompt_tokens"),
    "a prompt of 1.5 tokens": (prompt(1.5), "usage.prompt_tokens"),
    "a prompt of text": (prompt("12"), "usage.prompt_tokens"),
    "more tokens than there are": (prompt(10**30), "usage.prompt_tokens"),
    "more cached than sent": (with_count(answers.OPENAI_CHAT, 1201, *CACHED), "usage.prompt_tokens"),
    "a response without usage": (answers.OPENAI_RESPONSES | {"usage": None}, "usage.input_tokens"),
    "a response without input": (without(answers.OPENAI_RESPONSES, "usage", "input_tokens"), "input_tokens"),
    "a beginning": (without(answers.ANTHROPIC_STREAM_END, "usage", "input_tokens"), '"message_delta"'),
    "usage that names no vendor": ({"usage": {"input_tokens": 1, "output_tokens": 1}}, 'object="response"'),
    "Google without a total": (
        without(answers.GOOGLE_BLOCKED, *TOTAL),
        "candidates_token_count or total_token_count",
    ),
    "Google, its total too small": (with_count(answers.GOOGLE_BLOCKED, 3, *TOTAL), "total_token_count"),
    "Ollama, its prompt in its cache": (without(answers.OLLAMA, "prompt_eval_count"), "prompt_eval_count"),
    "a type that is a list": ({"type": ["message"], "object": {}}, "usage.prompt_tokens"),
}


@pytest.mark.parametrize(("answer", "looked_for"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_does_not_say_is_an_error_and_never_zero(answer: Any, looked_for: str) -> None:
    with pytest.raises(UsageUnknown) as error:
        read_usage(answer)
    assert looked_for in str(error.value) and type(answer).__name__ in str(error.value)
    usage = read_usage(answer, unknown_tokens=True)
    assert usage.billed is None
    assert 0 not in {usage.input_tokens, usage.output_tokens}


def test_an_error_quotes_nothing_of_the_response() -> None:
    with pytest.raises(UsageUnknown) as error:
        read_usage({SECRET: SECRET, "type": SECRET, "usage": {SECRET: 1}})
    assert SECRET not in str(error.value)


# ------------------------------------------------------------------------------------------------------------ prices


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
    for billed in ((100, 0, 0, 50), (0, 100, 0, 50), (0, 0, 100, 50), (30, 30, 40, 50)):
        assert (row.cost(Billed(*billed)) or 0) <= row.most(100, 50)


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
    "a model without a price": ("other", DAY, None),
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
WHOLE = HEAD + "input = 1\noutput = 1\n"
REFUSED = {
    "no TOML": ("[[price]", "is no TOML"),
    "another table": ("[prices]\nx = 1\n", "nothing else"),
    "an unknown member": (HEAD + "input = 1\noutput = 1\ninptu = 2\n", "has no 'inptu'"),
    "no output": (HEAD + "input = 1\n", "output"),
    "a negative price": (HEAD + "input = -1\noutput = 1\n", "must be from 0"),
    "not a number": (HEAD + "input = nan\noutput = 1\n", "must be from 0"),
    "true": (HEAD + "input = true\noutput = 1\n", "must be a whole number"),
    "a word": (HEAD + 'input = "much"\noutput = 1\n', "is no number"),
    "finer than a millionth": (HEAD + "input = 0.0000001\noutput = 1\n", "decimal places"),
    "dearer than can be": (HEAD + "input = 10001\noutput = 1\n", "from 0 to 10000"),
    "no currency": (WHOLE.replace('"USD"', '""'), "three capital letters"),
    "a day as text": (WHOLE.replace("2026-01-01", '"2026-01-01"'), "must be a day"),
    "a moment": (WHOLE.replace("2026-01-01", "2026-01-01T00:00:00Z"), "must be a day"),
    "no models": (WHOLE.replace('"m"', '""'), "pattern"),
    "the same twice": (2 * WHOLE, "is listed twice"),
}


@pytest.mark.parametrize(("text", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_an_invalid_file_is_refused_completely(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=re.escape(why)):
        load_prices(written(tmp_path, text))


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_prices(tmp_path / "none.toml")
    with pytest.raises(SettingsError, match="larger than"):
        load_prices(written(tmp_path, "#" * (1024 * 1024 + 1)))


def test_a_float_in_a_file_is_read_as_the_written_decimal(tmp_path: Path) -> None:
    rows = load_prices(written(tmp_path, HEAD + "input = 0.1\noutput = 1\n"))
    found = rows.find("m", DAY)
    assert found is not None and found.input == Decimal("0.1")


def test_a_float_in_code_is_refused() -> None:
    with pytest.raises(SettingsError, match=re.escape("like '12.50'")):
        price(input=0.1)


def test_the_example_price_file_is_marked_and_dated() -> None:
    first = EXAMPLE.read_text().splitlines()[0]
    assert first.startswith("# AN EXAMPLE, of 2026-")
    prices = load_prices(EXAMPLE)
    assert prices.find("example-small", DAY) is not None
    assert prices.find("gpt-4o", DAY) is None

"""From a call to canonical bytes and back, and from a result: what is the same, and what cannot be one."""

from __future__ import annotations

import datetime as dt
import enum
import inspect
import logging
import traceback
import uuid
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Optional
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel, BeforeValidator, Field

from countersign import MemoryAdapter, ToolRegistry, errors, replay, tool
from countersign.journal import LocalState
from countersign.tools.results import Placeholder, settle
from countersign.tools.signature import Signature
from tests.fakes.desk import Desk, answering_tool
from tests.fakes.running import order_tool, run


class Colour(enum.Enum):
    RED = "red"


class Money(BaseModel):
    cents: int
    currency: str


class Window(BaseModel):
    begins: dt.datetime


@dataclass
class Box:
    width: int


def frozen(fn: Any, *args: object, **kwargs: object) -> bytes:
    return Signature(fn, "act").freeze(args, kwargs)


def again(fn: Any, *args: object, **kwargs: object) -> dict[str, Any]:
    signature = Signature(fn, "act")
    return signature.retype(signature.freeze(args, kwargs))


def plain(order_id: str, amount: int = 5, note: str | None = None) -> None: ...
def anything(value): ...  # type: ignore[no-untyped-def]
def typed(colour: Colour, money: Money, key: uuid.UUID, at: dt.datetime, pair: tuple[int, str], box: Box): ...  # type: ignore[no-untyped-def]
def listed(amounts: list[int], named: dict[str, int]) -> None: ...
def priced(price: Decimal) -> None: ...
def raw(data: bytes) -> None: ...
def distinct(tags: set[str]) -> None: ...
def when(at: dt.datetime) -> None: ...
def during(window: Window) -> None: ...


def test_keyword_positional_and_defaulted_forms_have_the_same_bytes() -> None:
    named = frozen(plain, order_id="o-1", amount=5), frozen(plain, amount=5, order_id="o-1")
    placed = frozen(plain, "o-1", 5), frozen(plain, "o-1"), frozen(plain, "o-1", 5, None)
    assert {*named, *placed} == {b'{"amount":5,"order_id":"o-1"}'}
    assert again(plain, "o-1", 5, "hi") == {"order_id": "o-1", "amount": 5, "note": "hi"}
    assert "note" not in again(plain, "o-1")


def parsed(
    cents: Annotated[int, BeforeValidator(lambda text: int(str(text).replace(".", "")))], sure: bool
) -> None: ...


@pytest.mark.parametrize(("fn", "args", "place"), [
    (plain, {"order_id": "o-1", "amount": "42"}, "argument 'amount' is text where the signature says a number"),
    (plain, {"order_id": "o-1", "amount": str(2**53 - 1)}, "argument 'amount' is text where"),
    (plain, {"order_id": "o-1", "amount": True}, "argument 'amount' is a boolean where"),
    (parsed, {"cents": "12.40", "sure": 1}, "argument 'sure' is a number where the signature says a boolean"),
    (parsed, {"cents": "12.40", "sure": "yes"}, "argument 'sure' is text where the signature says a boolean"),
    (listed, {"amounts": [1, "2"], "named": {}}, r"'amounts' is text \(at /1\) where"),
    (listed, {"amounts": [], "named": {"a": "7"}}, r"'named' is text \(at /a\) where"),
    (typed, {"money": {"cents": "5", "currency": "EUR"}}, r"'money' is text \(at /cents\) where"),
])  # fmt: skip
def test_a_number_is_not_made_of_a_text_nor_a_boolean_of_either(fn: Any, args: Any, place: str) -> None:
    rest = {
        "colour": "red",
        "key": uuid.UUID(int=7),
        "at": dt.datetime(2026, 11, 21, tzinfo=dt.UTC),
        "pair": (1, "a"),
        "box": Box(3),
    }
    signature = Signature(fn, "act")
    given = {n: v for n, v in (rest | args).items() if n in signature.names}
    for check in (lambda: signature.freeze((), given), lambda: signature.require_call(given)):
        with pytest.raises(errors.NotStageable, match=place):
            check()


def test_a_validator_of_the_tool_may_read_a_number_from_a_text() -> None:
    assert again(parsed, "12.40", True) == {"cents": 1240, "sure": True}


def test_types_come_back_as_they_went_in() -> None:
    money, at = Money(cents=5, currency="EUR"), dt.datetime(2026, 11, 21, 22, 0, tzinfo=dt.UTC)
    given = {"colour": Colour.RED, "money": money, "key": uuid.UUID(int=7), "at": at, "pair": (1, "a")}
    assert again(typed, **given, box=Box(3)) == given | {"box": Box(3)}


def test_a_whole_float_is_its_integer() -> None:
    assert frozen(anything, 1.0) == frozen(anything, 1)


BERLIN, TOKYO = (dt.datetime(2026, 1, 1, tzinfo=ZoneInfo(name)) for name in ("Europe/Berlin", "Asia/Tokyo"))
PLACED = Placeholder[Any]("other", "0" * 64, "1" * 64)


UNSTAGEABLE: list[Any] = [
    ("bytes", raw, b"abc"),
    ("a set", distinct, {"a"}),  # even where its order would happen to match
    ("a frozenset where anything goes", anything, frozenset({"a"})),
    ("a Decimal", priced, Decimal("1.50")),
    ("a Decimal deep inside", anything, {"a": [Decimal(1)]}),
    ("a time with a named zone", when, BERLIN),
    ("such a time inside a model", during, Window(begins=TOKYO)),
    ("a time where anything goes", anything, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
    ("a tuple where anything goes", anything, (1, 2)),
    ("a placeholder", anything, PLACED),
    ("a placeholder in a list", listed, [PLACED]),
]


@pytest.mark.parametrize(("what", "fn", "value"), UNSTAGEABLE)
def test_refused_at_staging_with_the_argument_named(what: str, fn: Any, value: object) -> None:
    name, *_ = inspect.signature(fn).parameters
    with pytest.raises(errors.NotStageable, match=f"'{name}' of 'act'"):
        frozen(fn, *((value, {}) if fn is listed else (value,)))


SECRET = 48151623


REFUSALS: list[Any] = [
    lambda: frozen(plain, SECRET),  # the wrong type
    lambda: frozen(plain, "o-1", 5, SECRET),
    lambda: frozen(plain, f"{SECRET}\ud800", 5),
    lambda: Signature(plain, "act").retype(b'{"order_id":"o-1","amount":"x%d"}' % SECRET),
]


@pytest.mark.parametrize("refuse", REFUSALS)
def test_neither_a_refusal_nor_its_trace_quotes_a_value(refuse: Any) -> None:
    with pytest.raises(errors.NotStageable) as refused:
        refuse()
    held = [refused.value, refused.value.__cause__, refused.value.__context__]
    shown = "".join([*traceback.format_exception(refused.value), *map(str, held), *map(repr, held)])
    assert str(SECRET) not in shown


NO_CALLS: Any = [((), {}), (("o-1", 1, None, 2), {}), (("o-1",), {"colour": 1}), (("o",), {"order_id": "o"})]


@pytest.mark.parametrize(("args", "kwargs"), NO_CALLS)
def test_a_call_that_python_would_refuse_is_refused(args: Any, kwargs: Any) -> None:
    with pytest.raises(errors.NotStageable, match="cannot be called like this"):
        frozen(plain, *args, **kwargs)


@pytest.mark.parametrize(
    "args", [b'{"order_id":"o-1","amount":"x"}', b'{"order_id":"o-1","more":1}', b"[]", b"{}"]
)
def test_bytes_that_do_not_fit_the_signature_are_refused(args: bytes) -> None:
    with pytest.raises(errors.NotStageable):
        Signature(plain, "act").retype(args)


def variadic(*parts: str) -> None: ...
def open_ended(**parts: str) -> None: ...
def unnamed(order_id: str, /) -> None: ...


@pytest.mark.parametrize("fn", [variadic, open_ended, unnamed])
def test_every_argument_needs_a_name(fn: Any) -> None:
    with pytest.raises(errors.RegistrationError, match="name of its own"):
        Signature(fn, "act")


def test_unreadable_annotations_are_refused_at_the_declaration() -> None:
    def local(value: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(errors.RegistrationError, match="Missing"):
        Signature(local, "act")


def answers() -> Money: ...  # type: ignore[empty-body]


def test_results_come_back_typed_and_never_fail_to_be_written() -> None:
    signature = Signature(answers, "act")
    written = signature.result.dump(Money(cents=1, currency="EUR"))
    assert written == b'{"cents":1,"currency":"EUR"}'
    assert signature.result.load(written) == Money(cents=1, currency="EUR")
    assert signature.result.load(b'"another shape"') == "another shape"
    assert signature.result.dump(object()) is None
    assert signature.result.dump(float("inf")) is None


# -------------------------------------------------------------------------------------------------- results


class Word(enum.StrEnum):
    YES = "yes"


class Seat(BaseModel):
    row: int


class Opaque:
    """Nothing describes it."""


Name = NewType("Name", str)
NOON = dt.datetime(2026, 11, 25, 12, tzinfo=dt.UTC)


def returning(hint: Any) -> Any:
    def look() -> Any: ...

    look.__annotations__["return"] = hint
    return look


def declared(hint: Any, **said: Any) -> None:
    tool("look", registry=ToolRegistry(), **said)(returning(hint))


REFUSED: dict[str, tuple[Any, str]] = {
    "a time": (int | str | dt.datetime, "datetime"),
    "a day": (str | dt.date, "date"),
    "a span": (str | dt.timedelta, "timedelta"),
    "a UUID": (uuid.UUID | str, "UUID"),
    "a decimal": (Decimal | str | None, "Decimal"),
    "bytes": (bytes | str, "bytes"),
    "a path": (Path | str, "Path"),
    "an enum that is no text": (Colour | str, "Colour"),
    "as typing writes it": (Optional[str | dt.datetime], "datetime"),  # noqa: UP045
    "within a list": (list[str | dt.datetime], "datetime"),
    "within a list within a map": (dict[str, list[str | uuid.UUID] | None], "UUID"),
    "text of another name": (Name | dt.datetime, "datetime"),
    "with remarks": (Annotated[str, Field(max_length=3)] | Annotated[dt.datetime, "remark"], "datetime"),
}


@pytest.mark.parametrize(("hint", "kind"), REFUSED.values(), ids=REFUSED)
def test_a_union_of_text_and_text_like_types_is_refused(hint: Any, kind: str) -> None:
    shown = f"'look' says that it returns text or a {kind}: .* one of the two"
    with pytest.raises(errors.RegistrationError, match=shown):
        declared(hint)


TAKEN: dict[str, tuple[Any, list[Any]]] = {
    "text or nothing": (str | None, ["a", None]),
    "a number or text": (int | str, [3, "3"]),
    "a time or nothing": (dt.datetime | None, [NOON, None]),
    "a time or a number": (dt.datetime | int, [NOON, 3]),
    "a UUID or a time": (uuid.UUID | dt.datetime, [uuid.UUID(int=3), NOON]),
    "a model or nothing": (Seat | None, [Seat(row=3), None]),
    "a model or text": (Seat | str, [Seat(row=3), "3"]),
    "one of some words, or a time": (Literal["never"] | dt.datetime, ["never", NOON]),
    "an enum that is text": (Word | str, [Word.YES, "yes", "no"]),
    "a list of either": (list[int | str], [[1, "1"]]),
    "a decimal": (Decimal, [Decimal("1.10")]),
    "bytes": (bytes, [b"abc"]),
    "a set": (set[int], [{1, 2}]),
    "a tuple": (tuple[int, ...], [(1, 2)]),
    "a dataclass": (Box, [Box(3)]),
    "anything": (Any, [{"a": [1, "b", None, 1.5, True]}]),
    "nothing": (None, [None]),
}


@pytest.mark.parametrize(("hint", "values"), TAKEN.values(), ids=TAKEN)
def test_distinct_json_values_round_trip(hint: Any, values: list[Any]) -> None:
    declared(hint)
    signature = Signature(returning(hint), "look")
    for value in values:
        raw = signature.result.dump(value)
        again = signature.result.load(raw)
        assert again == value and signature.result.loses(value, raw) is None


def test_a_live_tool_returns_what_it_likes() -> None:
    """Its own run gets it as it is; what a replay cannot tell, it says (rehearsal/test_replayed_live_results.py)."""
    declared(str | dt.datetime, lane="live", adapter=MemoryAdapter())


class Grumpy:
    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    __hash__ = None  # type: ignore[assignment]


LOST: dict[str, tuple[Any, Any, str]] = {
    "a time of no type": (Any, NOON, "a str"),
    "a day and a time": (dt.date | dt.datetime, dt.datetime(2026, 11, 25, tzinfo=dt.UTC), "a date"),
    "a model or a map": (Seat | dict[str, int], Seat(row=3), "a dict"),
    "a tuple of no type": (Any, (1, 2), "a list"),
    "what has no form in JSON": (Any, Opaque(), "None"),
    "a number that is none": (float, float("nan"), "None"),
    "what cannot be compared": (Any, Grumpy(), "None"),
    "within a list": (list[Any], [NOON], "another list"),
}


@pytest.mark.parametrize(("hint", "value", "instead"), LOST.values(), ids=LOST)
def test_what_comes_back_as_something_else_is_known(hint: Any, value: Any, instead: str) -> None:
    signature = Signature(returning(hint), "look")
    assert signature.result.loses(value, signature.result.dump(value)) == instead


def test_a_type_that_no_schema_describes_is_left_as_json() -> None:
    signature = Signature(returning(Opaque | None), "look")
    raw = signature.result.dump(None)
    assert raw is not None and signature.result.load(raw) is None
    assert not signature.result.fits(raw)


@pytest.mark.parametrize("value", [NOON, Opaque(), (1, 2)])
def test_a_lossy_result_is_reported_by_type_after_firing(value: Any, desk: Desk, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        left = run(desk, (answering_tool(desk, value, name="look"), "o-1"))
    assert (left.placed[0].result, left.txn.state, len(desk.done)) == (value, "settled", 1)
    (shown,) = [one.message for one in caplog.records]
    assert shown.startswith(f"look returned a {type(value).__name__}, which JSON does not restore completely")
    assert "2026" not in shown


def test_a_faithful_result_is_not_reported(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    @order_tool(desk)
    def look(order_id: str) -> dt.datetime | None:
        return NOON

    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert run(desk, (look, "o-1")).placed[0].result == NOON
    assert replay("t-1", lambda _: look("o-1"), runtime=desk.runtime).value.result == NOON
    assert caplog.records == []


# ------------------------------------------- why a placeholder has no result once its transaction has ended

LIVE = {LocalState.LIVE, LocalState.KEPT, LocalState.UNDONE}  # of effects that have no placeholder


def why(outcome: str | None, error: str | None = None) -> str:
    placeholder: Placeholder[str] = Placeholder("refund", "e" * 64, "c" * 64)
    if outcome is not None:
        settle(placeholder, outcome, "a result", error)
    with pytest.raises(errors.PlaceholderUsed) as used:
        _ = placeholder.result
    return str(used.value)


def test_before_the_commit_a_placeholder_says_when_a_result_exists() -> None:
    assert why(None).endswith("happens only when the block commits. Read .result after the transaction")


@pytest.mark.parametrize("outcome", sorted({*LocalState} - LIVE - {LocalState.FIRED}))
def test_after_the_commit_every_outcome_has_a_text(outcome: LocalState) -> None:
    shown = why(outcome.value)
    assert shown.startswith("refund has no result: ") and ".result" not in shown
    assert "it is " + outcome.value not in shown, "words of its own"


OUTCOMES: list[Any] = [
    ("staged", "it was never submitted"),
    ("unknown", "it is not known whether it happened"),
    ("firing", "it is not known whether it happened"),
    ("compensated", "it happened and was compensated"),
    ("compensation_failed", "it happened, and could not be compensated"),
    ("not recorded", "it is not recorded"),
]


@pytest.mark.parametrize(("outcome", "words"), OUTCOMES)
def test_an_unknown_outcome_is_never_described_as_not_done(outcome: str, words: str) -> None:
    assert why(outcome) == f"refund has no result: {words}"
    assert why(outcome, "slow") == f"refund has no result: {words}: slow"

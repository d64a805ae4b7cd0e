"""From a call to canonical bytes and back: what is the same call, and what cannot be one."""

import datetime as dt
import enum
import inspect
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel

from countersign import NotStageable, RegistrationError
from countersign.tools.placeholder import Placeholder
from countersign.tools.signature import Signature


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


def frozen(fn: Callable[..., object], *args: object, **kwargs: object) -> bytes:
    return Signature(fn, "act").freeze(args, kwargs)


def again(fn: Callable[..., object], *args: object, **kwargs: object) -> dict[str, Any]:
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
    forms = {
        frozen(plain, "o-1", 5),
        frozen(plain, order_id="o-1", amount=5),
        frozen(plain, amount=5, order_id="o-1"),
        frozen(plain, "o-1"),
        frozen(plain, "o-1", 5, None),
    }
    assert forms == {b'{"amount":5,"order_id":"o-1"}'}
    assert again(plain, "o-1", 5, "hi") == {"order_id": "o-1", "amount": 5, "note": "hi"}
    assert "note" not in again(plain, "o-1")


def test_types_come_back_as_they_went_in() -> None:
    money, at = Money(cents=5, currency="EUR"), dt.datetime(2026, 11, 21, 22, 0, tzinfo=dt.UTC)
    given = {"colour": Colour.RED, "money": money, "key": uuid.UUID(int=7), "at": at, "pair": (1, "a")}
    assert again(typed, **given, box=Box(3)) == given | {"box": Box(3)}
    assert again(plain, "o-1", "42")["amount"] == 42, "what a model writes is typed by the signature"


def test_a_whole_float_is_its_integer() -> None:
    assert frozen(anything, 1.0) == frozen(anything, 1)


BERLIN, TOKYO = (dt.datetime(2026, 1, 1, tzinfo=ZoneInfo(name)) for name in ("Europe/Berlin", "Asia/Tokyo"))
PLACED = Placeholder[Any]("other", "0" * 64, "1" * 64)


@pytest.mark.parametrize(
    ("what", "fn", "value"),
    [
        ("bytes", raw, b"abc"),
        ("bytes where anything goes", anything, b"abc"),
        ("bytes in a list", anything, [b"abc"]),
        ("a set", distinct, {"a"}),  # even where its order would happen to match
        ("a frozenset where anything goes", anything, frozenset({"a"})),
        ("a Decimal", priced, Decimal("1.50")),
        ("a Decimal deep inside", anything, {"a": [Decimal(1)]}),
        ("a time with a named zone", when, BERLIN),
        ("such a time inside a model", during, Window(begins=TOKYO)),
        ("a time where anything goes", anything, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        ("a tuple where anything goes", anything, (1, 2)),
        ("an object", anything, object()),
        ("not a number", anything, float("nan")),
        ("an integer no JSON reader keeps", anything, 2**53),
        ("half a surrogate pair", anything, "\ud800"),
        ("a key that is no text", anything, {1: 2}),
        (
            "a key that Cedar would turn into an entity",
            anything,
            {"__entity": {"type": "User", "id": "root"}},
        ),
        ("a placeholder", anything, PLACED),
        ("a placeholder in a list", listed, [PLACED]),
    ],
)
def test_refused_at_staging_with_the_argument_named(what: str, fn: Any, value: object) -> None:
    name, *_ = inspect.signature(fn).parameters
    with pytest.raises(NotStageable, match=f"'{name}' of 'act'"):
        frozen(fn, *((value, {}) if fn is listed else (value,)))


SECRET = 48151623


@pytest.mark.parametrize(
    "refuse",
    [
        lambda: frozen(plain, SECRET),  # the wrong type
        lambda: frozen(plain, "o-1", 5, SECRET),
        lambda: frozen(anything, {SECRET: "a key"}),  # no JSON
        lambda: frozen(anything, {"__entity": SECRET}),
        lambda: frozen(plain, f"{SECRET}\ud800", 5),
        lambda: Signature(plain, "act").retype(b'{"order_id":"o-1","amount":"x%d"}' % SECRET),
    ],
)
def test_neither_a_refusal_nor_its_trace_quotes_a_value(refuse: Callable[[], object]) -> None:
    with pytest.raises(NotStageable) as refused:
        refuse()
    held = [refused.value, refused.value.__cause__, refused.value.__context__]
    told = "".join([*traceback.format_exception(refused.value), *map(str, held), *map(repr, held)])
    assert str(SECRET) not in told


NO_CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    *(((), {}), (("o-1", 1, None, 2), {}), (("o-1",), {"colour": 1}), (("o-1",), {"order_id": "o-2"}))
]


@pytest.mark.parametrize(("args", "kwargs"), NO_CALLS)
def test_a_call_that_python_would_refuse_is_refused(args: Any, kwargs: Any) -> None:
    with pytest.raises(NotStageable, match="cannot be called like this"):
        frozen(plain, *args, **kwargs)


@pytest.mark.parametrize(
    "args", [b'{"order_id":"o-1","amount":"x"}', b'{"order_id":"o-1","more":1}', b"[]", b"{}"]
)
def test_bytes_that_do_not_fit_the_signature_are_refused(args: bytes) -> None:
    with pytest.raises(NotStageable):
        Signature(plain, "act").retype(args)


def variadic(*parts: str) -> None: ...
def open_ended(**parts: str) -> None: ...
def unnamed(order_id: str, /) -> None: ...


@pytest.mark.parametrize("fn", [variadic, open_ended, unnamed])
def test_every_argument_needs_a_name(fn: Callable[..., object]) -> None:
    with pytest.raises(RegistrationError, match="name of its own"):
        Signature(fn, "act")


def test_annotations_nobody_can_read_are_refused_when_declared() -> None:
    def local(value: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(RegistrationError, match="Missing"):
        Signature(local, "act")


def answers() -> Money: ...  # type: ignore[empty-body]


def test_results_come_back_typed_and_never_fail_to_be_written() -> None:
    signature = Signature(answers, "act")
    written = signature.dump_result(Money(cents=1, currency="EUR"))
    assert written == b'{"cents":1,"currency":"EUR"}'
    assert signature.load_result(written) == Money(cents=1, currency="EUR")
    assert signature.load_result(b'"another shape"') == "another shape"
    assert signature.dump_result(object()) is None
    assert signature.dump_result(float("inf")) is None

"""What a tool returns comes back the same in another run of its key; where it cannot, that is said, and no more."""

from __future__ import annotations

import datetime as dt
import enum
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Optional

import pytest
from pydantic import BaseModel, Field

from countersign import MemoryAdapter, RegistrationError, ToolRegistry, replay, tool
from countersign.tools.signature import Signature
from tests.fakes.desk import Desk, answering_tool
from tests.fakes.running import order_tool, run


class Colour(enum.Enum):
    RED = "red"


class Word(enum.StrEnum):
    YES = "yes"


class Seat(BaseModel):
    row: int


@dataclass
class Box:
    width: int


class Opaque:
    """Nothing describes it."""


Name = NewType("Name", str)
NOON = dt.datetime(2026, 11, 25, 12, tzinfo=dt.UTC)


def returning(hint: Any) -> Callable[[], Any]:
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
def test_text_beside_what_is_text_in_json_is_refused_where_it_is_declared(hint: Any, kind: str) -> None:
    told = f"'look' says that it returns text or a {kind}: .* one of the two"
    with pytest.raises(RegistrationError, match=told):
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
def test_what_json_tells_apart_comes_back_the_same(hint: Any, values: list[Any]) -> None:
    declared(hint)
    signature = Signature(returning(hint), "look")
    for value in values:
        raw = signature.dump_result(value)
        assert raw is not None
        again = signature.load_result(raw)
        assert again == value and signature.loses_result(value, raw) is None


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
    "a model beside a map": (Seat | dict[str, int], Seat(row=3), "a dict"),
    "a tuple of no type": (Any, (1, 2), "a list"),
    "what has no form in JSON": (Any, Opaque(), "None"),
    "a number that is none": (float, float("nan"), "None"),
    "what cannot be compared": (Any, Grumpy(), "None"),
    "within a list": (list[Any], [NOON], "another list"),
}


@pytest.mark.parametrize(("hint", "value", "instead"), LOST.values(), ids=LOST)
def test_what_comes_back_as_something_else_is_known(hint: Any, value: Any, instead: str) -> None:
    signature = Signature(returning(hint), "look")
    assert signature.loses_result(value, signature.dump_result(value)) == instead


def test_a_type_that_no_schema_describes_is_left_as_json() -> None:
    signature = Signature(returning(Opaque | None), "look")
    raw = signature.dump_result(None)
    assert raw is not None and signature.load_result(raw) is None
    assert not signature.result_fits(raw)


@pytest.mark.parametrize("value", [NOON, Opaque(), (1, 2)])
def test_it_is_told_by_its_kinds_and_has_fired(
    value: Any, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        left = run(desk, (answering_tool(desk, value, name="look"), "o-1"))
    assert (left.placed[0].result, left.txn.state, len(desk.done)) == (value, "settled", 1)
    (told,) = [one.message for one in caplog.records]
    assert told.startswith(f"look returned a {type(value).__name__}, of which JSON does not bring back all")
    assert "2026" not in told


def test_a_result_that_comes_back_is_no_matter(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    @order_tool(desk)
    def look(order_id: str) -> dt.datetime | None:
        return NOON

    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert run(desk, (look, "o-1")).placed[0].result == NOON
    assert replay("t-1", lambda _: look("o-1"), runtime=desk.runtime).value.result == NOON
    assert caplog.records == []

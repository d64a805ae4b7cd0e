"""What cannot be written as JSON is refused at staging: by name and place, and without quoting it."""

import dataclasses
import traceback
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator, model_serializer

from countersign import MemoryAdapter, NotStageable
from countersign.tools.signature import Signature
from tests.fakes.desk import Desk
from tests.fakes.running import order_tool

SECRET = "hunter2"
DEPTHS = [65, 20_000]  # one level more than may be, and more than the stack holds


class Model(BaseModel):
    held: Any = None


@dataclasses.dataclass
class Held:
    held: Any


class Unserialisable(BaseModel):
    @model_serializer
    def written(self) -> Any:
        fail()


class Invalid(BaseModel):
    number: int = 0

    @field_validator("number")
    @classmethod
    def checked(cls, _: int) -> int:
        return int(fail())


def fail(*_: Any) -> Any:
    raise RuntimeError(SECRET)


class Raising:
    __getattribute__ = __repr__ = __eq__ = fail

    def __hash__(self) -> int:
        return 1


class RaisingList(list[Any]):
    __iter__ = fail


class RaisingDict(dict[Any, Any]):
    __iter__ = keys = values = items = fail


class LyingText(str):
    def encode(self, *_: Any) -> Any:
        return b"all well"


def deep(depth: int, wrap: Any) -> Any:
    value: Any = wrap(None)
    for _ in range(depth):
        value = wrap(value)
    return value


def of_itself(made: Any, put: Any) -> Any:
    put(made, made)
    return made


def twice() -> list[Any]:
    found: list[Any] = []
    found += [found, found]
    return found


def shared() -> list[Any]:
    found: list[Any] = []
    for _ in range(60):
        found = [found, found]
    return found


WRAPS: Any = {
    "lists": lambda inner: [inner],
    "tuples": lambda inner: (inner,),
    "objects": lambda inner: {"a": inner},
    "models": lambda inner: Model.model_construct(held=inner),
    "data classes": Held,
    "lists and objects": lambda inner: [{"a": inner}],
}

VALUES: Any = {
    **{
        f"{depth} levels of {name}": lambda depth=depth, wrap=wrap: deep(depth, wrap)  # type: ignore[misc]
        for depth in DEPTHS
        for name, wrap in WRAPS.items()
    },
    "a list in itself": lambda: of_itself([], list.append),
    "a list twice in itself": twice,
    "an object in itself": lambda: of_itself({}, lambda one, other: one.update(a=other)),
    "a model in itself": lambda: of_itself(Model(), lambda one, other: setattr(one, "held", other)),
    "a data class in itself": lambda: of_itself(Held(1), lambda one, other: setattr(one, "held", other)),
    "values shared 2**60 times": shared,
    "a key of half a pair": lambda: {f"\udcff {SECRET}": 1},
    "such a key of a text of its own kind": lambda: {LyingText(f"{SECRET}\ud800"): 1},
    "text of half a pair": lambda: ["a", f"{SECRET}\udcff"],
    "a key that is a number": lambda: {48151623: 1},
    "a key with many digits": lambda: {10**5_000: 1},
    "a key that is a tuple": lambda: {(1, SECRET): 1},
    "a key that raises": lambda: {Raising(): 1},
    "an object that raises": Raising,
    "a list that raises": lambda: RaisingList([1]),
    "a mapping that raises": lambda: RaisingDict(a=1),
    "a number of many digits": lambda: {"a": [10**5_000]},
    "such a negative one": lambda: -(10**5_000),
    "a number beyond readers": lambda: [2**53],
    "such a number with an exponent": lambda: {"a": 1e21},
    "no number": lambda: {"a": float("nan")},
    "a Decimal that is no number": lambda: {"a": Decimal("NaN")},
    "a Decimal in a data class": lambda: Held(Decimal("1.0")),
    "an object": object,
    "a function": lambda: print,
    "too many values": lambda: list(range(10_001)),
    "a long text": lambda: "x" * 300_000,
    "bytes": lambda: [b"\xff"],
    "a key for policies": lambda: {"__entity": {"type": "User", "id": SECRET}},
}


def anything(value: Any) -> None: ...
def mapped(value: dict[str, Any]) -> None: ...
def texts(value: dict[str, str]) -> None: ...
def numbers(value: dict[int, int]) -> None: ...
def modelled(value: Model) -> None: ...
def united(value: int | list[Any] | dict[str, Any]) -> None: ...
def held(value: Held) -> None: ...


def trace_of(error: BaseException) -> str:
    """Its text and its trace, and those of what it came from."""
    return "".join([str(error), *traceback.format_exception(error)])


@pytest.mark.parametrize("name", VALUES)
def test_it_is_refused_with_its_argument_named_and_never_quoted(name: str) -> None:
    """And no type ends in a recursion."""
    nested = "levels" in name or "itself" in name
    value = VALUES[name]()
    for fn in [anything, texts, united, held] + [modelled, numbers] * nested:
        with pytest.raises(NotStageable) as refused:
            Signature(fn, "act").freeze((value,), {})
        text, trace = str(refused.value), trace_of(refused.value)
        assert ("value" in text, SECRET in trace, "48151623" in trace) == (True, False, False)
        assert text.encode("utf-8") and len(text) < 1_000


def checked(value: Invalid) -> None: ...
def unserialisable(value: Unserialisable) -> None: ...


@pytest.mark.parametrize(
    ("fn", "value"), [(checked, {"number": 1}), (unserialisable, {}), (anything, Unserialisable())]
)
def test_a_model_whose_own_code_raises_refuses_the_call(fn: Any, value: Any) -> None:
    with pytest.raises(NotStageable, match="Error") as refused:
        Signature(fn, "act").freeze((value,), {})
    assert SECRET not in trace_of(refused.value)


POINTED: list[Any] = [
    ({"lines": [{"to": "a"}, {"to": "b\udcff"}]}, "/lines/1/to"),
    ({"lines": [1, {"\udcff": 1}]}, "/lines/1"),
    ({"lines": {"\udcff": {"a": 2**60}}}, "/lines"),
    ({"\x1b[2J": [2**60]}, "/*/0"),
    ({"lines": [float("inf")]}, "/lines/0"),
    ([{"a": {"__entity": 1}}], "/0/a"),
    ([Decimal(1)], "/0"),
    (Model(held=[1, b""]), "/held/1"),
    (Held([1, b""]), "/held/1"),
]


@pytest.mark.parametrize(("value", "place"), POINTED)
def test_the_refusal_points_at_the_place(value: Any, place: str) -> None:
    with pytest.raises(NotStageable) as refused:
        Signature(anything, "act").freeze((value,), {})
    assert f"(at {place})" in str(refused.value)


@pytest.mark.parametrize("name", ["\udcff", "a\udcff", "x" * 100_000])
def test_an_argument_of_no_sound_name_is_refused(name: str) -> None:
    with pytest.raises(NotStageable) as refused:
        Signature(anything, "act").freeze((), {name: 1})
    assert str(refused.value).encode("utf-8")


def two(first: Any, second: Any) -> None: ...


def test_arguments_that_fit_each_and_not_together_are_refused() -> None:
    for first, second in [("x" * 200_000, "y" * 200_000), (list(range(6_000)), list(range(6_000)))]:
        with pytest.raises(NotStageable, match="the args of 'act'"):
            Signature(two, "act").freeze((first, second), {})
    with pytest.raises(NotStageable, match="deeper"):
        Signature(two, "act").freeze((deep(63, lambda inner: [inner]), 1), {})


@pytest.mark.parametrize("lane", ["staged", "live"])
@pytest.mark.parametrize(
    "value",
    [twice, lambda: deep(20_000, WRAPS["lists"]), VALUES["a key of half a pair"], Raising],
    ids=["a list twice in itself", "20000 levels", "a key of half a pair", "an object that raises"],
)
def test_either_lane_refuses_it_and_the_block_goes_on(desk: Desk, lane: str, value: Any) -> None:
    done: list[Any] = []
    said = {"lane": "live", "adapter": MemoryAdapter()} if lane == "live" else {}

    @order_tool(desk, resource=("System", "const:main"), **said)
    def note(text: str | list[str] | dict[str, str]) -> None:
        done.append(text)

    with desk.step():
        with pytest.raises(NotStageable):
            note(value())
        note("after it")
    assert done == ["after it"]


parts = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary()
keys = st.text(st.characters(), max_size=5) | st.integers() | st.none()
values = st.recursive(parts, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=20)


@settings(deadline=None, max_examples=40)
@given(values)
def test_every_value_is_written_or_refused(value: Any) -> None:
    for fn in (anything, mapped, united):
        signature = Signature(fn, "act")
        try:
            raw = signature.freeze((value,), {})
        except NotStageable:
            continue
        assert signature.retype(raw) == {"value": value}

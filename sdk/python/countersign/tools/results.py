"""What a call returns: a placeholder until its transaction commits, then its tool's result.

A placeholder refers to a call that has not happened yet and is never a fake result. It cannot be used as a value:
truth, text, comparison, arithmetic and iteration raise `PlaceholderUsed`, because each would let a program continue as
if the effect had happened. A result's attributes do not exist either (`AttributeError`, so that `hasattr` is correct).
Only `repr` works, for debuggers and logs. After the commit `.result` is what the tool returned and `.outcome` the
outcome of the effect; the placeholder itself never becomes the result.

A result is kept as canonical JSON, typed by the return annotation. Results that do not compare equal after a round trip
have fired all the same; they are reported by their types, never by their values. If a call returns unfinished work (a
generator, a coroutine), its outcome is unknown. A value may contain itself, or share parts so that its JSON would be
endless: the walk calls none of its methods and stops at the limits of admission.
"""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AsyncContextDecorator, ContextDecorator, suppress
from dataclasses import fields, is_dataclass
from functools import cached_property
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, cast

from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_jsonable_python

from countersign.contract.admission import ARGS_LIMITS, admitted_bytes, load, too_deep, too_many_nodes
from countersign.errors import PlaceholderUsed, RegistrationError
from countersign.tools.annotations import text_like_types

# A field, a type of a union (`list[any]`) or a key that looks like one; other keys may be values of the caller.
_NAME: Final = re.compile(r"[^\W\d][\w\[\],.| -]{0,63}\Z")


def walk_values(value: object) -> Iterator[tuple[str, object]]:
    """The value and everything inside it, keys too, each with a readable pointer (`""` is the value itself).

    Raises:
        AdmissionError: `too_deep`, `too_many_nodes`.
    """
    waiting: list[tuple[str, int, object]] = [("", 1, value)]
    seen = 0
    while waiting:
        place, depth, one = waiting.pop()
        seen += 1
        yield place, one
        inside = children_of(one)
        if inside is None:
            continue
        if depth > ARGS_LIMITS.max_depth:
            raise too_deep(ARGS_LIMITS)
        if isinstance(one, Mapping):
            yield from ((place, key) for key in one)
        found: list[tuple[str, int, object]] = []
        for step, child in inside:
            if seen + len(waiting) + len(found) >= ARGS_LIMITS.max_nodes:
                raise too_many_nodes(ARGS_LIMITS)
            found.append((f"{place}/{pointer_step(step)}", depth + 1, child))
        waiting += reversed(found)


def pointer_step(step: object) -> str:
    """An index, a field or a key in a readable pointer; `*` for a key that is not a plain name, since a key is a value
    of the caller.
    """
    if type(step) is int and 0 <= step < ARGS_LIMITS.max_nodes:
        return str(step)
    return step if type(step) is str and _NAME.match(step) else "*"


def children_of(value: object) -> Iterable[tuple[object, object]] | None:
    """The steps into a container and their values; None if it is not a container."""
    if isinstance(value, Mapping):
        return ((key if isinstance(key, str) else None, value[key]) for key in value)
    if isinstance(value, list | tuple | set | frozenset | deque):
        return enumerate(value)
    if isinstance(value, BaseModel):
        return vars(value).items()
    if is_dataclass(value) and not isinstance(value, type):
        return ((one.name, getattr(value, one.name, None)) for one in fields(value))
    return None


# What `@contextmanager` makes is a `ContextDecorator`. A `Future` is still being worked on by a pool.
_KINDS: Final = (
    *(GeneratorType, AsyncGeneratorType, ContextDecorator, AsyncContextDecorator, Future),
    *(map, filter, zip, enumerate),
)
_LAZY_MODULE: Final = "itertools"


class UnfinishedError(Exception):
    """A tool returned work instead of doing it. This is unknown regardless of what the tool declares."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"it returned a {kind}, which has not run to its end; have the tool do its work before it returns "
            "(an async tool is an `async def`)"
        )


def unfinished_error(value: object) -> UnfinishedError | None:
    """The error for a result that is or contains unfinished work; None otherwise. Coroutines that were never started
    are closed, so that Python does not warn about them; nothing of them is run.
    """
    kind = None
    with suppress(Exception):  # inspecting runs code of the value
        for _, one in walk_values(value):
            if not _is_unfinished(type(one)):
                continue
            kind = kind or type(one).__name__
            if inspect.iscoroutine(one) and inspect.getcoroutinestate(one) == inspect.CORO_CREATED:
                one.close()
    return None if kind is None else UnfinishedError(kind)


def is_awaitable(value: object) -> bool:
    """Whether the value must be awaited."""
    return hasattr(type(value), "__await__")


def _is_unfinished(kind: type) -> bool:
    return (
        issubclass(kind, _KINDS)
        or hasattr(kind, "__await__")
        or hasattr(kind, "__anext__")
        or kind.__module__ == _LAZY_MODULE
    )


class Result:
    """The declared return type of a tool."""

    def __init__(self, hint: Any, tool: str) -> None:
        self._hint = hint
        self._tool = tool

    def require_unambiguous(self) -> None:
        """Refuse a type whose values would be read back as another type.

        Raises:
            RegistrationError: in a union with text, it would be read back as text.
        """
        kind = self.text_like_types
        if kind is not None:
            raise RegistrationError(
                f"tool {self._tool!r} says that it returns text or a {kind}: results are kept as JSON, where a {kind} "
                "is text too, so another run of the same key would get text for it; return one of the two, or an "
                "object with a field for each"
            )

    @property
    def text_like_types(self) -> str | None:
        """The first type of a union with text that would be read back as text; None if there is none."""
        return next(text_like_types(self._hint), None)

    def dump(self, value: object) -> bytes | None:
        """The result as canonical bytes, or None if it has no JSON form: it raises when inspected, or serialising would
        consume it (an iterator, a cursor, a file) before the caller can read it.
        """
        try:
            if _is_spent_by_reading(value):
                return None
            return admitted_bytes(to_jsonable_python(value, by_alias=True))
        except Exception:  # noqa: BLE001 - looking runs code of the value, and the tool has done its work all the same
            return None

    def load(self, raw: bytes) -> object:
        """A result from the journal, typed as far as possible."""
        value = load(raw)
        try:
            return self._adapter.validate_python(value)
        except Exception:  # noqa: BLE001 - of another type, of one that no schema describes, or its validator raised
            return value

    def fits(self, raw: bytes) -> bool:
        """Whether a result from the journal still matches the declared type."""
        try:
            self._adapter.validate_python(load(raw))
        except Exception:  # noqa: BLE001 - as above
            return False
        return True

    def loses(self, value: object, raw: bytes | None) -> str | None:
        """The type that another run would get instead of this value; None if it would get an equal one."""
        again = None if raw is None else self.load(raw)
        try:
            is_equal = bool(again == value)
        except Exception:  # noqa: BLE001 - comparing runs code of the value, and the effect has fired all the same
            is_equal = False
        if is_equal:
            return None
        kind = type(again).__name__
        return (
            f"another {kind}" if type(again) is type(value) else f"a {kind}" if again is not None else "None"
        )

    @cached_property
    def _adapter(self) -> TypeAdapter[object]:
        return TypeAdapter(self._hint)


def _is_spent_by_reading(value: object) -> bool:
    return any(hasattr(type(one), "__next__") for _, one in walk_values(value))


def is_utf8_text(text: str) -> bool:
    """Whether it can be encoded as UTF-8."""
    try:
        str.encode(text)  # a subclass may override `encode`
    except UnicodeEncodeError:
        return False
    return True


R_co = TypeVar("R_co", covariant=True)
_WHY_NONE: Final = {
    "staged": "it was never submitted",
    "review": "its review is open, and it has not fired",
    "released": "it was released, and has not fired",
    "denied": "it was denied",
    "expired": "there was no vote in time",
    "withdrawn": "it was withdrawn",
    "revoked": "its release was revoked",
    "redeemed": "it was redeemed, and has not fired",
    "firing": "it is not known whether it happened",
    "unknown": "it is not known whether it happened",
    "failed": "it did not happen",
    "unused": "it was not called",
    "compensating": "it happened, and its compensation is pending",
    "compensated": "it happened and was compensated",
    "compensation_failed": "it happened, and could not be compensated",
    "relisted": "it was superseded by another list",
}
"""By outcome, why there is no result. Any other outcome is shown as it is."""


class Placeholder(Generic[R_co]):
    """One staged call. `effect_id` names the effect, `call_key` the logical call."""

    __slots__ = ("_error", "_outcome", "_result", "call_key", "effect_id", "tool")

    def __init__(self, tool: str, effect_id: str, call_key: str) -> None:
        self.tool = tool
        self.effect_id = effect_id
        self.call_key = call_key
        self._outcome: str | None = None
        self._result: R_co | None = None
        self._error: str | None = None

    @property
    def outcome(self) -> str | None:
        """`fired`, `failed`, `unknown`, `unused`, `compensated`, ...; None before the commit."""
        return self._outcome

    @property
    def error(self) -> str | None:
        """Why it did not fire, as its tool reported; None if it fired, and before the commit."""
        return self._error

    @property
    def result(self) -> R_co:
        """What the tool returned.

        Raises:
            PlaceholderUsed: the effect has not fired.
        """
        if self._outcome is None:
            raise PlaceholderUsed(
                f"{self.tool} has no result: it is staged and happens only when the block commits. Read .result after "
                "the transaction"
            )
        if self._outcome != "fired":
            state = _WHY_NONE.get(self._outcome, f"it is {self._outcome}")
            why = f": {self._error}" if self._error else ""
            raise PlaceholderUsed(f"{self.tool} has no result: {state}{why}")
        return cast("R_co", self._result)

    def __repr__(self) -> str:
        return f"<{self.tool} staged as effect {self.effect_id[:12]}, {self._outcome or 'not done yet'}>"

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        if self._outcome == "fired":
            raise PlaceholderUsed(
                f"{self.tool} has fired, and this is still its placeholder; write .result to get what it returned"
            )
        raise PlaceholderUsed(
            f"{self.tool} is only staged: it has no result before the transaction commits, and this placeholder "
            "is not a value. Use .result after the block; put calls that depend on it in a later transaction."
        )

    # hidden from type checkers: a class with __getattr__ would match every protocol, even a coroutine
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"the placeholder of {self.tool} has no attribute {name!r}: the call is staged, its result exists only "
                "after the commit, as .result"
            )

    def __bool__(self) -> bool:  # noqa: PLE0304 - it never returns
        if self._outcome is None:
            raise PlaceholderUsed(
                f"{self.tool} is only staged, and a condition cannot know what it will return. End the block first: "
                'after it, `.outcome == "fired"` says whether it happened and `.result` what it returned; what depends '
                "on that belongs in a second transaction"
            )
        self._refuse()

    def __str__(self) -> str:  # noqa: PLE0307 - it never returns
        self._refuse()

    def __format__(self, spec: str) -> str:
        self._refuse()

    def __eq__(self, other: object) -> bool:
        self._refuse()

    def __hash__(self) -> int:  # noqa: PLE0309 - it never returns
        self._refuse()

    # All other ways to use a value. Copying and pickling are refused too: a copy would never be settled.
    __iter__ = __len__ = __contains__ = __getitem__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __int__ = __float__ = __index__ = __bytes__ = __complex__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __mod__ = (
        _refuse
    )
    __neg__ = __abs__ = __reduce__ = __copy__ = __deepcopy__ = _refuse


def settle(
    placeholder: Placeholder[Any], outcome: str, result: object = None, error: str | None = None
) -> None:
    """Set the outcome of a placeholder. Only the transaction does this."""
    placeholder._outcome = outcome
    placeholder._result = result
    placeholder._error = error

"""The return value of a staged call: a reference to a call that has not happened yet, never a fake result.

A placeholder cannot be used as a value. Truth, text, comparison, arithmetic and iteration raise `PlaceholderUsed`,
because each would let a program continue as if the effect had happened. A result's attributes do not exist either
(`AttributeError`, so that `hasattr` is correct). Only `repr` works, for debuggers and logs. After the commit `.result`
is what the tool returned and `.outcome` the outcome of the effect; the placeholder itself never becomes the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, cast

from countersign.errors import PlaceholderUsed

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
                f"{self.tool} is only staged, and a condition cannot know what it will return. End the block first: after "
                'it, `.outcome == "fired"` says whether it happened and `.result` what it returned; what depends on that '
                "belongs in a second transaction"
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

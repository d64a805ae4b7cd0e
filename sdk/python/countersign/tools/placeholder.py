"""What a staged call returns: the name of a call that has not happened yet, never a pretend result.

A placeholder refuses to be used as a value. Truth, text, comparison, arithmetic and iteration raise
`PlaceholderUsed`, because every one of them would let a program go on as if the effect had happened; there are no
attributes of a result either (`AttributeError`, so that `hasattr` tells the truth).
`repr` is the one exception, for debuggers and logs. After the commit `.result` is what the tool returned and
`.outcome` what became of the effect; the placeholder itself never turns into the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, cast

from countersign.errors import PlaceholderUsed

R_co = TypeVar("R_co", covariant=True)

_WHY_NONE: Final = {
    "staged": "it was never submitted",
    "review": "people are asked about it, and it has not fired",
    "released": "it was released, and has not fired",
    "denied": "it was denied",
    "expired": "nobody answered in time",
    "withdrawn": "it was withdrawn",
    "revoked": "its release was revoked",
    "redeemed": "it was redeemed, and has not fired",
    "firing": "it is not known whether it happened",
    "unknown": "it is not known whether it happened",
    "failed": "it did not happen",
    "unused": "it was not called",
    "compensating": "it happened and is to be taken back",
    "compensated": "it happened and was taken back",
    "compensation_failed": "it happened, and could not be taken back",
    "relisted": "another list took its place",
}
"""By outcome, why there is no result. What else an outcome may be is told as it is."""


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
        """Why it did not fire, as its tool said; None where it did, and before the commit."""
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
            f"{self.tool} is only staged: it has no result to look at before the transaction commits, and this "
            "placeholder stands for none. Use .result after the block; put calls that depend on it in a "
            "later transaction."
        )

    if not TYPE_CHECKING:  # who has it passes for everything that is told by its methods, a coroutine too

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"the placeholder of {self.tool} has no attribute {name!r}: the call is staged, its result exists only "
                "after the commit, as .result"
            )

    def __bool__(self) -> bool:  # noqa: PLE0304 - it never returns
        self._refuse()

    def __str__(self) -> str:  # noqa: PLE0307 - it never returns
        self._refuse()

    def __format__(self, spec: str) -> str:
        self._refuse()

    def __eq__(self, other: object) -> bool:
        self._refuse()

    def __hash__(self) -> int:  # noqa: PLE0309 - it never returns
        self._refuse()

    # The rest of the ways to look at a value. Copying and pickling are refused too: a copy would never be settled.
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
    """Tell a placeholder what became of its effect. Only the transaction does this."""
    placeholder._outcome = outcome
    placeholder._result = result
    placeholder._error = error

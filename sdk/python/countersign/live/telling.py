"""What may be told of an error that an adapter raised although it was given secrets: a database quotes the values that
it refuses, and a file may be named by one.

Rules: an error of ours that holds no argument is told as it is, without what it was raised from; a conflict stays a
`Moved`, so that `Retry` and a model know it, without key and versions (a version may be guessed from); of all others
the kind and the place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from countersign.errors import FireError, MisuseError, Moved, NotStageable, Stopped, ToolRaised, WorldError
from countersign.journal.sealing import HIDDEN

T = TypeVar("T")

_OURS: Final = (MisuseError, Stopped, FireError, WorldError)
_QUOTING: Final = (NotStageable, Moved)
"""Errors of ours that name what a call was about. What tools and adapters raise themselves (`NotDone`, a bare
`MisuseError`) may as well; the others hold no argument."""
_UNTOLD: Final = "over what and at which versions is not told: it was given secret arguments"


def holds_no_argument(error: BaseException) -> bool:
    """Whether it is an error of ours that says nothing of what a call was about."""
    return isinstance(error, _OURS) and not isinstance(error, _QUOTING) and type(error) is not MisuseError


def heard(adapter: str, act: Callable[[], T], *, hidden: bool) -> T:
    """What an adapter answers. `hidden`: it was given secrets, so what it raises is not told as it is."""
    try:
        return act()
    except Exception as error:
        if not hidden:
            raise
        told = _without_values(adapter, error)
    raise told  # out here, or it would keep what it hides as its context


def _without_values(adapter: str, error: Exception) -> Exception:
    if isinstance(error, Moved):
        return Moved(adapter, HIDDEN, read=error.read, expected=None, now=None, said=_UNTOLD)
    if holds_no_argument(error):
        error.__cause__ = error.__context__ = None
        return error
    return ToolRaised.of(f"live adapter {adapter!r}", error)

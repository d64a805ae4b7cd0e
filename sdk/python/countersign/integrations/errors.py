"""Errors of a conversation that ends without an answer, and of a missing vendor package.

    CountersignError
        MisuseError
            PackageMissing     a vendor's package, which is an extra, is not installed
        ModelStopped         the model's message is incomplete: cut off, refused or filtered; no call of it was made
        TurnLimit            the model reached the turn limit and still called tools

`messages` of the last two is the complete part of the conversation: every call in it has its answer, so a program can
continue from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from countersign.errors import CountersignError, MisuseError


class PackageMissing(MisuseError):
    """A vendor's package is not installed in this environment."""

    code = "package_missing"


class ModelStopped(CountersignError):
    """The model's message is incomplete, and none of its calls was carried out. `reason` is the vendor's reason, `said`
    the text until then.
    """

    code = "model_stopped"

    def __init__(self, reason: str, said: str, messages: Sequence[dict[str, Any]]) -> None:
        self.reason, self.said, self.messages = reason, said, list(messages)
        super().__init__(
            f"the model's message ended by {reason!r}, so none of its calls was carried out; "
            f"{_ADVICE.get(reason, _ASK)}"
        )


class TurnLimit(CountersignError):
    """The model reached the turn limit. Every call it made has been carried out and answered."""

    code = "turn_limit"

    def __init__(self, turns: int, messages: Sequence[dict[str, Any]]) -> None:
        self.turns, self.messages = turns, list(messages)
        super().__init__(
            f"the model was called {turns} times and still calls tools; every call so far was carried out and "
            "answered. Continue with `messages` of this error under the same key, or set max_turns=..."
        )


_ASK = "ask again with other messages, or tell the user"
_LONGER = "allow a longer answer (a larger limit of tokens), or use a shorter conversation"
_ADVICE = {
    "length": _LONGER,
    "max_tokens": _LONGER,
    "model_context_window_exceeded": "make the conversation shorter",
}


def require_package(name: str, extra: str | None = None) -> ModuleType:
    """Import the package. Its name is also the name of our extra, unless `extra` is given.

    Raises:
        PackageMissing: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise PackageMissing(
            f"the package {name!r} is not installed here; install it, as the extra of the SDK: "
            f"countersign-sdk[{extra or name}]"
        ) from error

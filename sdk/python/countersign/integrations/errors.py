"""How a conversation with a model ends that came to no answer, and a vendor's package that is not installed.

    CountersignError
      MisuseError
        PackageMissing     a vendor's package, which is an extra, is not installed
      ModelStopped         the model's message is no whole one: cut off, refused or filtered; nothing of it was done
      TurnLimit            the model was asked as often as the program allows, and still wanted tools

Both that carry `messages` carry the conversation as far as it is whole: every call in it has its answer, so that a
program may go on from there.
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
    """The model's message is no whole one, and none of its calls was carried out. `reason` is the vendor's word for it,
    `said` what the model wrote until then.
    """

    code = "model_stopped"

    def __init__(self, reason: str, said: str, messages: Sequence[dict[str, Any]]) -> None:
        self.reason, self.said, self.messages = reason, said, list(messages)
        super().__init__(
            f"the model's message ended by {reason!r}, so none of its calls was carried out; "
            f"{_ADVICE.get(reason, _ASK)}"
        )


class TurnLimit(CountersignError):
    """The model was asked as often as the program allows. Every call it made has been carried out and answered."""

    code = "turn_limit"

    def __init__(self, turns: int, messages: Sequence[dict[str, Any]]) -> None:
        self.turns, self.messages = turns, list(messages)
        super().__init__(
            f"the model was asked {turns} times and still calls tools; what it called so far was carried out and "
            "answered. Go on with `messages` of this error under the same key, or say max_turns=..."
        )


_ASK = "ask again with other messages, or tell the user"
_ROOM = "give it more room to answer (a larger limit of tokens), or a shorter conversation"
_ADVICE = {
    "length": _ROOM,
    "max_tokens": _ROOM,
    "model_context_window_exceeded": "make the conversation shorter",
}


def require_package(name: str, extra: str | None = None) -> ModuleType:
    """The package of this name, which is also the name of our extra unless another one brings it.

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

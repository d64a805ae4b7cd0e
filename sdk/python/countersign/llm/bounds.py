"""The most one call can take, as its program says before it is made."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final

from countersign.errors import MisuseError
from countersign.llm.usage import MAX_TOKENS

_MAX_SECONDS: Final = 10**6  # of one call
_TEMPLATE_TOKENS: Final = 64  # what a vendor's chat template puts around a text


@dataclass(frozen=True, slots=True)
class Bounds:
    """None is what it does not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    seconds: float | str | Decimal | None = None

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 0 <= value <= MAX_TOKENS):
                raise MisuseError(f"{name} of a call is a whole number up to {MAX_TOKENS}, not {value!r}")
        if self.seconds is not None and not _is_time(self.seconds):
            raise MisuseError(f"the time of a call is in seconds, 0 to {_MAX_SECONDS}, not {self.seconds!r}")

    @property
    def milliseconds(self) -> int | None:
        """The time, rounded up."""
        return None if self.seconds is None else math.ceil(Decimal(self.seconds) * 1000)


def _is_time(value: float | str | Decimal) -> bool:
    try:
        seconds = Decimal(value)
    except (InvalidOperation, TypeError, ValueError):
        return False
    return seconds.is_finite() and 0 <= seconds <= _MAX_SECONDS


def input_bound(tokens: int | None, prompt: object) -> int | None:
    """The most tokens that are sent: what the program says, or the bytes of what it sends."""
    if prompt is None:
        return tokens
    if tokens is not None:
        raise MisuseError("say either input_tokens or prompt: one bounds what is sent")
    try:
        text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False, default=_as_json)
        return len(text.encode("utf-8", "surrogatepass")) + _TEMPLATE_TOKENS
    except (TypeError, ValueError) as error:
        raise MisuseError(
            f"prompt is text or JSON, as it is sent ({error}); say input_tokens=... instead"
        ) from error


def _as_json(message: object) -> object:
    """A message that a client's own class made."""
    dump = getattr(message, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"{type(message).__name__} is no JSON")

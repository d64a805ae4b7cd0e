"""A party that has proved itself to the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Caller:
    """An enrolled agent or executor, and how it proved itself.

    ``jkt`` is the thumbprint of the key that signed the proof; None for an API key, whose releases are bound to none.
    """

    agent: str
    jkt: str | None
    method: Literal["key", "api_key"] = "key"

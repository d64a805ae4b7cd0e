"""A party that has proved itself to the API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True)
class Caller:
    """An enrolled agent or executor, and how it proved itself.

    ``jkt`` is the thumbprint of the key that signed the proof; None for an API key, whose releases are bound to none.
    """

    agent: str
    jkt: str | None
    method: Literal["key", "api_key"] = "key"


@dataclass(frozen=True, slots=True)
class Voucher:
    """What a token says for an agent: whose key may be brought, who says so, and until when."""

    agent: str
    issuer: str  # its name in the settings
    trust: str  # those settings as they are, in a digest
    issued_at: datetime
    subject: str
    until: datetime
    jkt: str | None  # the only key it may bring, where the token is bound to one

"""What the live lane asks of a resource: run effects at once, undo them all, or commit them all.

An adapter belongs to one resource (a database, a folder). For every transaction that touches it, the SDK
opens one session, runs each live effect inside `session.effect(...)`, and ends with exactly one of `commit`
and `undo`:

    begin -> effect, effect, ... -> verify_unmoved -> prepare -> (staged effects fire) -> commit
                                 \\-> undo                     \\-> undo

Rules: an effect that raises leaves nothing behind of itself; after `undo` nothing of the session is visible;
no session is open while people decide; `landed` never guesses. An adapter without a two-phase commit makes
`prepare` do what it can and says so in its docstring.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class LiveCall:
    """One live effect: what is called with what, for adapters that must look before they leap (before-
    images).
    """

    tool: str
    args: Mapping[str, Any]
    effect_id: str


class LiveSession(Protocol):
    """One transaction's work on one resource."""

    def effect(self, call: LiveCall) -> AbstractContextManager[None]:
        """The block in which one live effect runs; if it raises, that effect alone leaves nothing behind."""
        ...

    def verify_unmoved(self) -> None:
        """Raise `Moved` if what the effects read was changed by somebody else since (design section 7, step
        2).
        """
        ...

    def prepare(self, attempt_id: str) -> None:
        """Do everything that could make `commit` fail, before the releases are redeemed."""
        ...

    def commit(self, attempt_id: str) -> None:
        """Make the effects permanent, and with them, atomically, the mark that this attempt landed."""
        ...

    def undo(self) -> None:
        """Leave nothing of the session behind. Never raises for a session that is already ended."""
        ...


class LiveAdapter(Protocol):
    """One resource that can undo."""

    @property
    def name(self) -> str:
        """Its name in the journal and in errors."""
        ...

    def begin(self, txn: str) -> LiveSession:
        """Open the session of one transaction."""
        ...

    def landed(self, attempt_id: str) -> bool | None:
        """Whether that attempt's commit is permanent; None when it cannot be told. Asked after a crash."""
        ...

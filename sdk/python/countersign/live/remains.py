"""What dead processes left of a transaction's live effects: asked of the adapters of the tools in its live rows.

Rules: of a transaction that was not redeemed nothing is left standing; of one that was, what every adapter has
either made permanent or prepared can be finished, and it is told apart from what was lost with its process.
Nothing is guessed: where an adapter cannot tell, or some landed and some were lost, nobody decides here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from countersign.adapters.protocol import LiveAdapter, LiveSession
from countersign.engine import Engine
from countersign.errors import RegistrationError
from countersign.journal import TransactionRecord
from countersign.journal.reading import LIVE_LANE


@dataclass(frozen=True, slots=True)
class Recovered:
    """By adapter: the session it had prepared, or whether the attempt landed; and which of them were given secrets."""

    prepared: dict[str, tuple[LiveAdapter, LiveSession]]
    landed: dict[str, bool | None]
    given_secrets: frozenset[str] = frozenset()

    @property
    def can_be_finished(self) -> bool | None:
        """Whether all of it stands or is prepared; False where all that is left of it could be undone, None where
        neither holds.
        """
        answers = {*self.landed.values()}
        if None in answers or answers == {True, False}:
            return None
        return answers != {False}

    @property
    def has_landed(self) -> bool | None:
        """The same of a transaction without a redemption: it is decided once the first adapter has committed."""
        if self.can_be_finished is None:
            return None
        return True in self.landed.values()

    def undo(self) -> None:
        """Leave nothing of what was prepared."""
        for _, session in self.prepared.values():
            session.undo()


def recover(engine: Engine, record: TransactionRecord) -> Recovered:
    """Ask every adapter of the list in force what it has of that attempt; what other lists left is undone."""
    attempt_id = record.attempt_id or ""
    rows = engine.journal.transactions.shown(record, LIVE_LANE)
    adapters = _adapters(engine, {row.tool for row in rows})
    given_secrets = frozenset(_adapters(engine, {row.tool for row in rows if row.has_secrets}))
    prepared: dict[str, tuple[LiveAdapter, LiveSession]] = {}
    landed: dict[str, bool | None] = {}
    for adapter in adapters.values():
        session = adapter.recover(record.txn, attempt_id)
        if session is None:
            landed[adapter.name] = adapter.landed(attempt_id)
        else:
            prepared[adapter.name] = adapter, session
    undo_remains(engine, record.txn, but=adapters)
    return Recovered(prepared, landed, given_secrets)


def undo_remains(engine: Engine, txn: str, *, but: Container[str] = ()) -> None:
    """What stands or is prepared under that key was never redeemed: undo it."""
    tools = engine.journal.transactions.live_tools(txn)
    for name, adapter in _adapters(engine, tools).items():
        if name not in but:
            adapter.recover(txn, None)


def _adapters(engine: Engine, tools: Iterable[str]) -> dict[str, LiveAdapter]:
    """The adapters of these tools, by name.

    Raises:
        RegistrationError: a tool is not here, so that what it left cannot be looked at.
    """
    found = {}
    for name in tools:
        adapter = engine.registry.require(name, "it ran live in this transaction").adapter
        if adapter is None:
            raise RegistrationError(f"tool {name!r} ran live in this transaction and has no adapter any more")
        found[adapter.name] = adapter
    return found

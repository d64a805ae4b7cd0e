"""What dead processes left of a transaction's live effects: asked of the adapters of the tools in its live rows.

Rules: of a transaction that was not redeemed nothing is left standing; of one that was, what every adapter has
either made permanent or prepared can be finished, and it is told apart from what was lost with its process.
Nothing is guessed: where an adapter cannot tell, or some landed and some were lost, nobody decides here. What an
adapter raises that was given secrets is told without them (telling.py).
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable
from dataclasses import dataclass

from countersign.adapters.protocol import LiveAdapter, LiveSession
from countersign.engine import Engine
from countersign.errors import RegistrationError
from countersign.journal import TransactionRecord
from countersign.live.telling import heard


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

    def that(self, landed: bool | None) -> tuple[str, ...]:
        """The adapters that answered so; None: they cannot tell."""
        return tuple(name for name, answer in self.landed.items() if answer is landed)

    @property
    def doubt(self) -> str:
        """Why nobody decides here: a part stands and a part is lost, or an adapter cannot tell."""
        stand, lost = self.that(True), self.that(False)
        if self.that(None) or not (stand and lost):
            return "it cannot be told whether its live effects were kept"
        return f"its live effects in {', '.join(stand)} stand, and those in {', '.join(lost)} do not"

    @property
    def to_settle(self) -> str:
        """The same, with what can be done about it."""
        if None in self.landed.values():
            return f"{self.doubt}; where it never can, whoever has looked says so with `countersign journal close`"
        return f"{self.doubt}; whoever puts that right says so with `countersign journal close`"

    def undo(self) -> None:
        """Leave nothing of what was prepared."""
        for name, (_, session) in self.prepared.items():
            heard(name, session.undo, hidden=name in self.given_secrets)


def recover(engine: Engine, record: TransactionRecord) -> Recovered:
    """Ask every adapter of the list in force what it has of that attempt; what other lists left is undone."""
    attempt_id = record.attempt_id or ""
    rows = engine.journal.transactions.live(record)
    adapters = _adapters(engine, {row.tool for row in rows})
    given_secrets = frozenset(_adapters(engine, {row.tool for row in rows if row.has_secrets}))
    prepared: dict[str, tuple[LiveAdapter, LiveSession]] = {}
    landed: dict[str, bool | None] = {}
    for name, adapter in adapters.items():
        session = _recovered(engine, adapter, record.txn, attempt_id)
        if session is None:
            landed[name] = adapter.landed(attempt_id)
        else:
            prepared[name] = adapter, session
    undo_remains(engine, record.txn, but=adapters)
    return Recovered(prepared, landed, given_secrets)


def undo_remains(engine: Engine, txn: str, *, but: Container[str] = ()) -> None:
    """What stands or is prepared under that key was never redeemed: undo it."""
    tools = engine.journal.transactions.live_tools(txn)
    for name, adapter in _adapters(engine, tools).items():
        if name not in but:
            _recovered(engine, adapter, txn, None)


def _recovered(engine: Engine, adapter: LiveAdapter, txn: str, attempt_id: str | None) -> LiveSession | None:
    """What an adapter finishes may be another transaction's, and so may the secret that it quotes."""
    hidden = engine.journal.transactions.unfinished_has_secrets()
    return heard(adapter.name, functools.partial(adapter.recover, txn, attempt_id), hidden=hidden)


def _adapters(engine: Engine, tools: Iterable[str]) -> dict[str, LiveAdapter]:
    """The adapters of these tools, by name.

    Raises:
        RegistrationError: a tool is not here, or staged since, so that what it left cannot be looked at.
    """
    found = {}
    for name in tools:
        adapter = engine.registry.require(name, "it ran live in this transaction").adapter
        if adapter is None:
            raise RegistrationError(
                f"tool {name!r} ran live in this transaction and is staged here, so that nobody can look at what it "
                "left; declare it live with the adapter it had, and a staged one under another name"
            )
        found[adapter.name] = adapter
    return found

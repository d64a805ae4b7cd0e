"""Telling an agent: from a snapshot to the wire's views, under the bundle that is active now."""

from __future__ import annotations

from collections.abc import Sequence

from countersign.contract.wire import EffectView, TransactionView
from policy_service.errors import NotFoundError
from policy_service.identity.callers import Caller
from policy_service.queries import records
from policy_service.queries.context import Context
from policy_service.queries.records import Snapshot
from policy_service.queries.view import effect_view, transaction_view
from policy_service.storage.tables import AgentRow, EffectRow, TransactionRow


class Telling:
    """Read models for agents."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def visible(self, caller: Caller, txn: str) -> Snapshot:
        """The transaction in force, if this caller may see it.

        Raises:
            NotFoundError: no such transaction, or a stranger asks.
        """
        snapshot = await self._ctx.db.read(lambda conn: records.require(conn, txn))
        require_visible(caller, snapshot.transaction)
        return snapshot

    async def transaction(
        self,
        snapshot: Snapshot,
        *,
        releases: Sequence[str] = (),
        receipt: str | None = None,
    ) -> TransactionView:
        """A transaction, with tokens only where they were asked for."""
        agent = await self._agent(snapshot)
        return transaction_view(
            self._ctx,
            self._ctx.active.current,
            agent,
            snapshot,
            self._ctx.clock(),
            releases=releases,
            receipt=receipt,
        )

    async def effect(self, snapshot: Snapshot, effect: EffectRow) -> EffectView:
        """One effect or compensation."""
        agent = await self._agent(snapshot)
        return effect_view(self._ctx, self._ctx.active.current, agent, snapshot, effect, self._ctx.clock())

    async def _agent(self, snapshot: Snapshot) -> AgentRow:
        """Who must not vote on it, asked for only where there are votes to count."""
        name, agent = snapshot.transaction.agent, None
        if snapshot.reviews:
            agent = await self._ctx.db.read(lambda conn: records.agent_of(conn, name))
        return agent or AgentRow(name=name, enrolled_at=snapshot.transaction.submitted_at)


def require_visible(caller: Caller, transaction: TransactionRow) -> None:
    """Refuse to tell strangers whether a transaction exists.

    Raises:
        NotFoundError: neither the agent's own nor this party's to redeem.
    """
    if caller.agent not in {transaction.agent, transaction.aud}:
        raise NotFoundError(f"there is no transaction {transaction.txn!r}")

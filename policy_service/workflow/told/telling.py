"""Telling an agent: from a snapshot to the wire's views, under the bundle that is active now."""

from __future__ import annotations

from collections.abc import Sequence

from countersign.contract.wire import EffectView, TransactionView
from policy_service.identity.agents import Caller
from policy_service.storage.tables import AgentRow, EffectRow
from policy_service.workflow import records
from policy_service.workflow.context import Context
from policy_service.workflow.parties import require_visible
from policy_service.workflow.records import Snapshot
from policy_service.workflow.told.view import effect_view, transaction_view


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

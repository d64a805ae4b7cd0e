"""What ends a commit before its redemption: a denial, too many refused redemptions, or another attempt's redemption."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from countersign.commit.plan import Plan
from countersign.contract.codes import DenyCode, ErrorCode
from countersign.contract.states import TxnState
from countersign.contract.wire import TransactionView
from countersign.errors import Denied, ReleaseLapsed, ServiceRefused, ServiceUnavailable
from countersign.journal import Lease, LocalTxn
from countersign.runtime import Engine

SPENT: Final = frozenset({TxnState.REDEEMED, TxnState.SETTLED, TxnState.UNSETTLED})
"""States of a transaction that was redeemed."""


def denied_error(engine: Engine, plan: Plan, view: TransactionView) -> Denied:
    """The error for an ended transaction. A manifest that was refused is read again next time."""
    denied = Denied.of(view, plan.run_key)
    for reason in denied.reasons:
        if reason.code in {DenyCode.TOOL_CHANGED.value, DenyCode.UNKNOWN_TOOL.value}:
            engine.manifests.forget(reason.tool)
    return denied


async def give_up(
    engine: Engine,
    lease: Lease,
    plan: Plan,
    rounds: int,
    sent_back: str,
    *,
    keep_approved: bool,
    see: Callable[[TransactionView], None],
) -> TransactionView:
    """Withdraw the list before reporting that nothing happened, so that it is not fired later. A worker has no
    caller to retry for, so it keeps the list approved. Returns the transaction if it was redeemed after all.

    Raises:
        ReleaseLapsed: with whether it may still fire.
    """
    why = f"its redemption was refused {rounds} times, most recently because {sent_back}"
    if keep_approved:
        raise ReleaseLapsed(plan.run_key, plan.txn, why, may_fire=True)
    try:
        view = await _withdrawn(engine, plan, f"its agent could not redeem it in {rounds} tries")
    except (ServiceRefused, ServiceUnavailable) as error:
        why = f"{why}; and it could not be withdrawn: {error}"
        raise ReleaseLapsed(plan.run_key, plan.txn, why, may_fire=True) from error
    if view.state in SPENT:
        return view
    see(view)
    if view.state is TxnState.ENDED:
        engine.journal.transactions.end(lease, LocalTxn.ENDED, why)
    raise ReleaseLapsed(plan.run_key, plan.txn, why, may_fire=view.state is not TxnState.ENDED)


async def _withdrawn(engine: Engine, plan: Plan, reason: str) -> TransactionView:
    """The transaction after withdrawing it."""
    try:
        return await engine.service.withdraw(plan.txn, reason)
    except ServiceRefused as refused:
        if refused.problem_code != ErrorCode.ALREADY_REDEEMED:
            raise
        return await engine.service.view(plan.txn)


def effect_states(view: TransactionView) -> list[str]:
    """The state of each effect of a redeemed transaction."""
    return [one.state.value for one in view.effects]

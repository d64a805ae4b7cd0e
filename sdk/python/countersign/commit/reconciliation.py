"""Reconcile the journal and the service after a redemption: whether it was ours, and the outcomes of its effects.

The journal recorded the attempt before it was sent, so the service can tell whether it redeemed the list. Outcomes are
reported from the outbox, at least once, without blocking the caller. What cannot be reported now is sent with the next
commit or `countersign resume`; until then the service counts the effect as unknown. A report that the service refuses
for good is kept with the refusal. A service whose database was restored is in a higher epoch: before anything new is
submitted, each attempt it does not know is reported with the receipt it once signed. Nothing here fires.
"""

from __future__ import annotations

import logging
from itertools import groupby
from typing import Final

from countersign.commit.plan import Plan
from countersign.commit.recall import build_recall
from countersign.contract.admission import load
from countersign.contract.codes import ErrorCode
from countersign.contract.states import ENDED_UNREDEEMED, EffectState, Outcome
from countersign.contract.wire import (
    Recall,
    ReportedOutcome,
    TransactionView,
)
from countersign.errors import (
    AlreadyRedeemed,
    JournalSealed,
    ReleaseRefused,
    ServiceRefused,
    ServiceUnavailable,
)
from countersign.journal import Lease, Report
from countersign.runtime import Engine

_NOT_REDEEMED: Final = frozenset({EffectState.REVIEW, EffectState.RELEASED}) | ENDED_UNREDEEMED
# not_redeemer, unknown_attempt; any other refusal implies that the service knows the attempt
_NOT_REDEEMER_STATUSES: Final = frozenset({403, 404})


async def fetch_transaction(engine: Engine, txn: str, run_key: str) -> TransactionView | None:
    """The transaction as the service holds it, or None if it never arrived there, or ended unredeemed and is archived.

    Raises:
        AlreadyRedeemed: it was redeemed and is archived.
    """
    try:
        return await engine.service.view(txn)
    except ServiceRefused as refused:
        if refused.is_not_found:
            return None
        require_unspent(refused, txn, run_key)
        raise


def require_unspent(refused: ServiceRefused, txn: str, run_key: str) -> None:
    """Raise `AlreadyRedeemed` for a refusal that means another attempt has redeemed the list, or it is archived."""
    if refused.problem_code == ErrorCode.ALREADY_REDEEMED:
        what = refused.detail.partition(";")[0]  # the advice depends on who redeemed it
        raise AlreadyRedeemed.elsewhere(run_key, txn, refused.effect_states.values(), what) from refused


def is_same_list(view: TransactionView, plan: Plan) -> bool:
    """Whether the service's revision is our list: the same (call_key, tool_digest) in order."""
    return tuple((one.call_key, one.tool_digest) for one in view.effects) == plan.list_key


async def redeemed_by_us(engine: Engine, plan: Plan, view: TransactionView) -> bool:
    """Whether the list was redeemed under our attempt.

    Raises:
        ReleaseRefused: our attempt redeemed other bytes than the journal holds.
    """
    if all(one.state in _NOT_REDEEMED for one in view.effects) or not await _is_ours(engine, plan, view):
        return False
    if view.txn_digest != plan.txn_digest:
        raise ReleaseRefused(plan.txn, "our attempt redeemed other bytes than the journal holds")
    return True


async def _is_ours(engine: Engine, plan: Plan, view: TransactionView) -> bool:
    if view.attempt_id is not None:
        return view.attempt_id == plan.attempt_id
    try:
        await engine.service.renew(plan.attempt_id, [effect.effect_id for effect in plan.effects])
    except ServiceRefused as refused:
        return refused.status not in _NOT_REDEEMER_STATUSES
    return True


async def adopt_redemption(engine: Engine, lease: Lease, plan: Plan, view: TransactionView) -> bool:
    """Record that our attempt was redeemed, if it was: the commit point is passed.

    Raises:
        ReleaseRefused: it redeemed other bytes than the journal holds.
    """
    if not is_same_list(view, plan) or not await redeemed_by_us(engine, plan, view):
        return False
    engine.journal.effect_log.redeemed(lease, plan.staging, [effect.effect_id for effect in plan.effects])
    return True


log: Final = logging.getLogger("countersign")


async def flush_outbox(engine: Engine, txn: str | None = None) -> bool:
    """Report everything pending, of one transaction or of all. True if nothing is left."""
    pending = engine.journal.outbox.pending(txn)
    clean = True
    for (_, attempt_id), group in groupby(pending, key=lambda one: (one.txn, one.attempt_id)):
        reports = list(group)
        try:
            clean &= await report_outcomes(engine, attempt_id, reports)
        except ServiceUnavailable as error:
            log.warning("outcomes of attempt %s stay in the outbox: %s", attempt_id, error)
            return False
        except JournalSealed as error:  # a process with the key reports them; they block no others
            log.warning("outcomes of attempt %s stay in the outbox: %s", attempt_id, error)
            clean = False
    return clean


async def report_outcomes(engine: Engine, attempt_id: str, reports: list[Report]) -> bool:
    """Report the outcomes of one attempt; without outcomes, that it was redeemed. True if nothing is left."""
    recall = build_recall(engine.journal, attempt_id) if not reports else None
    if not reports and recall is None:
        return True
    try:
        await _send_report(engine, attempt_id, reports, recall)
    except ServiceRefused as refused:
        return await _handle_refusal(engine, attempt_id, reports, refused)
    engine.journal.outbox.reported(reports)
    return True


async def _send_report(engine: Engine, attempt_id: str, reports: list[Report], recall: Recall | None) -> None:
    """Send the report. If the service does not know the attempt, send it again with the receipt, if there is one."""
    outcomes = [_reported_outcome(engine.journal.outbox.opened(one)) for one in reports]
    try:
        await engine.service.report(attempt_id, outcomes, recall)
    except ServiceRefused as refused:
        unknown = refused.problem_code == ErrorCode.UNKNOWN_ATTEMPT.value and recall is None
        recall = build_recall(engine.journal, attempt_id) if unknown else None
        if recall is None:
            raise
        await engine.service.report(attempt_id, outcomes, recall)


def _reported_outcome(report: Report) -> ReportedOutcome:
    return ReportedOutcome(
        effect_id=report.effect_id,
        outcome=Outcome(report.outcome),
        result=None if report.result is None else load(report.result),
        error=report.error,
    )


_KNOWN_ALREADY: Final = frozenset({ErrorCode.ALREADY_REPORTED.value})
_PERMANENT_REFUSALS: Final = frozenset(
    {
        ErrorCode.BAD_TOKEN.value,
        ErrorCode.OUTCOME_CONFLICT.value,
        ErrorCode.UNKNOWN_ATTEMPT.value,
        ErrorCode.NOT_REDEEMER.value,
        ErrorCode.ILLEGAL_STATE.value,
        ErrorCode.NOT_FOUND.value,
    }
)


async def _handle_refusal(
    engine: Engine, attempt_id: str, reports: list[Report], refused: ServiceRefused
) -> bool:
    """Handle a refused report. One bad outcome must not block the others, so they are sent one by one."""
    if refused.problem_code in _KNOWN_ALREADY and len(reports) == 1:
        engine.journal.outbox.reported(reports)
        return True
    if len(reports) > 1 and refused.problem_code in _KNOWN_ALREADY | _PERMANENT_REFUSALS:
        return all([await report_outcomes(engine, attempt_id, [one]) for one in reports])
    if refused.problem_code in _PERMANENT_REFUSALS:
        what = f"effect {reports[0].effect_id[:12]}" if reports else f"attempt {attempt_id}"
        log.error("the service refused the outcome of %s: %s", what, refused)
        engine.journal.outbox.refused(reports, str(refused))
        return True
    log.warning("outcomes of attempt %s stay in the outbox: %s", attempt_id, refused)
    return False

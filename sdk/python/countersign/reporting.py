"""Telling the service what became of effects: from the outbox, at least once, never in the way of the caller.

What cannot be reported now stays in the outbox and goes out with the next commit or `countersign resume`; the
service meanwhile counts the effect as unknown, which is the truth as far as it can know. A report the service
will never take is kept, with its answer, for people to read.
"""

from __future__ import annotations

import logging
from itertools import groupby
from typing import Final

from countersign.contract.admission import load
from countersign.contract.codes import ErrorCode
from countersign.contract.states import Outcome
from countersign.contract.wire import ReportedOutcome
from countersign.engine import Engine
from countersign.errors import ServiceRefused, ServiceUnavailable
from countersign.journal import Report

log: Final = logging.getLogger("countersign")

_KNOWN_ALREADY: Final = frozenset({ErrorCode.ALREADY_REPORTED.value})
_NEVER: Final = frozenset(
    {
        ErrorCode.OUTCOME_CONFLICT.value,
        ErrorCode.UNKNOWN_ATTEMPT.value,
        ErrorCode.NOT_REDEEMER.value,
        ErrorCode.ILLEGAL_STATE.value,
        ErrorCode.NOT_FOUND.value,
    }
)


async def flush(engine: Engine, txn: str | None = None) -> bool:
    """Report everything pending, of one transaction or of all; True if nothing is left over."""
    pending = engine.journal.outbox.pending(txn)
    clean = True
    for (_, attempt_id), group in groupby(pending, key=lambda one: (one.txn, one.attempt_id)):
        reports = list(group)
        try:
            clean &= await _report(engine, attempt_id, reports)
        except ServiceUnavailable as error:
            log.warning("outcomes of attempt %s stay in the outbox: %s", attempt_id, error)
            return False
    return clean


async def _report(engine: Engine, attempt_id: str, reports: list[Report]) -> bool:
    try:
        await engine.service.report(attempt_id, [_outcome(one) for one in reports])
    except ServiceRefused as refused:
        return await _refused(engine, attempt_id, reports, refused)
    engine.journal.outbox.reported(reports)
    return True


async def _refused(engine: Engine, attempt_id: str, reports: list[Report], refused: ServiceRefused) -> bool:
    """One bad report must not hold up the others: find it by sending them one by one."""
    if refused.problem_code in _KNOWN_ALREADY and len(reports) == 1:
        engine.journal.outbox.reported(reports)
        return True
    if len(reports) > 1 and refused.problem_code in _KNOWN_ALREADY | _NEVER:
        return all([await _report(engine, attempt_id, [one]) for one in reports])
    if refused.problem_code in _NEVER:
        log.error("the service refused the outcome of effect %s: %s", reports[0].effect_id[:12], refused)
        engine.journal.outbox.refused(reports, str(refused))
        return True
    log.warning("outcomes of attempt %s stay in the outbox: %s", attempt_id, refused)
    return False


def _outcome(report: Report) -> ReportedOutcome:
    return ReportedOutcome(
        effect_id=report.effect_id,
        outcome=Outcome(report.outcome),
        result=None if report.result is None else load(report.result),
        error=report.error,
    )

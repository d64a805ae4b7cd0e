"""Reports everything again to a service whose database was restored from a backup."""

from __future__ import annotations

from typing import Final

from countersign.commit.reconciliation import flush_outbox, log, report_outcomes
from countersign.runtime import Engine
from countersign.service.enforcement import issuer_of

# seconds our clock may differ from the service's, which names the time of the loss
_CLOCK_TOLERANCE: Final = 3600.0


async def report_to_restored_service(engine: Engine) -> bool:
    """Report again what a service in a higher epoch may have lost. True if it has everything now."""
    iss = issuer_of(engine.settings)
    text = engine.journal.epochs.reported(iss)
    if not text:
        return True  # nothing was ever redeemed from this journal
    view = await engine.service.epoch()
    if view.epoch <= text:
        return True
    lost = [one.lost_after.timestamp() for one in view.restores if one.epoch > text]
    since = min(lost, default=0.0) - _CLOCK_TOLERANCE
    log.warning(
        "the service's database was restored: everything that this journal redeemed is reported again"
    )
    engine.journal.outbox.requeue(since)
    clean = await flush_outbox(engine)
    for attempt_id in engine.journal.receipts.unreported(since):
        clean &= await report_outcomes(engine, attempt_id, [])
    if clean:
        engine.journal.epochs.mark_reported(iss, view.epoch)
    return clean

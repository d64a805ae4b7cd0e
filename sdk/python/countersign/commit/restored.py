"""Telling a service whose database was restored what it may have lost.

It is in a higher epoch, and has forgotten some of what was redeemed: each attempt it does not know is told with the
receipt it once signed, before anything more is submitted to it.
"""

from __future__ import annotations

import logging
from typing import Final

from countersign.commit.reporting import flush, report
from countersign.engine import Engine

log: Final = logging.getLogger("countersign")

# seconds our clock and the service's may differ when it says since when it forgot
_CLOCKS_APART: Final = 3600.0


async def tell_restored(engine: Engine) -> bool:
    """Tell a service in a higher epoch than the one we told everything to what it may have forgotten; True if it knows
    all we know now.
    """
    iss = engine.settings.iss
    told = engine.journal.epochs.told(iss)
    if not told:
        return True  # nothing was ever redeemed from this journal
    view = await engine.service.epoch()
    if view.epoch <= told:
        return True
    lost = [one.lost_after.timestamp() for one in view.restores if one.epoch > told]
    since = min(lost, default=0.0) - _CLOCKS_APART
    log.warning("the service's database was restored: it is told again what was redeemed from here")
    engine.journal.outbox.tell_again(since)
    clean = await flush(engine)
    for attempt_id in engine.journal.receipts.untold(since):
        clean &= await report(engine, attempt_id, [])
    if clean:
        engine.journal.epochs.tell(iss, view.epoch)
    return clean

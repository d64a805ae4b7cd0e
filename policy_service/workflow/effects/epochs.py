"""Epochs, as agents meet them: which one this is, and who has to tell first what it did in an earlier one."""

from __future__ import annotations

from countersign.contract import ErrorCode
from countersign.contract.wire import EpochView, RestoreView
from policy_service.errors import ConflictError
from policy_service.queries.context import Context
from policy_service.storage.system_tables import list_restores


async def epoch_view(ctx: Context) -> EpochView:
    """The epoch, and since when each restore may have forgotten something."""
    found = await ctx.db.read(list_restores)
    known = tuple(RestoreView(epoch=one.epoch, lost_after=one.lost_after) for one in found)
    return EpochView(epoch=ctx.epoch(), restores=known)


def require_current_epoch(ctx: Context, epoch: int | None) -> None:
    """Take no submission of a caller that has met another epoch than this.

    Raises:
        ConflictError: other_epoch, with the epoch this is.
    """
    if epoch is None or epoch == ctx.epoch():
        return
    if epoch < ctx.epoch():
        text = (
            f"the service's database was restored since (epoch {ctx.epoch()}): report what was redeemed before, with "
            "its receipts, then submit again"
        )
    else:
        text = f"this service is in epoch {ctx.epoch()}, you have met {epoch}: it is an older copy; tell its operator"
    raise ConflictError(text, code=ErrorCode.OTHER_EPOCH, epoch=ctx.epoch())

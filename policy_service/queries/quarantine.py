"""Rows that cannot be read any more: set apart and told, so that one of them holds up no list and no job.

What such a row asked can neither be decided nor released: whoever needs it whole gets the error itself.
"""

from __future__ import annotations

from types import TracebackType

import structlog
from sqlalchemy.exc import SQLAlchemyError

from policy_service import metrics
from policy_service.storage.tables import ReviewRow

log = structlog.get_logger(__name__)


class Quarantine:
    """``with SetApart(review): return ...``: what raises in there is told, and what stands below is done instead.
    A database that does not answer fails everything.
    """

    def __init__(self, review: ReviewRow) -> None:
        self._review = review

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, SQLAlchemyError):
            return False
        row = self._review
        metrics.ROWS_BROKEN.inc()
        log.error("row_broken", review_id=row.review_id, txn=row.txn, rev=row.rev, exc_info=error)
        return True

"""What the journal could not be told as a transaction ended: it is logged, and recovery finds out."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from countersign.errors import JournalError

log: Final = logging.getLogger("countersign")


@contextmanager
def tidying(txn: str) -> Iterator[None]:
    """Tidying up must not hide how the transaction ended."""
    try:
        yield
    except JournalError as error:
        log.warning("transaction %s could not be tidied up in the journal: %s", txn[:12], error)

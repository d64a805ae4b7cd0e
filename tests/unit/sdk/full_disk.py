"""A disk that is full: the journal reads, and takes nothing more."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from countersign import JournalError
from countersign.journal import Journal


def full(*_: Any, **__: Any) -> Any:
    raise JournalError("the disk is full")


@contextmanager
def full_after(journal: Journal, begun: int) -> Iterator[None]:
    """It takes no outcome, nor that more than so many groups of calls have begun: the last of them stays `firing`."""
    begin, left = journal.effect_log.begin, [begun]

    def begin_some(*args: Any, **options: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            full()
        begin(*args, **options)

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(journal.effect_log, "begin", begin_some)
        broken.setattr(journal.effect_log, "write", full)
        broken.setattr(journal.transactions, "end_live", full)
        yield

"""The adapter of live tools that only read and have no other: there is nothing to undo or commit.

The tool's code does not decide whether it only reads: `live/calls.py` refuses one whose reviewed manifest lacks the
group `read`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from countersign.adapters.protocol import Change, LiveAdapter, LiveCall, LiveSession, Savepoint


class _Session(LiveSession):
    @contextmanager
    def effect(self, call: LiveCall) -> Iterator[None]:
        yield

    def savepoint(self) -> Savepoint:
        return Savepoint(release=_nothing, rollback=_nothing)

    def changes(self) -> tuple[Change, ...]:
        return ()

    def prepare(self, attempt_id: str) -> None:
        return

    def commit(self, attempt_id: str) -> None:
        return

    def undo(self) -> None:
        return


class _Reads(LiveAdapter):
    name = "reads"

    def begin(self, txn: str) -> LiveSession:
        return _Session()

    def landed(self, attempt_id: str) -> bool:
        return True

    def recover(self, txn: str, attempt_id: str | None) -> LiveSession | None:
        """Reads can be kept whenever the rest is."""
        return None if attempt_id is None else _Session()


def _nothing() -> None:
    return


READS: Final = _Reads()
"""One for the process: reads of all tools share a session, as effects on one resource do."""

"""What live effects returned, in their rows."""

from __future__ import annotations

from collections.abc import Mapping

from countersign.errors import JournalSealed
from countersign.journal.chain import Change
from countersign.journal.records import LIVE_LANE
from countersign.journal.sealed_values import MARK, SealContext
from countersign.journal.sealing import Seals


def write_returned(change: Change, staging: int, returned: Mapping[str, bytes], seals: Seals) -> None:
    """Write canonical results, by effect id, into the live rows of a list, so that a replay can compare them.

    If anything of the transaction is sealed, all results are sealed whole: the result of one live call may be the
    secret of the next. Without a sealing key they are not kept; nothing is refused for that.
    """
    if not returned:
        return
    places = [""] if _any_sealed(change) else []
    for effect_id, raw in returned.items():
        about = SealContext(change.txn, effect_id, "result")
        try:
            stored = seals.seal(change.unit, about, raw, places)
        except JournalSealed:
            return
        write_result(change, staging, effect_id, stored)


def write_result(change: Change, staging: int, effect_id: str, stored: object) -> None:
    """Write what a live call returned, as its column holds it."""
    change.update(
        "effects",
        "txn = ? AND staging = ? AND lane = ? AND effect_id = ?",
        (change.txn, staging, LIVE_LANE, effect_id),
        result=stored,
    )


def _any_sealed(change: Change) -> bool:
    """Whether anything under this key is sealed, including calls that were rolled back."""
    found = change.unit.execute(
        "SELECT 1 FROM effects WHERE txn = ? AND substr(args, 1, ?) = ? LIMIT 1",
        (change.txn, len(MARK), MARK),
    ).fetchone()
    return found is not None

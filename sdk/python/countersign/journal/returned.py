"""What live tools returned, beside the rows of their calls, so that a replay can compare it and answer with it.

Rules: it is written in a unit that writes anyway, and is bound by the chain like any other column. Where something of
the transaction is sealed, all of it is sealed whole: what a live call has read may be the secret that the next call is
given. Nothing is refused for its sake: where there is no key to seal it with, it is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from countersign.errors import JournalSealed
from countersign.journal.chain import Change
from countersign.journal.reading import LIVE_LANE
from countersign.journal.sealing import MARK, About, Seals


def write_returned(change: Change, staging: int, returned: Mapping[str, bytes], seals: Seals) -> None:
    """Write canonical results, by effect, into the live rows of a list."""
    if not returned:
        return
    places = [""] if _has_secrets(change) else []
    for effect_id, raw in returned.items():
        about = About(change.txn, effect_id, "result")
        try:
            stored = seals.seal(change.unit, about, raw, places)
        except JournalSealed:
            return
        change.run(
            "effects",
            "UPDATE effects SET result = ? WHERE txn = ? AND staging = ? AND lane = ? AND effect_id = ?",
            (stored, change.txn, staging, LIVE_LANE, effect_id),
            "result",
        )


def _has_secrets(change: Change) -> bool:
    """Whether something is sealed of any call under this key, also of one that was taken back."""
    found = change.unit.execute(
        "SELECT 1 FROM effects WHERE txn = ? AND substr(args, 1, ?) = ? LIMIT 1",
        (change.txn, len(MARK), MARK),
    ).fetchone()
    return found is not None

"""Complete the rows of staged and live calls: when a list is frozen, replaced or dropped, and when a live tool returns.

Rules: the bytes as staged are kept beside edited ones; two seals of one value are never equal, so bytes are compared
opened; what was sealed when it was staged stays sealed, whatever its manifest says. Calls that are in no submitted list
stay readable; where nobody can say what is secret of one, or no key is here, it keeps its name alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from countersign.contract.effect import Effect
from countersign.errors import JournalError, JournalSealed
from countersign.journal.chain import Change
from countersign.journal.database import Unit
from countersign.journal.queries import LIVE_LANE, STAGED_LANE
from countersign.journal.records import compensation_bytes
from countersign.journal.sealing import MARK, SealContext, Seals, is_secret_value, sealed_pointers
from countersign.journal.states import LocalState


@dataclass(frozen=True, slots=True)
class StagedRow:
    """One call as it was staged: its names and its bytes. `secret` is what of them is secret as far as anybody has
    said; None where nobody has, for the manifest is looked at later: then they are written when the list is frozen.
    """

    effect_id: str
    call_key: str
    tool: str
    args: bytes = field(repr=False)
    lane: str
    seq: int
    secret: tuple[str, ...] | None
    tool_digest: str | None = None  # of the manifest that says so, where it is known


def write_effect(change: Change, staging: int, effect: Effect, secret: Collection[str], seals: Seals) -> None:
    """Complete a staged row with everything its digest covers; the bytes as staged are kept beside edited ones."""
    args, staged_args = _arguments(change.unit, staging, effect, secret, seals)
    about = SealContext(effect.txn, effect.effect_id, "resource_id")
    is_secret = is_secret_value(effect.args_bytes, sealed_pointers(args), effect.resource.id)
    change.update(
        "effects",
        "txn = ? AND staging = ? AND lane = ? AND seq = ? AND effect_id = ?",
        (effect.txn, staging, STAGED_LANE, effect.seq, effect.effect_id),
        tool_digest=effect.tool_digest,
        resource_type=effect.resource.type,
        resource_id=seals.seal_text(change.unit, about, effect.resource.id, secret=is_secret),
        compensation=compensation_bytes(effect.compensation),
        effect_digest=effect.digest,
        staged_args=staged_args,
        args=args,
        updated_at=change.at,
    )


def _arguments(
    unit: Unit, staging: int, effect: Effect, secret: Collection[str], seals: Seals
) -> tuple[bytes, bytes | None]:
    """The columns `args` and `staged_args`: the bytes of this effect, and those it was staged with if they differ."""
    about = SealContext(effect.txn, effect.effect_id, "args")
    row = unit.execute(
        "SELECT args, staged_args FROM effects WHERE txn = ? AND staging = ? AND lane = ? AND effect_id = ?",
        (effect.txn, staging, STAGED_LANE, effect.effect_id),
    ).fetchone()
    stored: bytes = b"" if row is None else row["args"]
    before = None if row is None else row["staged_args"]
    known = {*secret, *sealed_pointers(stored)}
    sealed = seals.seal(unit, about, effect.args_bytes, known)
    if not stored or (was := _open(seals, about, stored)) == effect.args_bytes or before is not None:
        return sealed, before
    return sealed, seals.seal(unit, replace(about, column="staged_args"), was, known)


def _open(seals: Seals, about: SealContext, stored: bytes) -> bytes:
    try:
        return seals.open(about, stored)
    except ValueError as error:
        raise JournalError(f"effect {about.effect_id[:12]} of the journal is damaged: {error}") from error


def write_returned(change: Change, staging: int, returned: Mapping[str, bytes], seals: Seals) -> None:
    """Write canonical results, by effect, into the live rows of a list, so that a replay can compare them.

    Where something of the transaction is sealed, all of it is sealed whole: what a live call has read may be the secret
    that the next call is given. Where there is no key to seal it with, it is not kept; nothing is refused for its sake.
    """
    if not returned:
        return
    places = [""] if _has_secrets(change) else []
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


def _has_secrets(change: Change) -> bool:
    """Whether something is sealed of any call under this key, also of one that was taken back."""
    found = change.unit.execute(
        "SELECT 1 FROM effects WHERE txn = ? AND substr(args, 1, ?) = ? LIMIT 1",
        (change.txn, len(MARK), MARK),
    ).fetchone()
    return found is not None


_SUPERSEDED: Final = "another list was submitted under this key"


def end_unfrozen(change: Change, staging: int) -> None:
    """What was never frozen of a list: its staged calls are withdrawn, its live effects were undone."""
    for lane, to in ((STAGED_LANE, LocalState.WITHDRAWN), (LIVE_LANE, LocalState.UNDONE)):
        change.update(
            "effects",
            "txn = ? AND staging = ? AND lane = ? AND state IN ('staged', 'live')",
            (change.txn, staging, lane),
            state=to.value,
        )


def complete_unsubmitted(
    change: Change, seals: Seals, staging: int, calls: Sequence[StagedRow], why: str | None = None
) -> None:
    """Complete the rows of calls that are not submitted, with `why`."""
    for call in calls:
        raw = b""
        with suppress(JournalSealed):
            if call.secret is not None:
                about = SealContext(change.txn, call.effect_id, "args")
                raw = seals.seal(change.unit, about, call.args, call.secret)
        change.run(
            "effects",
            "UPDATE effects SET args = CASE WHEN length(args) = 0 THEN ? ELSE args END, tool_digest = ?, "
            "error = coalesce(error, ?) WHERE txn = ? AND staging = ? AND lane = ? AND effect_id = ?",
            (raw, call.tool_digest, why, change.txn, staging, call.lane, call.effect_id),
            *("args", "tool_digest", "error"),
        )


def supersede(change: Change, staging: int) -> None:
    """Of an earlier list in force, what this one does not ask for any more is withdrawn, as the service does it."""
    change.update(
        "effects",
        "txn = ? AND staging <> ? AND lane = ? AND state IN ('staged', 'review', 'released') "
        "AND effect_id NOT IN (SELECT effect_id FROM effects WHERE txn = ? AND staging = ?)",
        (change.txn, staging, STAGED_LANE, change.txn, staging),
        state=LocalState.WITHDRAWN.value,
        error=_SUPERSEDED,
    )

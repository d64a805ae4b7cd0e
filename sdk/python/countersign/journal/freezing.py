"""Completing a row that was staged: from here on it says everything its digest covers, and seals what is secret of it.

Rules: the bytes as staged are kept beside edited ones; two seals of one value are never equal, so bytes are compared
opened; what was sealed when it was staged stays sealed, whatever its manifest says.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from countersign.contract.effect import Effect
from countersign.errors import JournalError
from countersign.journal.chain import Change
from countersign.journal.database import Unit
from countersign.journal.reading import STAGED_LANE
from countersign.journal.records import compensation_bytes
from countersign.journal.sealing import About, Seals, is_told_by, sealed_pointers


def write_effect(change: Change, staging: int, effect: Effect, secret: Collection[str], seals: Seals) -> None:
    """Complete a staged row with everything its digest covers; the bytes as staged are kept beside edited ones."""
    args, staged_args = _arguments(change.unit, staging, effect, secret, seals)
    about = About(effect.txn, effect.effect_id, "resource_id")
    is_secret = is_told_by(effect.args_bytes, sealed_pointers(args), effect.resource.id)
    change.run(
        "effects",
        "UPDATE effects SET tool_digest = ?, resource_type = ?, resource_id = ?, compensation = ?, "
        "effect_digest = ?, staged_args = ?, args = ?, updated_at = ? "
        "WHERE txn = ? AND staging = ? AND lane = ? AND seq = ? AND effect_id = ?",
        (
            *(effect.tool_digest, effect.resource.type),
            seals.seal_text(change.unit, about, effect.resource.id, secret=is_secret),
            *(compensation_bytes(effect.compensation), effect.digest, staged_args, args),
            *(change.at, effect.txn, staging, STAGED_LANE, effect.seq, effect.effect_id),
        ),
        *("tool_digest", "resource_type", "resource_id", "compensation", "effect_digest", "staged_args"),
        *("args", "updated_at"),
    )


def _arguments(
    unit: Unit, staging: int, effect: Effect, secret: Collection[str], seals: Seals
) -> tuple[bytes, bytes | None]:
    """What the columns `args` and `staged_args` hold from now on: the bytes of this effect, and those it was staged
    with where they are others. Two seals of one value are never equal, so bytes are compared opened.
    """
    about = About(effect.txn, effect.effect_id, "args")
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


def _open(seals: Seals, about: About, stored: bytes) -> bytes:
    try:
        return seals.open(about, stored)
    except ValueError as error:
        raise JournalError(f"effect {about.effect_id[:12]} of the journal is damaged: {error}") from error

"""An effect of the contract as a row of ours.

What a decision gives (state, decision, times) is not known yet when facts are gathered for it; the row is inserted only
after :func:`decided` has filled it in.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

from countersign.contract import (
    JSON,
    Compensation,
    Effect,
    EffectState,
    PointerError,
    Resource,
    ToolManifest,
    canonicalize,
    load,
    resolve_pointer,
)
from policy_service.domain.decision import Decision
from policy_service.pap.bundle import Bundle
from policy_service.pdp.rules import UNKNOWN_TOOL
from policy_service.queries.effects import manifest_for
from policy_service.storage.reservations import resource_digest
from policy_service.storage.tables import AttemptRow, EffectRow, RedemptionRow

_UNDECIDED = datetime.min.replace(tzinfo=UTC)


_EVERYTHING = [""]  # the pointer to the whole: of a tool we do not know, nothing is shown


def new_effect_row(bundle: Bundle, effect: Effect, rev: int, *, compensates: str | None = None) -> EffectRow:
    """The row of an effect nobody has decided about yet; a compensation names what it takes back.

    What is secret, and whether it may fail alone, is fixed now, by the manifest the effect was made with: a later
    bundle uncovers nothing, and changes nothing that people agreed to.
    """
    undo = effect.compensation
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    return EffectRow(
        effect_id=effect.effect_id,
        rev=rev,
        kind="effect" if compensates is None else "compensate",
        compensates=compensates,
        txn=effect.txn,
        seq=effect.seq,
        agent=effect.agent,
        tool=effect.tool,
        tool_digest=effect.tool_digest,
        resource_type=effect.resource.type,
        resource_id=effect.resource.id,
        resource_key=resource_digest(effect.resource.type, effect.resource.id),
        recipients_key=None if manifest is None else _recipients_key(manifest, load(effect.args_bytes)),
        args=effect.args_bytes,
        args_digest=effect.args_digest,
        effect_digest=effect.digest,
        call_key=effect.call_key,
        compensation=None if undo is None else undo.to_json(),
        secret=_EVERYTHING if manifest is None else list(manifest.secret),
        may_fail=manifest is not None and manifest.may_fail,
        reads=manifest is not None and manifest.reads,
        state="",  # no state the CHECK would take: an undecided row cannot be stored
        decision_id="",
        valid_for_s=0,
        asked_at=_UNDECIDED,
        changed_at=_UNDECIDED,
    )


def effect_from_row(row: EffectRow) -> Effect:
    """The effect of the contract that a row holds."""
    undo = row.compensation
    return Effect(
        agent=row.agent,
        txn=row.txn,
        effect_id=row.effect_id,
        seq=row.seq,
        tool=row.tool,
        tool_digest=row.tool_digest,
        resource=Resource(row.resource_type, row.resource_id),
        args_bytes=row.args,
        call_key=row.call_key,
        compensation=None if undo is None else Compensation(undo["tool"], undo["tool_digest"], undo["map"]),
    )


def _recipients_key(manifest: ToolManifest, args: JSON) -> str | None:
    """One name for whom a call reaches, in whatever order they stand; None where it names nobody."""
    named: set[bytes] = set()
    for pointer in manifest.recipients:
        try:
            value = resolve_pointer(args, pointer)
        except PointerError:
            continue  # an optional argument that was not given
        named |= {canonicalize(one) for one in (value if isinstance(value, list) else [value])}
    return hashlib.sha256(b"\n".join(sorted(named))).hexdigest() if named else None


def apply_first_decision(effect: EffectRow, state: EffectState, decision: Decision, now: datetime) -> None:
    """Fill in what the first decision gives."""
    effect.state = state.value
    effect.gates = [gate.to_json() for gate in decision.gates]
    effect.valid_for_s = int(decision.valid_for.total_seconds())
    effect.asked_at = effect.changed_at = now
    if UNKNOWN_TOOL in decision.policies:
        effect.secret = []  # only in dev: nobody can answer for arguments they may not see
    effect.lapses_at = release_expiry(effect, now) if state is EffectState.RELEASED else None


def release_expiry(effect: EffectRow, released_at: datetime) -> datetime | None:
    """Until when a compensation may be spent: ``valid_for`` from when it could be. None for others."""
    if effect.kind != "compensate":
        return None
    return released_at + timedelta(seconds=effect.valid_for_s)


def redemption_row(effect: EffectRow, attempt: AttemptRow, jti: str | None) -> RedemptionRow:
    """That an effect was spent under an attempt, as the attempt tells it; ``jti`` is None where nobody knows it."""
    return RedemptionRow(
        effect_id=effect.effect_id,
        rev=effect.rev,
        redeemer=attempt.redeemer,
        attempt_id=attempt.attempt_id,
        jti=jti,
        decision_id=effect.decision_id,
        redeemed_at=attempt.redeemed_at,
    )

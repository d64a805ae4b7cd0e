"""From a submission to effects and their rows: every name and digest is computed here, from the canonical bytes.

Names that the SDK sends (call key, resource) are only compared. Refused are a call key or resource that differs, the
same call twice in one list, effects for two enforcement points, and an independent transaction of several effects.

An accepted proposal replaces the arguments, not the call: call key and effect id come from what the agent staged,
digests and resource from the arguments in force.

A row is created before its decision, because facts are gathered for it; it is inserted after `apply_first_decision`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from countersign.contract import (
    JSON,
    AdmissionError,
    Compensation,
    ContractError,
    Effect,
    EffectState,
    ErrorCode,
    PointerError,
    Resource,
    ToolManifest,
    canonicalize,
    digests,
    load,
    resolve_pointer,
)
from countersign.contract.wire import EvaluationRequest, SubmitRequest, SubmittedEffect
from policy_service.domain.policy_request import Decision
from policy_service.errors import InvalidRequestError, RequestError
from policy_service.pap.bundle import Bundle
from policy_service.pdp.rules import UNKNOWN_TOOL
from policy_service.queries.effects import manifest_for
from policy_service.queries.repository import Snapshot
from policy_service.storage.review_tables import Edits
from policy_service.storage.tables import AttemptRow, EffectRow, RedemptionRow
from policy_service.workflow.metering import resource_digest

_NO_EDITS: Edits = {}
_UNKNOWN_RESOURCE = Resource("Unknown", "unknown")  # the effect will be denied; its digest still needs a name
_UNDECIDED = datetime.min.replace(tzinfo=UTC)
_ALL_SECRET = [""]  # the pointer to the whole document: of an unknown tool, no argument is shown


@dataclass(frozen=True)
class IdentifiedTransaction:
    """A submission with its computed names and digests."""

    txn: str
    txn_digest: str
    aud: str
    effects: tuple[Effect, ...]

    @property
    def calls(self) -> list[tuple[str, str]]:
        """(call_key, tool_digest) of each effect, in order: two lists are the same if these are."""
        return [(effect.call_key, effect.tool_digest) for effect in self.effects]


# -- names and digests -------------------------------------------------------------------------------------------------


def identify_transaction(
    bundle: Bundle, agent: str, request: SubmitRequest | EvaluationRequest, edits: Edits = _NO_EDITS
) -> IdentifiedTransaction:
    """Compute the names and digests of a submission. ``edits`` replace staged arguments.

    Raises:
        InvalidRequestError: call_key_mismatch, resource_mismatch, mixed_audience, or an invalid list.
        RequestError: arguments beyond the limits of admission, with its code.
    """
    keys = [_call_key(agent, request.run_key, sent) for sent in request.effects]
    if len(set(keys)) != len(keys):
        raise InvalidRequestError("the same call is twice in one transaction; number intended repeats with n")
    txn = _txn_id(agent, request, keys)
    effects = tuple(
        _apply_edit(bundle, _effect(bundle, agent, txn, seq, key, sent), edits)
        for seq, (key, sent) in enumerate(zip(keys, request.effects, strict=True), start=1)
    )
    return IdentifiedTransaction(txn, _txn_digest(effects), _audience(bundle, agent, effects), effects)


def identify_edited(bundle: Bundle, snapshot: Snapshot, edits: Edits) -> IdentifiedTransaction:
    """Compute the digests of a stored list with edited arguments. Calls and their order stay."""
    effects = tuple(_apply_edit(bundle, effect_from_row(row), edits) for row in snapshot.effects)
    row = snapshot.transaction
    return IdentifiedTransaction(row.txn, _txn_digest(effects), row.aud, effects)


def derive_resource(bundle: Bundle, tool: str, tool_digest: str, args: JSON) -> Resource | None:
    """The resource a call acts on, by its reviewed manifest, or None if it cannot be derived."""
    manifest = manifest_for(bundle, tool, tool_digest)
    try:
        return None if manifest is None else manifest.resource_of(args)
    except ContractError:
        return (
            None  # the args do not match the manifest: the decision will be `invalid_args`, which says more
        )


def _txn_digest(effects: Sequence[Effect]) -> str:
    return digests.txn_digest(effect_digests=[effect.digest for effect in effects])


def _apply_edit(bundle: Bundle, effect: Effect, edits: Edits) -> Effect:
    args = edits.get((effect.effect_id, effect.tool_digest))
    if args is None or args == effect.args_bytes:
        return effect
    resource = derive_resource(bundle, effect.tool, effect.tool_digest, load(args))
    return replace(effect, args_bytes=args, resource=resource or _UNKNOWN_RESOURCE)


def _call_key(agent: str, run_key: str, sent: SubmittedEffect) -> str:
    key = digests.call_key(agent=agent, run_key=run_key, tool=sent.tool, args=sent.args, n=sent.n)
    if sent.call_key is not None and sent.call_key != key:
        raise InvalidRequestError(
            f"the call key sent for {sent.tool!r} does not match its arguments; compute it from the staged arguments, "
            "as the contract specifies",
            code=ErrorCode.CALL_KEY_MISMATCH,
            expected=key,
        )
    return key


def _txn_id(agent: str, request: SubmitRequest | EvaluationRequest, keys: Sequence[str]) -> str:
    if not request.independent:
        return digests.txn_id(agent=agent, run_key=request.run_key)
    if len(keys) != 1:
        raise InvalidRequestError("an independent effect is a transaction of its own; submit it alone")
    return digests.independent_txn_id(agent=agent, run_key=request.run_key, call_key=keys[0])


def _effect(bundle: Bundle, agent: str, txn: str, seq: int, call_key: str, sent: SubmittedEffect) -> Effect:
    derived = derive_resource(bundle, sent.tool, sent.tool_digest, sent.args)
    claimed = None if sent.resource is None else Resource(sent.resource.type, sent.resource.id)
    if derived is not None and claimed is not None and derived != claimed:
        raise InvalidRequestError(
            f"the resource sent for {sent.tool!r} is not the one its manifest derives from the arguments",
            code=ErrorCode.RESOURCE_MISMATCH,
            expected={"type": derived.type, "id": derived.id},
        )
    try:
        return Effect(
            agent=agent,
            txn=txn,
            effect_id=digests.effect_id(txn=txn, call_key=call_key),
            seq=seq,
            tool=sent.tool,
            tool_digest=sent.tool_digest,
            resource=derived or claimed or _UNKNOWN_RESOURCE,
            args_bytes=canonicalize(sent.args),
            call_key=call_key,
            compensation=_compensation(bundle, sent),
        )
    except AdmissionError as error:  # a body may be larger than the limit for the args of one call
        raise RequestError(f"the args of {sent.tool!r}: {error}", code=error.code) from error


def _compensation(bundle: Bundle, sent: SubmittedEffect) -> Compensation | None:
    manifest = manifest_for(bundle, sent.tool, sent.tool_digest)
    if manifest is None or manifest.compensation is None:
        return None
    undo = bundle.manifests[manifest.compensation.tool]
    return Compensation(undo.tool, undo.digest, dict(manifest.compensation.map))


def _audience(bundle: Bundle, agent: str, effects: Sequence[Effect]) -> str:
    manifests = [manifest_for(bundle, effect.tool, effect.tool_digest) for effect in effects]
    wanted = {(None if manifest is None else manifest.aud) or agent for manifest in manifests}
    if len(wanted) > 1:
        raise InvalidRequestError(
            f"a transaction has one redeemer, and this one would need {sorted(wanted)}; split it",
            code=ErrorCode.MIXED_AUDIENCE,
        )
    return wanted.pop()


# -- rows --------------------------------------------------------------------------------------------------------------


def new_effect_row(bundle: Bundle, effect: Effect, rev: int, *, compensates: str | None = None) -> EffectRow:
    """The row of an undecided effect. ``compensates`` is the effect id that a compensation undoes.

    Secrecy and `may_fail` come from the manifest the effect was made with and never change: a later bundle must not
    reveal arguments, nor change what people approve.
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
        secret=_ALL_SECRET if manifest is None else list(manifest.secret),
        may_fail=manifest is not None and manifest.may_fail,
        reads=manifest is not None and manifest.reads,
        state="",  # the CHECK constraint refuses it, so an undecided row cannot be stored
        decision_id="",
        valid_for_s=0,
        asked_at=_UNDECIDED,
        changed_at=_UNDECIDED,
    )


def effect_from_row(row: EffectRow) -> Effect:
    """The contract's effect that a row stores."""
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
        compensation=None if row.compensation is None else Compensation(**row.compensation),
    )


def _recipients_key(manifest: ToolManifest, args: JSON) -> str | None:
    """A digest of the call's recipients that does not depend on their order, or None if it has none."""
    named: set[bytes] = set()
    for pointer in manifest.recipients:
        try:
            value = resolve_pointer(args, pointer)
        except PointerError:
            continue  # an optional argument that was not given
        named |= {canonicalize(one) for one in (value if isinstance(value, list) else [value])}
    return hashlib.sha256(b"\n".join(sorted(named))).hexdigest() if named else None


def apply_first_decision(effect: EffectRow, state: EffectState, decision: Decision, now: datetime) -> None:
    """Set the columns of an undecided row that follow from its first decision."""
    effect.state = state.value
    effect.gates = [gate.to_json() for gate in decision.gates]
    effect.valid_for_s = int(decision.valid_for.total_seconds())
    effect.asked_at = effect.changed_at = now
    if UNKNOWN_TOOL in decision.policies:
        effect.secret = []  # in dev only: people cannot approve arguments they may not see
    effect.lapses_at = release_expiry(effect, now) if state is EffectState.RELEASED else None


def release_expiry(effect: EffectRow, released_at: datetime) -> datetime | None:
    """When the release of a compensation expires; None for other effects, which expire with their transaction."""
    if effect.kind != "compensate":
        return None
    return released_at + timedelta(seconds=effect.valid_for_s)


def redemption_row(effect: EffectRow, attempt: AttemptRow, jti: str | None) -> RedemptionRow:
    """The redemption of an effect under an attempt. ``jti`` is None if it is unknown after a restore."""
    return RedemptionRow(
        effect_id=effect.effect_id,
        rev=effect.rev,
        redeemer=attempt.redeemer,
        attempt_id=attempt.attempt_id,
        jti=jti,
        decision_id=effect.decision_id,
        redeemed_at=attempt.redeemed_at,
    )

"""From a submission to named effects: every digest is computed here, by us, from the canonical bytes.

What the SDK sends beside the call (call key, resource) is only compared. Refused: another call key or resource than
ours, the same call twice in one list, effects for two enforcement points, an independent transaction of several.

A change that was accepted replaces the args, not the call: names of the call are taken from what the agent staged,
digests and resource from the bytes in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from countersign.contract import (
    JSON,
    AdmissionError,
    Compensation,
    ContractError,
    Effect,
    ErrorCode,
    Resource,
    ToolManifest,
    canonicalize,
    load,
    names,
)
from countersign.contract.wire import EvaluationRequest, SubmitRequest, SubmittedEffect
from policy_service.errors import InvalidRequestError, RequestError
from policy_service.pap.bundle import Bundle
from policy_service.queries.effects import manifest_for
from policy_service.queries.repository import Snapshot
from policy_service.storage.proposals import Edits
from policy_service.workflow.effects.effect_rows import effect_from_row

_NO_EDITS: Edits = {}
_UNKNOWN_RESOURCE = Resource("Unknown", "unknown")  # such an effect is denied; its digest still needs a name


@dataclass(frozen=True)
class IdentifiedTransaction:
    """A submission with every name it has."""

    txn: str
    txn_digest: str
    aud: str
    effects: tuple[Effect, ...]

    @property
    def calls(self) -> list[tuple[str, str]]:
        """What lists are compared by: (call_key, tool_digest), in order."""
        return [(effect.call_key, effect.tool_digest) for effect in self.effects]


def identify_transaction(
    bundle: Bundle, agent: str, request: SubmitRequest | EvaluationRequest, edits: Edits = _NO_EDITS
) -> IdentifiedTransaction:
    """Name a submission, with the arguments that stand in place of the staged ones.

    Raises:
        InvalidRequestError: call_key_mismatch, resource_mismatch, mixed_audience, or a list that cannot be one.
        RequestError: args beyond their limits, with the code of admission.
    """
    keys = [_call_key(agent, request.run_key, sent) for sent in request.effects]
    if len(set(keys)) != len(keys):
        raise InvalidRequestError(
            "the same call stands twice in one transaction; number intended repeats with n"
        )
    txn = _txn(agent, request, keys)
    effects = tuple(
        _edited(bundle, _effect(bundle, agent, txn, seq, key, sent), edits)
        for seq, (key, sent) in enumerate(zip(keys, request.effects, strict=True), start=1)
    )
    return IdentifiedTransaction(txn, _digest(effects), _audience(bundle, agent, effects), effects)


def identify_edited(bundle: Bundle, snapshot: Snapshot, edits: Edits) -> IdentifiedTransaction:
    """Name a stored list anew, with other arguments: every call is the same call, in the same place."""
    effects = tuple(_edited(bundle, effect_from_row(row), edits) for row in snapshot.effects)
    return IdentifiedTransaction(
        snapshot.transaction.txn, _digest(effects), snapshot.transaction.aud, effects
    )


def _digest(effects: Sequence[Effect]) -> str:
    return names.txn_digest(effect_digests=[effect.digest for effect in effects])


def _edited(bundle: Bundle, effect: Effect, edits: Edits) -> Effect:
    args = edits.get((effect.effect_id, effect.tool_digest))
    if args is None or args == effect.args_bytes:
        return effect
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    resource = derive_resource(manifest, load(args)) or _UNKNOWN_RESOURCE
    return replace(effect, args_bytes=args, resource=resource)


def _call_key(agent: str, run_key: str, sent: SubmittedEffect) -> str:
    key = names.call_key(agent=agent, run_key=run_key, tool=sent.tool, args=sent.args, n=sent.n)
    if sent.call_key is not None and sent.call_key != key:
        raise InvalidRequestError(
            f"the call key sent for {sent.tool!r} is not the one its arguments make; compute it from the staged "
            "arguments, as the contract says",
            code=ErrorCode.CALL_KEY_MISMATCH,
            expected=key,
        )
    return key


def _txn(agent: str, request: SubmitRequest | EvaluationRequest, keys: Sequence[str]) -> str:
    if not request.independent:
        return names.txn_id(agent=agent, run_key=request.run_key)
    if len(keys) != 1:
        raise InvalidRequestError("an independent effect is a transaction of its own; submit it alone")
    return names.independent_txn_id(agent=agent, run_key=request.run_key, call_key=keys[0])


def _effect(bundle: Bundle, agent: str, txn: str, seq: int, call_key: str, sent: SubmittedEffect) -> Effect:
    manifest = manifest_for(bundle, sent.tool, sent.tool_digest)
    ours = derive_resource(manifest, sent.args)
    told = Resource(sent.resource.type, sent.resource.id) if sent.resource is not None else None
    if ours is not None and told is not None and ours != told:
        raise InvalidRequestError(
            f"the resource sent for {sent.tool!r} is not the one its manifest takes from the arguments",
            code=ErrorCode.RESOURCE_MISMATCH,
            expected={"type": ours.type, "id": ours.id},
        )
    try:
        return Effect(
            agent=agent,
            txn=txn,
            effect_id=names.effect_id(txn=txn, call_key=call_key),
            seq=seq,
            tool=sent.tool,
            tool_digest=sent.tool_digest,
            resource=ours or told or _UNKNOWN_RESOURCE,
            args_bytes=canonicalize(sent.args),
            call_key=call_key,
            compensation=_compensation(bundle, sent),
        )
    except AdmissionError as error:  # a body may hold many effects, so it may be larger than one call's args
        raise RequestError(f"the args of {sent.tool!r}: {error}", code=error.code) from error


def derive_resource(manifest: ToolManifest | None, args: JSON) -> Resource | None:
    """What a call acts on, by its reviewed manifest; None where that cannot be told."""
    try:
        return None if manifest is None else manifest.resource_of(args)
    except ContractError:
        return None  # the args do not fit the manifest: the decision is `invalid_args`, which says more


def _compensation(bundle: Bundle, sent: SubmittedEffect) -> Compensation | None:
    manifest = manifest_for(bundle, sent.tool, sent.tool_digest)
    if manifest is None or manifest.compensation is None:
        return None
    undo = bundle.manifests[manifest.compensation.tool]
    return Compensation(undo.tool, undo.digest, dict(manifest.compensation.map))


def _audience(bundle: Bundle, agent: str, effects: Sequence[Effect]) -> str:
    wanted = set()
    for effect in effects:
        manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
        wanted.add((manifest.aud if manifest is not None else None) or agent)
    if len(wanted) > 1:
        raise InvalidRequestError(
            f"one transaction has one redeemer, this one would need {sorted(wanted)}; split it",
            code=ErrorCode.MIXED_AUDIENCE,
        )
    return wanted.pop()

"""Reading a receipt that comes back to us from before a restore. We signed it, and still every claim is checked.

What it was given for comes along, because this database may have forgotten it: every digest is computed here, and the
receipt's own `txn_digest` proves the whole list (of a compensation, its effect digest). `fire_by` is not looked at:
nothing fires on it any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from countersign.contract import (
    TYP_RECEIPT,
    Compensation,
    ContractError,
    Effect,
    ErrorCode,
    ReceiptClaims,
    canonicalize,
    names,
    open_token,
)
from countersign.contract.wire import Recall, RecalledEffect
from policy_service.errors import ForbiddenError, InvalidRequestError, NotFoundError
from policy_service.identity.agents import Caller
from policy_service.queries.context import Context


@dataclass(frozen=True, slots=True)
class ReceiptProof:
    """A redemption this service made in an earlier epoch, proven by its own signature."""

    claims: ReceiptClaims
    effects: tuple[Effect, ...]
    run_key: str
    independent: bool


def verify_receipt(ctx: Context, caller: Caller, attempt_id: str, told: Recall) -> ReceiptProof:
    """The redemption a recall proves.

    Raises:
        InvalidRequestError: bad_token: not signed by a key we publish, or not for what comes along.
        ForbiddenError: not_redeemer: given to another party.
        NotFoundError: unknown_attempt: it is of this epoch, of which nothing is forgotten.
    """
    claims = _claims(ctx, told.receipt)
    if claims.iss != ctx.settings.iss or claims.attempt != attempt_id:
        raise _bad("is of another deployment or another attempt")
    if claims.aud != caller.agent:
        raise ForbiddenError("this receipt was given to another party", code=ErrorCode.NOT_REDEEMER)
    if claims.epoch >= ctx.epoch():
        raise NotFoundError(
            f"there is no attempt {attempt_id!r}, and nothing of this epoch is forgotten",
            code=ErrorCode.UNKNOWN_ATTEMPT,
        )
    effects = tuple(_effect(claims, one) for one in told.effects)
    if not (
        _is_list(claims, told, effects) if claims.kind == "effect" else _is_compensation(claims, effects)
    ):
        raise _bad("was not given for these effects")
    return ReceiptProof(claims, effects, told.run_key, told.independent)


def _claims(ctx: Context, receipt: str) -> ReceiptClaims:
    try:
        return ReceiptClaims.from_claims(
            open_token(receipt, typ=TYP_RECEIPT, key_for=ctx.signer.keys.get).claims
        )
    except ContractError as error:
        raise _bad("is not signed by a key this service publishes") from error


def _effect(claims: ReceiptClaims, told: RecalledEffect) -> Effect:
    undo = told.compensation
    try:
        return Effect(
            agent=claims.sub,
            txn=claims.txn,
            effect_id=names.effect_id(txn=claims.txn, call_key=told.call_key),
            seq=told.seq,
            tool=told.tool,
            tool_digest=told.tool_digest,
            resource=told.resource,
            args_bytes=canonicalize(told.args),
            call_key=told.call_key,
            compensation=None if undo is None else Compensation(undo.tool, undo.tool_digest, undo.map),
        )
    except ContractError as error:
        raise _bad(f"was not given for {told.tool!r} with these args ({error})") from error


def _is_list(claims: ReceiptClaims, told: Recall, effects: tuple[Effect, ...]) -> bool:
    if told.independent:
        named = names.independent_txn_id(agent=claims.sub, run_key=told.run_key, call_key=effects[0].call_key)
    else:
        named = names.txn_id(agent=claims.sub, run_key=told.run_key)
    digest = names.txn_digest(effect_digests=[effect.digest for effect in effects])
    return (named, digest) == (claims.txn, claims.txn_digest)


def _is_compensation(claims: ReceiptClaims, effects: tuple[Effect, ...]) -> bool:
    return [effect.digest for effect in effects] == [effect.effect_digest for effect in claims.effects]


def _bad(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"the receipt {what}", code=ErrorCode.BAD_TOKEN)

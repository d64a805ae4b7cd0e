"""Reading release tokens that come back to us. We signed them, and still every claim is checked.

Whether its time is over is asked inside the unit that spends it: the ``now`` there is of the clock that set ``exp``,
the same for every replica, so there is no leeway.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from countersign.contract import TYP_RELEASE, ContractError, ErrorCode, ReleaseClaims, open_token
from policy_service.errors import ForbiddenError, InvalidRequestError
from policy_service.identity.agents import Caller
from policy_service.queries.context import Context


def verify_releases(ctx: Context, caller: Caller, tokens: Sequence[str]) -> list[ReleaseClaims]:
    """The claims of releases this caller may spend, all of one transaction.

    Raises:
        InvalidRequestError: bad_token.
        ForbiddenError: not_redeemer: another party's, or bound to another key.
    """
    claims = [_read(ctx, caller, token) for token in tokens]
    if len({(claim.txn, claim.kind) for claim in claims}) != 1:
        raise _bad("the releases are not of one transaction")
    return claims


def _read(ctx: Context, caller: Caller, token: str) -> ReleaseClaims:
    try:
        opened = open_token(token, typ=TYP_RELEASE, key_for=ctx.signer.keys.get)
        claims = ReleaseClaims.from_claims(opened.claims)
    except ContractError as error:
        raise _bad("not a release of this service") from error
    if claims.iss != ctx.settings.iss or claims.epoch != ctx.epoch():
        raise _bad("this release is of another deployment or of an earlier epoch")
    if claims.aud != caller.agent or claims.cnf_jkt != caller.jkt:
        raise ForbiddenError(
            "this release is bound to another party or key; ask for one with the key that redeems",
            code=ErrorCode.NOT_REDEEMER,
        )
    return claims


def require_unexpired(claims: ReleaseClaims, now: datetime) -> None:
    """Refuse a release whose time is over; ``now`` is that of the unit that spends it.

    Raises:
        InvalidRequestError: expired_token.
    """
    if int(now.timestamp()) >= claims.exp:
        raise InvalidRequestError("this release has expired; ask for a new one", code=ErrorCode.EXPIRED_TOKEN)


def _bad(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{what}; ask for releases again", code=ErrorCode.BAD_TOKEN)

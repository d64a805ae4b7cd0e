"""Userinfo: what a provider says of a person beside the ID token (OpenID Connect Core section 5.3).

It adds claims to a sign-in that the ID token has proved, so where it cannot be used the sign-in goes on without it, and
the reason is named. One that speaks of another subject is refused with the whole sign-in (section 5.3.4).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx2
import structlog

from policy_service.errors import WorldError
from policy_service.identity.claims import claim_at
from policy_service.identity.foreign_tokens import UntrustedTokenError, audiences, verify
from policy_service.identity.issuer_keys import IssuerKeys, get
from policy_service.issuers import SignInProvider

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class UserInfo:
    """The claims of userinfo, and the reason where it could not be used."""

    claims: Mapping[str, Any] = field(default_factory=dict)
    fault: str | None = None


async def read_userinfo(
    client: httpx2.AsyncClient,
    keys: IssuerKeys,
    provider: SignInProvider,
    access_token: str,
    signed: Mapping[str, Any],
    now: datetime,
) -> UserInfo:
    """What userinfo adds to the ID token's claims; nothing where those say all, or there is no userinfo.

    Raises:
        UntrustedTokenError: it speaks of another subject than the ID token.
        WorldError: issuer_unavailable; the provider's discovery names an address that is not used.
    """
    wanted = ["name", "email", *([provider.groups_claim] if provider.groups_claim else [])]
    metadata = await keys.metadata()
    if all(claim_at(signed, name) is not None for name in wanted) or not metadata.get("userinfo_endpoint"):
        return UserInfo()
    url = keys.published(metadata, "userinfo_endpoint")
    what = f"userinfo of {provider.title}"
    try:
        answer = await get(client, url, what, Authorization=f"Bearer {access_token}")
        found = await _claims(answer, keys, provider, now)
        if not isinstance(found, Mapping) or not isinstance(found.get("sub"), str):
            raise UntrustedTokenError("it names no subject")
    except (WorldError, UntrustedTokenError) as error:
        why = str(error) if isinstance(error, WorldError) else f"{what} cannot be used: {error}"
        log.warning("userinfo_not_used", provider=provider.name, why=why)
        return UserInfo(fault=why)
    if found["sub"] != signed.get("sub"):
        raise UntrustedTokenError("userinfo speaks of somebody else")
    return UserInfo(found)


async def _claims(answer: httpx2.Response, keys: IssuerKeys, provider: SignInProvider, now: datetime) -> Any:
    """What it holds: JSON, or a JWT that the provider signed (section 5.3.2), which need not expire."""
    if answer.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/jwt":
        try:
            return json.loads(answer.content)
        except (ValueError, RecursionError) as error:
            raise UntrustedTokenError("it is no JSON, and its content type is not application/jwt") from error
    token = answer.content.decode("latin-1").strip()
    algorithms = provider.algorithms
    seen = await verify(token, keys, algorithms=algorithms, types=("JWT",), now=now, must_expire=False)
    if seen.claims.get("iss", provider.issuer) != provider.issuer:
        raise UntrustedTokenError("it is another issuer's")
    if "aud" in seen.claims and provider.client_id not in audiences(seen.claims):
        raise UntrustedTokenError("it is for another client")
    return seen.claims

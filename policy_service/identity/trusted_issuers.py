"""Agents without an enrolled key: a token of an issuer the operator trusts lets them bring a key for a while.

OpenID client credentials, Kubernetes service accounts, GitHub Actions and SPIFFE are one path. Numbered as they run:

1. the token names one issuer of the settings: by ``iss``, or for SPIFFE by the trust domain of ``sub``;
2. it is signed by that issuer and its times hold (`foreign_tokens.verify`);
3. it does not live longer than the settings allow that issuer's tokens;
4. it was made for this deployment: one of ``aud`` is ours. Without this, a token the agent shows to any other
   service would let that service act as the agent here;
5. its claims are those of exactly one rule, which names the agent; the agent must be enrolled;
6. where it is bound to a key (``cnf.jkt``, RFC 7800), that key is the one brought.

The key then proves each call as an enrolled one does, until the token's end or `agent_key_max_s`, whichever is first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import structlog

from countersign.contract import ErrorCode
from policy_service.errors import UnauthenticatedError
from policy_service.health import Health
from policy_service.http_clients import DIRECT, Route
from policy_service.identity.callers import Voucher
from policy_service.identity.foreign_tokens import UntrustedTokenError, audiences, peek, text_claim, verify
from policy_service.identity.issuer_keys import IssuerKeys, bounded, issuer_client
from policy_service.issuers import TrustedIssuer
from policy_service.settings import Settings

log = structlog.get_logger(__name__)

_LONGEST_SUBJECT = 1_000
_SPIFFE = "spiffe"


class TrustedIssuers:
    """The issuers of the settings."""

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], datetime],
        transport: httpx2.AsyncBaseTransport | None = None,
        health: Health | None = None,
        route: Route = DIRECT,
    ) -> None:
        self._client = issuer_client(bounded(transport, health, route))
        self._clock = clock
        self._settings = settings
        self._by_issuer = {one.issuer: one for one in settings.trusted_issuers if one.issuer is not None}
        self._by_domain = {
            one.trust_domain: one for one in settings.trusted_issuers if one.trust_domain is not None
        }
        self._keys = {
            one.name: IssuerKeys(
                one.name,
                client=self._client,
                issuer=one.issuer,
                jwks_url=one.jwks_url,
                jwks_file=one.jwks_file,
            )
            for one in settings.trusted_issuers
        }

    async def close(self) -> None:
        """Close the connections to the issuers."""
        await self._client.aclose()

    def require_any(self) -> None:
        """Refuse where no issuer is trusted: no token can vouch for anybody here.

        Raises:
            UnauthenticatedError: unauthenticated.
        """
        if not self._keys:
            raise UnauthenticatedError(
                "no issuer is trusted here to vouch for a key; ask an operator to enrol yours"
            )

    async def vouch(self, token: str, jkt: str) -> Voucher:
        """Whose key this token lets somebody bring.

        Raises:
            UnauthenticatedError: bad_token; the log says which step failed, the caller learns the issuer at most.
            WorldError: issuer_unavailable.
        """
        issuer = None
        try:
            issuer = self._issuer_of(peek(token).claims)
            voucher = await self._vouch(issuer, token)
            if voucher.jkt not in {None, jkt}:
                raise UntrustedTokenError("it is bound to another key")
        except UntrustedTokenError as error:
            name = None if issuer is None else issuer.name
            log.warning("agent_token_refused", issuer=name, why=str(error))
            raise UnauthenticatedError(
                "the token does not let you bring a key here; ask an operator, the service's log says why",
                code=ErrorCode.BAD_PROOF,
            ) from error
        return voucher

    async def _vouch(self, issuer: TrustedIssuer, token: str) -> Voucher:
        now = self._clock()
        verified = await verify(
            token, self._keys[issuer.name], algorithms=issuer.algorithms, types=issuer.types, now=now
        )
        claims = verified.claims
        until = _until(claims, issuer.max_age_s)
        if until <= now:
            # the leeway of `verify` is for clocks, not for keys
            raise UntrustedTokenError("its time is over")
        wanted = issuer.audiences or (self._settings.public_url,)
        if not audiences(claims) & set(wanted):
            raise UntrustedTokenError(f"it is for {sorted(audiences(claims))[:5]}, not for {list(wanted)}")
        return Voucher(
            agent=_agent_of(claims, issuer),
            issuer=issuer.name,
            trust=issuer.trust,
            issued_at=datetime.fromtimestamp(claims["iat"], UTC),
            subject=text_claim(claims, "sub", _LONGEST_SUBJECT),
            until=min(until, now + timedelta(seconds=self._settings.agent_key_max_s)),
            jkt=_bound_to(claims),
        )

    def _issuer_of(self, unverified_claims: Mapping[str, Any]) -> TrustedIssuer:
        named = unverified_claims.get("iss")
        found = self._by_issuer.get(named) if isinstance(named, str) else None
        if found is None:
            scheme, _, rest = str(unverified_claims.get("sub", "")).partition("://")
            found = self._by_domain.get(rest.partition("/")[0]) if scheme == _SPIFFE else None
        if found is None:
            raise UntrustedTokenError(f"its issuer {str(named)[:200]!r} is in no [[trusted_issuers]]")
        return found


def _until(claims: Mapping[str, Any], max_age_s: int) -> datetime:
    if claims["exp"] - claims["iat"] > max_age_s:
        raise UntrustedTokenError(f"it lives longer than max_age_s = {max_age_s}")
    return datetime.fromtimestamp(claims["exp"], UTC)


def _agent_of(claims: Mapping[str, Any], issuer: TrustedIssuer) -> str:
    """The agent of the one rule whose every claim is there; two agents for one token is an operator's mistake."""
    agents = {
        rule.agent
        for rule in issuer.agents
        if all(claims.get(name) == value for name, value in rule.claims.items())
    }
    if len(agents) != 1:
        raise UntrustedTokenError(f"its claims are those of {len(agents)} agents' rules; they must be of one")
    return agents.pop()


def _bound_to(claims: Mapping[str, Any]) -> str | None:
    confirmation = claims.get("cnf")
    if confirmation is None:
        return None
    jkt = confirmation.get("jkt") if isinstance(confirmation, dict) else None
    if not isinstance(jkt, str):
        raise UntrustedTokenError("it is bound to something that is no key's thumbprint")
    return jkt

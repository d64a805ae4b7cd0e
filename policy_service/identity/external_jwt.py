"""JWTs of external issuers: verification, and the agents whose keys such a token vouches for.

`verify_jwt` verifies people's ID tokens and agents' tokens alike. Nothing of a token is used before its signature is
valid, under a key of the expected issuer and with an algorithm of that issuer's list. Then its times are checked; the
caller checks the other claims. Unknown header members are ignored (RFC 7515 section 4). No extension is supported, so
every ``crit`` is refused (section 4.1.11). Each refusal has its own reason: malformed, critical extension, type,
algorithm, unknown key id, unsuitable key, signature, times.

A token of a trusted issuer lets an agent without an enrolled key add one for a limited time. OpenID client
credentials, Kubernetes service accounts, GitHub Actions and SPIFFE use one path:

1. the token names one issuer of the settings: by ``iss``, or for SPIFFE by the trust domain of ``sub``;
2. that issuer signed it and its times are valid (`verify_jwt`);
3. its lifetime is within the issuer's limit in the settings;
4. it was made for this deployment: one of ``aud`` is ours. Without this check, any other service that receives the
   agent's token could act as the agent here;
5. its claims match exactly one rule, which names the agent; the agent must be enrolled;
6. if it is bound to a key (``cnf.jkt``, RFC 7800), that is the key to add.

The key then proves each request like an enrolled one, until the token expires or for `agent_key_max_s`, if that is
shorter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import structlog
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jws import JWSRegistry
from joserfc.util import urlsafe_b64decode

from countersign.contract import ErrorCode
from policy_service.errors import UnauthenticatedError
from policy_service.health import Health
from policy_service.http_clients import DIRECT, Route
from policy_service.identity.agents import Voucher
from policy_service.identity.issuer_keys import IssuerKeys, PublishedKeys, bounded_transport, issuer_client
from policy_service.issuers import TrustedIssuer
from policy_service.settings import Settings

MAX_CHARS = 16_384  # the longest accepted token; one with two hundred groups is about half of it
_FORBIDDEN_HEADERS = frozenset({"jku", "jwk", "x5u", "x5c", "cty"})  # not needed by a supported issuer
_LEEWAY_S = 60  # clock skew of other organisations


class UntrustedTokenError(Exception):
    """The token is invalid. The message is for the log; a caller learns only that it failed."""


@dataclass(frozen=True, slots=True)
class DecodedJwt:
    """A decoded token."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]


def decode_unverified(unverified_token: str) -> DecodedJwt:
    """Decode a token without verifying it, to find its issuer. Nothing in it is proved.

    Raises:
        UntrustedTokenError: it is no signed token.
    """
    if not 0 < len(unverified_token) <= MAX_CHARS or not unverified_token.isascii():
        raise UntrustedTokenError("malformed: it is no signed token, or too long a one")
    if unverified_token.count(".") == 4:
        raise UntrustedTokenError("it is encrypted, which is not supported")
    try:
        head, payload, _ = unverified_token.encode().split(b".")
        header = _object(urlsafe_b64decode(head))
        _require_plain_header(header)
        return DecodedJwt(header, _object(urlsafe_b64decode(payload)))
    except (ValueError, RecursionError) as error:
        raise UntrustedTokenError("malformed: it is no signed token") from error


def _require_plain_header(header: Mapping[str, Any]) -> None:
    """Require an unambiguous header that asks only for a signature by a published key."""
    if "crit" in header:
        raise UntrustedTokenError(
            f"its crit {header['crit']!r:.100} is malformed, or names what is not understood"
        )
    if header.get("b64", True) is not True:
        raise UntrustedTokenError("malformed: its b64 asks for an encoding without crit (RFC 7797 section 6)")
    for name in ("alg", "kid", "typ"):
        if not isinstance(header.get(name, ""), str):
            raise UntrustedTokenError(f"malformed: its {name} is no text")
    if brought := sorted(header.keys() & _FORBIDDEN_HEADERS):
        raise UntrustedTokenError(
            f"its header brings a key or a content type of its own: {', '.join(brought)}"
        )


def _object(raw: bytes) -> dict[str, Any]:
    """A UTF-8 JSON object without duplicate members, because parsers differ on duplicates."""
    found = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique_members)
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it has a duplicate member")
    return found


async def verify_jwt(
    token: str,
    issuer: IssuerKeys,
    *,
    algorithms: Sequence[str],
    types: Sequence[str],
    now: datetime,
    must_expire: bool = True,
) -> DecodedJwt:
    """A token with a valid signature and valid times.

    Args:
        algorithms: the issuer's list; the header may only choose from it.
        types: accepted values of header ``typ``, case-insensitive; a token without one counts as ``JWT``.
        must_expire: whether ``exp`` and ``iat`` are required; if present, they must be valid.

    Raises:
        UntrustedTokenError: it is invalid.
        WorldError: issuer_unavailable; its keys cannot be read.
    """
    seen = decode_unverified(token)
    typ = seen.header.get("typ", "JWT")
    if typ.lower().removeprefix("application/") not in {one.lower() for one in types}:
        raise UntrustedTokenError(f"its typ is {typ[:100]!r}, not one of {', '.join(types)}")
    algorithm = seen.header.get("alg", "")
    if algorithm not in algorithms:
        raise UntrustedTokenError(f"its alg is {algorithm[:100]!r}, not one of {', '.join(algorithms)}")
    kid = seen.header.get("kid")
    published = await issuer.keys(kid)
    named = published.named(kid)
    if not named:
        raise UntrustedTokenError(_unknown_kid(issuer.name, str(kid), published))
    candidates = [(key, model) for key in named for model in JWSRegistry.filter_algorithms(key, [algorithm])]
    if not candidates:
        raise UntrustedTokenError(f"no key of {issuer.name!r} with kid {str(kid)[:80]!r} is for {algorithm}")
    signed, _, encoded = token.encode().rpartition(b".")
    signature = _signature(encoded)
    if not any(model.verify(signed, signature, key) for key, model in candidates):
        raise UntrustedTokenError(f"its signature is invalid (issuer {issuer.name!r}, kid {str(kid)[:80]!r})")
    _require_times(seen.claims, now, must_expire=must_expire)
    return seen


def _signature(encoded: bytes) -> bytes:
    try:
        return urlsafe_b64decode(encoded)
    except ValueError as error:
        raise UntrustedTokenError("malformed: its signature is no base64url") from error


def _unknown_kid(name: str, kid: str, published: PublishedKeys) -> str:
    for entry in published.refused:
        if entry.kid == kid:
            return f"the key {kid[:80]!r} of {name!r} is refused ({entry.pointer}): {entry.why}"
    return f"{name!r} publishes no key with kid {kid[:80]!r}"


def _require_times(claims: Mapping[str, Any], now: datetime, *, must_expire: bool) -> None:
    there: jwt.ClaimsOption = {"essential": must_expire}
    registry = jwt.JWTClaimsRegistry(now=int(now.timestamp()), leeway=_LEEWAY_S, exp=there, iat=there)
    if any(isinstance(value, float) and not math.isfinite(value) for value in claims.values()):
        raise UntrustedTokenError("it holds a number that is none")  # every comparison with NaN would pass
    try:
        registry.validate(dict(claims))
    except (JoseError, TypeError, ValueError) as error:
        raise UntrustedTokenError(f"its claims are invalid: {error}") from error


def text_claim(claims: Mapping[str, Any], name: str, longest: int) -> str:
    """A required claim that is readable text.

    Raises:
        UntrustedTokenError: it is missing, no text, empty, too long, or not printable.
    """
    value = claims.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= longest or not value.isprintable():
        raise UntrustedTokenError(f"its {name} is missing or cannot be used")
    return value


def audiences(claims: Mapping[str, Any]) -> frozenset[str]:
    """Every audience of the token (RFC 7519 section 4.1.3: a text or a list of texts)."""
    value = claims.get("aud")
    listed = value if isinstance(value, list) else [value]
    return frozenset(one for one in listed if isinstance(one, str))


log = structlog.get_logger(__name__)

_LONGEST_SUBJECT = 1_000
_SPIFFE = "spiffe"


class TrustedIssuers:
    """The trusted issuers of the settings."""

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], datetime],
        transport: httpx2.AsyncBaseTransport | None = None,
        health: Health | None = None,
        route: Route = DIRECT,
    ) -> None:
        self._client = issuer_client(bounded_transport(transport, health, route))
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
        """Refuse if no issuer is trusted: no token can vouch for a key here.

        Raises:
            UnauthenticatedError: unauthenticated.
        """
        if not self._keys:
            raise UnauthenticatedError(
                "no issuer is trusted here to vouch for a key; ask an operator to enrol yours"
            )

    async def vouch(self, token: str, jkt: str) -> Voucher:
        """The voucher of a token for the key ``jkt``.

        Raises:
            UnauthenticatedError: bad_token; the log has the failing step, the caller learns at most the issuer.
            WorldError: issuer_unavailable.
        """
        issuer = None
        try:
            issuer = self._issuer_of(decode_unverified(token).claims)
            voucher = await self._vouch(issuer, token)
            if voucher.jkt not in {None, jkt}:
                raise UntrustedTokenError("it is bound to another key")
        except UntrustedTokenError as error:
            name = None if issuer is None else issuer.name
            log.warning("agent_token_refused", issuer=name, why=str(error))
            raise UnauthenticatedError(
                "the token does not permit adding a key here; ask an operator, the service's log has the reason",
                code=ErrorCode.BAD_PROOF,
            ) from error
        return voucher

    async def _vouch(self, issuer: TrustedIssuer, token: str) -> Voucher:
        now = self._clock()
        verified = await verify_jwt(
            token, self._keys[issuer.name], algorithms=issuer.algorithms, types=issuer.types, now=now
        )
        claims = verified.claims
        until = _expiry(claims, issuer.max_age_s)
        if until <= now:
            # the leeway of `verify_jwt` is for clocks, not for keys
            raise UntrustedTokenError("it has expired")
        wanted = issuer.audiences or (self._settings.public_url,)
        if not audiences(claims) & set(wanted):
            raise UntrustedTokenError(f"it is for {sorted(audiences(claims))[:5]}, not for {list(wanted)}")
        return Voucher(
            agent=_matching_agent(claims, issuer),
            issuer=issuer.name,
            trust=issuer.trust,
            issued_at=datetime.fromtimestamp(claims["iat"], UTC),
            subject=text_claim(claims, "sub", _LONGEST_SUBJECT),
            until=min(until, now + timedelta(seconds=self._settings.agent_key_max_s)),
            jkt=_confirmation_key(claims),
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


def _expiry(claims: Mapping[str, Any], max_age_s: int) -> datetime:
    if claims["exp"] - claims["iat"] > max_age_s:
        raise UntrustedTokenError(f"it lives longer than max_age_s = {max_age_s}")
    return datetime.fromtimestamp(claims["exp"], UTC)


def _matching_agent(claims: Mapping[str, Any], issuer: TrustedIssuer) -> str:
    """The agent of the one matching rule; a token for two agents is an error in the settings."""
    agents = {
        rule.agent
        for rule in issuer.agents
        if all(claims.get(name) == value for name, value in rule.claims.items())
    }
    if len(agents) != 1:
        raise UntrustedTokenError(f"its claims are those of {len(agents)} agents' rules; they must be of one")
    return agents.pop()


def _confirmation_key(claims: Mapping[str, Any]) -> str | None:
    confirmation = claims.get("cnf")
    if confirmation is None:
        return None
    jkt = confirmation.get("jkt") if isinstance(confirmation, dict) else None
    if not isinstance(jkt, str):
        raise UntrustedTokenError("it is bound to something that is no key's thumbprint")
    return jkt

"""One way to verify a JWT that another issuer signed: people's ID tokens and agents' tokens alike.

Nothing of a token is believed before its signature holds, under a key of the one issuer it was expected from and with
an algorithm of that issuer's list. Then come its times; what the other claims must say is the caller's business.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import Key
from joserfc.util import urlsafe_b64decode

from policy_service.identity.issuer_keys import IssuerKeys

MAX_CHARS = 16_384  # the longest token looked at; one with two hundred groups is about half of it
_KEYS_OF_ITS_OWN = frozenset({"jku", "jwk", "x5u", "x5c", "cty"})  # nothing a signer of ours needs
_LEEWAY_S = 60  # clocks of other organisations


class UntrustedTokenError(Exception):
    """The token proves nothing. The sentence is for the log; a caller learns only that it failed."""


@dataclass(frozen=True, slots=True)
class ForeignToken:
    """What a token says."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]


def peek(unverified_token: str) -> ForeignToken:
    """What a token says of itself, to find whom to ask for keys; it proves nothing.

    Raises:
        UntrustedTokenError: it is no signed token.
    """
    if not 0 < len(unverified_token) <= MAX_CHARS or not unverified_token.isascii():
        raise UntrustedTokenError("it is no signed token, or too long a one")
    try:
        parsed = jws.extract_compact(unverified_token.encode())
        claims = _object(parsed.payload or b"")
        header = _object(urlsafe_b64decode(unverified_token.partition(".")[0].encode()))
    except (JoseError, ValueError, RecursionError) as error:
        raise UntrustedTokenError("it is no signed token") from error
    if not isinstance(header.get("kid", ""), str) or header.keys() & _KEYS_OF_ITS_OWN:
        raise UntrustedTokenError("its header brings keys of its own, or no usable key id")
    return ForeignToken(header, claims)


def _object(raw: bytes) -> dict[str, Any]:
    """A JSON object in UTF-8 that says each thing once: said twice, two readers may read two things."""
    found = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it says something twice")
    return found


async def verify(
    token: str, issuer: IssuerKeys, *, algorithms: Sequence[str], types: Sequence[str], now: datetime
) -> ForeignToken:
    """A token whose signature and times hold.

    Args:
        algorithms: the issuer's list; the header chooses from it and from nothing else.
        types: what header ``typ`` may be, letter case ignored; a token without one counts as ``JWT``.

    Raises:
        UntrustedTokenError: it proves nothing.
        WorldError: issuer_unavailable; its keys cannot be read.
    """
    seen = peek(token)
    typ = str(seen.header.get("typ", "JWT")).lower().removeprefix("application/")
    if typ not in {one.lower() for one in types}:
        raise UntrustedTokenError(f"its typ is {typ!r}")
    kid = seen.header.get("kid")
    keys = await issuer.keys(kid)
    candidates = [key for key in keys.keys if kid is None or key.kid == kid]
    for key in candidates:
        claims = _under(token, key, algorithms)
        if claims is not None:
            _require_times(claims, now)
            return ForeignToken(seen.header, claims)
    raise UntrustedTokenError(f"no key of {issuer.name!r} signed it (kid {str(kid)[:80]!r})")


def _under(token: str, key: Key, algorithms: Sequence[str]) -> dict[str, Any] | None:
    """The claims when this key signed the token, with the key's own algorithm where it names one."""
    allowed = [one for one in algorithms if key.alg in {None, one}]
    try:
        return dict(jwt.decode(token, key, algorithms=allowed).claims) if allowed else None
    except (JoseError, ValueError, TypeError):
        return None


def _require_times(claims: dict[str, Any], now: datetime) -> None:
    registry = jwt.JWTClaimsRegistry(
        now=int(now.timestamp()), leeway=_LEEWAY_S, exp={"essential": True}, iat={"essential": True}
    )
    if any(isinstance(value, float) and not math.isfinite(value) for value in claims.values()):
        raise UntrustedTokenError("it holds a number that is none")  # which every comparison would let pass
    try:
        registry.validate(claims)
    except (JoseError, TypeError, ValueError) as error:
        raise UntrustedTokenError(f"its claims do not hold: {error}") from error


def text_claim(claims: Mapping[str, Any], name: str, longest: int) -> str:
    """A claim that must be a text somebody can be known by.

    Raises:
        UntrustedTokenError: it is missing, no text, empty, too long, or holds what cannot be read.
    """
    value = claims.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= longest or not value.isprintable():
        raise UntrustedTokenError(f"its {name} is missing or cannot be used")
    return value


def audiences(claims: Mapping[str, Any]) -> frozenset[str]:
    """Everybody the token is for (RFC 7519 section 4.1.3: a text or a list of texts)."""
    value = claims.get("aud")
    listed = value if isinstance(value, list) else [value]
    return frozenset(one for one in listed if isinstance(one, str))

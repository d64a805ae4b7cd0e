"""Keys that another issuer publishes (RFC 7517): each is used or refused by itself.

A set lists keys for every use and of kinds that are newer than this code, so one that cannot be used says nothing of
the others (RFC 7517 section 5). Two keys may share an id (section 4.5): both stay, and a signature is tried under each
that fits its algorithm. Of a key only what names it and the public key itself is read; certificates are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key
from joserfc.jws import JWSRegistry
from joserfc.util import base64_to_int

from policy_service.issuers import ALGORITHMS

_SHORTEST_RSA = 2048  # bits; RFC 7518 sections 3.3 and 3.5
_PUBLIC_MEMBERS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_PRIVATE_MEMBERS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
_SIGNING_CURVES = frozenset({"P-256", "P-384", "P-521", "Ed25519", "Ed448"})
_SIGNING_USES = frozenset({"sig", "jwt-svid"})  # the second in SPIFFE trust bundles


@dataclass(frozen=True, slots=True)
class RefusedKey:
    """An entry that is not used: where it is in the set, the id it gives, and why it is refused."""

    pointer: str
    kid: object
    why: str


@dataclass(frozen=True, slots=True)
class PublishedKeys:
    """What an issuer's key set holds."""

    usable: tuple[Key, ...]
    refused: tuple[RefusedKey, ...] = ()

    def named(self, kid: str | None) -> list[Key]:
        """The keys a token may be signed with that names this id, or none."""
        return [key for key in self.usable if kid is None or key.kid == kid]


def read_keys(found: Any) -> PublishedKeys:
    """The keys of a JWK set.

    Raises:
        ValueError: it is no JWK set.
    """
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise ValueError('it is no object with a list "keys"')
    usable, refused = [], []
    for index, entry in enumerate(entries):
        try:
            usable.append(_key(entry))
        except (ValueError, TypeError, KeyError, OverflowError, JoseError, UnsupportedAlgorithm) as error:
            kid = entry.get("kid") if isinstance(entry, dict) else None
            why = str(error) if type(error) is ValueError else f"it is no key ({type(error).__name__})"
            refused.append(RefusedKey(f"/keys/{index}", kid, why[:200]))
    return PublishedKeys(tuple(usable), tuple(refused))


def _key(entry: Any) -> Key:
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    given = {name: value for name, value in entry.items() if value is not None}
    kty = given.get("kty")
    members = _PUBLIC_MEMBERS.get(kty) if isinstance(kty, str) else None
    if members is None:
        raise ValueError(f"its kty {kty!r} is not one of {', '.join(_PUBLIC_MEMBERS)}")
    _require_signing(given)
    if kty == "RSA" and (bits := base64_to_int(given["n"]).bit_length()) < _SHORTEST_RSA:
        raise ValueError(f"it is an RSA key of {bits} bits; {_SHORTEST_RSA} is the least")
    named = {name: given[name] for name in ("kty", "kid", "alg", *members) if name in given}
    key = JWKRegistry.import_key(named)
    key.ensure_kid()  # one without an id goes by its thumbprint (RFC 7638)
    if not JWSRegistry.filter_algorithms(key, list(ALGORITHMS)):
        raise ValueError(f"its alg {given.get('alg')!r} does not fit its kty and crv")
    return key


def _require_signing(given: dict[str, Any]) -> None:
    """A public key for signatures, as far as its members say; joserfc reads the key itself."""
    if private := sorted(_PRIVATE_MEMBERS & given.keys()):
        raise ValueError(f"it publishes the private {', '.join(private)}")
    if not isinstance(given.get("kid", ""), str):
        raise ValueError("its kid is no text")
    if given.get("use", "sig") not in _SIGNING_USES:
        raise ValueError(f"its use is {given['use']!r}, not signatures")
    operations = given.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise ValueError("its key_ops leave out verify")
    if "alg" in given and given["alg"] not in ALGORITHMS:
        raise ValueError(f"its alg {given['alg']!r} is not accepted")
    if "crv" in given and given["crv"] not in _SIGNING_CURVES:
        raise ValueError(f"its crv {given['crv']!r} is not accepted")

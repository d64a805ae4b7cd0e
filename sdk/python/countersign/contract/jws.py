"""JWS compact serialisation (RFC 7515), restricted to one form, and the numbered steps of every verification.

There is one algorithm (`Ed25519`, RFC 9864; never the polymorphic `EdDSA`), one header (exactly alg, typ, kid) and one
encoding of every token. A key is never taken from a header: `kid` selects a key the verifier already pinned. Each kind
of token has its own `typ`, so none can be mistaken for another (RFC 8725 section 3.11, 3.12).

Verification runs numbered steps in order; the first refusal ends it. A step inspects the state and returns None, or the
code of its refusal. It may store what it has established for the next steps. The tables are data: documents, test
vectors and the suite that removes each step read the same ones. `JWS_STEPS` are the first nine steps of every table.

Claims are read strictly: every member is known, present and of its one type. Whole numbers exclude booleans, text is
bounded and digests are well formed. An unknown member refuses the whole, because its writer intended a meaning that
this reader would ignore.
"""

import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from .admission import ARGS_LIMITS, JSON, Limits, admitted_bytes, load
from .digests import canonicalize
from .effect import Resource, is_digest
from .errors import ContractError, VerificationError
from .keys import PrivateKey, PublicKey, decode_base64url, encode_base64url

State_contra = TypeVar("State_contra", contravariant=True)
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Step(Generic[State_contra]):
    """One numbered check: its name, its purpose, and the function that performs it."""

    number: int
    name: str
    why: str
    check: Callable[[State_contra], str | None]


def run_steps(steps: Sequence[Step[State]], state: State) -> None:
    """Run every step in order.

    Raises:
        VerificationError: with the number of the step that refused and its code.
    """
    try:
        for step in steps:
            code = step.check(state)
            if code is not None:
                break
        else:
            return
    except ContractError as error:
        raise VerificationError(step.number, error.code, str(error)) from error
    raise VerificationError(step.number, code)


TYP_RELEASE: Final = "effect-release+jwt"
TYP_RECEIPT: Final = "effect-receipt+jwt"
TYP_PROOF: Final = "agent-proof+jwt"
ALG: Final = "Ed25519"

MAX_TOKEN_BYTES: Final = 8192  # within every common header limit; a release of 20 votes has about 2,000
MAX_RECEIPT_BYTES: Final = 31_744  # sent in bodies only; a hundred effects with the longest names fit
_TOKEN_LIMITS: Final = Limits(max_bytes=MAX_RECEIPT_BYTES, max_depth=8, max_nodes=1000, floats=False)
_CLAIMS_LIMITS: Final = replace(_TOKEN_LIMITS, max_bytes=ARGS_LIMITS.max_bytes)  # the token has its own limit
_MAX_KID: Final = 64
_HEADERS: Final = 64  # previous, current and next key of a few issuers and kinds of token
_BASE64URL: Final = (string.ascii_letters + string.digits + "-_").encode()
_SIGNATURE_CHARACTERS: Final = 86  # 64 bytes of Ed25519, base64url without padding
_HEADER_MEMBERS: Final = frozenset({"alg", "typ", "kid"})

KeyFor = Callable[[str], PublicKey | None]
"""Looks up a `kid` among the pinned keys; None if it is not pinned."""


@dataclass(slots=True, kw_only=True)
class TokenState:
    """A token during verification; each step stores what it has established."""

    unverified_token: str
    typ: str
    key_for: KeyFor
    # each is set by a step before the steps that read it
    signing_input: bytes = field(init=False)
    segments: tuple[bytes, bytes, bytes] = field(init=False)
    decoded: tuple[bytes, bytes, bytes] = field(init=False)
    header: dict[str, JSON] = field(init=False)
    payload: dict[str, JSON] = field(init=False)
    key: PublicKey = field(init=False)


@dataclass(frozen=True, slots=True)
class AuthenticatedToken:
    """A token with a valid signature; its claims are not yet checked."""

    header: Mapping[str, JSON]
    claims: Mapping[str, JSON]
    kid: str


def sign(claims: Mapping[str, object], *, typ: str, key: PrivateKey) -> str:
    """Sign claims as a compact JWS of this `typ`.

    Raises:
        AdmissionError: the claims are not plain JSON, or contain a float, a reserved key or too much depth.
        ContractError: `token_too_large`.
    """
    header = encode_base64url(canonicalize({"alg": ALG, "kid": key.public.kid, "typ": typ}))
    # Apply the reader's admission rules: never sign what no verifier would accept.
    payload = admitted_bytes(dict(claims), _CLAIMS_LIMITS)
    signing_input = f"{header}.{encode_base64url(payload)}"
    token = f"{signing_input}.{encode_base64url(key.sign(signing_input.encode('ascii')))}"
    if len(token) > (most := max_token_bytes(typ)):
        raise ContractError("token_too_large", f"a token of {len(token)} bytes; at most {most} are read")
    return token


def max_token_bytes(typ: str) -> int:
    """The maximum size of a token of this `typ`, signed or read."""
    return MAX_RECEIPT_BYTES if typ == TYP_RECEIPT else MAX_TOKEN_BYTES


def open_token(token: str, *, typ: str, key_for: KeyFor) -> AuthenticatedToken:
    """Verify the signature and form of a token. Its claims still need checking: use `verify_release` and its like.

    Raises:
        VerificationError: steps 1 to 9 (RFC 7515 section 5.2, RFC 8725 section 3).
    """
    state = TokenState(unverified_token=token, typ=typ, key_for=key_for)
    run_steps(JWS_STEPS, state)
    return AuthenticatedToken(
        MappingProxyType(state.header), MappingProxyType(state.payload), str(state.header["kid"])
    )


# A key signs thousands of tokens under the same header, so the last few decoded headers are cached. Whether a header is
# acceptable is checked every time, and a refusal is never cached.


@lru_cache(_HEADERS)
def _decoded_header(segment: bytes) -> bytes:
    return decode_base64url(segment)


@lru_cache(_HEADERS)
def _loaded_header(raw: bytes) -> JSON:
    return load(raw, _TOKEN_LIMITS)


def _size(state: TokenState) -> str | None:
    # A subclass of str could answer differently each time it is read.
    if type(state.unverified_token) is not str:
        return "not_text"
    return "too_large" if len(state.unverified_token) > max_token_bytes(state.typ) else None


def _form(state: TokenState) -> str | None:
    # Non-ASCII text becomes "?". `translate` deletes the alphabet: exactly two dots may remain.
    token = state.unverified_token.encode("ascii", "replace")
    if token.translate(None, _BASE64URL) != b"..":
        return "not_compact"
    state.signing_input, _, signature = token.rpartition(b".")
    header, _, payload = state.signing_input.partition(b".")
    state.segments = (header, payload, signature)
    return None if header and payload and len(signature) == _SIGNATURE_CHARACTERS else "not_compact"


def _encoding(state: TokenState) -> str | None:
    try:
        header, payload, signature = state.segments
        state.decoded = (_decoded_header(header), decode_base64url(payload), decode_base64url(signature))
    except ValueError:
        return "not_canonical_base64url"
    return None


def _json(state: TokenState) -> str | None:
    # Parsed before the signature is verified, so with limits: the sender is not authenticated yet.
    header, payload = _loaded_header(state.decoded[0]), load(state.decoded[1], _TOKEN_LIMITS)
    if not isinstance(header, dict) or not isinstance(payload, dict):
        return "not_an_object"
    # The header is copied because the cached one is shared by all tokens with this header.
    state.header, state.payload = dict(header), payload
    return None


def _header(state: TokenState) -> str | None:
    # jku, jwk, x5u, x5c would name a key; crit, b64, zip would change the meaning: all are refused
    if state.header.keys() != _HEADER_MEMBERS:
        return "header_members"
    kid = state.header["kid"]
    return None if isinstance(kid, str) and 0 < len(kid) <= _MAX_KID else "bad_kid"


def _alg(state: TokenState) -> str | None:
    # Never "look up the algorithm of the header": that is how tokens with "none" or a public key as HMAC secret pass.
    return None if state.header["alg"] == ALG else "wrong_alg"


def _typ(state: TokenState) -> str | None:
    return None if state.header["typ"] == state.typ else "wrong_typ"


def _key(state: TokenState) -> str | None:
    key = state.key_for(str(state.header["kid"]))
    if key is None:
        return "unknown_kid"
    state.key = key
    return None


def _signature(state: TokenState) -> str | None:
    # Over the received text, not a re-encoding of what was parsed: the bytes that were signed are the bytes verified.
    return None if state.key.verify(state.decoded[2], state.signing_input) else "bad_signature"


JWS_STEPS: Final[tuple[Step[TokenState], ...]] = (
    Step(1, "size", "nothing large is parsed for a stranger", _size),
    Step(
        2, "form", "exactly three base64url parts: no padding, whitespace, JSON serialisation or JWE", _form
    ),
    Step(3, "encoding", "one text for each token: no spare bits (RFC 4648 section 3.5)", _encoding),
    Step(4, "json", "strict I-JSON objects: no duplicate claim is read in two ways", _json),
    Step(5, "header", "exactly alg, typ, kid: no header names a key or changes the meaning", _header),
    Step(6, "alg", "Ed25519 and nothing else (RFC 8725 section 3.1)", _alg),
    Step(7, "typ", "no token of another kind (RFC 8725 section 3.11)", _typ),
    Step(8, "key", "the key is one the verifier pinned", _key),
    Step(9, "signature", "the holder of that key signed exactly these bytes", _signature),
)
"""The steps every token passes first, for every `typ`."""


MAX_TEXT: Final = 1024
_TOKEN_ID: Final = re.compile(r"[A-Za-z0-9_-]{16,64}\Z")


_THUMBPRINT: Final = re.compile(r"[A-Za-z0-9_-]{43}\Z")
_RESOURCE: Final = frozenset({"type", "id"})


_HOLDER: Final = frozenset({"jkt"})
Claims = Mapping[str, object]


def require_members(
    value: object, what: str, *, required: frozenset[str], optional: frozenset[str] = frozenset()
) -> Claims:
    """The value as an object with exactly these members.

    Raises:
        ContractError: `bad_claim`, `missing_claim`, `unknown_claim`.
    """
    if type(value) is not dict and not isinstance(value, Mapping):
        raise ContractError("bad_claim", f"{what} must be an object")
    if value.keys() == required:
        return value
    missing = sorted(required - value.keys())
    if missing:
        raise ContractError("missing_claim", f"{what} lacks {missing}")
    unknown = sorted(value.keys() - required - optional)
    if unknown:
        raise ContractError("unknown_claim", f"{what} holds {unknown}, which this version does not know")
    return value


def require_text(claims: Claims, name: str) -> str:
    """A member that is text of a sane length."""
    value = claims[name]
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        raise _claim_error(name, f"text of 1 to {MAX_TEXT} characters")
    return value


def require_long_text(claims: Claims, name: str) -> str:
    """A member that is text, perhaps empty, as long as the token allows: a raw query string."""
    value = claims[name]
    if not isinstance(value, str):
        raise _claim_error(name, "text")
    return value


def require_integer(claims: Claims, name: str, *, least: int = 0) -> int:
    """A member that is a whole number, not a boolean, and at least `least`."""
    value = claims[name]
    if type(value) is not int or value < least:
        raise _claim_error(name, f"a whole number from {least} on")
    return value


def require_digest_claim(claims: Claims, name: str) -> str:
    """A member that is SHA-256 in lower-case hex."""
    value = claims[name]
    if not is_digest(value):
        raise _claim_error(name, "64 lower-case hex digits")
    return value


def require_token_id(claims: Claims, name: str) -> str:
    """A member that is a random id of at least 96 bits, base64url."""
    value = claims[name]
    if not isinstance(value, str) or not _TOKEN_ID.match(value):
        raise _claim_error(name, "16 to 64 base64url characters")
    return value


def require_texts(claims: Claims, name: str, *, most: int) -> tuple[str, ...]:
    """A member that is a list of texts, at most `most` of them."""
    value = claims[name]
    if not isinstance(value, list) or len(value) > most:
        raise _claim_error(name, f"a list of at most {most} texts")
    for item in value:
        if not isinstance(item, str) or not 0 < len(item) <= MAX_TEXT:
            raise _claim_error(name, f"text of 1 to {MAX_TEXT} characters")
    return tuple(value)


def require_objects(claims: Claims, name: str, *, most: int) -> list[object]:
    """A member that is a list of 1 to `most` items, each still to be read."""
    value = claims[name]
    if not isinstance(value, list) or not 0 < len(value) <= most:
        raise _claim_error(name, f"a list of 1 to {most} objects")
    return value


def require_one_of(claims: Claims, name: str, allowed: frozenset[str]) -> str:
    """A member that is one of the `allowed` values."""
    value = claims[name]
    if not isinstance(value, str) or value not in allowed:
        raise _claim_error(name, f"one of {sorted(allowed)}")
    return value


def require_resource(claims: Claims, name: str) -> Resource:
    """A member that is {type, id}."""
    value = require_members(claims[name], name, required=_RESOURCE)
    return Resource(require_text(value, "type"), require_text(value, "id"))


def confirmation_key(claims: Claims, name: str = "cnf") -> str | None:
    """The confirmation claim (RFC 7800 section 3): the thumbprint in {"jkt": ...}, or None for `none`."""
    value = claims[name]
    if value == "none":
        return None
    jkt = require_members(value, name, required=_HOLDER)["jkt"]
    if not isinstance(jkt, str) or not _THUMBPRINT.match(jkt):
        raise _claim_error(name, '{"jkt": RFC 7638 thumbprint} or "none"')
    return jkt


def confirmation_claim(jkt: str | None) -> object:
    """The confirmation claim for a key's thumbprint, or `none`."""
    return "none" if jkt is None else {"jkt": jkt}


def _claim_error(name: str, expected: str) -> ContractError:
    return ContractError("bad_claim", f"{name} must be {expected}")

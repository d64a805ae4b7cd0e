"""Verifies an agent's proof of possession (proof.py) against the request it came with, by numbered steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from . import jws
from .digests import body_digest
from .jws import JWS_STEPS, TYP_PROOF, KeyFor, Step, TokenState, run_steps

MAX_AGE_SECONDS: Final = 60  # the life of a nonce
LEEWAY_SECONDS: Final = 5  # clocks of honest hosts differ by less
_CLAIMS: Final = frozenset({"sub", "htm", "path", "query", "bd", "iat", "jti", "nonce"})


class ProofClaims(NamedTuple):
    """The claims of a proof, and the `kid` that signed it."""

    agent: str
    kid: str
    method: str
    path: str
    query: str
    body_digest: str
    iat: int
    jti: str
    nonce: str

    @classmethod
    def from_claims(cls, value: Mapping[str, object], *, kid: str) -> Self:
        """Read claims strictly.

        Raises:
            ContractError: `bad_claim`, `missing_claim`, `unknown_claim`.
        """
        claims = jws.require_members(value, "the proof", required=_CLAIMS)
        return cls(
            agent=jws.require_text(claims, "sub"),
            kid=kid,
            method=jws.require_text(claims, "htm"),
            path=jws.require_long_text(claims, "path"),
            query=jws.require_long_text(claims, "query"),
            body_digest=jws.require_text(claims, "bd"),
            iat=jws.require_integer(claims, "iat"),
            jti=jws.require_token_id(claims, "jti"),
            nonce=jws.require_long_text(claims, "nonce"),
        )


@dataclass(slots=True, kw_only=True)
class _Proof(TokenState):
    """A proof during verification, with the request it came with."""

    method: str
    url_path: str
    query: str
    body: bytes
    accept_nonce: Callable[[str], bool]
    now: int
    max_age: int
    leeway: int
    claims: ProofClaims = field(init=False)  # set by the shape step, before any step that reads it


def verify_proof(
    token: str,
    *,
    key_for: KeyFor,
    method: str,
    url_path: str,
    query: str,
    body: bytes,
    accept_nonce: Callable[[str], bool],
    now: int,
    max_age: int = MAX_AGE_SECONDS,
    leeway: int = LEEWAY_SECONDS,
) -> ProofClaims:
    """Verify a proof against the request as received; the caller compares `agent` with the key's owner.

    Raises:
        VerificationError: at the step of `PROOF_STEPS`; code `use_nonce` when only the nonce is wrong.
    """
    return _verify(
        _Proof(
            unverified_token=token,
            typ=TYP_PROOF,
            key_for=key_for,
            method=method,
            url_path=url_path,
            query=query,
            body=body,
            accept_nonce=accept_nonce,
            now=now,
            max_age=max_age,
            leeway=leeway,
        ),
        PROOF_STEPS,
    )


def verify_proof_before_body(
    token: str,
    *,
    key_for: KeyFor,
    method: str,
    url_path: str,
    query: str,
    accept_nonce: Callable[[str], bool],
    now: int,
    max_age: int = MAX_AGE_SECONDS,
    leeway: int = LEEWAY_SECONDS,
) -> ProofClaims:
    """Verify a proof against the head of a request, before its body is read: all steps of `verify_proof` except `body`.

    It keeps bodies of unauthenticated callers out of memory and accepts nothing: the whole request still needs
    `verify_proof`.

    Raises:
        VerificationError: as `verify_proof`.
    """
    return _verify(
        _Proof(
            unverified_token=token,
            typ=TYP_PROOF,
            key_for=key_for,
            method=method,
            url_path=url_path,
            query=query,
            body=b"",
            accept_nonce=accept_nonce,
            now=now,
            max_age=max_age,
            leeway=leeway,
        ),
        tuple(step for step in PROOF_STEPS if step.check is not _body),
    )


def _verify(state: _Proof, steps: tuple[Step[_Proof], ...]) -> ProofClaims:
    run_steps(steps, state)
    return state.claims


def _shape(state: _Proof) -> None:
    state.claims = ProofClaims.from_claims(state.payload, kid=str(state.header["kid"]))


def _method(state: _Proof) -> str | None:
    return None if state.claims.method == state.method else "wrong_method"


def _path(state: _Proof) -> str | None:
    return None if state.claims.path == state.url_path else "wrong_path"


def _query(state: _Proof) -> str | None:
    return None if state.claims.query == state.query else "wrong_query"


def _body(state: _Proof) -> str | None:
    return None if state.claims.body_digest == body_digest(state.body) else "wrong_body"


def _age(state: _Proof) -> str | None:
    age = state.now - state.claims.iat
    if age < -state.leeway:
        return "issued_in_future"
    return "stale" if age > state.max_age else None


def _nonce(state: _Proof) -> str | None:
    return None if state.accept_nonce(state.claims.nonce) else "use_nonce"


PROOF_STEPS: Final[tuple[Step[_Proof], ...]] = (
    *JWS_STEPS,
    Step(10, "shape", "every claim known, present and of its type", _shape),
    Step(11, "method", "made for this method (RFC 9449 section 4.3)", _method),
    Step(12, "path", "made for this path", _path),
    Step(13, "query", "made for this query: it can change what is asked", _query),
    Step(14, "body", "made for this body: RFC 9449 covers none", _body),
    Step(15, "age", "made just now", _age),
    Step(
        16, "nonce", "made for this server, not earlier than it gave the nonce (RFC 9449 section 8)", _nonce
    ),
)
"""The numbered steps of `verify_proof`."""

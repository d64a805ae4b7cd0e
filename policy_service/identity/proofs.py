"""Authentication of API requests: the proof of an enrolled key, or an API key where those are enabled.

The proof covers method, path, query and body as they arrived, never a parsed form. The caller learns only that it
failed; the service's log has the failing step.

A nonce is a keyed hash of the current period, so none is stored. The current and the previous period are valid, so a
proof never fails at a boundary. A nonce only shows that a proof was made recently and for this deployment. Replays
within that time are harmless, because writes are bound to their body and idempotency key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import Final

import structlog
from sqlalchemy import Connection, bindparam, select
from sqlmodel import col

from countersign.contract import (
    ContractError,
    ErrorCode,
    ProofClaims,
    PublicKey,
    VerificationError,
    load,
    verify_proof,
    verify_proof_before_body,
)
from countersign.contract.keys import decode_base64url
from policy_service.errors import UnauthenticatedError
from policy_service.identity.agents import Caller, find_api_key, has_live_api_key
from policy_service.settings import Settings
from policy_service.storage.core import fetch
from policy_service.storage.credential_tables import AgentKeyRow
from policy_service.storage.database import Database
from policy_service.storage.unit_of_work import Clock, utc_now

_LABEL = b"countersign/nonce/v1\n"
_BYTES = 18  # 144 bits, 24 characters without padding


class Nonces:
    """The nonces of one deployment."""

    def __init__(self, secret: bytes, period_s: int) -> None:
        self._secret = secret
        self._period_s = period_s
        self._made: dict[int, str] = {}  # of the two valid periods: each answer and each proof needs them

    def current(self, now: datetime) -> str:
        """The nonce of a response."""
        return self._of(self._period(now))

    def accepts(self, nonce: str, now: datetime) -> bool:
        """Whether a nonce is recent; compared in constant time."""
        period = self._period(now)
        given = nonce.encode("utf-8", "replace")
        fresh = [hmac.compare_digest(given, self._of(p).encode()) for p in (period, period - 1)]
        return any(fresh)

    def _period(self, now: datetime) -> int:
        return int(now.timestamp()) // self._period_s

    def _of(self, period: int) -> str:
        if period not in self._made:
            self._made = {one: self._make(one) for one in (period - 1, period, period + 1)}
        return self._made[period]

    def _make(self, period: int) -> str:
        mac = hmac.digest(self._secret, _LABEL + str(period).encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(mac[:_BYTES]).decode().rstrip("=")


log = structlog.get_logger(__name__)

_PROOF_REFUSED = (
    "the proof is not valid for this request; usual causes: its key is not enrolled or was revoked, it names another "
    "agent than the key's, something else was signed than was sent, or the caller's clock is off (compare the Date of "
    "this answer); the service's log says which, as proof_refused"
)

PROOF_INSTRUCTIONS: Final = (
    "prove who you are: sign this request into an Agent-Proof header with an enrolled key, using the nonce in "
    "Agent-Nonce"
)

_BEARER = "Bearer "
_KID = re.compile(r"[A-Za-z0-9_-]{43}")  # a thumbprint; nothing else is looked up or logged
_MAX_HEADER = 512  # bytes of a proof's header, which has three short members


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The parts of a request's head that a proof covers, as they arrived."""

    method: str
    path: str
    query: str
    proof: str | None
    authorization: str | None


@dataclass(frozen=True, slots=True)
class LiveKey:
    """A valid key, its agent, and the issuer settings it was vouched under (None: enrolled by an operator)."""

    agent: str
    key: PublicKey
    trust: str | None


# Used by every request: the statement and each key are built once.
_LIVE_KEY = select(
    col(AgentKeyRow.agent), col(AgentKeyRow.x), col(AgentKeyRow.trust), col(AgentKeyRow.expires_at)
).where(col(AgentKeyRow.kid) == bindparam("kid"), col(AgentKeyRow.revoked_at).is_(None))


@lru_cache(maxsize=4096)
def _public_key(x: str) -> PublicKey:
    return PublicKey.from_jwk({"kty": "OKP", "crv": "Ed25519", "x": x})


def find_key(conn: Connection, kid: str, now: datetime) -> LiveKey | None:
    """The key with this id, unless it is revoked or expired."""
    for agent, x, trust, expires_at in fetch(conn, _LIVE_KEY, {"kid": kid}):
        if expires_at is None or now < expires_at:
            return LiveKey(agent, _public_key(x), trust)
    return None


class Authenticator:
    """Verifies every agent's requests."""

    def __init__(self, db: Database, nonces: Nonces, settings: Settings, clock: Clock = utc_now) -> None:
        self._db = db
        self._nonces = nonces
        self._settings = settings
        self._issuers = frozenset(one.trust for one in settings.trusted_issuers)
        self._clock = clock

    def current_nonce(self) -> str:
        """The value of ``Agent-Nonce``."""
        return self._nonces.current(self._clock())

    async def check_head(self, presented: RequestHead) -> None:
        """Refuse a request by its head, so that a stranger's body is never read. It proves nothing yet: the body may
        differ from the signed one, and the key may be revoked before it arrives.

        Raises:
            UnauthenticatedError: as `authenticate`, except for the body.
        """
        await self._find_caller(presented, None)

    async def authenticate(self, presented: RequestHead, body: bytes) -> Caller:
        """The caller of this request.

        Raises:
            UnauthenticatedError: no proof, an invalid one (bad_proof), or one with an old nonce (use_nonce).
        """
        return await self._find_caller(presented, body)

    async def _find_caller(self, presented: RequestHead, body: bytes | None) -> Caller:
        if presented.proof is not None:
            return await self._by_proof(presented, body, presented.proof)
        if presented.authorization is not None and presented.authorization.startswith(_BEARER):
            return await self._by_api_key(presented.authorization.removeprefix(_BEARER))
        raise UnauthenticatedError(PROOF_INSTRUCTIONS)

    async def is_live(self, caller: Caller) -> bool:
        """Whether an earlier caller could still authenticate: its key, or an API key of its own, is live."""
        jkt = caller.jkt
        if jkt is None:
            return await self._db.read(lambda conn: has_live_api_key(conn, caller.agent))
        found = await self._live_key(jkt)
        return found is not None and found.agent == caller.agent

    async def _by_proof(self, presented: RequestHead, body: bytes | None, proof: str) -> Caller:
        kid = _unverified_kid(proof)
        found = None if kid is None else await self._live_key(kid)
        if found is None:
            raise self._refused("the proof's key is not enrolled, was revoked, or its time is over", kid)
        return self._verify(presented, body, proof, found.key, found.agent)

    def authenticate_new_key(self, presented: RequestHead, body: bytes, key: PublicKey, agent: str) -> None:
        """Require that the sender holds this unknown key and names that agent.

        Raises:
            UnauthenticatedError: no proof, an invalid one (bad_proof), or one with an old nonce (use_nonce).
        """
        self._verify(presented, body, presented.proof or "", key, agent)

    async def _live_key(self, kid: str) -> LiveKey | None:
        """A valid key; one vouched for under other settings of its issuer is not."""
        now = self._clock()
        found = await self._db.read_row(lambda conn: find_key(conn, kid, now))
        return found if found is None or found.trust is None or found.trust in self._issuers else None

    def _verify(
        self, presented: RequestHead, body: bytes | None, proof: str, key: PublicKey, agent: str
    ) -> Caller:
        kid, now = key.kid, self._clock()
        verify: Callable[..., ProofClaims] = verify_proof_before_body
        if body is not None:
            verify = partial(verify_proof, body=body)
        try:
            claims = verify(
                proof,
                key_for=lambda asked: key if asked == key.kid else None,
                method=presented.method,
                url_path=presented.path,
                query=presented.query,
                accept_nonce=lambda nonce: self._nonces.accepts(nonce, now),
                now=int(now.timestamp()),
                max_age=self._settings.proof_max_age_s,
                leeway=self._settings.clock_leeway_s,
            )
        except VerificationError as error:
            if error.code == ErrorCode.USE_NONCE.value:
                raise UnauthenticatedError(
                    "sign the request again with the nonce of this answer", code=ErrorCode.USE_NONCE
                ) from error
            raise self._refused(f"step {error.step}: {error}", kid) from error
        if claims.agent != agent:
            raise self._refused(f"the key belongs to {agent!r}, the proof says {claims.agent!r}", kid)
        return Caller(agent, key.kid)

    async def _by_api_key(self, secret: str) -> Caller:
        if not self._settings.api_keys:
            raise UnauthenticatedError("API keys are switched off here; enrol a key and send proofs")
        agent = await self._db.read(lambda conn: find_api_key(conn, secret))
        if agent is None:
            raise UnauthenticatedError("the API key is not known or was revoked; use another")
        return Caller(agent, None, "api_key")

    def _refused(self, why: str, kid: str | None) -> UnauthenticatedError:
        log.warning("proof_refused", why=why, kid=kid)
        # One text for every cause: known keys and failing steps are only for the operator's log.
        return UnauthenticatedError(_PROOF_REFUSED, code=ErrorCode.BAD_PROOF)


def _unverified_kid(unverified_token: str) -> str | None:
    """The key id in a proof; it selects the key to verify with and proves nothing."""
    head = unverified_token.partition(".")[0]
    if not 0 < len(head) <= _MAX_HEADER:
        return None
    try:
        header = load(decode_base64url(head))
    except (ContractError, ValueError):
        return None
    kid = header.get("kid") if isinstance(header, dict) else None
    return kid if isinstance(kid, str) and _KID.fullmatch(kid) else None

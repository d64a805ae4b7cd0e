"""Verify releases and receipts by numbered step before anything fires. Only signatures are trusted.

Firing requires a `Permit`, and only `Enforcer.permit` makes one, from a receipt that passed every step of
`contract.verify_receipt` for exactly these effects. Its remaining time is computed from the service's time and our
monotonic clock, always too short rather than too long. Keys come from the service's JWKS: cached, refreshed for an
unknown kid at most twice a minute, never used when stale; with `issuer_keys` only the pinned ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from countersign.clock import Clock
from countersign.contract.effect import Effect
from countersign.contract.errors import VerificationError
from countersign.contract.keys import KeySet, PrivateKey
from countersign.contract.receipt import ReceiptClaims, ReceiptEffect, verify_receipt
from countersign.contract.release import Kind
from countersign.contract.verify import Expectation, VerifiedRelease, verify_release, verify_transaction
from countersign.errors import ReleaseRefused
from countersign.journal import Journal
from countersign.service.client import Service
from countersign.settings import ISSUER_KEYS_VARIABLE, Settings

T = TypeVar("T")
log: Final = logging.getLogger("countersign")
_SEAL: Final = object()
FIRE_BY_PASSED: Final = "fire_by_passed"
_UNKNOWN_KID: Final = "unknown_kid"
_UNPINNED: Final = (
    f"It is signed with a key that {ISSUER_KEYS_VARIABLE} does not pin. Tell the operator: compare the pins with "
    "`policy-service issuer-keys` on the service's host; if they differ after a rotation, pin the new keys; if not, "
    "something else than the service answers."
)


def issuer_of(settings: Settings) -> str:
    """The issuer that every release and receipt must name."""
    return settings.issuer or settings.url.rstrip("/")


@dataclass(frozen=True, slots=True)
class ServerTime:
    """The service's time, extrapolated by our monotonic clock, never too early.

    The receipt was signed some time after we requested it, and its `iat` is truncated to whole seconds. Counting
    from the request, plus one second, can only make us stop early. This machine's wall clock is not used.
    """

    iat: int
    asked_at: float  # monotonic

    def latest(self, clock: Clock) -> float:
        """The latest time that the service's clock can show now."""
        return self.iat + 1 + (clock.monotonic() - self.asked_at)


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission to fire these effects under this attempt until `fire_by`. Made by `Enforcer.permit` only."""

    attempt_id: str
    effect_ids: frozenset[str]
    fire_by: int
    server_time: ServerTime
    seal: object = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.seal is not _SEAL:
            raise TypeError("a Permit comes from a verified receipt only")

    def seconds_left(self, clock: Clock) -> float:
        """For how long a call may still start, at least."""
        return self.fire_by - self.server_time.latest(clock)


class KeyCache:
    """The service's signing keys, with their maximum age."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._keys: KeySet | None = None
        self._read_at = 0.0

    async def current(self, service: Service) -> KeySet:
        """The keys, read again if they are too old."""
        if self._keys is None or self._age() > self._settings.jwks_seconds:
            await self._read(service)
        return self._require()

    async def refreshed(self, service: Service) -> KeySet:
        """The keys after a token named an unknown one. Rate-limited, so that a flood of such tokens causes no flood
        of requests.
        """
        if self._keys is None or self._age() > self._settings.jwks_retry_seconds:
            await self._read(service)
        return self._require()

    async def _read(self, service: Service) -> None:
        published, self._read_at = await service.jwks(), self._clock.monotonic()
        self._keys = self._pinned(published)

    def _pinned(self, published: KeySet) -> KeySet:
        """The pinned keys, or all without pins. Verification knows no others, so it needs no step of its own."""
        pins = self._settings.issuer_keys
        if not pins:
            return published
        others = sorted(key.kid for key in published if key.kid not in pins)
        if others:
            log.warning(
                "%s publishes keys that %s does not pin, and their signatures are refused: %s. If they are the "
                "service's next keys (`policy-service issuer-keys`), pin them before it signs with them",
                self._settings.url, ISSUER_KEYS_VARIABLE, ",".join(others),
            )  # fmt: skip
        return KeySet(key for key in published if key.kid in pins)

    def _age(self) -> float:
        return self._clock.monotonic() - self._read_at

    def _require(self) -> KeySet:
        if self._keys is None:
            raise AssertionError("keys are read before they are used")
        return self._keys


class Enforcer:
    """Verifies tokens for one agent process."""

    def __init__(
        self, settings: Settings, key: PrivateKey, journal: Journal, clock: Clock, keys: KeyCache
    ) -> None:
        self._settings = settings
        self._jkt = key.public.kid
        self._journal = journal
        self._clock = clock
        self._keys = keys

    async def releases(
        self, service: Service, effects: Sequence[Effect], tokens: Sequence[str]
    ) -> tuple[VerifiedRelease, ...]:
        """Verify the releases of a whole transaction, one for each effect, in order.

        Raises:
            ReleaseRefused: at the numbered step that refused.
        """

        def verify(keys: KeySet) -> tuple[VerifiedRelease, ...]:
            return verify_transaction(
                tokens,
                effects,
                iss=issuer_of(self._settings),
                aud=self._settings.agent,
                keys=keys,
                epoch_at_least=self._journal.epochs.highest(issuer_of(self._settings)),
                now=int(self._clock.wall()),
                my_key_jkt=self._jkt,
                allow_dev=self._settings.allow_dev,
            )

        return await self._verified(service, effects[0].txn, verify)

    async def compensation_release(
        self, service: Service, effect: Effect, token: str, *, compensates: str, txn_digest: str
    ) -> VerifiedRelease:
        """Verify the release of one compensation.

        Raises:
            ReleaseRefused: at the numbered step that refused.
        """

        def verify(keys: KeySet) -> VerifiedRelease:
            return verify_release(
                token,
                Expectation(
                    iss=issuer_of(self._settings),
                    aud=self._settings.agent,
                    keys=keys,
                    effect=effect,
                    txn_digest=txn_digest,
                    epoch_at_least=self._journal.epochs.highest(issuer_of(self._settings)),
                    now=int(self._clock.wall()),
                    my_key_jkt=self._jkt,
                    allow_dev=self._settings.allow_dev,
                    kind="compensate",
                    compensates=compensates,
                ),
            )

        return await self._verified(service, effect.txn, verify)

    async def permit(
        self,
        service: Service,
        effects: Sequence[Effect],
        receipt: str,
        *,
        attempt_id: str,
        txn_digest: str,
        asked_at: float,
        releases: Sequence[VerifiedRelease] = (),
        kind: Kind = "effect",
    ) -> Permit:
        """Verify a receipt for exactly these effects. `asked_at` is our monotonic time of the request.

        Raises:
            ReleaseRefused: at the numbered step that refused; `reason` is `fire_by_passed` if it is only too late.
        """
        # a renewal: the tokens were compared at the redemption
        unknown: list[str | None] = [None] * len(effects)
        tokens = [release.claims.jti for release in releases] or unknown
        expected = [ReceiptEffect(e.effect_id, e.digest, jti) for e, jti in zip(effects, tokens, strict=True)]

        def verify(keys: KeySet) -> ReceiptClaims:
            return verify_receipt(
                receipt,
                iss=issuer_of(self._settings),
                aud=self._settings.agent,
                agent=self._settings.agent,
                keys=keys,
                txn=effects[0].txn,
                txn_digest=txn_digest,
                attempt=attempt_id,
                effects=expected,
                now=int(self._clock.wall()),
                epoch_at_least=self._journal.epochs.highest(issuer_of(self._settings)),
                my_key_jkt=self._jkt,
                kind=kind,
            )

        claims = await self._verified(service, effects[0].txn, verify)
        self._journal.receipts.keep(attempt_id, claims.txn, receipt)
        self._journal.epochs.observe(issuer_of(self._settings), claims.epoch)
        return Permit(
            attempt_id=attempt_id,
            effect_ids=frozenset(effect.effect_id for effect in effects),
            fire_by=claims.fire_by,
            server_time=ServerTime(claims.iat, asked_at),
            seal=_SEAL,
        )

    async def _verified(self, service: Service, txn: str, verify: Callable[[KeySet], T]) -> T:
        try:
            try:
                return verify(await self._keys.current(service))
            except VerificationError as error:
                if error.code != _UNKNOWN_KID:
                    raise
                return verify(await self._keys.refreshed(service))
        except VerificationError as error:
            log.error(
                "transaction %s: step %d refused: %s %s", txn[:12], error.step, error.code, error.detail
            )
            unpinned = error.code == _UNKNOWN_KID and self._settings.issuer_keys
            advice = _UNPINNED if unpinned else ""
            raise ReleaseRefused(txn, error.code, step=error.step, advice=advice) from error

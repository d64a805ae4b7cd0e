"""Metadata and keys of external issuers, cached for a limited time.

Only https (or this machine) is used, no redirect is followed, and a response is limited in size and time. Metadata
must name exactly the requested issuer (OpenID Connect Discovery 1.0, section 4.3) and leads to no bare address. A
document is fetched again after an hour, and keys also for an unknown key id. Either happens at most twice a minute,
whether or not the issuer answers, so a stranger's tokens cannot flood an issuer. While an issuer does not answer, its
last answer counts for up to twelve hours; after that, nothing it signed is accepted.

Each key of a set (RFC 7517) is accepted or refused on its own. A set may list keys of other uses and newer kinds, so
an unusable one does not affect the others (section 5); it is logged. Two keys may share an id (section 4.5): a
signature is tried with each that fits its algorithm. Only the id and the public key are read, never certificates.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx2
import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key
from joserfc.jws import JWSRegistry
from joserfc.util import base64_to_int

from countersign.contract import ErrorCode
from policy_service import metrics
from policy_service.errors import ServerError, StartError
from policy_service.health import Health
from policy_service.http_clients import DIRECT, Route, http_client, http_transport
from policy_service.issuers import ALGORITHMS, require_published_url, require_safe_url

_MIN_RSA_BITS = 2048  # bits; RFC 7518 sections 3.3 and 3.5
_PUBLIC_MEMBERS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_PRIVATE_MEMBERS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
_SIGNING_CURVES = frozenset({"P-256", "P-384", "P-521", "Ed25519", "Ed448"})
_SIGNING_USES = frozenset({"sig", "jwt-svid"})  # the second in SPIFFE trust bundles


@dataclass(frozen=True, slots=True)
class RefusedKey:
    """An unused entry: its position in the set, its id, and the reason."""

    pointer: str
    kid: object
    why: str


@dataclass(frozen=True, slots=True)
class PublishedKeys:
    """The keys of an issuer."""

    usable: tuple[Key, ...]
    refused: tuple[RefusedKey, ...] = ()

    def named(self, kid: str | None) -> list[Key]:
        """The keys that may have signed a token with this id, or without one."""
        return [key for key in self.usable if kid is None or key.kid == kid]


def parse_jwks(found: Any) -> PublishedKeys:
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
            usable.append(_parse_key(entry))
        except (ValueError, TypeError, KeyError, OverflowError, JoseError, UnsupportedAlgorithm) as error:
            kid = entry.get("kid") if isinstance(entry, dict) else None
            why = str(error) if type(error) is ValueError else f"it is no key ({type(error).__name__})"
            refused.append(RefusedKey(f"/keys/{index}", kid, why[:200]))
    return PublishedKeys(tuple(usable), tuple(refused))


def _parse_key(entry: Any) -> Key:
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    given = {name: value for name, value in entry.items() if value is not None}
    kty = given.get("kty")
    members = _PUBLIC_MEMBERS.get(kty) if isinstance(kty, str) else None
    if members is None:
        raise ValueError(f"its kty {kty!r} is not one of {', '.join(_PUBLIC_MEMBERS)}")
    _require_signing(given)
    if kty == "RSA" and (bits := base64_to_int(given["n"]).bit_length()) < _MIN_RSA_BITS:
        raise ValueError(f"it is an RSA key of {bits} bits; {_MIN_RSA_BITS} is the least")
    named = {name: given[name] for name in ("kty", "kid", "alg", *members) if name in given}
    key = JWKRegistry.import_key(named)
    key.ensure_kid()  # a key without an id gets its thumbprint (RFC 7638)
    if not JWSRegistry.filter_algorithms(key, list(ALGORITHMS)):
        raise ValueError(f"its alg {given.get('alg')!r} does not fit its kty and crv")
    return key


def _require_signing(given: dict[str, Any]) -> None:
    """Require a public key for signatures, as far as its members say; joserfc parses the key itself."""
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


log = structlog.get_logger(__name__)

T = TypeVar("T")

_REFRESH_S = 3_600
_MAX_STALE_S = 43_200  # without a newer answer
_RETRY_S = 30
TIMEOUT_S = 5.0
TOTAL_TIMEOUT_S = 10.0  # for a whole response, even a slow one
_MAX_BYTES = 1_048_576
_MAX_REFUSED_LOGGED = 20
_DISCOVERY = "/.well-known/openid-configuration"


def issuer_client(transport: httpx2.AsyncBaseTransport) -> httpx2.AsyncClient:
    """The HTTP client of all requests to issuers. ``transport`` is a :func:`bounded_transport`."""
    return http_client(transport, timeout=TIMEOUT_S, accept="application/json")


class _BoundedTransport(httpx2.AsyncBaseTransport):
    """Ends a response that is too long. The bytes on the wire are counted and compression is refused, so a zip bomb
    stays small.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, health: Health | None) -> None:
        self._inner = inner
        self._health = health

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx2.HTTPError, asyncio.CancelledError):  # cancelled: the timeout of the caller
            self._report(request.url.host, "does not answer")
            raise
        self._report(
            request.url.host, None if response.status_code < 500 else "answers with a fault of its own"
        )
        if response.headers.get("Content-Encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.ReadError("it is compressed, which was not requested")
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _BoundedStream(response.stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _report(self, host: str, fault: str | None) -> None:
        if fault is not None:
            metrics.ISSUER_FAILURES.labels(host).inc()
        if self._health is not None:
            self._health.say("issuers", None if fault is None else f"{host} {fault}", host)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = _MAX_BYTES
        async for chunk in self._inner:
            left -= len(chunk)
            if left < 0:
                raise httpx2.ReadError(f"it is longer than {_MAX_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def bounded_transport(
    transport: httpx2.AsyncBaseTransport | None = None, health: Health | None = None, route: Route = DIRECT
) -> httpx2.AsyncBaseTransport:
    """A transport with bounded responses that reports failing hosts; by default over the network."""
    return _BoundedTransport(transport or http_transport(route), health)


async def get_json_document(client: httpx2.AsyncClient, url: str, what: str, **headers: str) -> Any:
    """The JSON document at an address, by one bounded GET.

    Raises:
        WorldError: issuer_unavailable.
    """
    response = await get_response(client, url, what, **headers)
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError) as error:
        raise issuer_unavailable(f"{what} answered no JSON") from error


async def get_response(client: httpx2.AsyncClient, url: str, what: str, **headers: str) -> httpx2.Response:
    """The response, status 200, of one bounded GET.

    Raises:
        WorldError: issuer_unavailable.
    """
    try:
        require_safe_url(url)
        async with asyncio.timeout(TOTAL_TIMEOUT_S):
            response = await client.get(url, headers=headers)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, TimeoutError) as error:
        raise issuer_unavailable(f"{what} does not answer as it should ({type(error).__name__})") from error
    if response.status_code != 200:
        raise issuer_unavailable(f"{what} answered {response.status_code}")
    return response


def issuer_unavailable(detail: str) -> ServerError:
    """The error for the caller; it is logged too."""
    log.warning("issuer_unavailable", why=detail)
    return ServerError(f"{detail}; try again later", code=ErrorCode.ISSUER_UNAVAILABLE)


class _CachedDocument(Generic[T]):
    """One document of an issuer, and the time it was fetched."""

    def __init__(self, fetch: Callable[[], Awaitable[T]], monotonic: Callable[[], float]) -> None:
        self._fetch = fetch
        self._monotonic = monotonic
        self._value: T | None = None
        self._fetched_at = self._tried_at = float("-inf")
        self._one_at_a_time = asyncio.Lock()

    async def get(self, suffices: Callable[[T], bool]) -> T:
        """The document, fetched again if it is old or does not suffice.

        Raises:
            WorldError: issuer_unavailable; there is no usable one.
        """
        if (value := self._current(suffices)) is not None:
            return value
        last = self._usable()
        if last is not None and suffices(last) and self._one_at_a_time.locked():
            return last  # another task is fetching it, perhaps from a hanging issuer
        async with self._one_at_a_time:
            if (value := self._current(suffices)) is not None:  # another task fetched it meanwhile
                return value
            return await self._fetch_unless_tried()

    def forget(self) -> None:
        """Drop the last document."""
        self._value = None

    async def _fetch_unless_tried(self) -> T:
        if self._in_retry_pause():
            raise issuer_unavailable("the issuer did not answer a moment ago")
        try:
            value = await self._fetch()
        except ServerError:
            self._tried_at = self._monotonic()
            if (last := self._usable()) is None:
                raise
            return last
        self._value = value
        self._fetched_at = self._tried_at = self._monotonic()
        return value

    def _current(self, suffices: Callable[[T], bool]) -> T | None:
        value = self._usable()
        if value is None or self._in_retry_pause():
            return value
        fresh = self._monotonic() - self._fetched_at < _REFRESH_S
        return value if fresh and suffices(value) else None

    def _usable(self) -> T | None:
        return self._value if self._monotonic() - self._fetched_at < _MAX_STALE_S else None

    def _in_retry_pause(self) -> bool:
        return self._monotonic() - self._tried_at < _RETRY_S


class IssuerKeys:
    """The metadata and keys of one issuer."""

    def __init__(
        self,
        name: str,
        *,
        client: httpx2.AsyncClient,
        issuer: str | None = None,
        jwks_url: str | None = None,
        jwks_file: Path | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.issuer = issuer
        self._client = client
        self._jwks_url = jwks_url
        self._fixed = None if jwks_file is None else _read_jwks_file(name, jwks_file)
        self._monotonic = monotonic
        self._metadata = _CachedDocument(self._fetch_metadata, self._now)
        self._keys = _CachedDocument(self._fetch_keys, self._now)

    async def metadata(self) -> Mapping[str, Any]:
        """The issuer's metadata.

        Raises:
            WorldError: issuer_unavailable; also if it describes another issuer.
        """
        return await self._metadata.get(lambda _: True)

    async def keys(self, kid: str | None) -> PublishedKeys:
        """The issuer's keys, fetched again if none has this id.

        Raises:
            WorldError: issuer_unavailable.
        """
        if self._fixed is not None:
            return self._fixed
        return await self._keys.get(lambda published: bool(published.named(kid)))

    def _now(self) -> float:
        return self._monotonic()

    async def _fetch_metadata(self) -> Mapping[str, Any]:
        asked = f"{str(self.issuer).rstrip('/')}{_DISCOVERY}"
        found = await get_json_document(self._client, asked, f"the discovery of {self.name!r}")
        if not isinstance(found, dict) or found.get("issuer") != self.issuer:
            raise issuer_unavailable(
                f"the discovery of {self.name!r} describes another issuer than {self.issuer!r}"
            )
        return found

    async def _fetch_keys(self) -> PublishedKeys:
        url = self._jwks_url or self.published(await self.metadata(), "jwks_uri")
        try:
            published = parse_jwks(await get_json_document(self._client, url, f"the keys of {self.name!r}"))
        except ValueError as error:
            raise issuer_unavailable(f"the keys of {self.name!r} are no JWK set") from error
        _log_refused(self.name, published)
        if not published.usable:
            self._keys.forget()  # the issuer has answered: its earlier keys are void
            raise issuer_unavailable(f"the keys of {self.name!r} hold none that verifies a signature")
        return published

    def published(self, metadata: Mapping[str, Any], which: str) -> str:
        """An address from the issuer's metadata.

        Raises:
            WorldError: issuer_unavailable; the address is missing or not permitted.
        """
        try:
            return require_published_url(str(metadata.get(which)), str(self.issuer))
        except ValueError as error:
            raise issuer_unavailable(f"the discovery of {self.name!r} names no usable {which}") from error


def _log_refused(name: str, published: PublishedKeys) -> None:
    for entry in published.refused[:_MAX_REFUSED_LOGGED]:
        log.warning(
            "issuer_key_refused", issuer=name, key=entry.pointer, kid=repr(entry.kid)[:100], why=entry.why
        )


def _read_jwks_file(name: str, path: Path) -> PublishedKeys:
    try:
        published = parse_jwks(json.loads(path.read_text()))
    except (OSError, ValueError, RecursionError) as error:
        raise StartError(f"the key set {path} cannot be used: {error}") from error
    _log_refused(name, published)
    if not published.usable:
        why = "; ".join(f"{entry.pointer}: {entry.why}" for entry in published.refused[:3])
        raise StartError(f"the key set {path} holds no key that verifies a signature: {why or 'it is empty'}")
    return published

"""What another issuer publishes about itself: its metadata and its keys, fetched lately or not at all.

Rules: only https (or this machine), no redirect is followed, an answer is bounded in size and time, and metadata must
name exactly the issuer it was asked of (OpenID Connect Discovery 1.0, section 4.3) and leads to no bare address. Keys
are kept for an hour; a key id nobody knows asks again, at most twice a minute whether or not the issuer answers, so a
stranger's tokens can neither flood an issuer nor make others wait for it. When an issuer cannot be reached and its keys
are too old, nothing it signed is believed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import structlog
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key, KeySet

from countersign.contract import ErrorCode
from policy_service import metrics
from policy_service.errors import StartError, WorldError
from policy_service.health import Health
from policy_service.http_clients import DIRECT, Route, http_client, network
from policy_service.issuers import require_published_url, require_safe_url

log = structlog.get_logger(__name__)

T = TypeVar("T")

_KEEP_S = 3_600
_AGAIN_S = 30
TIMEOUT_S = 5.0
PATIENCE_S = 10.0  # for one whole answer, however slowly it drips
_MAX_BYTES = 1_048_576
_DISCOVERY = "/.well-known/openid-configuration"


def issuer_client(transport: httpx2.AsyncBaseTransport) -> httpx2.AsyncClient:
    """The client every question to an issuer goes through. ``transport`` is a :func:`bounded` one."""
    return http_client(transport, timeout=TIMEOUT_S, accept="application/json")


class _Bounded(httpx2.AsyncBaseTransport):
    """Ends an answer that is too long, whoever reads it. What is counted is what arrives, so a bomb counts small:
    nobody asks for compression."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, health: Health | None) -> None:
        self._inner = inner
        self._health = health

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx2.HTTPError, asyncio.CancelledError):  # cancelled: nobody's patience was long enough
            self._tell(request.url.host, "does not answer")
            raise
        self._tell(
            request.url.host, None if response.status_code < 500 else "answers with a fault of its own"
        )
        if response.headers.get("Content-Encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.ReadError("it is compressed, which nobody asked for")
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Counted(response.stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _tell(self, host: str, fault: str | None) -> None:
        if fault is not None:
            metrics.ISSUER_FAILURES.labels(host).inc()
        if self._health is not None:
            self._health.say("issuers", None if fault is None else f"{host} {fault}", host)


class _Counted(httpx2.AsyncByteStream):
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


def bounded(
    transport: httpx2.AsyncBaseTransport | None = None, health: Health | None = None, route: Route = DIRECT
) -> httpx2.AsyncBaseTransport:
    """A transport whose answers are bounded, and which notes who gives none; by default the network's."""
    return _Bounded(transport or network(route), health)


async def get_json(client: httpx2.AsyncClient, url: str, what: str, **headers: str) -> Any:
    """One bounded GET.

    Raises:
        WorldError: issuer_unavailable.
    """
    try:
        require_safe_url(url)
        async with asyncio.timeout(PATIENCE_S):
            response = await client.get(url, headers=headers)
        if response.status_code != 200:
            raise unavailable(f"{what} answered {response.status_code}")
        return json.loads(response.content)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, RecursionError, TimeoutError) as error:
        raise unavailable(f"{what} does not answer as it should ({type(error).__name__})") from error


def unavailable(detail: str) -> WorldError:
    """What a caller hears when the other side is at fault; the log says the same."""
    log.warning("issuer_unavailable", why=detail)
    return WorldError(f"{detail}; try again later", code=ErrorCode.ISSUER_UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class _Kept:
    value: Any
    at: float


class IssuerKeys:
    """The metadata and the keys of one issuer."""

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
        self._fixed = None if jwks_file is None else _keys_in(jwks_file)
        self._monotonic = monotonic
        self._metadata: _Kept | None = None
        self._keys: _Kept | None = None
        self._failed_at = float("-inf")
        self._one_at_a_time = asyncio.Lock()

    async def metadata(self) -> Mapping[str, Any]:
        """The issuer's own description of itself.

        Raises:
            WorldError: issuer_unavailable; also where it describes another issuer.
        """
        async with self._one_at_a_time:
            return await self._patiently(self._read_metadata)

    async def keys(self, kid: str | None) -> KeySet:
        """Its keys, fetched again when none has this id.

        Raises:
            WorldError: issuer_unavailable.
        """
        if self._fixed is not None:
            return self._fixed
        if (kept := self._enough(kid)) is not None:
            return kept
        async with self._one_at_a_time:
            if (kept := self._enough(kid)) is not None:  # somebody else fetched them meanwhile
                return kept
            fetched = await self._patiently(self._fetch_keys)
            self._keys = _Kept(fetched, self._monotonic())
            return fetched

    def _enough(self, kid: str | None) -> KeySet | None:
        """The keys at hand, when they are young and either know this id or were asked for a moment ago."""
        age = self._age(self._keys)
        if self._keys is None or age >= _KEEP_S or not (_has(self._keys, kid) or age < _AGAIN_S):
            return None
        keys: KeySet = self._keys.value
        return keys

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask, unless it failed a moment ago: then the answer is the same, and at once."""
        if self._monotonic() - self._failed_at < _AGAIN_S:
            raise unavailable(f"{self.name!r} did not answer a moment ago")
        try:
            return await ask()
        except WorldError:
            self._failed_at = self._monotonic()
            raise

    async def _read_metadata(self) -> Mapping[str, Any]:
        if self._metadata is None or self._age(self._metadata) >= _KEEP_S:
            asked = f"{str(self.issuer).rstrip('/')}{_DISCOVERY}"
            found = await get_json(self._client, asked, f"the discovery of {self.name!r}")
            if not isinstance(found, dict) or found.get("issuer") != self.issuer:
                raise unavailable(
                    f"the discovery of {self.name!r} describes another issuer than {self.issuer!r}"
                )
            self._metadata = _Kept(found, self._monotonic())
        metadata: Mapping[str, Any] = self._metadata.value
        return metadata

    async def _fetch_keys(self) -> KeySet:
        url = self._jwks_url or self.published(await self._read_metadata(), "jwks_uri")
        found = await get_json(self._client, url, f"the keys of {self.name!r}")
        try:
            return _key_set(found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise unavailable(f"the keys of {self.name!r} are no JWK set") from error

    def published(self, metadata: Mapping[str, Any], which: str) -> str:
        """An address the issuer's metadata names.

        Raises:
            WorldError: issuer_unavailable; it names none, or one that leads elsewhere.
        """
        try:
            return require_published_url(str(metadata.get(which)), str(self.issuer))
        except ValueError as error:
            raise unavailable(f"the discovery of {self.name!r} names no usable {which}") from error

    def _age(self, kept: _Kept | None) -> float:
        return float("inf") if kept is None else self._monotonic() - kept.at


def _key_set(found: Any) -> KeySet:
    """Public signing keys; what we cannot use is passed over, as RFC 7517 section 5 asks, and so are secrets."""
    keys = [key for one in found["keys"] if (key := _usable(one)) is not None]
    kids = [key.kid for key in keys if key.kid is not None]
    if not keys or len(kids) != len(set(kids)):
        raise ValueError("no key here signs, or two have one id")
    return KeySet(keys)


def _usable(one: Any) -> Key | None:
    if not isinstance(one, dict) or one.get("kty") not in {"RSA", "EC", "OKP"} or "d" in one:
        return None
    if one.get("use", "sig") != "sig":
        return None
    try:
        return JWKRegistry.import_key(one)
    except (JoseError, ValueError, TypeError, KeyError):
        return None


def _has(kept: _Kept | None, kid: str | None) -> bool:
    return kid is None or (kept is not None and any(key.kid == kid for key in kept.value.keys))


def _keys_in(path: Path) -> KeySet:
    try:
        return _key_set(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StartError(f"the key set {path} cannot be used: {error}") from error

"""What another issuer publishes about itself: its metadata and its keys, fetched lately or not at all.

Rules: only https (or this machine), no redirect is followed, an answer is bounded in size and time, and metadata must
name exactly the issuer it was asked of (OpenID Connect Discovery 1.0, section 4.3). Keys are kept for an hour; a key id
nobody knows asks again, at most twice a minute, so a stranger's tokens cannot make us flood an issuer. When an issuer
cannot be reached and its keys are too old, nothing it signed is believed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import structlog
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from countersign.contract import ErrorCode
from policy_service.errors import StartError, WorldError
from policy_service.issuers import require_safe_url

log = structlog.get_logger(__name__)

_KEEP_S = 3_600
_AGAIN_S = 30
_TIMEOUT = httpx2.Timeout(5.0)
_MAX_BYTES = 1_048_576
_DISCOVERY = "/.well-known/openid-configuration"


def http_client(transport: httpx2.AsyncBaseTransport | None = None) -> httpx2.AsyncClient:
    """The client every question to an issuer goes through: no redirects, no proxy from the environment."""
    return httpx2.AsyncClient(
        transport=transport,
        timeout=_TIMEOUT,
        follow_redirects=False,
        trust_env=False,
        headers={"Accept": "application/json"},
    )


async def read_bounded(response: httpx2.Response, what: str) -> Any:
    """The JSON of a streamed answer.

    Raises:
        WorldError: issuer_unavailable; not 200, too long, or no JSON.
    """
    if response.status_code != 200:
        raise unavailable(f"{what} answered {response.status_code}")
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MAX_BYTES:
            raise unavailable(f"{what} answered more than {_MAX_BYTES} bytes")
    try:
        return json.loads(body)
    except ValueError as error:
        raise unavailable(f"{what} did not answer JSON") from error


async def get_json(client: httpx2.AsyncClient, url: str, what: str, **headers: str) -> Any:
    """One bounded GET.

    Raises:
        WorldError: issuer_unavailable.
    """
    try:
        require_safe_url(url)
        async with client.stream("GET", url, headers=headers) as response:
            return await read_bounded(response, what)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise unavailable(f"{what} cannot be reached ({type(error).__name__})") from error


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
        self._one_at_a_time = asyncio.Lock()

    async def metadata(self) -> Mapping[str, Any]:
        """The issuer's own description of itself.

        Raises:
            WorldError: issuer_unavailable; also where it describes another issuer.
        """
        async with self._one_at_a_time:
            return await self._read_metadata()

    async def keys(self, kid: str | None) -> KeySet:
        """Its keys, fetched again when none has this id.

        Raises:
            WorldError: issuer_unavailable.
        """
        if self._fixed is not None:
            return self._fixed
        async with self._one_at_a_time:
            age = self._age(self._keys)
            known = self._keys is not None and age < _KEEP_S
            if not known or (not _has(self._keys, kid) and age >= _AGAIN_S):
                self._keys = _Kept(await self._fetch_keys(), self._monotonic())
            assert self._keys is not None  # noqa: S101 - just fetched, or young enough
            keys: KeySet = self._keys.value
            return keys

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
        url = self._jwks_url or (await self._read_metadata()).get("jwks_uri")
        found = await get_json(self._client, str(url), f"the keys of {self.name!r}")
        try:
            return _key_set(found)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise unavailable(f"the keys of {self.name!r} are no JWK set") from error

    def _age(self, kept: _Kept | None) -> float:
        return float("inf") if kept is None else self._monotonic() - kept.at


def _key_set(found: Any) -> KeySet:
    """Public signing keys; kinds we do not know are passed over, as RFC 7517 section 5 asks, and so are secrets."""
    listed = found["keys"]
    wanted = [
        key
        for key in listed
        if key.get("kty") in {"RSA", "EC", "OKP"} and key.get("use", "sig") == "sig" and "d" not in key
    ]
    if not wanted:
        raise ValueError("no key here signs")
    return KeySet.import_key_set({"keys": wanted})


def _has(kept: _Kept | None, kid: str | None) -> bool:
    return kid is None or (kept is not None and any(key.kid == kid for key in kept.value.keys))


def _keys_in(path: Path) -> KeySet:
    try:
        return _key_set(json.loads(path.read_text()))
    except (OSError, JoseError, ValueError, TypeError, KeyError) as error:
        raise StartError(f"the key set {path} cannot be used: {error}") from error

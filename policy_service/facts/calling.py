"""One question over HTTP to a host the operator allowed: addressed, bounded and read strictly, or not at all.

Rules kept here: the name is resolved for each question, every address it has must be public or in a network the
setting names, and the connection goes to an address that was looked at (a name that changes its mind between look and
call leads nowhere new); TLS is verified for the name; no redirect, no proxy of the environment, no compression, no
cookie. The whole answer has one limit of time and one of size, counted while it arrives, and is JSON by the strict
loader. No token, and nothing of an answer, is ever part of a message. A connection serves one question: nothing is
held open between two.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import httpx2

from countersign.contract import JSON, ContractError, Limits, load
from policy_service.facts.sql import SourceFailedError
from policy_service.lookups import DirectoryApi, FactsHost

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
Address: TypeAlias = IPv4Address | IPv6Address

_NAT64: Final = IPv6Network("64:ff9b::/96")  # an IPv4 address in disguise, as are mapped ones


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses a name has now, by this host's resolver.

    Raises:
        OSError: it has none, or nobody knows.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(each[4][0]) for each in found]


@dataclass(frozen=True)
class Place:
    """A host that may be called, with the token it knows us by."""

    setting: FactsHost | DirectoryApi
    token: str | None = field(default=None, repr=False)
    resolve: Resolve = resolve

    async def ask(
        self, method: str, url: str, *, limits: Limits, seconds: float, body: bytes | None = None
    ) -> JSON | None:
        """The JSON it answers with; None when it answers 404.

        Raises:
            SourceFailedError: it gave no usable answer in that time.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._ask(method, url, limits, body)
        except TimeoutError as error:
            raise SourceFailedError(f"no whole answer within {seconds:g} s") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise SourceFailedError(f"{type(error).__name__}: {error}") from error

    async def _ask(self, method: str, url: str, limits: Limits, body: bytes | None) -> JSON | None:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        there = await self._address(host, port)
        pinned = httpx2.URL(url).copy_with(host=str(there))
        headers = {
            "Host": parts.netloc,
            "Accept": "application/json, application/scim+json",
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        transport = httpx2.AsyncHTTPTransport(verify=_tls(self.setting.ca_file), trust_env=False)
        async with httpx2.AsyncClient(
            transport=transport, timeout=None, follow_redirects=False, trust_env=False
        ) as client:
            request = client.build_request(
                method, pinned, headers=headers, content=body, extensions={"sni_hostname": host}
            )
            response = await client.send(request, stream=True)
            try:
                return await _read(response, limits)
            finally:
                await response.aclose()

    async def _address(self, host: str, port: int) -> Address:
        found = [ip_address(each.partition("%")[0]) for each in await self.resolve(host, port)]
        if not found:
            raise SourceFailedError(f"{host!r} has no address")
        for each in found:
            self._require_open(host, each)
        return found[0]

    def _require_open(self, host: str, address: Address) -> None:
        real = _real(address)
        named = {host.strip("[]")} | ({"127.0.0.1", "::1"} if host == "localhost" else set())
        if str(address) in named or any(
            real in network for network in self.setting.addresses if network.version == real.version
        ):
            return
        if not real.is_global or real.is_multicast or real.is_reserved:
            raise SourceFailedError(
                f"{host!r} leads to {address}, which is no public address; if it is meant, name its network in "
                "`addresses`"
            )


def _real(address: Address) -> Address:
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


async def _read(response: httpx2.Response, limits: Limits) -> JSON | None:
    if response.status_code == 404:
        return None
    if response.status_code != 200:
        raise SourceFailedError(f"it answered {response.status_code}")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise SourceFailedError("its answer is compressed, which nobody asked for")
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in {"application/json", "application/scim+json"}:
        raise SourceFailedError(f"its answer is {kind!r} and not application/json")
    raw = bytearray()
    async for chunk in response.aiter_raw():
        raw += chunk
        if len(raw) > limits.max_bytes:
            raise SourceFailedError(f"its answer is longer than {limits.max_bytes} bytes")
    try:
        if len(raw) > _IN_A_THREAD:
            return await asyncio.to_thread(load, bytes(raw), limits)
        return load(bytes(raw), limits)
    except ContractError as error:
        raise SourceFailedError(f"its answer is no JSON we take ({error.code})") from error


_IN_A_THREAD: Final = 65_536  # bytes; more would hold up the event loop


@lru_cache(maxsize=16)
def _tls(authority: Path | None) -> ssl.SSLContext:
    """The authorities this host trusts, or the one that is named; read once, which takes 20 ms."""
    if authority is None:
        return httpx2.create_ssl_context(trust_env=False)
    return ssl.create_default_context(cafile=authority)

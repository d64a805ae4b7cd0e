"""One request to a host an operator named: resolved once, and sent to exactly the address that was looked at.

Rules kept here: the name is resolved for each request, every address it has must be public or in a network its setting
names, and the connection goes to one that was looked at (a name that changes its mind between look and call leads
nowhere new); TLS is verified for the name; no redirect, no proxy (it would choose the address), no compression, no
cookie, no connection kept. Limits of time and size are the caller's: nothing of the answer's body is read here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final, Protocol, TypeAlias
from urllib.parse import urlsplit

import httpx2

from policy_service.http_clients import Route, http_client, network

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_NAT64: Final = IPv6Network("64:ff9b::/96")  # an IPv4 address in disguise, as are mapped ones
_PORTS: Final = {"https": 443, "http": 80}

# What Python's own tables call global, in some of its versions, although it leads nowhere public.
_NOT_PUBLIC: Final = tuple(
    map(
        ip_network,
        (
            "fec0::/10",  # site-local (RFC 3879)
            "3fff::/20",  # documentation (RFC 9637)
            "192.0.0.0/24",  # IETF protocol assignments (RFC 6890)
            "192.88.99.0/24",  # 6to4 relays (RFC 7526)
            "168.63.129.16/32",  # the platform of Azure: health, DNS and the channel of each machine's agent
        ),
    )
)


class UnreachableError(Exception):
    """The request was not sent: its host has no address, or one that it may not have."""


class Destination(Protocol):
    """What a setting says of a host: which private networks it may be in, and whose certificate it shows."""

    @property
    def addresses(self) -> tuple[Network, ...]:
        """Networks that need not be public."""

    @property
    def ca_file(self) -> Path | None:
        """The authority its certificate is from; None: those this host trusts."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses a name has now, by this host's resolver.

    Raises:
        OSError: it has none, or nobody knows.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(each[4][0]) for each in found]


@asynccontextmanager
async def answered(
    method: str,
    url: str,
    to: Destination,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    resolve: Resolve = resolve,
) -> AsyncIterator[httpx2.Response]:
    """The answer, its head read and its body not.

    Raises:
        UnreachableError: see there.
        httpx2.HTTPError, httpx2.InvalidURL, OSError: it was sent, or tried, and there is no answer.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    there = await _address(host, port, to, resolve)
    ours = {"Host": parts.netloc, "Accept-Encoding": "identity", "Connection": "close"}
    async with http_client(network(Route(ca_file=to.ca_file)), timeout=None) as client:
        request = client.build_request(
            method,
            httpx2.URL(url).copy_with(host=str(there)),
            headers={**headers, **ours},
            content=body,
            extensions={"sni_hostname": host},
        )
        response = await client.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()


def is_open(address: Address, networks: Sequence[Network] = ()) -> bool:
    """Whether a request may go there: a public address, or one in a network that was named."""
    real = _real(address)
    if any(real in network for network in networks if network.version == real.version):
        return True
    if any(real in network for network in _NOT_PUBLIC if network.version == real.version):
        return False
    return real.is_global and not (real.is_multicast or real.is_reserved)


async def _address(host: str, port: int, to: Destination, resolve: Resolve) -> Address:
    found = [ip_address(each.partition("%")[0]) for each in await resolve(host, port)]
    if not found:
        raise UnreachableError(f"{host!r} has no address")
    named = {host.strip("[]")} | ({"127.0.0.1", "::1"} if host == "localhost" else set())
    for each in found:
        if str(each) not in named and not is_open(each, to.addresses):
            raise UnreachableError(
                f"{host!r} leads to {each}, which is no public address; if it is meant, name its network in "
                "`addresses`"
            )
    return found[0]


def _real(address: Address) -> Address:
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address

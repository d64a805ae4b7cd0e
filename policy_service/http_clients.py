"""HTTP clients of the service. Every client of another host is created here, and none reads the environment.

``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY``, ``NO_PROXY``, ``SSL_CERT_FILE``, ``SSL_CERT_DIR`` and ``.netrc`` are
ignored, also where a library reads them by default (slack-sdk, dulwich, requests). Plain http always goes direct. https
goes direct unless the setting ``https_proxy`` names a proxy. It trusts the host's authorities unless ``ca_file`` names
others.

:func:`open_response` requests a URL that an operator configured, protected against SSRF: it resolves the name for each
request, requires every address to be public or in a network its setting names, and connects to an address it checked,
so DNS rebinding leads nowhere else. TLS is verified for the name. It uses no redirects, no proxy (which would choose
the address), no compression, no cookies and no connection reuse. The caller limits time and size.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import httpx2

from policy_service.errors import StartError

if TYPE_CHECKING:
    import aiohttp
    from authlib.integrations.httpx_client import AsyncOAuth2Client
    from opentelemetry.sdk.trace.export import SpanExporter
    from slack_sdk.socket_mode.aiohttp import SocketModeClient
    from slack_sdk.web.async_client import AsyncWebClient
    from urllib3 import PoolManager

    from policy_service.remote_hosts import RemoteHost
    from policy_service.settings import Settings


S = TypeVar("S", bound="SocketModeClient")


@dataclass(frozen=True, slots=True)
class Route:
    """The proxy and the authorities for https."""

    proxy: str | None = field(default=None, repr=False)  # may hold a password
    ca_file: Path | None = None

    def proxy_for(self, url: str) -> str | None:
        """The proxy for a URL; None for plain http, which a proxy could read and forge."""
        return self.proxy if url.startswith(("https:", "wss:")) else None


DIRECT = Route()


def route_from_settings(settings: Settings) -> Route:
    """The route that the settings configure.

    Raises:
        StartError: ``ca_file`` holds no readable certificates.
    """
    try:
        tls_context(settings.ca_file)
    except OSError as error:
        raise StartError(
            f"ca_file {str(settings.ca_file)!r} holds no readable certificates ({error.strerror or error})"
        ) from error
    return Route(settings.https_proxy, settings.ca_file)


@lru_cache(maxsize=16)
def tls_context(ca_file: Path | None = None) -> ssl.SSLContext:
    """A TLS context with the authorities of this host, or only those of the file. Cached: creating one takes 20 ms.

    Raises:
        OSError: the file is unreadable, or holds no certificate (``ssl.SSLError``).
    """
    if ca_file is None:
        return httpx2.create_ssl_context(trust_env=False)
    return ssl.create_default_context(cafile=ca_file)


def http_transport(route: Route = DIRECT) -> httpx2.AsyncBaseTransport:
    """A transport for clients that share its connections."""
    direct = httpx2.AsyncHTTPTransport(verify=tls_context(route.ca_file), trust_env=False)
    if route.proxy is None:
        return direct
    return _ProxiedHttps(direct, route.proxy, tls_context(route.ca_file))


class _ProxiedHttps(httpx2.AsyncBaseTransport):
    def __init__(self, direct: httpx2.AsyncBaseTransport, proxy: str, context: ssl.SSLContext) -> None:
        self._direct = direct
        there = httpx2.Proxy(proxy, ssl_context=context if proxy.startswith("https:") else None)
        self._proxied = httpx2.AsyncHTTPTransport(verify=context, proxy=there, trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        way = self._proxied if request.url.scheme == "https" else self._direct
        return await way.handle_async_request(request)

    async def aclose(self) -> None:
        await self._direct.aclose()
        await self._proxied.aclose()


def http_client(
    transport: httpx2.AsyncBaseTransport, *, timeout: float | None, accept: str | None = None
) -> httpx2.AsyncClient:
    """A client that follows no redirects. ``transport`` is :func:`http_transport`, or a test double."""
    return httpx2.AsyncClient(
        transport=transport,
        timeout=timeout,
        follow_redirects=False,
        trust_env=False,
        headers={} if accept is None else {"Accept": accept},
    )


def oauth_client(
    transport: httpx2.AsyncBaseTransport, *, timeout: float, **options: Any
) -> AsyncOAuth2Client:
    """The same for OAuth 2.0 token requests; ``options`` are Authlib's."""
    from authlib.integrations.httpx_client import AsyncOAuth2Client

    return AsyncOAuth2Client(
        transport=transport, timeout=timeout, follow_redirects=False, trust_env=False, **options
    )


def socket_client(path: Path, *, timeout: float) -> httpx2.Client:
    """A client of the service's Unix socket, without TLS."""
    transport = httpx2.HTTPTransport(uds=str(path), verify=False, trust_env=False)
    return httpx2.Client(transport=transport, timeout=timeout, trust_env=False)


def slack_session() -> aiohttp.ClientSession:
    """The connection pool of a Slack client."""
    import aiohttp

    return aiohttp.ClientSession(trust_env=False)


def slack_client(
    token: str, base_url: str, route: Route, session: aiohttp.ClientSession | None, **options: Any
) -> AsyncWebClient:
    """A client of Slack's Web API; ``options`` are the SDK's."""
    from slack_sdk.web.async_client import AsyncWebClient

    client = AsyncWebClient(token, base_url, session=session, ssl=tls_context(route.ca_file), **options)
    client.proxy = route.proxy_for(base_url)  # the SDK otherwise uses the environment's proxy
    return client


def slack_socket(kind: type[S], app_token: str, web: AsyncWebClient, **options: Any) -> S:
    """A client of Socket Mode without a proxy; ``options`` are the SDK's."""
    client = kind(app_token, web_client=web, **options)
    client.proxy = None  # the SDK otherwise uses the environment's proxy
    return client


def git_pool(url: str, route: Route, timeout_s: float) -> PoolManager:
    """The connection pool of a git client."""
    import urllib3
    from dulwich.client import default_user_agent_string

    options: dict[str, Any] = {
        "timeout": timeout_s,
        "ssl_context": tls_context(route.ca_file),
        "headers": {"User-agent": default_user_agent_string()},
    }
    proxy = route.proxy_for(url)
    if proxy is None:
        return urllib3.PoolManager(**options)
    parsed = urllib3.util.parse_url(proxy)
    headers = urllib3.make_headers(proxy_basic_auth=parsed.auth) if parsed.auth else None
    return urllib3.ProxyManager(
        proxy, proxy_headers=headers, proxy_ssl_context=tls_context(route.ca_file), **options
    )


def span_exporter(route: Route) -> SpanExporter:
    """The exporter of traces. OpenTelemetry's own variables configure its endpoint and authorities.

    Raises:
        ImportError: the package is not installed.
    """
    import requests
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    session = requests.Session()
    session.trust_env = False
    if route.proxy is not None:
        session.proxies = {"https": route.proxy}
    return OTLPSpanExporter(session=session)


Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_NAT64: Final = IPv6Network("64:ff9b::/96")  # embeds an IPv4 address
_PORTS: Final = {"https": 443, "http": 80}

# Networks that some Python versions classify as global, although they are not public.
_NOT_PUBLIC: Final = tuple(
    map(
        ip_network,
        (
            "fec0::/10",  # site-local (RFC 3879)
            "3fff::/20",  # documentation (RFC 9637)
            "192.0.0.0/24",  # IETF protocol assignments (RFC 6890)
            "192.88.99.0/24",  # 6to4 relays (RFC 7526)
            "168.63.129.16/32",  # Azure platform: health probes, DNS and the VM agent channel
        ),
    )
)


class UnreachableError(Exception):
    """The request was not sent: its host has no address, or a forbidden one."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """The current addresses of a name, by this host's resolver.

    Raises:
        OSError: the name has no address, or resolution failed.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(each[4][0]) for each in found]


@asynccontextmanager
async def open_response(
    method: str,
    url: str,
    to: RemoteHost,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    resolve: Resolve = resolve,
) -> AsyncIterator[httpx2.Response]:
    """Send a request and yield the response with an unread body.

    Raises:
        UnreachableError: the request was not sent, because its host has no allowed address.
        httpx2.HTTPError, httpx2.InvalidURL, OSError: the request may have been sent, and there is no response.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    there = await _resolve_allowed(host, port, to, resolve)
    ours = {"Host": parts.netloc, "Accept-Encoding": "identity", "Connection": "close"}
    async with http_client(http_transport(Route(ca_file=to.ca_file)), timeout=None) as client:
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


def is_allowed_address(address: Address, networks: Sequence[Network] = ()) -> bool:
    """Whether a request may be sent to an address: a public one, or one in a configured network."""
    real = _embedded_ipv4(address)
    if any(real in network for network in networks if network.version == real.version):
        return True
    if any(real in network for network in _NOT_PUBLIC if network.version == real.version):
        return False
    return real.is_global and not (real.is_multicast or real.is_reserved)


async def _resolve_allowed(host: str, port: int, to: RemoteHost, resolve: Resolve) -> Address:
    found = [ip_address(each.partition("%")[0]) for each in await resolve(host, port)]
    if not found:
        raise UnreachableError(f"{host!r} has no address")
    named = {host.strip("[]")} | ({"127.0.0.1", "::1"} if host == "localhost" else set())
    for each in found:
        if str(each) not in named and not is_allowed_address(each, to.addresses):
            raise UnreachableError(
                f"{host!r} resolves to {each}, which is not a public address; to allow it, name its network in "
                "`addresses`"
            )
    return found[0]


def _embedded_ipv4(address: Address) -> Address:
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address

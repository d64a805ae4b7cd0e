"""The one place where the service builds clients of other hosts. None of them reads the environment.

``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY``, ``NO_PROXY``, ``SSL_CERT_FILE``, ``SSL_CERT_DIR`` and ``.netrc`` are
ignored, also where a library reads them by default (slack-sdk, dulwich, requests). Plain http always goes direct. https
goes direct unless the setting ``https_proxy`` names a proxy, and trusts the host's authorities unless ``ca_file`` names
others.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import httpx2

from policy_service.errors import StartError

if TYPE_CHECKING:
    import aiohttp
    from authlib.integrations.httpx_client import AsyncOAuth2Client
    from opentelemetry.sdk.trace.export import SpanExporter
    from slack_sdk.socket_mode.aiohttp import SocketModeClient
    from slack_sdk.web.async_client import AsyncWebClient
    from urllib3 import PoolManager


S = TypeVar("S", bound="SocketModeClient")


@dataclass(frozen=True, slots=True)
class Route:
    """How https leaves this host."""

    proxy: str | None = field(default=None, repr=False)  # may hold a password
    ca_file: Path | None = None

    def proxy_for(self, url: str) -> str | None:
        """The proxy of a request to that address; None for plain http, which a proxy could read and forge."""
        return self.proxy if url.startswith(("https:", "wss:")) else None


DIRECT = Route()


class RouteSettings(Protocol):
    """The settings that :func:`route_of` reads."""

    @property
    def https_proxy(self) -> str | None:
        """The proxy for https."""

    @property
    def ca_file(self) -> Path | None:
        """The authorities to trust."""


def route_of(settings: RouteSettings) -> Route:
    """How https leaves this host, by its settings.

    Raises:
        StartError: ``ca_file`` holds no certificates that can be read.
    """
    try:
        tls(settings.ca_file)
    except OSError as error:
        raise StartError(
            f"ca_file {str(settings.ca_file)!r} holds no certificates that can be read ({error.strerror or error})"
        ) from error
    return Route(settings.https_proxy, settings.ca_file)


@lru_cache(maxsize=16)
def tls(ca_file: Path | None = None) -> ssl.SSLContext:
    """The authorities that this host trusts, or only those of the file. Read once, because it takes 20 ms.

    Raises:
        OSError: the file cannot be read, or holds no certificate (``ssl.SSLError``).
    """
    if ca_file is None:
        return httpx2.create_ssl_context(trust_env=False)
    return ssl.create_default_context(cafile=ca_file)


def network(route: Route = DIRECT) -> httpx2.AsyncBaseTransport:
    """The network, for clients that share its connections."""
    direct = httpx2.AsyncHTTPTransport(verify=tls(route.ca_file), trust_env=False)
    if route.proxy is None:
        return direct
    return _ProxiedHttps(direct, route.proxy, tls(route.ca_file))


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
    """A client that follows no redirect. ``transport`` is :func:`network`, or stands for it."""
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
    """The same with OAuth's token endpoint in its hands; ``options`` are Authlib's."""
    from authlib.integrations.httpx_client import AsyncOAuth2Client

    return AsyncOAuth2Client(
        transport=transport, timeout=timeout, follow_redirects=False, trust_env=False, **options
    )


def socket_client(path: Path, *, timeout: float) -> httpx2.Client:
    """A client of the service that listens on a Unix socket; there is no TLS."""
    transport = httpx2.HTTPTransport(uds=str(path), verify=False, trust_env=False)
    return httpx2.Client(transport=transport, timeout=timeout, trust_env=False)


def slack_session() -> aiohttp.ClientSession:
    """The connections of a Slack client."""
    import aiohttp

    return aiohttp.ClientSession(trust_env=False)


def slack_client(
    token: str, base_url: str, route: Route, session: aiohttp.ClientSession | None, **options: Any
) -> AsyncWebClient:
    """A client of Slack's Web API; ``options`` are the SDK's."""
    from slack_sdk.web.async_client import AsyncWebClient

    client = AsyncWebClient(token, base_url, session=session, ssl=tls(route.ca_file), **options)
    client.proxy = route.proxy_for(base_url)  # without a proxy, the SDK has taken that of the environment
    return client


def slack_socket(kind: type[S], app_token: str, web: AsyncWebClient, **options: Any) -> S:
    """A client of Socket Mode, which has no proxy until it is given one; ``options`` are the SDK's."""
    client = kind(app_token, web_client=web, **options)
    client.proxy = None  # the SDK has taken that of the environment
    return client


def git_pool(url: str, route: Route, timeout_s: float) -> PoolManager:
    """The connections of a git client."""
    import urllib3
    from dulwich.client import default_user_agent_string

    options: dict[str, Any] = {
        "timeout": timeout_s,
        "ssl_context": tls(route.ca_file),
        "headers": {"User-agent": default_user_agent_string()},
    }
    proxy = route.proxy_for(url)
    if proxy is None:
        return urllib3.PoolManager(**options)
    parsed = urllib3.util.parse_url(proxy)
    headers = urllib3.make_headers(proxy_basic_auth=parsed.auth) if parsed.auth else None
    return urllib3.ProxyManager(proxy, proxy_headers=headers, proxy_ssl_context=tls(route.ca_file), **options)


def span_exporter(route: Route) -> SpanExporter:
    """What sends traces to where OpenTelemetry's own variables point; one of them names the authority, too.

    Raises:
        ImportError: it is not installed.
    """
    import requests
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    session = requests.Session()
    session.trust_env = False
    if route.proxy is not None:
        session.proxies = {"https": route.proxy}
    return OTLPSpanExporter(session=session)

"""The one place where the SDK creates HTTP clients and reads responses. No client reads the environment.

`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`, `SSL_CERT_DIR` and `.netrc` are ignored. Such a
proxy also receives traffic to 127.0.0.1, and a proxy for plain http can forge every response: key set, release and
receipt. So plain http always connects directly; https uses a proxy, or another authority than the host's, only by an
explicit setting.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import httpx2

from countersign.errors import ServiceUnavailable, SettingsError

_SECONDS: Final = 5.0


def http_client(
    *,
    base_url: str = "",
    headers: Mapping[str, str] | None = None,
    timeout: float = _SECONDS,
    transport: httpx2.BaseTransport | None = None,
    proxy: str | None = None,
    ca_file: Path | None = None,
) -> httpx2.Client:
    """A blocking client. `transport` replaces the network, and with it `proxy` and `ca_file`.

    Raises:
        SettingsError: `ca_file` cannot be read, or holds no certificate.
    """
    tls = _tls(ca_file)
    proxied = transport is None and proxy is not None
    return httpx2.Client(
        base_url=base_url,
        headers=dict(headers or {}),
        timeout=timeout,
        transport=transport,
        mounts={"https://": httpx2.HTTPTransport(verify=tls, proxy=_proxy(proxy, tls), trust_env=False)}
        if proxied
        else None,
        verify=tls,
        follow_redirects=False,
        trust_env=False,
    )


def async_http_client(
    *,
    base_url: str,
    transport: httpx2.AsyncBaseTransport | None = None,
    proxy: str | None = None,
    ca_file: Path | None = None,
) -> httpx2.AsyncClient:
    """The same for an event loop."""
    tls, mounts = _tls(ca_file), None
    if transport is None and proxy is not None:
        mounts = {
            "https://": httpx2.AsyncHTTPTransport(verify=tls, proxy=_proxy(proxy, tls), trust_env=False)
        }
    return httpx2.AsyncClient(
        base_url=base_url,
        transport=transport,
        mounts=mounts,
        verify=tls,
        follow_redirects=False,
        trust_env=False,
    )


def socket_client(path: Path, *, timeout: float) -> httpx2.Client:
    """A client of a service that listens on a Unix socket; without TLS."""
    transport = httpx2.HTTPTransport(uds=str(path), verify=False, trust_env=False)
    return http_client(transport=transport, timeout=timeout)


@lru_cache(maxsize=16)
def _tls(ca_file: Path | None) -> ssl.SSLContext:
    """The authorities that the host trusts, or only those of the file. Cached, because reading them takes 20 ms."""
    if ca_file is None:
        return httpx2.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise SettingsError(
            f"{str(ca_file)!r} holds no certificates that can be read ({error.strerror or error}); correct "
            "COUNTERSIGN_CA_FILE"
        ) from error


def _proxy(url: str | None, tls: ssl.SSLContext) -> httpx2.Proxy | None:
    if url is None:
        return None
    return httpx2.Proxy(url, ssl_context=tls if url.startswith("https:") else None)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One complete HTTP request."""

    method: str
    target: str  # path and query, exactly as sent and as signed in the proof
    headers: dict[str, str]
    body: bytes
    connect_seconds: float
    read_seconds: float
    max_bytes: int


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One HTTP response, read completely within its limit."""

    status: int
    headers: httpx2.Headers
    body: bytes


class _BoundedBody:
    """The body of a response, limited in size and time.

    A connection's timeout restarts with each chunk, so a peer that sends a byte now and then would hold an agent,
    and the database sessions of its live effects, forever.
    """

    def __init__(self, request: HttpRequest) -> None:
        self.read = bytearray()
        self._request = request
        self._max_bytes = request.max_bytes
        self._seconds = request.connect_seconds + request.read_seconds
        self._until = time.monotonic() + self._seconds

    def require_plain(self, headers: httpx2.Headers) -> None:
        """Refuse compression, which was not requested: a thousandth of the limit expands to all of it.

        Raises:
            ServiceUnavailable: it is compressed.
        """
        coding = headers.get("Content-Encoding", "identity")
        if coding.strip().lower() != "identity":
            raise self._refused(f"is compressed ({coding[:40]!r})")

    def add(self, chunk: bytes) -> None:
        """Append one chunk.

        Raises:
            ServiceUnavailable: it is larger than the request allows.
            httpx2.ReadTimeout: it is incomplete when its time is up.
        """
        self.read += chunk
        if len(self.read) > self._max_bytes:
            raise self._refused(f"is larger than {self._max_bytes} bytes")
        if time.monotonic() > self._until:
            raise httpx2.ReadTimeout(f"the answer was not complete after {self._seconds:g} s")

    def _refused(self, why: str) -> ServiceUnavailable:
        return ServiceUnavailable(f"{self._request.method} {self._request.target}", f"its answer {why}")


def _arguments(request: HttpRequest) -> dict[str, Any]:
    """The request as keyword arguments of the library's clients."""
    return {
        "method": request.method,
        "url": request.target,
        "headers": request.headers,
        "content": request.body,
        "timeout": httpx2.Timeout(request.read_seconds, connect=request.connect_seconds),
        "follow_redirects": False,  # a redirect could lead to other keys; only the configured address is trusted
    }


def send(client: httpx2.Client, request: HttpRequest) -> HttpResponse:
    """Perform one request.

    Raises:
        httpx2.TransportError: a network error.
        ServiceUnavailable: the response is compressed or too large.
    """
    body = _BoundedBody(request)
    with client.stream(**_arguments(request)) as response:
        body.require_plain(response.headers)
        for chunk in response.iter_bytes():
            body.add(chunk)
        return HttpResponse(response.status_code, response.headers, bytes(body.read))


async def async_send(client: httpx2.AsyncClient, request: HttpRequest) -> HttpResponse:
    """`send` on the event loop."""
    body = _BoundedBody(request)
    async with client.stream(**_arguments(request)) as response:
        body.require_plain(response.headers)
        async for chunk in response.aiter_bytes():
            body.add(chunk)
        return HttpResponse(response.status_code, response.headers, bytes(body.read))

"""The one place where the SDK creates HTTP clients. None of them reads the environment.

`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`, `SSL_CERT_DIR` and `.netrc` are ignored. Such a
proxy also receives traffic to 127.0.0.1, and a proxy for plain http can forge every response: key set, release and
receipt. So plain http always connects directly; https uses a proxy, or another authority than the host's, only by an
explicit setting.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

import httpx2

from countersign.errors import SettingsError

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
    tls = _tls(ca_file)
    proxied = transport is None and proxy is not None
    return httpx2.AsyncClient(
        base_url=base_url,
        transport=transport,
        mounts={"https://": httpx2.AsyncHTTPTransport(verify=tls, proxy=_proxy(proxy, tls), trust_env=False)}
        if proxied
        else None,
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

"""The SDK connects to the address in its settings, ignoring proxies and authorities of the environment."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from countersign import Denied, Runtime, ServiceUnavailable, Settings, SettingsError
from countersign.contract import PrivateKey, Verdict
from tests.fakes.desk import AGENT, Desk, refund_tool
from tests.fakes.http_server import Quiet, served
from tests.fakes.lookups import certificate
from tests.fakes.proxies import tunnelling
from tests.fakes.service import FakeService
from tests.fakes.service_http import Face, serving

ENVIRONMENTS = {
    "HTTP_PROXY": {"HTTP_PROXY": "*"},
    "all_proxy": {"all_proxy": "*"},
    "every one": {f"{scheme}_PROXY": "*" for scheme in ("HTTP", "HTTPS", "ALL")},
    "an exception for another host": {"HTTP_PROXY": "*", "NO_PROXY": "10.0.0.1", "no_proxy": "elsewhere"},
}


@pytest.fixture
def between(desk: Desk) -> Any:
    """A service on loopback that denies everything, and a forger that releases everything under keys of its own."""
    forger = Face(FakeService(now=time.time))
    with serving(desk.face) as url, serving(forger) as forger_url:
        desk.service._now = time.time
        desk.service.policy = lambda *_: Verdict.DENY
        refund = refund_tool(desk)
        for service in (desk.service, forger.service):
            service.iss = url
        forger.service.agents = desk.service.agents
        forger.service.manifests = desk.service.manifests
        forger.service.policy = lambda *_: Verdict.RELEASE
        yield SimpleNamespace(desk=desk, refund=refund, forger=forger, forger_url=forger_url)


def settings_of(desk: Desk, **changes: Any) -> Settings:
    return replace(desk.runtime.settings, url=desk.service.iss, retries=0, **changes)


def blocking(settings: Settings) -> str:
    with Runtime(settings) as runtime:
        return runtime.client().manifest("refund").tool


def awaited(settings: Settings) -> str:
    async def ask() -> str:
        with Runtime(settings) as runtime:
            async with runtime.async_client() as client:
                return (await client.manifest("refund")).tool

    return asyncio.run(ask())


EITHER_WAY = pytest.mark.parametrize("fetch", [blocking, awaited])


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_a_proxy_of_the_environment_forges_nothing(between: Any, environment: Any, monkeypatch: Any) -> None:
    desk = between.desk
    for name, value in environment.items():
        monkeypatch.setenv(name, between.forger_url if value == "*" else value)
    with Runtime(settings_of(desk), registry=desk.registry) as runtime:
        replace(desk, runtime=runtime).run((between.refund, "o-1", 100), raises=Denied)
    assert (awaited(settings_of(desk)), desk.done, between.forger.log) == ("refund", [], [])


@EITHER_WAY
def test_plain_http_goes_direct_although_a_proxy_is_set(between: Any, fetch: Any) -> None:
    assert fetch(settings_of(between.desk, https_proxy=between.forger_url)) == "refund"
    assert between.forger.log == []


# -- https -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A proxy that the environment names."""
    with tunnelling() as proxy:
        for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        yield proxy


@pytest.fixture
def authority(desk: Desk, tmp_path: Path) -> Any:
    """That of the certificate of the desk's service, which is behind https."""
    authority = certificate(tmp_path, "127.0.0.1")
    with serving(desk.face, authority) as url:
        desk.service.iss, desk.service._now = url, time.time
        refund_tool(desk)
        yield authority


@EITHER_WAY
def test_https_uses_only_the_proxy_of_the_setting(desk: Desk, authority: Any, proxy: Any, fetch: Any) -> None:
    assert (fetch(settings_of(desk, ca_file=authority)), proxy.asked) == ("refund", [])
    assert fetch(settings_of(desk, ca_file=authority, https_proxy=proxy.url)) == "refund"
    assert set(proxy.asked) == {f"CONNECT {desk.service.iss.removeprefix('https://')}"}


@EITHER_WAY
def test_no_authority_of_the_environment(desk: Desk, authority: Path, fetch: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    monkeypatch.setenv("SSL_CERT_DIR", str(authority.parent))
    with pytest.raises(ServiceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        fetch(settings_of(desk))
    (desk.folder / "empty.pem").write_text("")
    for name in ("empty.pem", "gone.pem"):
        with pytest.raises(SettingsError, match=f"{name}.*correct COUNTERSIGN_CA_FILE"):
            fetch(settings_of(desk, ca_file=desk.folder / name))


class Stranger(Quiet):
    """Another web server."""

    def respond(self) -> None:
        self.send_error(404)


STRANGERS: list[Any] = [
    ("http", "answered 404 .*COUNTERSIGN_URL may name no policy service"),
    ("https", r"https://127\.0\.0\.1:\d+ serves no https .*correct COUNTERSIGN_URL"),
]


@pytest.mark.parametrize(("scheme", "reported"), STRANGERS)
def test_another_server_is_not_reported_as_missing(desk: Desk, scheme: str, reported: str) -> None:
    with served(Stranger) as url, pytest.raises(ServiceUnavailable, match=reported):
        desk.service.iss = url.replace("http", scheme, 1)
        blocking(settings_of(desk))


# -- the settings ----------------------------------------------------------------------------------------------------

PIN = PrivateKey.generate().public.kid
REFUSED = {
    "no address": ({"https_proxy": "proxy.example:3128"}, "not the address of a proxy"),
    "another scheme": ({"https_proxy": "socks5://p:1"}, "not the address of a proxy"),
    "a port that is none": ({"https_proxy": "http://p:x"}, "not the address of a proxy"),
    "a short thumbprint": ({"issuer_keys": (PIN[:-1],)}, "not the thumbprint"),
    "a long thumbprint": ({"issuer_keys": (PIN + "A",)}, "not the thumbprint"),
    "a thumbprint in hex": ({"issuer_keys": ("0" * 64,)}, "not the thumbprint"),
    "padding": ({"issuer_keys": (PIN + "=",)}, "not the thumbprint"),
    "one bad of two": ({"issuer_keys": (PIN, "x")}, "not the thumbprint"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_unsafe_settings_are_refused(changes: dict[str, Any], why: str) -> None:
    given = {"url": "http://127.0.0.1:1", "agent": AGENT, "key_path": Path("k"), "journal_path": Path("j")}
    with pytest.raises(SettingsError, match=why):
        Settings(**(given | changes))


def test_the_password_of_a_proxy_is_in_no_message() -> None:
    given = {"agent": AGENT, "key_path": Path("k"), "journal_path": Path("j")}
    made = Settings(url="https://a.example", https_proxy="http://me:canary@proxy.example", **given)  # type: ignore[arg-type]
    assert "canary" not in repr(made)
    with pytest.raises(SettingsError) as refused:
        replace(made, https_proxy="http://me:canary@proxy.example:x")
    assert "canary" not in str(refused.value)

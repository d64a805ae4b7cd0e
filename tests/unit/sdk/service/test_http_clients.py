"""The SDK reaches the address in its settings, whatever the environment says of proxies and authorities."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from countersign import Denied, Runtime, ServiceUnavailable, Settings, SettingsError
from countersign.contract import PrivateKey, Verdict
from tests.fakes.desk import AGENT, Desk, refund_tool
from tests.fakes.http_server import Quiet, served
from tests.fakes.lookups import certificate
from tests.fakes.proxies import Tunnels, tunnelling
from tests.fakes.service import FakeService
from tests.fakes.service_http import Face, serving

ENVIRONMENTS = {
    "HTTP_PROXY": {"HTTP_PROXY": "*"},
    "all_proxy": {"all_proxy": "*"},
    "every one": {f"{scheme}_PROXY": "*" for scheme in ("HTTP", "HTTPS", "ALL")},
    "an exception for another host": {"HTTP_PROXY": "*", "NO_PROXY": "10.0.0.1", "no_proxy": "elsewhere"},
}


@dataclass
class Between:
    """A service on loopback that denies everything, and a forger that releases everything under keys of its own."""

    desk: Desk
    refund: Callable[..., object]
    forger: Face
    forger_url: str


@pytest.fixture
def between(desk: Desk) -> Iterator[Between]:
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
        yield Between(desk, refund, forger, forger_url)


def manifest_async(settings: Settings) -> str:
    async def ask() -> str:
        with Runtime(settings) as runtime:
            async with runtime.async_client() as client:
                return (await client.manifest("refund")).tool

    return asyncio.run(ask())


def settings_of(desk: Desk, **changes: Any) -> Settings:
    return replace(desk.runtime.settings, url=desk.service.iss, retries=0, **changes)


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_a_proxy_of_the_environment_cannot_forge_a_release(
    between: Between, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = between.desk
    for name, value in environment.items():
        monkeypatch.setenv(name, between.forger_url if value == "*" else value)
    with Runtime(settings_of(desk), registry=desk.registry) as runtime:
        replace(desk, runtime=runtime).run((between.refund, "o-1", 100), raises=Denied)
    assert (manifest_async(settings_of(desk)), desk.done, between.forger.log) == ("refund", [], [])


# -- https -----------------------------------------------------------------------------------------------------------


@dataclass
class Secure:
    """A service behind https, the authority of its certificate, and a proxy."""

    desk: Desk
    authority: Path
    proxy: Tunnels

    def manifests(self, **changes: Any) -> list[str]:
        """What both clients fetch."""
        with Runtime(settings_of(self.desk, **changes)) as runtime:
            return [
                runtime.client().manifest("refund").tool,
                manifest_async(settings_of(self.desk, **changes)),
            ]


@pytest.fixture
def secure(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secure]:
    authority = certificate(tmp_path, "127.0.0.1")
    with serving(desk.face, authority) as url, tunnelling() as proxy:
        desk.service.iss, desk.service._now = url, time.time
        refund_tool(desk)
        for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        yield Secure(desk, authority, proxy)


def test_https_uses_no_proxy_but_the_one_of_the_setting(secure: Secure) -> None:
    assert secure.manifests(ca_file=secure.authority) == ["refund"] * 2
    assert secure.proxy.asked == []
    there = secure.desk.service.iss.removeprefix("https://")
    assert secure.manifests(ca_file=secure.authority, https_proxy=secure.proxy.url) == ["refund"] * 2
    assert set(secure.proxy.asked) == {f"CONNECT {there}"}


def test_no_authority_of_the_environment_counts_and_an_unsound_one_is_named(
    secure: Secure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.authority))
    monkeypatch.setenv("SSL_CERT_DIR", str(secure.authority.parent))
    with pytest.raises(ServiceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        secure.manifests()
    with pytest.raises(ServiceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        manifest_async(settings_of(secure.desk))
    (tmp_path / "empty.pem").write_text("")
    for name in ("empty.pem", "gone.pem"):
        with pytest.raises(SettingsError, match=f"{name}.*correct COUNTERSIGN_CA_FILE"):
            secure.manifests(ca_file=tmp_path / name)


def test_plain_http_goes_direct_although_a_proxy_is_set(between: Between) -> None:
    settings = settings_of(between.desk, https_proxy=between.forger_url)

    with Runtime(settings) as runtime:
        assert runtime.client().manifest("refund").tool == manifest_async(settings) == "refund"
    assert between.forger.log == []


class Stranger(Quiet):
    """Another web server."""

    def respond(self) -> None:
        self.send_error(404)


@pytest.mark.parametrize(
    ("scheme", "told"),
    [
        ("http", "answered 404 .*COUNTERSIGN_URL may name no policy service"),
        ("https", r"https://127\.0\.0\.1:\d+ speaks no https .*correct COUNTERSIGN_URL"),
    ],
)
def test_another_server_is_not_told_as_nobody(desk: Desk, scheme: str, told: str) -> None:
    with served(Stranger) as url:
        desk.service.iss = url.replace("http", scheme, 1)
        with Runtime(settings_of(desk)) as runtime, pytest.raises(ServiceUnavailable, match=told):
            runtime.client().manifest("refund")


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

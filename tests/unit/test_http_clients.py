"""Every HTTP client of the service uses only the settings for proxies and authorities."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from policy_service.channels.slack.client import SlackCallError, SlackClient
from policy_service.channels.slack.transports import SocketMode
from policy_service.errors import StartError
from policy_service.health import Health
from policy_service.http_clients import Route, route_from_settings, span_exporter
from policy_service.identity.issuer_keys import bounded_transport, get_json_document, issuer_client
from policy_service.pap.git.git_source import Mirror
from policy_service.pap.git.remotes import parse_address
from policy_service.pap.problems import HeadError
from policy_service.settings import Settings
from policy_service.slack import SlackApp
from tests.fakes.http_server import Quiet, served
from tests.fakes.lookups import certificate
from tests.fakes.proxies import Tunnels, tunnelling

VARIABLES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def there_at(certificate: Path | None) -> Iterator[Any]:
    """A host that says `{"ok": true}` to everything, and what it was asked."""
    there = SimpleNamespace(url="", asked=[], passwords=[])

    class Handler(Quiet):
        def respond(self) -> None:
            self.body()
            there.asked.append(self.path)
            there.passwords += [one for one in self.headers.get_all("Authorization", []) if "Basic" in one]
            headers = {"content-type": "application/json"}
            self.answer(200, b'{"ok": true, "url": "ws://127.0.0.1:1/"}', headers)

    with served(Handler, certificate) as there.url:
        yield there


@pytest.fixture
def plain() -> Iterator[Any]:
    yield from there_at(None)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return certificate(tmp_path, "127.0.0.1")


@pytest.fixture
def secure(authority: Path) -> Iterator[Any]:
    yield from there_at(authority)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tunnels]:
    """A proxy that every variable of the environment names."""
    with tunnelling() as tunnels:
        for name in VARIABLES:
            monkeypatch.setenv(name, tunnels.url)
        yield tunnels


# -- one call with each library --------------------------------------------------------------------------------------


async def ask_issuer(url: str, route: Route, folder: Path) -> None:
    async with issuer_client(bounded_transport(route=route)) as client:
        await get_json_document(client, f"{url}/keys", "the keys")


async def ask_slack(url: str, route: Route, folder: Path) -> None:
    app = SlackApp.model_construct(team_id="T0", api_url=f"{url}/api/", timeout_s=5)
    slack = SlackClient(app, "xoxb-1", route)
    with suppress(SlackCallError):
        await slack.call("auth.test")
    await slack.close()


async def open_socket_mode(url: str, route: Route, folder: Path) -> None:
    app = SlackApp.model_construct(team_id="T0", app_id="A0", api_url=f"{url}/api/", timeout_s=5)
    desk: Any = None
    client = SocketMode(app, "xapp-1", desk, Health(lambda: None, 60.0), route)._client()  # type: ignore[arg-type, return-value]
    try:
        client.wss_uri = await client.issue_new_wss_url()
        connecting = asyncio.create_task(client.connect())  # type: ignore[no-untyped-call]
        await asyncio.sleep(0.1)  # nothing listens there; a proxy would have been contacted by now
        connecting.cancel()
    finally:
        await client.close()  # type: ignore[no-untyped-call]


async def fetch_policies(url: str, route: Route, folder: Path) -> None:
    mirror = Mirror(folder / "copy.git", parse_address(f"{url}/rules.git"), "main", 5, route)
    with pytest.raises(HeadError):
        await asyncio.to_thread(mirror.newest)


async def send_traces(url: str, route: Route, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        if route.ca_file is not None:
            patch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(route.ca_file))
        exporter = span_exporter(route)
    await asyncio.to_thread(exporter.export, [])
    exporter.shutdown()


Ask = Callable[[str, Route, Path], Awaitable[None]]
CALLS: dict[str, Ask] = {
    "an issuer": ask_issuer,
    "Slack": ask_slack,
    "Socket Mode": open_socket_mode,
    "the policies' repository": fetch_policies,
    "a collector of traces": send_traces,
}
every_library = pytest.mark.parametrize("ask", CALLS.values(), ids=CALLS.keys())


@every_library
async def test_plain_http_uses_no_proxy(
    ask: Ask, plain: Any, proxy: Tunnels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n, exception in enumerate((None, "", "elsewhere.example"), start=1):
        if exception is not None:
            monkeypatch.setenv("NO_PROXY", exception)
            monkeypatch.setenv("no_proxy", exception)
        await ask(plain.url, Route(), tmp_path)
        await ask(plain.url, Route(proxy.url), tmp_path)
        assert (len(plain.asked), proxy.asked) == (2 * n, [])


@every_library
async def test_https_goes_direct_unless_a_proxy_is_set(
    ask: Ask, secure: Any, authority: Path, proxy: Tunnels, tmp_path: Path
) -> None:
    await ask(secure.url, Route(ca_file=authority), tmp_path)
    assert (len(secure.asked), proxy.asked) == (1, [])
    await ask(secure.url, Route(proxy.url, authority), tmp_path)
    assert len(secure.asked) == 2
    assert set(proxy.asked) == {f"CONNECT {secure.url.removeprefix('https://')}"}


@every_library
async def test_an_authority_of_the_environment_is_not_trusted(
    ask: Ask, secure: Any, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, str(authority))
    monkeypatch.setenv("SSL_CERT_DIR", str(authority.parent))
    with suppress(Exception):
        await ask(secure.url, Route(), tmp_path)
    assert secure.asked == []


async def test_netrc_is_unused(plain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password canary\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    for ask in CALLS.values():
        await ask(plain.url, Route(), tmp_path)
    assert (len(plain.asked), plain.passwords) == (len(CALLS), [])


# -- the settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["proxy.example:3128", "socks5://proxy.example:1", "http://", "http://p:x"])
def test_an_invalid_proxy_is_refused_and_not_quoted(value: str) -> None:
    with pytest.raises(ValidationError, match="not the address of a proxy"):
        Settings(https_proxy=value)


def test_a_ca_file_without_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name in ("empty.pem", "gone.pem"):
        with pytest.raises(StartError, match=f"ca_file .*{name}"):
            route_from_settings(Settings(ca_file=tmp_path / name))

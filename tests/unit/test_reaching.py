"""Where a request may go: only to the address that was looked at, and only where that is public or named."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from policy_service.http_clients import is_allowed_address
from policy_service.remote_hosts import Webhook
from policy_service.tokens.keys import WebhookKey
from policy_service.workflow.webhooks import DeliveryResult, deliver
from tests.fakes.lookups import certificate
from tests.fakes.receivers import Receiver, Step
from tests.unit.tokens.test_webhook_keys import SHARED

PUBLIC = "93.184.215.14 2606:2800:21f:cb07::8b2c ::ffff:93.184.215.14 64:ff9b::5db8:d70e".split()


INSIDE = {
    "loopback and this network": "127.0.0.1 127.255.255.254 0.0.0.0 0.1.2.3 ::1 ::",
    "private": "10.0.0.1 172.31.255.255 192.168.1.1 100.64.0.1 fd00::1 fec0::1",
    "metadata and the link": "169.254.169.254 169.254.0.1 168.63.129.16 fd00:ec2::254 fe80::1",
    "multicast and broadcast": "224.0.0.1 255.255.255.255 ff02::1",
    "reserved": "240.0.0.1 198.18.0.1 192.0.0.8 192.88.99.1 100::1 5f00::1",
    "documentation": "192.0.2.1 2001:db8::1 3fff::1",
    "mapped": "::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::7f00:1",
    "NAT64": "64:ff9b::a00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::1",
    "6to4 and Teredo": "2002:a00:1::1 2002:a9fe:a9fe::1 2001:0:4136:e378:8000:63bf:3fff:fdd2",
}


def test_a_public_address_is_open() -> None:
    assert [address for address in PUBLIC if not is_allowed_address(ip_address(address))] == []


@pytest.mark.parametrize("address", " ".join(INSIDE.values()).split())
def test_an_inner_address_is_not(address: str) -> None:
    assert not is_allowed_address(ip_address(address))


NETWORKS = [
    ("10.1.2.3", "10.1.0.0/16", True),
    ("10.2.2.3", "10.1.0.0/16", False),
    ("::ffff:10.1.2.3", "10.1.0.0/16", True),  # the same place
    ("10.1.2.3", "::/0", False),
    ("fd00::7", "fd00::/64", True),
    ("fd00::7", "0.0.0.0/0", False),
]


@pytest.mark.parametrize(("address", "network", "may"), NETWORKS)
def test_a_configured_network_allows_only_itself(address: str, network: str, may: bool) -> None:
    assert is_allowed_address(ip_address(address), [ip_network(network)]) is may


# -- over a connection -----------------------------------------------------------------------------------------------

NOW = datetime.now(UTC)
LOOPBACK = ["127.0.0.0/8"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as started:
        yield started


def hook(url: str = "https://hooks.example/x", **more: Any) -> Webhook:
    given = {"name": "billing", "url": url, "secret_files": ["x"], "timeout_s": 1}
    return Webhook.model_validate(given | more)


async def sent(webhook: Webhook, *answers: Sequence[str]) -> DeliveryResult:
    """One delivery; ``answers`` are what the resolver says, one after the other."""
    said = iter(answers)

    async def names(host: str, port: int) -> Sequence[str]:
        return next(said)

    more = {"resolve": names} if answers else {}
    return await deliver(webhook, [WebhookKey(SHARED)], "evt_1", {"type": "task_opened"}, NOW, **more)


async def here(receiver: Receiver, *plan: Step) -> DeliveryResult:
    """One delivery to this receiver, which answers by the plan."""
    receiver.plan = list(plan) or receiver.plan
    return await sent(hook(receiver.url, addresses=LOOPBACK))


async def test_the_address_that_is_named_is_reached(receiver: Receiver) -> None:
    assert await here(receiver) == DeliveryResult(204)
    (got,) = receiver.got
    assert (got.method, got.path, got.headers["content-type"]) == ("POST", "/hook", "application/json")


@pytest.mark.parametrize("there", [["10.0.0.1"], ["::ffff:10.0.0.1"], [*PUBLIC, "10.0.0.1"]])
async def test_a_name_that_resolves_to_a_private_address_is_refused(there: list[str]) -> None:
    """Also if one of its addresses is public. The tests above list private addresses."""
    assert "not a public address" in str((await sent(hook("https://hooks.example/x"), there)).error)


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0"])
async def test_another_spelling_of_loopback_is_refused(host: str, receiver: Receiver) -> None:
    read = socket.inet_ntoa(socket.inet_aton(host))  # as the C library's resolver reads it
    assert read in {"127.0.0.1", "0.0.0.0"}
    answer = await sent(hook(f"https://{host}:{receiver.port}/x"), [read])
    assert "not a public address" in str(answer.error)
    assert receiver.got == []


async def test_dns_rebinding_reaches_no_other_address(receiver: Receiver) -> None:
    """The first address is allowed and later ones have a listener: the name is resolved only once."""
    asked = 0

    async def rebinding(host: str, port: int) -> Sequence[str]:
        nonlocal asked
        asked += 1
        return ["127.0.0.2"] if asked == 1 else ["127.0.0.1"]

    named = hook(f"https://hooks.example:{receiver.port}/x", addresses=["127.0.0.2/32"])
    answer = await deliver(named, [WebhookKey(SHARED)], "evt_1", {}, NOW, rebinding)
    assert answer.error == "ConnectError"  # nothing listens at the address that was looked at
    assert (asked, receiver.got) == (1, [])


async def test_the_certificate_and_the_host_are_those_of_the_name(tmp_path: Path) -> None:
    for name, fine in (("hooks.example", True), ("other.example", False)):
        own = certificate(tmp_path, name)
        with Receiver(certificate=own) as receiver:
            url = f"https://hooks.example:{receiver.port}/hook"
            answer = await sent(hook(url, addresses=LOOPBACK, ca_file=own), ["127.0.0.1"])
            assert (answer.error is None) is fine
            assert [got.headers["host"] for got in receiver.got] == [f"hooks.example:{receiver.port}"] * fine


FAILS: dict[str, tuple[Step, str]] = {
    **{str(status): (status, f"it answered {status}") for status in (500, 404, 304)},
    "a redirect to metadata": ((302, {"Location": "http://169.254.169.254/latest/"}), "it answered 302"),
    "a permanent redirect": ((308, {"Location": "/elsewhere"}), "it answered 308"),
    "silent": ("silent", "no answer within 1 s"),
    "drips": ("drips", "no answer within 1 s"),
    "hangs up": ("hangs up", "RemoteProtocolError"),
}


@pytest.mark.parametrize(("step", "error"), FAILS.values(), ids=FAILS.keys())
async def test_any_other_status_is_a_failure(step: Step, error: str, receiver: Receiver) -> None:
    async with asyncio.timeout(3):
        assert (await here(receiver, step)).error == error
    assert len(receiver.got) == 1, "it was followed elsewhere"


async def test_an_answer_without_end_is_not_read(receiver: Receiver) -> None:
    assert await here(receiver, "endless") == DeliveryResult(200)


async def test_an_unreachable_receiver_is_a_failure_that_quotes_no_address() -> None:
    with Receiver() as gone:
        url = gone.url
    assert (await sent(hook(url, addresses=LOOPBACK))).error == "ConnectError"


RESTS = {
    "429": ((429, {"Retry-After": "120"}), 120),
    "503": ((503, {"Retry-After": "7"}), 7),
    "no number": ((429, {"Retry-After": "soon"}), None),
    "too long a number": ((429, {"Retry-After": "9" * 40}), 999_999_999),
    "another status": ((500, {"Retry-After": "120"}), None),
}


@pytest.mark.parametrize(("step", "seconds"), RESTS.values(), ids=RESTS.keys())
async def test_retry_after_is_honoured(step: Step, seconds: int | None, receiver: Receiver) -> None:
    answer = await here(receiver, step)
    assert (None if answer.rest is None else answer.rest.total_seconds()) == seconds


async def test_retry_after_may_be_a_date(receiver: Receiver) -> None:
    date = format_datetime(NOW + timedelta(days=365), usegmt=True)
    rest = (await here(receiver, (429, {"Retry-After": date}))).rest
    assert rest is not None
    assert 364 < rest.total_seconds() / 86_400 <= 365


async def test_no_proxy_variable_is_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert await here(receiver) == DeliveryResult(204)
        assert proxy.got == []


# -- the setting -----------------------------------------------------------------------------------------------------

PRIVATE = [f"https://{host}/x" for host in ("169.254.169.254", "[::ffff:10.0.0.1]")]
PRIVATE += [f"http://{host}/x" for host in ("127.0.0.1", "localhost")]
NOT_PLAIN = ("http://hooks.example/x", "https://me:canary@hooks.example/x", "file:///etc/passwd")
REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({"url": url}, "not a public address") for url in PRIVATE),
    *(({"url": url}, "plain https URL") for url in NOT_PLAIN),
    *(({"kinds": [kind]}, "is not an event") for kind in ("reveiw", "*", "signed_in")),
    *(({name: []}, "at least 1") for name in ("kinds", "secret_files")),
    ({"secret_files": ["a", "b", "c"]}, "at most 2"),
    *(({"secret": "whsec_x"}, "Extra inputs"), ({"name": "the bill"}, "cannot be a name")),
    ({"timeout_s": 31}, "less than or equal to 30"),
]


@pytest.mark.parametrize(("change", "why"), REFUSED)
def test_an_invalid_webhook_setting_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        hook(**change)


def test_which_events_are_wanted() -> None:
    asked, everything = hook(kinds=["review", "task_opened"]), hook()
    wanted = {"review_opened": True, "task_opened": True, "task_settled": False, "reviewer_left": False}
    assert {kind: asked.wants(kind) for kind in wanted} == wanted
    wanted = {"effect_fired": True, "signed_in": False, "decision_made": False}
    assert {kind: everything.wants(kind) for kind in wanted} == wanted

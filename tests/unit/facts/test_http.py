"""HTTP sources over a real connection: every fault of the host is a denial with a reason."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from countersign.contract import Resource
from policy_service.domain.policy_request import Facts
from policy_service.facts.allowlist import Allowlist
from policy_service.facts.readers import AllowedHost
from policy_service.pap.bundle import Bundle, build_bundle
from policy_service.pap.problems import BundleError
from policy_service.pap.source import FolderSource
from policy_service.remote_hosts import FactsHost
from tests.fakes.bundles import NOW, PERMIT_ALL, BundleFolder
from tests.fakes.lookups import NAME, Asked, Host, certificate

ENTITY = '[entities.Account.attributes]\nstate = "String"\nlimit = "Long?"\n'
TOKEN = "the-token-of-this-service"


def source(url: str, **more: str) -> str:
    lines = {"name": '"bank"', "kind": '"http"', "entity": '"Account"', "url": f'"{url}"', "timeout": '"1s"'}
    return ENTITY + "[[source]]\n" + "".join(f"{name} = {value}\n" for name, value in (lines | more).items())


def open_account(asked: Asked) -> tuple[int, Any]:
    """What a host says that knows the account."""
    return 200, {"state": "open"}


@pytest.fixture
def host() -> Iterator[Host]:
    with Host(open_account) as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path / "bundle").policies(PERMIT_ALL)


def load(folder: BundleFolder, *places: AllowedHost) -> Bundle:
    return build_bundle(FolderSource(folder.path).read(), Allowlist(places))


def bank(folder: BundleFolder, host: Host, **more: str) -> Bundle:
    """A bundle with one source at this host, which is on the allowlist."""
    folder.write("facts.toml", source(f"{host.url}/accounts", **more))
    return load(folder, AllowedHost(FactsHost(url=host.url), TOKEN))


async def gather(bundle: Bundle, account: str = "a1", amount: int = 1, now: datetime = NOW) -> Facts:
    args = f'{{"account":"{account}","amount":{amount}}}'.encode()
    return await bundle.facts.gather("pay", args, Resource("Account", account), agent="robot", now=now)


async def test_the_host_gets_one_object_and_its_answer_is_typed(folder: BundleFolder, host: Host) -> None:
    bundle = bank(folder, host)
    facts = await gather(bundle)
    assert (facts.failed, facts.resource) == (None, {"state": "open"})
    assert [(age.source, age.as_of) for age in facts.ages] == [("bank", NOW)]
    (asked,) = host.asked
    assert (asked.method, asked.path) == ("POST", "/accounts")
    sent = {name: asked.headers[name] for name in ("authorization", "content-type", "accept-encoding")}
    assert list(sent.values()) == [f"Bearer {TOKEN}", "application/json", "identity"]
    resource = {"type": "Account", "id": "a1"}
    whole = {"args": {"account": "a1", "amount": 1}, "resource": resource, "agent": "robot", "tool": "pay"}
    assert asked.body == whole
    await gather(bundle)
    assert len(host.asked) == 2, "without a cache, every question asks"
    await gather(bank(folder, host, send='["resource"]'))
    assert host.asked[2].body == {"resource": resource}, "a source may send less"


async def test_a_wrong_type_of_an_attribute_is_no_answer(folder: BundleFolder, host: Host) -> None:
    host.answer = lambda asked: (200, {"state": "open", "limit": "12"})
    facts = await gather(bank(folder, host))
    assert facts.failed is not None and "limit" in str(facts.alarm)


async def test_not_found_is_knowing_nothing(folder: BundleFolder, host: Host) -> None:
    host.answer = lambda asked: (404, {"state": "open"})
    assert "knows nothing about Account 'a1'" in str((await gather(bank(folder, host))).failed)
    assert (await gather(bank(folder, host, optional="true"))).resource == {}


FAULTS = {
    **dict.fromkeys(("slow", "drips"), "no whole answer within 1 s"),
    **dict.fromkeys(("endless", "huge"), "longer than 65536 bytes"),
    "redirect": "answered 302",
    **{status: f"answered {status}" for status in ("500", "401")},
    "wrong type": "'text/html' and not application/json",
    "no type": "not application/json",
    "no JSON": "no JSON we take",
    "duplicate keys": "duplicate_key",
    "too deep": "too_deep",
    "reserved key": "reserved_key",
    "a list": "no object of attributes",
    "truncated": "ProtocolError",
    "compressed": "compressed",
}


@pytest.mark.parametrize(("how", "why"), FAULTS.items())
async def test_a_fault_of_the_host_denies(folder: BundleFolder, host: Host, how: str, why: str) -> None:
    bundle = bank(folder, host)
    host.how = how
    facts = await gather(bundle)
    assert why in str(facts.alarm)
    assert facts.failed == "source 'bank' could not be used; the operator is notified, try again later"
    assert TOKEN not in str(facts.alarm)
    host.how = None
    assert (await gather(bundle)).failed is None, "and then it works again"


async def test_an_unreachable_host_is_a_denial(folder: BundleFolder) -> None:
    with Host() as gone:
        url = gone.url
    folder.write("facts.toml", source(url))
    assert "ConnectError" in str((await gather(load(folder, AllowedHost(FactsHost(url=url))))).alarm)


# ------------------------------------------------------------------------------------------ who may be asked


ALLOWED = ["example/accounts", "example/accounts/open", "example:443/accounts"]
FORBIDDEN = ["example/", "example/accounts-of-others"]
FORBIDDEN += [f"{host}/accounts" for host in ("example.org", "example.evil.example", "example:8443")]


@pytest.mark.parametrize("place", ALLOWED + FORBIDDEN)
def test_only_what_is_on_the_allowlist_loads(folder: BundleFolder, place: str) -> None:
    folder.write("facts.toml", source(f"https://facts.{place}"))
    files = FolderSource(folder.path).read()
    outside = Allowlist([AllowedHost(FactsHost(url="https://facts.example/accounts"))])
    if place in ALLOWED:
        build_bundle(files, outside).close()
        return
    with pytest.raises(BundleError, match="not on the allowlist of this service"):
        build_bundle(files, outside)


UNPLAIN = [
    *("http://facts.example/accounts", "https://facts.example@evil.example/accounts", "https:///accounts"),
    *("https://facts.example/accounts/../admin", "https://facts.example/accounts%2f..%2fadmin"),
    *("https://facts.example/accounts?all=1", "https://facts.example/accounts#x", "file:///etc/passwd"),
    *("https://facts.example\\\\@evil.example/", "https://FACTS.example/", "https://facts.example:port/"),
]


@pytest.mark.parametrize("url", UNPLAIN)
def test_an_address_that_could_be_read_in_two_ways_is_refused(folder: BundleFolder, url: str) -> None:
    folder.write("facts.toml", source(url))
    assert any("needs url" in problem for problem in folder.problems())


async def test_without_a_service_no_host_is_called(folder: BundleFolder, host: Host) -> None:
    folder.write("facts.toml", source(host.url))
    facts = await gather(build_bundle(FolderSource(folder.path).read()))
    assert "external sources are not queried here" in str(facts.alarm)
    assert host.asked == []


def named(host: Host, *addresses: str, **more: Any) -> AllowedHost:
    """A place whose name leads to these addresses."""

    async def resolve(name: str, port: int) -> Sequence[str]:
        assert (name, port) == (NAME, host.port)
        return addresses

    return AllowedHost(FactsHost(url=f"https://{NAME}:{host.port}", **more), resolve=resolve)


async def by_name(folder: BundleFolder, host: Host, *addresses: str, **more: Any) -> Facts:
    """What a source says that is asked by its name."""
    folder.write("facts.toml", source(f"https://{NAME}:{host.port}"))
    return await gather(load(folder, named(host, *addresses, **more)))


@pytest.mark.parametrize("there", [["127.0.0.1"], ["fe80::1%eth0"], ["93.184.215.14", "10.1.2.3"]])
async def test_a_private_address_of_a_name_is_refused(folder: BundleFolder, host: Host, there: Any) -> None:
    """unit/test_reaching.py tests which addresses those are."""
    assert "which is not a public address" in str((await by_name(folder, host, *there)).alarm)
    assert host.asked == []


async def test_tls_is_verified_for_the_name_that_is_asked(folder: BundleFolder, tmp_path: Path) -> None:
    local = {"addresses": ("127.0.0.0/8",)}
    with Host(open_account, certificate(tmp_path, NAME)) as host:
        facts = await by_name(folder, host, "127.0.0.1", ca_file=host.certificate, **local)
        assert (facts.alarm, facts.resource) == (None, {"state": "open"})
        assert host.asked[0].headers["host"] == f"{NAME}:{host.port}"
        facts = await by_name(folder, host, "127.0.0.1", **local)
        assert "CERTIFICATE_VERIFY_FAILED" in str(facts.alarm)
    other = certificate(tmp_path, "other.example", "127.0.0.1")
    with Host(open_account, other) as host:
        facts = await by_name(folder, host, "127.0.0.1", ca_file=other, **local)
        assert "Hostname mismatch" in str(facts.alarm)
        assert host.asked == []


# -------------------------------------------------------------------------------------------------- kept answers


async def test_an_answer_is_served_again_and_never_for_longer(folder: BundleFolder, host: Host) -> None:
    bundle = bank(folder, host, cache='"30s"')
    await gather(bundle)
    host.answer = lambda asked: (200, {"state": "closed"})
    kept = await gather(bundle, now=NOW + timedelta(seconds=29))
    assert (kept.resource, kept.ages[0].as_of) == ({"state": "open"}, NOW)
    later = NOW + timedelta(seconds=30)
    fresh = await gather(bundle, now=later)
    assert (fresh.resource, fresh.ages[0].as_of) == ({"state": "closed"}, later)
    assert len(host.asked) == 2


async def test_what_is_kept_answers_its_own_question_alone(folder: BundleFolder, host: Host) -> None:
    bundle = bank(folder, host, cache='"30s"')
    await gather(bundle, amount=1)
    await gather(bundle, amount=2)
    assert [asked.body["args"]["amount"] for asked in host.asked] == [1, 2]
    await gather(bundle, amount=2, now=NOW - timedelta(seconds=1))  # the clock went back
    assert len(host.asked) == 3
    bundle.close()
    await gather(bundle, amount=1)
    assert len(host.asked) == 4, "a closed bundle has forgotten its answers"


@pytest.mark.parametrize("how", ["500", "nothing"])
async def test_no_answer_is_kept_for_a_second_at_most(folder: BundleFolder, host: Host, how: str) -> None:
    bundle = bank(folder, host, cache='"30s"')
    host.how, host.answer = (how, host.answer) if how == "500" else (None, lambda asked: (404, {}))
    assert (await gather(bundle)).failed
    assert (await gather(bundle, now=NOW + timedelta(milliseconds=999))).failed
    assert len(host.asked) == 1
    host.how, host.answer = None, open_account
    assert (await gather(bundle, now=NOW + timedelta(seconds=1))).failed is None


async def test_an_answers_own_time_counts_and_a_stale_one_denies(folder: BundleFolder, host: Host) -> None:
    bundle = bank(folder, host, cache='"60s"', max_age='"60s"', as_of='"seen_at"')
    written = NOW - timedelta(seconds=50)
    host.answer = lambda asked: (200, {"state": "open", "seen_at": written.isoformat()})
    assert (await gather(bundle)).ages[0].as_of == written
    # kept for 60 s, but by then it is older than max_age: it is asked for again, and is still the old one
    assert "is stale" in str((await gather(bundle, now=NOW + timedelta(seconds=11))).failed)
    assert len(host.asked) == 2


async def test_the_same_at_once_is_asked_once(folder: BundleFolder, host: Host) -> None:
    host.how = "a while"
    bundle = bank(folder, host, cache='"30s"')
    first = asyncio.create_task(gather(bundle))
    await asyncio.to_thread(host.began.wait, 5)
    others = [asyncio.create_task(gather(bundle)) for _ in range(20)]
    await asyncio.sleep(0)
    first.cancel()
    assert {facts.failed for facts in await asyncio.gather(*others)} == {None}
    assert len(host.asked) == 1


async def test_a_host_is_asked_by_no_more_at_once_than_it_may_be(folder: BundleFolder, host: Host) -> None:
    host.how = "a while"
    folder.write("facts.toml", source(host.url, timeout='"10s"'))
    bundle = load(folder, AllowedHost(FactsHost(url=host.url, at_once=2)))
    gathered = await asyncio.gather(*(gather(bundle, amount=n) for n in range(6)))
    assert {facts.failed for facts in gathered} == {None}
    assert host.most_at_once == 2


async def test_sources_are_asked_side_by_side(folder: BundleFolder, host: Host) -> None:
    met: set[str] = set()

    def answer(asked: Asked) -> tuple[int, Any]:
        met.add(asked.path)
        while len(met) < 2 and not host.lifted.wait(0.01):  # each waits for the other
            pass
        return 200, {"state": "open"} if asked.path == "/a" else {"limit": 5}

    host.answer = answer
    one = source(f"{host.url}/a", attributes='["state"]', timeout='"5s"')
    two = source(f"{host.url}/b", attributes='["limit"]', name='"second"', timeout='"5s"')
    folder.write("facts.toml", one + two.removeprefix(ENTITY))
    facts = await gather(load(folder, AllowedHost(FactsHost(url=host.url))))
    assert facts.resource == {"state": "open", "limit": 5}

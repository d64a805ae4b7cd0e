"""Members of directory groups by SCIM: complete and exact, or an error."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from policy_service.facts.allowlist import DirectoryReader, read_groups
from policy_service.facts.readers import AllowedHost, SourceFailedError
from policy_service.health import Health
from policy_service.remote_hosts import DirectoryApi
from tests.fakes.lookups import Host, Scim
from tests.unit.storage.databases import Clock

ISSUER = "https://login.example"


@pytest.fixture
def scim() -> Scim:
    directory = Scim()
    directory.put("Finance", "maya", "tomas")
    directory.put("CFO", "tomas")
    return directory


@pytest.fixture
def host(scim: Scim) -> Iterator[Host]:
    with Host(scim) as started:
        yield started


def place(host: Host, person: str = f"{ISSUER}|{{value}}") -> AllowedHost:
    return AllowedHost(DirectoryApi(url=f"{host.url}/scim", person=person), "the-token")


def people(*subjects: str) -> frozenset[str]:
    return frozenset(f"{ISSUER}|{subject}" for subject in subjects)


async def read(host: Host, *names: str, person: str = f"{ISSUER}|{{value}}") -> dict[str, frozenset[str]]:
    return dict((await read_groups(place(host, person), frozenset(names))).members)


async def test_members_are_people_of_the_issuer(host: Host, scim: Scim) -> None:
    scim.put("finance", "mallory")  # a name in another case is another group
    scim.put("Empty")
    found = await read_groups(place(host), frozenset({"Finance", "CFO", "Empty", "Gone"}))
    there = {"Finance": people("maya", "tomas"), "CFO": people("tomas")}
    assert found.members == there | {"Empty": frozenset(), "Gone": frozenset()}
    assert found.missing == ("Gone",)
    assert {asked.headers["authorization"] for asked in host.asked} == {"Bearer the-token"}


@pytest.mark.parametrize("name", ["Buchhaltung Zürich", "財務部", 'a "quoted" one', "back\\slash", "a&b=c"])
async def test_any_name_a_directory_allows(host: Host, scim: Scim, name: str) -> None:
    scim.put(name, "maya")
    assert await read(host, name) == {name: people("maya")}


async def test_a_huge_group_is_read_whole(host: Host, scim: Scim) -> None:
    scim.put("Finance", *(f"u{n}" for n in range(20_000)))
    assert len((await read(host, "Finance"))["Finance"]) == 20_000


async def test_a_nested_group_and_what_is_no_subject_are_passed_over(host: Host, scim: Scim) -> None:
    nested, spaced = {"value": "g1", "type": "Group"}, {"value": "with space", "type": "User"}
    scim.groups["Finance"] += [nested, spaced, {"value": 7}, {"display": "no value"}]
    assert await read(host, "Finance") == {"Finance": people("maya", "tomas")}


async def test_by_external_id_only_active_users_that_have_one_count(host: Host, scim: Scim) -> None:
    scim.per_page = 2
    scim.users = {"jonas": {}, "ingrid": {"externalId": "250"}, "extra": {"externalId": "251"}}
    for name, number, active in (("maya", "248", True), ("tomas", "249", False)):
        scim.users[name] = {"externalId": number, "active": active}
    scim.put("Finance", "maya", "tomas", "ingrid", "jonas", "stranger")
    found = await read(host, "Finance", person=f"{ISSUER}|{{externalId}}")
    assert found == {"Finance": people("248", "250")}


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "two groups of one name": ({"twins": True}, "has 2 groups called"),
    "half a list": ({"keeps": 0}, "but ends after 0"),
    "another page than the one asked for": ({"says": {"startIndex": 7}}, "answered with 7"),
    "a list that never ends": ({"says": {"totalResults": 10**9}}, "but ends after 1"),
    "no total": ({"says": {"totalResults": "many"}}, "no SCIM list"),
    "resources that are none": ({"says": {"Resources": ["x"]}}, "are no objects"),
    "members that are no list": ({"groups": {"Finance": {"value": "maya"}}}, "are no list"),
}


@pytest.mark.parametrize(("changes", "why"), BROKEN.values(), ids=BROKEN)
async def test_a_broken_answer_is_none(host: Host, scim: Scim, changes: dict[str, Any], why: str) -> None:
    for name, value in changes.items():
        setattr(scim, name, value)
    with pytest.raises(SourceFailedError, match=why):
        await read(host, "Finance")


async def test_a_fault_of_the_host_is_no_answer(host: Host) -> None:
    """Every kind of fault is in test_http.py."""
    host.how = "401"
    with pytest.raises(SourceFailedError) as failed:
        await read(host, "Finance")
    assert "the-token" not in str(failed.value)


def reader(host: Host) -> tuple[DirectoryReader, Clock, Health]:
    clock = Clock()
    health = Health(clock, 60)
    return DirectoryReader(place(host), clock, timedelta(minutes=15), health), clock, health


async def test_what_was_read_counts_until_it_is_too_old(host: Host) -> None:
    directory, clock, health = reader(host)
    assert not directory.fresh()
    await directory.read(frozenset({"CFO"}))
    began, host.how = clock.now, "500"
    clock.now = began + timedelta(minutes=15) - timedelta(microseconds=1)
    await directory.read(frozenset({"CFO"}))
    assert directory.fresh() and directory.members == {"CFO": people("tomas")}
    (finding,) = health.findings()
    assert (finding.check, finding.stops) == ("groups", False)
    assert finding.wrong == "the directory could not be read at the last attempt"
    clock.now = began + timedelta(minutes=15)
    assert not directory.fresh(), "without anybody having asked again"
    await directory.read(frozenset({"CFO"}))
    assert "its groups are empty" in health.findings()[0].wrong
    host.how = None
    await directory.read(frozenset({"CFO"}))
    assert directory.fresh() and health.findings() == []


async def test_a_clock_that_went_back_trusts_no_reading_of_the_future(host: Host) -> None:
    directory, clock, _ = reader(host)
    await directory.read(frozenset({"CFO"}))
    clock.now -= timedelta(seconds=6)
    assert not directory.fresh()


async def test_the_same_members_are_the_same_object_and_others_are_not(host: Host, scim: Scim) -> None:
    directory, _, _ = reader(host)
    await directory.read(frozenset({"CFO"}))
    before = directory.members
    await directory.read(frozenset({"CFO"}))
    assert directory.members is before
    scim.put("CFO", "ingrid")
    await directory.read(frozenset({"CFO"}))
    assert directory.members == {"CFO": people("ingrid")}


async def test_a_missing_group_is_reported_until_it_exists(host: Host, scim: Scim) -> None:
    directory, _, health = reader(host)
    await directory.read(frozenset({"Legal"}))
    assert health.findings()[0].wrong == "the directory has no group called 'Legal'"
    scim.put("Legal", "ingrid")
    await directory.read(frozenset({"Legal"}))
    assert health.findings() == []

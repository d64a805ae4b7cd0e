"""Groups of a directory and facts of a host, in a running service: what they say counts until the effect is spent."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from policy_service import metrics
from policy_service.errors import StartError
from policy_service.identity.dev_signin import DEV_ISSUER
from tests.fakes.log_check import faults_of_log
from tests.fakes.lookups import Host, Scim
from tests.fakes.payments import Payments, plain_forbid
from tests.fakes.world import Agent, World, running
from tests.integration.service.effects import pay

pytestmark = pytest.mark.anyio

GROUPS = """
[directory.groups]
finance = "Finance & Tax"
cfo = "CFO"
[groups.unseen]
members = []
[groups.legal]
members = []
"""
FACTS = """
[entities.Account.attributes]
state = "String"
[[source]]
name = "bank"
kind = "http"
entity = "Account"
url = "URL/accounts"
"""
TOKEN = "a-token-nobody-logs"


@pytest.fixture
def scim() -> Scim:
    directory = Scim()
    directory.put("Finance & Tax", "maya", "tomas")
    directory.put("CFO", "tomas")
    return directory


@pytest.fixture
def directory(scim: Scim) -> Iterator[Host]:
    with Host(scim) as started:
        yield started


@pytest.fixture
def facts() -> Iterator[Host]:
    with Host(lambda asked: (200, {"state": "open"})) as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path, facts: Host) -> Payments:
    folder = Payments(tmp_path / "bundle")
    folder.write("groups.toml", GROUPS)
    folder.write("facts.toml", FACTS.replace("URL", facts.url))
    return folder


def settings_for(directory: Host, facts: Host) -> dict[str, Any]:
    return {
        "directory": {
            "url": f"{directory.url}/scim",
            "person": f"{DEV_ISSUER}|{{value}}",
            "token_env": "DIRECTORY_TOKEN",
        },
        "facts_http": [{"url": facts.url}],
        "directory_poll_s": 600,
        "directory_max_age_s": 900,
    }


@pytest.fixture
async def bank(
    tmp_path: Path, folder: Payments, directory: Host, facts: Host, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setenv("DIRECTORY_TOKEN", TOKEN)
    async with running(tmp_path / "data", folder.path, **settings_for(directory, facts)) as started:
        yield started
        assert await started.service.db.read(faults_of_log) == []


@pytest.fixture
async def robot(bank: World) -> Agent:
    return await bank.agent("robot")


async def look(bank: World) -> None:
    """What the job does."""
    await bank.service.active.read_directory()


async def approved(bank: World, robot: Agent) -> tuple[dict[str, Any], list[str]]:
    """A payment that Maya of the directory's finance approved, and its tokens."""
    view = (await robot.submit(await pay(bank, 500))).json()
    answer = await (await bank.person("maya")).vote(view)
    assert answer.json()["state"] == "met", answer.text
    return view, (await robot.release(view)).json()["releases"]


async def test_a_member_of_the_directory_may_approve_and_nobody_else(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500), run_key="other")).json()
    assert (await (await bank.person("jonas")).vote(view)).json()["code"] == "not_eligible"
    _, tokens = await approved(bank, robot)
    assert (await robot.redeem(tokens, robot.attempt)).json()["redeemed"] is True


async def test_a_member_who_was_removed_before_the_redemption_does_not_count_any_more(
    bank: World, robot: Agent, scim: Scim
) -> None:
    view, tokens = await approved(bank, robot)
    scim.put("Finance & Tax", "tomas")
    await look(bank)
    answer = (await robot.redeem(tokens, robot.attempt)).json()
    assert answer["redeemed"] is False
    assert answer["transaction"]["effects"][0]["state"] == "review"
    assert (await (await bank.person("tomas")).vote(view)).json()["state"] == "met"
    tokens = (await robot.release(view)).json()["releases"]
    assert (await robot.redeem(tokens, robot.attempt)).json()["redeemed"] is True


async def test_a_vote_of_somebody_who_left_does_not_settle(bank: World, robot: Agent, scim: Scim) -> None:
    view = (await robot.submit(await pay(bank, 5_000))).json()
    await (await bank.person("maya")).vote(view)
    scim.put("Finance & Tax", "tomas", "ingrid")
    await look(bank)
    assert (await (await bank.person("tomas")).vote(view)).json()["state"] == "open"
    assert (await (await bank.person("ingrid")).vote(view)).json()["state"] == "met"


async def test_a_directory_that_is_away_counts_for_a_while_and_then_for_nobody(
    bank: World, robot: Agent, directory: Host
) -> None:
    view, _ = await approved(bank, robot)
    directory.how = "500"
    await look(bank)
    assert await ready(bank) == ["the directory could not be read when it was last asked"]
    bank.clock.pass_(seconds=901)
    tokens = (await robot.release(view)).json()["releases"]
    answer = (await robot.redeem(tokens, robot.attempt)).json()
    assert answer["redeemed"] is False
    assert answer["transaction"]["effects"][0]["state"] == "review"
    view = answer["transaction"]
    assert (await (await bank.person("tomas")).vote(view)).json()["code"] == "not_eligible"
    await bank.sweep()
    assert await (await bank.person("maya")).task(view, "impossible_quorum")
    directory.how = None
    await look(bank)
    assert await ready(bank) == []
    assert (await (await bank.person("tomas")).vote(view)).json()["state"] == "met"


async def ready(bank: World) -> list[str]:
    answer = (await bank.http.get("/readyz")).json()
    return [one["wrong"] for one in answer["findings"] if one["check"] == "groups"]


async def test_a_change_between_facts_and_decision_is_seen_by_the_decision(
    bank: World, robot: Agent, scim: Scim, facts: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tokens = await approved(bank, robot)
    before = bank.service.active.current
    real = type(before).facts_for
    looked = []

    async def meanwhile(self: Any, *args: Any, **more: Any) -> Any:
        found = await real(self, *args, **more)
        if not looked:
            looked.append(True)
            scim.put("Finance & Tax", "tomas")
            await look(bank)
        return found

    monkeypatch.setattr(type(before), "facts_for", meanwhile)
    answer = (await robot.redeem(tokens, robot.attempt)).json()
    assert looked and bank.service.active.current is not before
    assert answer["redeemed"] is False
    assert bank.service.active.current.digest == before.digest


async def test_a_fact_that_changes_between_submission_and_redemption_is_decided_on_anew(
    bank: World, folder: Payments, robot: Agent, facts: Host
) -> None:
    folder.rules(plain_forbid("closed", 'resource.state == "closed"'))
    await bank.activate()
    view = (await robot.submit(await pay(bank))).json()
    tokens = (await robot.release(view)).json()["releases"]
    facts.answer = lambda asked: (200, {"state": "closed"})
    answer = (await robot.redeem(tokens, robot.attempt)).json()
    assert answer["redeemed"] is False
    assert answer["transaction"]["effects"][0]["state"] == "denied"


async def test_a_host_that_fails_takes_the_release_back_and_is_told(
    bank: World, robot: Agent, facts: Host
) -> None:
    view = (await robot.submit(await pay(bank))).json()
    tokens = (await robot.release(view)).json()["releases"]
    failed = _reads("failed")
    facts.how = "500"
    answer = (await robot.redeem(tokens, robot.attempt)).json()
    effect = answer["transaction"]["effects"][0]
    assert effect["state"] == "denied"
    assert effect["decision"]["reasons"][0]["code"] == "facts_unavailable"
    assert _reads("failed") == failed + 1
    (finding,) = [f for f in (await bank.http.get("/readyz")).json()["findings"] if f["check"] == "facts"]
    assert finding["wrong"] == "the source bank could not be read when it was last asked"
    facts.how = None
    await robot.submit(await pay(bank), run_key="again")
    assert (await bank.http.get("/readyz")).json()["findings"] == []


def _reads(result: str) -> float:
    return (
        metrics.REGISTRY.get_sample_value(
            "countersign_fact_reads_total", {"source": "bank", "result": result}
        )
        or 0.0
    )


async def test_a_push_cannot_make_the_service_call_out(
    bank: World, folder: Payments, robot: Agent, facts: Host
) -> None:
    before = bank.service.active.current.digest
    with Host() as elsewhere:
        folder.write("facts.toml", FACTS.replace("URL", elsewhere.url))
        assert await bank.activate() is False
        assert (await robot.submit(await pay(bank))).json()["state"] == "ready"
        assert elsewhere.asked == []
    assert bank.service.active.current.digest == before
    (problem,) = bank.service.active.status().error.problems  # type: ignore[union-attr]
    assert "not on the allowlist" in problem.message


async def test_a_new_bundles_groups_are_read_before_it_decides(
    bank: World, folder: Payments, robot: Agent, scim: Scim
) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    scim.put("Treasury", "jonas")
    folder.write("groups.toml", GROUPS.replace("Finance & Tax", "Treasury"))
    assert await bank.activate()
    assert (await (await bank.person("jonas")).vote(view)).json()["state"] == "met"


async def test_no_token_is_logged(
    bank: World,
    robot: Agent,
    directory: Host,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    assert {asked.headers["authorization"] for asked in directory.asked} == {f"Bearer {TOKEN}"}
    directory.how = "401"
    await look(bank)
    said = "".join(capsys.readouterr()) + caplog.text
    assert "directory_unreadable" in said
    assert TOKEN not in said


async def test_a_service_without_a_directory_or_its_token_refuses_a_bundle_that_needs_one(
    tmp_path: Path, folder: Payments, directory: Host, facts: Host
) -> None:
    for given, told in (
        ({"facts_http": [{"url": facts.url}]}, "this service reads none"),
        (settings_for(directory, facts), "DIRECTORY_TOKEN is empty"),
    ):
        with pytest.raises(StartError, match=told):
            async with running(tmp_path / "data", folder.path, **given):
                pass

"""Groups of a directory and facts of a host, in a running service: what they say counts until the effect is spent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from policy_service.errors import StartError
from policy_service.identity.dev_signin import DEV_ISSUER
from tests.fakes.lookups import Host, Scim
from tests.fakes.payments import Payments, plain_forbid
from tests.fakes.world import Agent, running
from tests.integration.service.effects import pay
from tests.integration.service.test_costs import value
from tests.integration.service.together.bank import Bank

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
TOKEN = "a-token-in-no-log"


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


@pytest.fixture
def settings(directory: Host, facts: Host, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("DIRECTORY_TOKEN", TOKEN)
    person = f"{DEV_ISSUER}|{{value}}"
    found = {"url": f"{directory.url}/scim", "person": person, "token_env": "DIRECTORY_TOKEN"}
    times = {"directory_poll_s": 600, "directory_max_age_s": 900}
    return {"directory": found, "facts_http": [{"url": facts.url}], **times}


async def vote(bank: Bank, name: str, view: dict[str, Any]) -> str:
    """What somebody's vote comes to: the state of the review, or the refusal's code."""
    answer = (await (await bank.person(name)).vote(view)).json()
    return str(answer.get("state") or answer["code"])


async def released(robot: Agent, view: dict[str, Any]) -> Any:
    return (await robot.release(view)).json()["releases"]


async def approved(bank: Bank, robot: Agent) -> tuple[dict[str, Any], list[str]]:
    """A payment that Maya of the directory's finance approved, and its tokens."""
    view = (await robot.submit(await pay(bank, 500))).json()
    assert await vote(bank, "maya", view) == "met"
    return view, await released(robot, view)


async def not_redeemed(robot: Agent, tokens: list[str], state: str) -> dict[str, Any]:
    """The transaction whose effect the redemption found to be in this state."""
    answer = (await robot.redeem(tokens, robot.attempt)).json()
    assert answer["redeemed"] is False
    view: dict[str, Any] = answer["transaction"]
    assert view["effects"][0]["state"] == state
    return view


async def findings(bank: Bank, check: str = "groups") -> list[str]:
    answer = (await bank.http.get("/readyz")).json()
    return [one["wrong"] for one in answer["findings"] if one["check"] == check]


async def test_who_left_the_directory_counts_no_more(bank: Bank, robot: Agent, scim: Scim) -> None:
    other = (await robot.submit(await pay(bank, 5_000), run_key="other")).json()
    assert await vote(bank, "jonas", other) == "not_eligible"
    assert await vote(bank, "maya", other) == "open"
    view, tokens = await approved(bank, robot)
    scim.put("Finance & Tax", "tomas", "ingrid")
    await bank.service.active.read_directory()
    await not_redeemed(robot, tokens, "review")
    assert await vote(bank, "tomas", view) == "met"
    assert (await robot.redeem(await released(robot, view), robot.attempt)).json()["redeemed"] is True
    assert await vote(bank, "tomas", other) == "open"  # nor does a vote that was cast before
    assert await vote(bank, "ingrid", other) == "met"


async def test_an_unreachable_directory_expires(
    bank: Bank, robot: Agent, directory: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    view, _ = await approved(bank, robot)
    directory.how = "500"
    await bank.service.active.read_directory()
    assert await findings(bank) == ["the directory could not be read at the last attempt"]
    bank.clock.pass_(seconds=901)
    view = await not_redeemed(robot, await released(robot, view), "review")
    assert await vote(bank, "tomas", view) == "not_eligible"
    await bank.sweep()
    assert await (await bank.person("maya")).task(view, "impossible_quorum")
    directory.how = None
    await bank.service.active.read_directory()
    assert await findings(bank) == []
    assert await vote(bank, "tomas", view) == "met"
    assert {asked.headers["authorization"] for asked in directory.asked} == {f"Bearer {TOKEN}"}
    said = "".join(capsys.readouterr())
    assert "directory_unreadable" in said and TOKEN not in said


async def test_a_group_change_during_a_redemption_counts(
    bank: Bank, robot: Agent, scim: Scim, monkeypatch: pytest.MonkeyPatch
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
            await bank.service.active.read_directory()
        return found

    monkeypatch.setattr(type(before), "facts_for", meanwhile)
    await not_redeemed(robot, tokens, "review")
    assert looked and bank.service.active.current is not before
    assert bank.service.active.current.digest == before.digest


async def test_a_changed_fact_is_asked_anew(bank: Bank, robot: Agent, facts: Host) -> None:
    """If its host fails, the effect is denied."""
    await bank.rules(plain_forbid("closed", 'resource.state == "closed"'))
    tokens = await released(robot, (await robot.submit(await pay(bank))).json())
    facts.answer = lambda asked: (200, {"state": "closed"})
    await not_redeemed(robot, tokens, "denied")
    facts.answer = lambda asked: (200, {"state": "open"})
    tokens = await released(robot, (await robot.submit(await pay(bank), run_key="fails")).json())
    failures = partial(value, "fact_reads_total", source="bank", result="failed")
    before = failures()
    facts.how = "500"
    (effect,) = (await not_redeemed(robot, tokens, "denied"))["effects"]
    assert effect["decision"]["reasons"][0]["code"] == "facts_unavailable"
    assert failures() == before + 1
    assert await findings(bank, "facts") == ["the source bank could not be read at the last attempt"]
    facts.how = None
    await robot.submit(await pay(bank), run_key="again")
    assert (await bank.http.get("/readyz")).json()["findings"] == []


async def test_a_push_waits_for_its_groups(bank: Bank, robot: Agent, scim: Scim, facts: Host) -> None:
    before = bank.service.active.current.digest
    with Host() as elsewhere:
        bank.folder.write("facts.toml", FACTS.replace("URL", elsewhere.url))
        assert await bank.activate() is False
        assert (await robot.submit(await pay(bank), run_key="small")).json()["state"] == "ready"
        assert elsewhere.asked == []
    assert bank.service.active.current.digest == before
    (problem,) = bank.service.active.status().error.problems  # type: ignore[union-attr]
    assert "not on the allowlist" in problem.message
    view = (await robot.submit(await pay(bank, 500))).json()
    scim.put("Treasury", "jonas")
    bank.folder.write("facts.toml", FACTS.replace("URL", facts.url))
    await bank.write("groups.toml", GROUPS.replace("Finance & Tax", "Treasury"))
    assert await vote(bank, "jonas", view) == "met"


async def test_a_missing_directory_prevents_the_start(
    tmp_path: Path, folder: Payments, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIRECTORY_TOKEN")
    facts_only = {"facts_http": settings["facts_http"]}
    for given, why in ((facts_only, "this service reads none"), (settings, "DIRECTORY_TOKEN is empty")):
        with pytest.raises(StartError, match=why):
            async with running(tmp_path / "data", folder.path, **given):
                pass

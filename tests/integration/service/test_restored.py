"""A database that came back from a backup: it does not start, `policy-service restored` takes it over, and nothing that
may have fired since fires again.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from policy_service.audit.feed import transaction_topic
from policy_service.audit.log import entries_after
from policy_service.channels.admin import backup
from policy_service.channels.admin.commands import COMMANDS, READ_ONLY
from policy_service.errors import StartError, StorageUnavailableError
from policy_service.identity.dev_signin import DEV_ISSUER
from policy_service.identity.people import list_slack_links
from policy_service.storage.core import insert_row
from policy_service.storage.database import Database
from policy_service.storage.slack_tables import SlackLinkRow
from policy_service.tokens.epoch import Mark, read_mark, write_mark
from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import Payments
from tests.fakes.streaming import events, served
from tests.fakes.vault import REASON, Vault, at, serving, tasks
from tests.fakes.world import Agent, running
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, refusal, sizes
from tests.integration.service.together.test_outcomes import undone


async def lose_part(vault: Vault) -> Any:
    """What happened: a payment waits, one is released and, after the copy was made, spent."""
    async with serving(vault) as bank:
        story = SimpleNamespace(robot=await bank.agent("robot"))
        story.waits = (await story.robot.submit(await pay(bank, 500), run_key="waits")).json()
        story.ready = (await story.robot.submit(await pay(bank), run_key="ready")).json()
        story.tokens = (await story.robot.release(story.ready)).json()["releases"]
    both = (view["effects"][0]["effect_id"] for view in (story.waits, story.ready))
    story.restored = sorted(("restored", effect) for effect in both)  # the tasks that a restore makes of it
    story.copy = vault.save()
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        await robot.spend(story.ready, "before")
        fired = {"effect_id": story.ready["effects"][0]["effect_id"], "outcome": "fired"}
        await robot.report("before", fired)
        await robot.submit(await pay(bank), run_key="forgotten", attempt_id="forgotten")
    vault.bring_back(story.copy)
    return story


READING = (
    ("agent", "list"),
    ("freeze", "list"),
    ("passkeys", "list"),
    ("people",),
    ("slack", "links"),
    ("slack", "status"),
    ("webhooks", "list"),
)


@pytest.mark.parametrize("vault", ["sqlite"], indirect=True)
async def test_commands_that_only_read_run_on_a_database_that_is_behind(vault: Vault) -> None:
    """An operator looks at what it holds, to decide whether it is taken over. Embedded: others read the server's."""
    await lose_part(vault)
    before = (vault.data / "countersign.db").read_bytes()
    for words in READING:
        code, said = vault.verb(*words, "--json")
        assert code == 0 and "WARNING: this database ends at audit index" in said, (words, said)
    for words in (
        ("agent", "enroll", "late"),
        ("freeze", "everything", "--reason", "x"),
        ("revoke", "agent", "robot", "--reason", "x"),
        ("webhooks", "retry", "x"),
    ):
        code, said = vault.verb(*words)
        assert code == 1 and "restored or replaced" in said, (words, said)
    assert (vault.data / "countersign.db").read_bytes() == before
    assert vault.verb(*REASON)[0] == 0
    code, said = vault.verb("agent", "list")
    assert code == 0 and "WARNING" not in said


def test_the_commands_that_only_read_are_named() -> None:
    listed = {name for name in COMMANDS if name.endswith(("-list", "-links", "-status"))}
    assert listed | {"people-list", "recorded-call", "recorded-calls"} == READ_ONLY


async def does_not_start(vault: Vault, why: str = "restored or replaced") -> None:
    with pytest.raises(StartError, match=why):
        async with serving(vault):
            pass


async def test_what_may_have_fired_becomes_a_task(vault: Vault) -> None:
    story = await lose_part(vault)
    code, said = vault.verb("restored", "--dry-run", "--json")
    would = json.loads(said)
    assert code == 0 and would["dry_run"] and would["marked"] > would["known_to"]
    assert sorted(would["in_doubt"]) == sorted([story.waits["txn"], story.ready["txn"]])
    code, said = vault.verb("restored")
    assert code == 1 and "--reason" in said and "2 open transactions" in said
    mark = read_mark(vault.data / "keys")
    assert mark is not None and mark.epoch == 1
    assert json.loads(vault.verb("restored", "--dry-run", "--json")[1]) == would, "it changes nothing"
    (vault.data / "keys/epoch.json").unlink()
    code, said = vault.verb(*REASON)
    assert code == 1 and "copy the newest one" in said
    write_mark(vault.data / "keys", mark)
    await does_not_start(vault, "policy-service restored --dry-run")
    if "database_url" not in vault.settings:  # embedded: a command is all there is to write to the log
        code, said = vault.verb("agent", "enroll", "late")
        assert code == 1 and "restored or replaced" in said
    code, said = vault.verb(*REASON)
    assert code == 0, said
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        assert refusal(await robot.submit(await pay(bank), run_key="new")) == (403, "frozen")
        await bank.operator("go-on", {"tool": None})
        for view in (story.waits, story.ready):
            seen = await robot.see(view["txn"])
            assert (seen["state"], seen["effects"][0]["state"]) == ("unsettled", "unknown")
            assert (await robot.release(view)).status_code == 409
        assert await tasks(bank) == story.restored
        assert (await (await bank.person("maya")).get("/v1/reviews")).json()["reviews"] == []
        assert refusal(await robot.redeem(story.tokens, "again")) == (400, "bad_token")
        again = (await robot.submit(await pay(bank), run_key="ready", attempt_id="again")).json()
        assert (again["state"], again.get("receipt")) == ("unsettled", None)
        assert refusal(await robot.submit(await mail(bank), run_key="ready")) == (409, "already_redeemed")
        new = (await robot.submit(await pay(bank), run_key="new", attempt_id="new")).json()
        assert bank.receipt_of(new).epoch == 2
        assert await bank.service.db.read(faults_of_log) == []


async def test_a_healthy_database_is_restored_only_by_force(vault: Vault) -> None:
    async with serving(vault) as bank:
        robot = await bank.agent("robot")
        view = (await robot.submit(await pay(bank))).json()
    code, said = vault.verb(*REASON)
    assert code == 1 and "nothing that the mark recorded is lost" in said and "1 open transactions" in said
    old = (vault.data / "keys/epoch.json").read_bytes()
    async with serving(vault) as bank:
        assert (await at(bank, robot).see(view["txn"]))["state"] == "ready"
        await bank.agent("other")
    (vault.data / "keys/epoch.json").write_bytes(old)  # one that is newer than the mark just starts
    assert vault.verb(*REASON)[0] == 1
    async with serving(vault):
        mark = read_mark(vault.data / "keys")
    assert mark is not None and mark.epoch == 1 and mark.highest_index > Mark(**json.loads(old)).highest_index
    code, said = vault.verb(*REASON, "--even-so")
    assert code == 0, said
    async with serving(vault) as bank:
        assert (await at(bank, robot).see(view["txn"]))["state"] == "unsettled"


async def test_a_restore_keeps_outcomes_and_ends_sessions(vault: Vault) -> None:
    """A compensation that waited may have happened; an account unlinked in the lost part would be somebody's again."""
    async with serving(vault) as bank:
        robot = await bank.agent("robot")
        kept = (await robot.submit(await pay(bank), run_key="kept", attempt_id="kept")).json()
        view = (await robot.submit(await pay(bank), await mail(bank), attempt_id="a")).json()
        paid, mailed = (effect["effect_id"] for effect in view["effects"])
        await robot.report("a", {"effect_id": paid, "outcome": "fired", "result": {"id": "p1"}},
                           {"effect_id": mailed, "outcome": "failed"})  # fmt: skip
        undo = (await undone(robot, view)).json()["effect"]
        maya = await bank.person("maya")
        link = (await bank.operator("sign-in-link", {"sub": "tomas", "name": "Tomas"}))["url"]
        row = SlackLinkRow(
            team_id="T0ACME", user_id="U0MAYA", iss=DEV_ISSUER, sub="maya", assurance="dev", account="maya",
            linked_at=bank.clock(), linked_by="",
        )  # fmt: skip
        await bank.service.db.write(lambda tx: insert_row(tx.conn, row))
    copy = vault.save()
    async with serving(vault) as bank:
        await bank.agent("later")
    vault.bring_back(copy)
    code, said = vault.verb(*REASON, "--json")
    assert code == 0 and json.loads(said)["redeemed"] == 1 and json.loads(said)["in_doubt"] == [view["txn"]]
    async with serving(vault) as bank:
        maya.http = bank.http
        assert (await maya.get("/v1/reviews")).status_code == 401
        form, origin = {"token": link.partition("token=")[2]}, {"Origin": bank.settings.public_url}
        assert (await bank.http.post("/sign-in/dev", data=form, headers=origin)).status_code == 400
        assert await bank.service.db.read(list_slack_links) == []
        robot = at(bank, robot)
        seen = await robot.see(view["txn"])
        assert (seen["state"], seen["effects"][0]["compensation"]["state"]) == ("unsettled", "unknown")
        assert await tasks(bank) == [("restored", undo["effect_id"])]
        assert (await robot.see(kept["txn"]))["state"] == "redeemed"
        fired = {"effect_id": kept["effects"][0]["effect_id"], "outcome": "fired"}
        assert (await robot.report("kept", fired)).json()["state"] == "settled"
        assert await bank.service.db.read(faults_of_log) == []


# -- stopped in between ----------------------------------------------------------------------------------------------


class Died(BaseException):
    """The process ended."""


def dies_after(vault: Vault, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """`policy-service restored`, ended after so many of its writes, to the mark or to the database."""
    done: list[object] = []

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            done.append(step(*args))
            if len(done) == steps:
                raise Died
            return done[-1]

        return run

    with monkeypatch.context() as patch:
        patch.setattr(backup, "write_mark", counted(backup.write_mark))
        patch.setattr(Database, "write_sync", counted(Database.write_sync))
        with pytest.raises(Died):
            vault.verb(*REASON)


async def test_an_interrupted_restore_is_repeated(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    story = await lose_part(vault)
    would = json.loads(vault.verb("restored", "--dry-run", "--json")[1])
    for steps in (1, 2):  # after the mark; after the mark and one of the two transactions
        dies_after(vault, monkeypatch, steps)
        await does_not_start(vault)
        again = json.loads(vault.verb("restored", "--dry-run", "--json")[1])
        assert (again["lost_after"], again["known_to"]) == (would["lost_after"], would["known_to"])
    dies_after(vault, monkeypatch, 3)  # after the mark, the other transaction and the epoch in the database
    async with serving(vault) as bank:
        known = (await at(bank, story.robot).send("GET", "/v1/epoch")).json()
        assert (known["epoch"], known["restores"][0]["lost_after"]) == (4, would["lost_after"])
        assert await tasks(bank) == story.restored
        assert await bank.service.db.read(faults_of_log) == []
        lines = await bank.service.db.read(lambda conn: entries_after(conn, 0, 10_000))
        assert [line.kind for line in lines].count("database_restored") == 1
    assert "nothing that the mark recorded is lost" in vault.verb(*REASON)[1]


# -- several replicas ------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path, postgres_server: str, migrated_template: str) -> Iterator[Vault]:
    """A deployment on a database server."""
    bundle = Payments(tmp_path / "bundle").path
    with Vault.opened(tmp_path / "data", bundle, postgres_server, migrated_template) as opened:
        yield opened


async def test_a_replica_with_the_mark_of_the_old_epoch_does_not_start(shared: Vault) -> None:
    await lose_part(shared)
    other = shared.data.parent / "other"
    shutil.copytree(shared.data, other)
    assert shared.verb(*REASON)[0] == 0
    with pytest.raises(StartError, match=r"copy its epoch\.json here"):
        async with running(other, shared.bundle, **shared.settings):
            pass
    here, shared.data = shared.data, other
    code, said = shared.verb(*REASON)
    assert code == 1 and "declared restored from another host" in said
    shutil.copyfile(here / "keys/epoch.json", other / "keys/epoch.json")
    async with running(other, shared.bundle, **shared.settings) as bank:
        assert bank.service.mark.current_epoch() == 2


@pytest.mark.parametrize("taken_over", [pytest.param(False, marks=pytest.mark.long), True])
async def test_a_replaced_database_stops_a_replica(shared: Vault, taken_over: bool) -> None:
    """The server comes back with an older database under the same name, while a replica runs; nor can it be declared
    restored while one is connected.
    """
    async with serving(shared) as bank:
        robot = await bank.agent("robot")
        code, said = await asyncio.to_thread(shared.verb, *REASON, "--even-so")
        assert code == 1 and "stop every replica first" in said
        assert (await asyncio.to_thread(shared.verb, "restored", "--dry-run", "--even-so"))[0] == 0
    copy = shared.save()
    name = shared.settings["database_url"].rpartition("/")[2]
    with pytest.raises(StorageUnavailableError, match="stop every replica"):  # also for its last words
        async with serving(shared) as bank:
            robot = at(bank, robot)
            await robot.submit(await pay(bank), attempt_id="a")
            await bank.service.sequencer.number()
            await bank.service.feed.refresh()
            shared.replace(name, copy)
            if taken_over:
                assert (await asyncio.to_thread(shared.verb, *REASON, "--even-so"))[0] == 0
            for _ in range(3):
                refused = await robot.submit(await pay(bank), run_key="again", attempt_id="b")
                assert refused.status_code == 503
            assert (await bank.http.get("/readyz")).status_code == 503


# -- the log ---------------------------------------------------------------------------------------------------------


async def test_the_log_continues_after_the_gap_of_a_restore(vault: Vault) -> None:
    """Nor when it is restored from the same copy again: a third epoch begins above the second."""
    story = await lose_part(vault)
    marked = read_mark(vault.data / "keys")
    assert marked is not None
    known_to = json.loads(vault.verb("restored", "--dry-run", "--json")[1])["known_to"]
    goes_on = json.loads(vault.verb(*REASON, "--json")[1])["goes_on_at"]
    async with serving(vault) as bank:
        await bank.service.sequencer.number()
        lines = await bank.service.db.read(lambda conn: entries_after(conn, 0, 10_000))
        indexes = [line.index for line in lines]
        assert indexes[:known_to] == list(range(1, known_to + 1)) and goes_on > marked.highest_index
        assert indexes[known_to:] == list(range(goes_on, goes_on + len(indexes) - known_to))
        line = lines[known_to]
        assert (line.kind, line.actor) == ("database_restored", "operator")
        said = (line.body["known_to"], line.body["epoch"], line.body["reason"])
        assert said == (known_to, 2, "the disk died")
        await bank.service.feed.refresh()
        maya = await bank.person("maya")
        cookie = {"Cookie": maya.headers()["Cookie"]}
        async with served(bank) as port:
            for last in (marked.highest_index, goes_on - 1):  # in the part that is lost
                async with events(port, cookie | {"Last-Event-ID": str(last)}) as stream:
                    first = await stream.event()
                    assert (int(first["id"]), first["event"]) == (goes_on, "database_restored")
                    assert int((await stream.event())["id"]) == goes_on + 1
        page = (await maya.get(f"/v1/audit?after={marked.highest_index}&limit=1")).json()["rows"]
        assert [row["index"] for row in page] == [goes_on]
        topic = transaction_topic(story.ready["txn"])
        found = await bank.service.feed.wait_after(marked.highest_index, 5, topic=topic)
        assert {event.kind for event in found} >= {"effect_unknown", "task_opened"}
        await bank.operator("go-on", {"tool": None})
        view = (await at(bank, story.robot).submit(await pay(bank), run_key="second")).json()
        second = (await at(bank, story.robot).release(view)).json()["releases"]
        reached = bank.service.feed.index
    vault.bring_back(story.copy)
    await does_not_start(vault)
    code, said = vault.verb(*REASON, "--json")
    assert code == 0 and json.loads(said)["epoch"] == 3 and json.loads(said)["goes_on_at"] > reached
    async with serving(vault) as bank:
        await bank.operator("go-on", {"tool": None})
        assert (await at(bank, story.robot).redeem(second, "a")).json()["code"] == "bad_token"
        new = (await at(bank, story.robot).submit(await pay(bank), run_key="3", attempt_id="3")).json()
        assert bank.receipt_of(new).epoch == 3


# -- After a restore: agents report redemptions that the database forgot, proven by their receipts


def evidence(bank: Bank, view: dict[str, Any], receipt: str) -> dict[str, Any]:
    """What an agent reports of a redemption from its own copy: each effect as its digest covers it."""
    manifests, effects = bank.service.active.current.manifests, []
    for effect in view["effects"]:
        undo = manifests[effect["tool"]].compensation
        recall = {
            name: effect[name] for name in ("seq", "tool", "tool_digest", "resource", "args", "call_key")
        }
        if undo is not None:
            digest = manifests[undo.tool].digest
            recall["compensation"] = {"tool": undo.tool, "tool_digest": digest, "map": dict(undo.map)}
        effects.append(recall)
    return {"receipt": receipt, "run_key": view["run_key"], "effects": effects}


class Lost:
    """Effects redeemed in the part of the log that is lost, by run key: the attempt has the same name."""

    robot: Agent
    views: dict[str, dict[str, Any]]  # as the agent saw them spent
    recalls: dict[str, dict[str, Any]]

    def effect(self, key: str = "lost") -> Any:
        return self.views[key]["effects"][0]["effect_id"]

    def outcome(self, key: str = "lost", outcome: str = "fired", **more: Any) -> dict[str, Any]:
        return {"effect_id": self.effect(key), "outcome": outcome, **more}

    async def recall(self, robot: Agent, key: str = "lost", *outcomes: dict[str, Any]) -> httpx2.Response:
        """It is reported, with what the agent knows of its redemption."""
        return await robot.report(key, *outcomes, recall=self.recalls[key])


async def lost(vault: Vault, *tools: Any, **known: str) -> Lost:
    """``known``: how the copy of the database has each: never, released, or withdrawn."""
    story, known = Lost(), known or {"lost": "never"}
    story.views, story.recalls = {}, {}
    async with serving(vault) as bank:
        story.robot = await bank.agent("robot")
        for key, how in known.items():
            if how != "never":
                view = (await story.robot.submit(await pay(bank), run_key=key)).json()
            if how == "withdrawn":
                await story.robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
    copy = vault.save()
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        calls = [await pay(bank), *[await tool(bank) for tool in tools]]
        for key in known:
            spent = await robot.spend((await robot.submit(*calls, run_key=key)).json(), key)
            story.views[key] = spent["transaction"]
            story.recalls[key] = evidence(bank, spent["transaction"], spent["receipt"])
    vault.bring_back(copy)
    assert vault.verb(*REASON)[0] == 0
    return story


async def test_a_receipt_of_the_lost_part_settles_its_effect(vault: Vault) -> None:
    known = {"never": "never", "released": "released", "withdrawn": "withdrawn"}
    story = await lost(vault, **known, untold="never")
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        for key in known:
            assert refusal(await robot.report(key, story.outcome(key))) == (404, "unknown_attempt")
            for _ in range(2):  # the same report again changes nothing
                done = await story.recall(robot, key, story.outcome(key))
                assert done.status_code == 200, done.text
                seen = done.json()
                assert (seen["state"], seen["attempt_id"]) == ("settled", key)
                assert seen["effects"][0]["args"] == story.views[key]["effects"][0]["args"]
                assert seen["txn_digest"] == story.views[key]["txn_digest"]
        assert await tasks(bank) == []
        # without an outcome it is unknown
        assert (await story.recall(robot, "untold")).json()["state"] == "unsettled"
        assert await tasks(bank) == [("restored", story.effect("untold"))]
        await bank.operator("go-on", {"tool": None})
        for key, state in (*dict.fromkeys(known, "settled").items(), ("untold", "unsettled")):
            again = (await robot.submit(await pay(bank), run_key=key, attempt_id="b")).json()
            assert (again["state"], again.get("receipt")) == (state, None), "nothing redeems it again"
        assert (await robot.report("untold", story.outcome("untold", "failed"))).json()["state"] == "ended"
        assert await tasks(bank) == []
        assert (await (await bank.person("maya")).get("/")).status_code == 200
        assert await bank.service.db.read(faults_of_log) == []


async def test_a_resubmission_before_the_recall_is_reconciled(vault: Vault) -> None:
    story = await lost(vault, review="never", ready="never", both="never")
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        await bank.operator("go-on", {"tool": None})
        for key, amount, rev in (("review", 500, 2), ("ready", 10, 1)):
            assert (await robot.submit(await pay(bank, amount), run_key=key)).json()["state"] == key
            done = (await story.recall(robot, key, story.outcome(key))).json()
            assert (done["state"], done["rev"]) == ("settled", rev)
        assert (await (await bank.person("maya")).get("/v1/reviews")).json()["reviews"] == []
        again = (await robot.submit(await pay(bank), run_key="both", attempt_id="b")).json()
        assert again["attempt_id"] == "b"  # from another host, before the first one reports
        recall = await story.recall(robot, "both", story.outcome("both"))
        assert recall.status_code == 200 and recall.json()["attempt_id"] == "b"
        assert await tasks(bank) == [("contradiction", story.effect("both"))]
        assert await bank.service.db.read(faults_of_log) == []


async def test_a_compensation_of_before_settles_what_it_took_back(vault: Vault) -> None:
    async with serving(vault) as bank:
        first = await bank.agent("robot")
        calls = [await pay(bank), await mail(bank)]
        view = (await first.submit(*calls, run_key="lost", attempt_id="a")).json()
        paid, mailed = (effect["effect_id"] for effect in view["effects"])
        fired = {"effect_id": paid, "outcome": "fired", "result": {"id": "p1"}}
        await first.report("a", fired, {"effect_id": mailed, "outcome": "failed"})
    copy = vault.save()
    async with serving(vault) as bank:
        robot = at(bank, first)
        undo = (await undone(robot, view)).json()
        spent = (await robot.redeem([undo["release"]], "undo")).json()
        recall = evidence(bank, {"effects": [undo["effect"]], "run_key": "lost"}, spent["receipt"])
    vault.bring_back(copy)
    assert vault.verb(*REASON)[0] == 0
    async with serving(vault) as bank:
        fired = {"effect_id": undo["effect"]["effect_id"], "outcome": "fired"}
        done = await at(bank, first).report("undo", fired, recall=recall)
        assert done.status_code == 200, done.text
        states = [effect["state"] for effect in done.json()["effects"]]
        assert (done.json()["state"], states) == ("settled", ["compensated", "failed"])
        assert await bank.service.db.read(faults_of_log) == []


def without_compensation(recall: dict[str, Any]) -> dict[str, Any]:
    effects = [{k: v for k, v in e.items() if k != "compensation"} for e in recall["effects"]]
    return recall | {"effects": effects}


def changed(recall: dict[str, Any], **effect: Any) -> dict[str, Any]:
    return recall | {"effects": [recall["effects"][0] | effect, *recall["effects"][1:]]}


PROVES_NOTHING: list[tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = [
    (lambda r: changed(r, args={"account": "acme", "amount": 11}), "bad_token"),
    (lambda r: changed(r, resource={"type": "Account", "id": "x"}), "bad_token"),
    (lambda r: r | {"run_key": "other"}, "bad_token"),
    (lambda r: r | {"independent": True}, "bad_token"),
    (lambda r: r | {"effects": r["effects"][:1]}, "bad_token"),
    (lambda r: r | {"effects": r["effects"][::-1]}, "bad_token"),
    (without_compensation, "bad_token"),
    (lambda r: r | {"receipt": r["receipt"][:-8] + "AAAAAAAA"}, "bad_token"),
    (lambda r: r | {"receipt": "a.b.c"}, "bad_token"),
    (lambda r: r | {"more": 1}, "unknown_field"),
]


async def test_a_recall_that_proves_nothing_is_refused_and_changes_nothing(vault: Vault) -> None:
    story = await lost(vault, mail)
    recall = story.recalls["lost"]
    async with serving(vault) as bank:
        robot, before = at(bank, story.robot), (await bank.service.db.read(sizes))["audit"]
        for forged, code in PROVES_NOTHING:
            answer = await robot.report("lost", story.outcome(), recall=forged(recall))
            assert refusal(answer) == (400, code), answer.text
        assert refusal(await robot.report("another", story.outcome(), recall=recall)) == (400, "bad_token")
        assert refusal(await robot.report("lost")) == (400, "invalid_request")
        assert (await bank.service.db.read(sizes))["audit"] == before
        answer = await story.recall(await bank.agent("stranger"), "lost", story.outcome())
        assert refusal(answer) == (403, "not_redeemer")
        # what it proves can be taken back
        mailed = {"effect_id": story.views["lost"]["effects"][1]["effect_id"], "outcome": "failed"}
        done = await story.recall(robot, "lost", story.outcome(result={"id": "p1"}), mailed)
        assert [one["state"] for one in done.json()["effects"]] == ["fired", "failed"]
        await bank.operator("go-on", {"tool": None})
        undo = (await undone(robot, story.views["lost"])).json()
        await robot.redeem([undo["release"]], "undo")
        last = await robot.report("undo", {"effect_id": undo["effect"]["effect_id"], "outcome": "fired"})
        assert last.json()["state"] == "settled"


async def test_a_submission_of_another_epoch_is_refused(vault: Vault) -> None:
    story = await lost(vault)
    async with serving(vault) as bank:
        robot = at(bank, story.robot)
        await bank.operator("go-on", {"tool": None})
        early = await robot.submit(await pay(bank), run_key="lost", epoch=1)
        assert (early.status_code, early.json()["code"], early.json()["epoch"]) == (409, "other_epoch", 2)
        known = (await robot.send("GET", "/v1/epoch")).json()
        assert known["epoch"] == 2 and [one["epoch"] for one in known["restores"]] == [2]
        assert known["restores"][0]["lost_after"] < story.views["lost"]["submitted_at"]
        assert (await robot.submit(await pay(bank), run_key="new", epoch=2)).status_code == 201
        # a receipt of this epoch proves nothing that is forgotten
        view = (await robot.submit(await pay(bank), run_key="of-this", attempt_id="a")).json()
        recall = evidence(bank, view, view["receipt"])
        fired = {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"}
        assert (await robot.report("b", fired, recall=recall)).json()["code"] == "bad_token"
        assert (await robot.report("a", fired, recall=recall)).status_code == 404
        late = await robot.submit(await pay(bank), run_key="newer", epoch=3)
        assert late.json()["code"] == "other_epoch" and "older copy" in late.json()["detail"]
    assert vault.verb("rotate-keys", "--compromised")[0] == 0
    async with serving(vault) as bank:  # the key that signed the receipt is not published any more
        answer = await story.recall(at(bank, story.robot), "lost", story.outcome())
        assert refusal(answer) == (400, "bad_token")

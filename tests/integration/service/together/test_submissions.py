"""Submissions: names are computed, a rerun finds its revision, U+0000 is refused in text, tool versions."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from countersign.contract import PrivateKey, ToolManifest, manifest_file
from countersign.contract import digests as names
from tests.fakes.payments import ANYBODY, PAY, gate, manifest, plain_forbid
from tests.fakes.world import Agent
from tests.integration.service.effects import call, mail, pay, ship
from tests.integration.service.together.bank import Bank, refusal


async def refused(bank: Bank, *effects: dict[str, Any]) -> tuple[int, str]:
    """The refusal of a submission and of a dry run of it; both are the same."""
    answer = await bank.robot.submit(*effects)
    body = {"run_key": "run-1", "effects": list(effects)}
    assert (await bank.robot.send("POST", "/v1/evaluations", body)).status_code == answer.status_code
    return refusal(answer)


async def test_every_name_is_derived_from_the_submission(bank: Bank) -> None:
    effect, run = await pay(bank), {"agent": bank.robot.name, "run_key": "run-1"}
    view = (await bank.robot.submit(effect, await mail(bank), await pay(bank, 11))).json()
    key, txn = names.call_key(**run, tool="pay", args=effect["args"], n=0), names.txn_id(**run)
    seen = view["effects"][0]
    assert view["txn"] == txn and seen["call_key"] == key
    assert seen["effect_id"] == names.effect_id(txn=txn, call_key=key)
    assert seen["args_digest"] == names.args_digest(args=effect["args"])
    digests = [one["effect_digest"] for one in view["effects"]]
    assert view["txn_digest"] == names.txn_digest(effect_digests=digests)
    assert seen["resource"] == {"type": "Account", "id": "acme"}
    assert [(one["seq"], one["tool"]) for one in view["effects"]] == [(1, "pay"), (2, "mail"), (3, "pay")]
    one, two = await bank.asks(10, independent=True), await bank.asks(11, independent=True)
    assert len({one["txn"], two["txn"], txn}) == 3, "an independent effect is a transaction of its own"
    assert one["txn"] == names.independent_txn_id(**run, call_key=one["effects"][0]["call_key"])
    assert (one["state"], two["state"]) == ("ready", "ready")


NONE = "0" * 64


async def test_sent_names_must_match(bank: Bank) -> None:
    effect, named = await pay(bank), {"agent": bank.robot.name, "run_key": "run-1", "tool": "pay"}
    keys = [names.call_key(**named, args=effect["args"], n=n) for n in (0, 1)]
    for n in (0, 1):
        sent = effect | {"call_key": keys[1 - n], "n": n}
        assert await refused(bank, sent) == (400, "call_key_mismatch")
    for kind, name in (("Account", "other"), ("Other", "acme"), ("account", "acme")):
        sent = effect | {"resource": {"type": kind, "id": name}}
        assert await refused(bank, sent) == (400, "resource_mismatch")
    sent = effect | {"call_key": keys[0], "resource": {"type": "Account", "id": "acme"}}
    assert (await bank.robot.submit(sent)).status_code == 201


async def test_a_list_for_two_redeemers_is_refused(bank: Bank) -> None:
    assert await refused(bank, await pay(bank), await ship(bank)) == (422, "mixed_audience")
    assert (await bank.robot.submit(await ship(bank))).json()["aud"] == "warehouse"


async def test_the_same_call_twice_is_refused_unless_it_is_numbered(bank: Bank) -> None:
    effect = await pay(bank)
    assert await refused(bank, effect, effect) == (400, "invalid_request")
    view = (await bank.robot.submit(effect, effect | {"n": 1})).json()
    assert view["state"] == "ready" and len({seen["effect_id"] for seen in view["effects"]}) == 2


DENIED: list[tuple[str, dict[str, Any], str | None, str]] = [
    ("nuke", {}, NONE, "unknown_tool"),
    ("pay", {"account": "acme", "amount": 1}, NONE, "tool_changed"),
    ("pay", {"account": "acme"}, None, "invalid_args"),
    ("pay", {"account": "acme", "amount": 1.5}, None, "invalid_args"),
    ("pay", {"account": "", "amount": 1}, None, "invalid_args"),
]


async def test_a_list_that_cannot_be_evaluated_is_denied(bank: Bank) -> None:
    for n, (tool, args, digest, code) in enumerate(DENIED):
        effect = {"tool": tool, "tool_digest": digest or await bank.manifest_digest("pay"), "args": args}
        answer = await bank.robot.submit(effect, run_key=f"run {n}", attempt_id=bank.robot.attempt)
        view = answer.json()
        assert (answer.status_code, view["state"], view["releases"]) == (201, "ended", []), args
        assert "receipt" not in view
        reason = view["effects"][0]["decision"]["reasons"][0]
        assert reason["code"] == code and reason["text"]
        assert refusal(await bank.robot.release(view)) == (409, "not_ready")
    broken = await call(bank, "pay", {"account": "acme"})
    view = (await bank.robot.submit(await pay(bank), broken, await pay(bank, 500))).json()
    assert await bank.states(view) == ["ended", "withdrawn", "denied", "withdrawn"]
    assert view["effects"][2]["review"]["state"] == "withdrawn"
    assert view["effects"][0]["decision"]["reasons"][-1]["code"] == "sibling"


# -- what a rerun finds (design section 6, "Revisions") --------------------------------------------------------------


async def test_submitting_the_same_list_again_returns_its_review(bank: Bank) -> None:
    effect = await pay(bank, 5_000)
    first = (await bank.robot.submit(effect)).json()
    await bank.maya.vote(first)
    again = await bank.robot.submit(effect)
    view = again.json()
    assert (again.status_code, view["rev"], view["state"]) == (200, 1, "review")
    assert view["effects"][0]["review"]["review_id"] == first["effects"][0]["review"]["review_id"]
    assert view["effects"][0]["review"]["needs"][0]["have"] == 1


async def test_another_list_supersedes_the_open_one(bank: Bank) -> None:
    old = (await bank.robot.submit(await pay(bank, 5_000))).json()
    await bank.maya.vote(old)
    answer = await bank.robot.submit(await pay(bank, 5_000), await mail(bank))
    new = answer.json()
    assert (answer.status_code, new["rev"], new["state"]) == (201, 2, "review")
    before, after = old["effects"][0], new["effects"][0]
    assert after["effect_id"] == before["effect_id"]
    assert after["review"]["review_id"] != before["review"]["review_id"]
    assert after["review"]["needs"][0]["have"] == 0
    stale = await bank.tomas.vote(old)
    assert refusal(stale) == (409, "stale_review")
    assert (stale.json()["rev"], stale.json()["review_id"]) == (2, after["review"]["review_id"])
    shown = (await bank.maya.get(f"/v1/reviews/{before['review']['review_id']}")).json()
    assert (shown["state"], shown["effect"]["state"]) == ("withdrawn", "withdrawn")
    reason = shown["effect"]["decision"]["reasons"][-1]
    assert (reason["code"], "revision 2" in reason["text"]) == ("superseded", True)
    assert (await bank.tomas.vote(new)).json()["state"] == "open"  # Maya's vote was on the old list
    assert (await bank.maya.vote(new)).json()["state"] == "met"


async def test_another_list_is_a_new_revision_that_voids_releases(bank: Bank) -> None:
    for other in (  # (amount, n) of the second list; the first is [(10, 0), (11, 0)]
        [(11, 0), (10, 0)],
        [(10, 0)],
        [(10, 0), (11, 0), (12, 0)],
        [(10, 0), (12, 0)],
        [(10, 0), (11, 1)],
    ):
        await bank.fresh()
        old, tokens = await bank.released(await pay(bank, 10), await pay(bank, 11))
        new = (await bank.robot.submit(*[await pay(bank, amount) | {"n": n} for amount, n in other])).json()
        assert (new["rev"], new["state"]) == (2, "ready")
        dead = await bank.robot.redeem(tokens)
        assert (refusal(dead), dead.json()["rev"]) == ((409, "superseded"), 2)
        for rev in (1, 3):  # the old one, and an unknown one
            assert refusal(await bank.robot.release(old | {"rev": rev})) == (409, "superseded")
        assert (await bank.robot.spend(new))["redeemed"] is True


async def test_the_same_list_is_decided_again_after_its_end(bank: Bank) -> None:
    old = await bank.asks()
    await bank.maya.vote(old)
    await bank.withdraw(old, reason="no more")
    new = await bank.asks()
    assert (new["rev"], new["state"], new["effects"][0]["review"]["needs"][0]["have"]) == (2, "review", 0)
    assert new["effects"][0]["effect_digest"] == old["effects"][0]["effect_digest"]
    stale = await bank.maya.vote(old)
    assert refusal(stale) == (409, "stale_review")
    assert stale.json()["changed"] == []  # the same bytes, and still another question


async def test_a_list_denied_by_policy_is_decided_again(bank: Bank) -> None:
    await bank.rules(plain_forbid("never"))
    assert (await bank.asks(10))["state"] == "ended"
    await bank.rules(gate("legal-too", "legal"))
    view = await bank.asks(10)
    assert (view["rev"], view["state"]) == (2, "review")
    assert view["effects"][0]["decision"]["gates"] == ["legal-too"]


async def test_a_list_denied_by_a_person_is_not_reviewed_again(bank: Bank) -> None:
    effects = [await pay(bank, 500), await pay(bank, 10)]
    old = (await bank.robot.submit(*effects)).json()
    assert (await bank.maya.vote(old, "deny", reason="not this month")).status_code == 200
    answer = await bank.robot.submit(*effects)
    view = answer.json()
    assert (answer.status_code, view["txn"], view["rev"], view["state"]) == (200, old["txn"], 1, "ended")
    reason = view["effects"][0]["decision"]["reasons"][-1]
    assert reason["code"] == "denied_by_person" and "not this month" in reason["text"]
    between = await bank.asks(501)
    assert (between["rev"], between["state"]) == (2, "review"), "another list asks people"
    again = await bank.robot.submit(*effects)
    view = again.json()
    assert (again.status_code, view["rev"], view["state"], view["superseded_by"]) == (200, 1, "ended", 2)
    assert [seen["state"] for seen in view["effects"]] == ["denied", "withdrawn"]
    reasons = [seen["decision"]["reasons"][-1]["code"] for seen in view["effects"]]
    assert reasons == ["denied_by_person", "sibling"]
    assert (await bank.states(view))[0] == "review"  # what is open was not touched


async def test_a_redeemed_list_returns_its_outcome(bank: Bank) -> None:
    for outcome, state in ((None, "redeemed"), ("fired", "settled"), ("failed", "ended"), ("unused", "ended"),
                           ("unknown", "unsettled")):  # fmt: skip
        robot = await bank.fresh()
        view = await bank.asks(10, attempt_id=robot.attempt)
        effect_id = view["effects"][0]["effect_id"]
        if outcome is not None:
            await robot.report(robot.attempt, {"effect_id": effect_id, "outcome": outcome})
        again = await bank.asks(10)
        assert (again["rev"], again["state"], again["releases"]) == (1, state, [])
        assert again["effects"][0].get("outcome", {}).get("outcome") == outcome
        other = await robot.submit(await pay(bank, 11), attempt_id=f"{robot.attempt}-2")
        assert refusal(other) == (409, "already_redeemed")
        known = {"effect_id": effect_id, "seq": 1, "state": outcome or "redeemed"}
        assert other.json()["effects"] == [known]
        assert (await robot.see(view["txn"]))["rev"] == 1


async def test_a_resubmission_expires_what_is_due_before_any_sweep(bank: Bank) -> None:
    for amount, hours, state in ((500, 25, "review"), (10, 2, "redeemed")):
        assert (await bank.asks(amount, run_key=state))["rev"] == 1
        bank.clock.pass_(hours=hours)
        view = await bank.asks(amount, run_key=state, attempt_id=bank.robot.attempt)
        assert (view["rev"], view["state"]) == (2, state)


SUBMITTED: list[list[tuple[Any, str]]] = [
    [(10, "acme")],  # released at once
    [(10, "acme"), (500, "acme")],  # one asks
    [(10, "acme"), (500, "acme"), (20, "closed")],  # one is forbidden, its siblings end
    [("much", "acme")],  # args that do not fit
]


async def test_a_submission_returns_what_a_later_read_returns(bank: Bank) -> None:
    await bank.rules(plain_forbid("closed", 'context.input.account == "closed"'))
    for payments in SUBMITTED:
        calls = [await pay(bank, amount, account) for amount, account in payments]
        for named in ({"attempt_id": bank.robot.attempt}, {}):
            await bank.fresh()
            sent = (await bank.robot.submit(*calls, claimed={"purpose": "rent"}, **named)).json()
            seen = await bank.robot.see(sent["txn"])
            only_once = {"releases": sent.pop("releases"), "receipt": sent.pop("receipt", None)}
            assert sent == {name: value for name, value in seen.items() if name not in only_once}


# -- U+0000, which PostgreSQL cannot store as text and SQLite can ----------------------------------------------------


NUL = "\0"


async def test_text_with_a_nul_character_is_refused(bank: Bank) -> None:
    robot, maya = bank.robot, bank.maya
    asked = (await robot.submit(await pay(bank, 500), run_key="asked")).json()
    spent = (await robot.submit(await pay(bank), run_key="spent", attempt_id=robot.attempt)).json()
    failed = {"effect_id": spent["effects"][0]["effect_id"], "outcome": "failed", "error": f"e{NUL}"}
    withdraw = f"/v1/transactions/{asked['txn']}/withdraw"
    answers = {
        "the run key": robot.submit(await pay(bank), run_key=f"r{NUL}"),
        "the attempt": robot.submit(await pay(bank), attempt_id=f"a{NUL}"),
        "the resource": robot.submit(await pay(bank, account=f"acme{NUL}")),
        "the reason of a withdrawal": robot.send("POST", withdraw, {"reason": f"no{NUL}"}),
        "the reason of a vote": maya.vote(asked, "deny", reason=f"no{NUL}"),
        "the error of a report": robot.report(robot.attempt, failed),
        "a path": robot.send("POST", "/v1/redemptions/a%00/renew", {"effect_ids": ["0" * 64]}),
        "a query": maya.get("/v1/tasks?cursor=a%00"),
        "the address of a page": maya.get("/reviews/a%00"),
    }
    for where, answer in answers.items():
        assert (await answer).status_code == 400, where


async def test_an_agent_name_with_a_nul_character_is_refused(bank: Bank) -> None:
    stranger = Agent(f"robot{NUL}", PrivateKey.generate(), bank.http, bank.clock)
    assert (await stranger.submit(await pay(bank))).status_code in {400, 401}


async def test_a_nul_character_in_args_is_data(bank: Bank) -> None:
    text, attempt = f"a{NUL}b", bank.robot.attempt
    answer = await bank.robot.submit(await mail(bank, text), claimed={"purpose": text}, attempt_id=attempt)
    view = answer.json()
    assert view["state"] == "redeemed"
    fired = {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired", "result": {"id": text}}
    assert (await bank.robot.report(attempt, fired)).json()["state"] == "settled"
    assert (await bank.robot.see(view["txn"]))["effects"][0]["args"]["text"] == text
    refused = await mail(bank)
    refused["args"][f"odd{NUL}"] = NUL
    view = (await bank.robot.submit(refused, run_key="quoted")).json()
    assert view["effects"][0]["decision"]["outcome"] == "deny", "a reason may quote it"


# -- A rollout of a tool's manifest: agents on the old and the new version work at the same time

OLD_DIGEST = ToolManifest.model_validate(PAY).digest
NOTED = {"properties": {**PAY["args"]["properties"], "note": {"type": "string"}}}
NEW_PAY = PAY | {"args": PAY["args"] | NOTED}


@pytest.fixture
async def rollout(bank: Bank) -> Bank:
    """The bank with the new manifest current and the old one still in force."""
    bank.folder.write("tools/pay.json", NEW_PAY).write("tools/pay@before-notes.json", PAY)
    assert await bank.activate()
    return bank


async def test_both_versions_work_until_the_old_one_ends(rollout: Bank) -> None:
    """People see the old one as it was reviewed; what waits under it when it ends is denied."""
    robot = rollout.robot
    staged = {"tool": "pay", "tool_digest": OLD_DIGEST, "args": {"account": "acme", "amount": 500}}
    old, late = (await robot.submit(staged)).json(), (await robot.submit(staged, run_key="late")).json()
    new = (await robot.submit(await pay(rollout, note="thanks"), run_key="new")).json()
    waits = await rollout.asks(500, run_key="waits")
    assert [view["state"] for view in (old, late, new, waits)] == ["review", "review", "ready", "review"]
    page = await rollout.maya.get("/reviews/" + old["effects"][0]["review"]["review_id"])
    assert page.status_code == 200 and "Pay for acme" in page.text
    assert "does not contain this version" not in page.text
    await rollout.maya.vote(old)
    for view, attempt in ((await robot.see(old["txn"]), "a"), (new, "b")):
        await robot.spend(view, attempt)
        assert (await rollout.states(view))[1] == "redeemed"
    (rollout.folder.path / "tools/pay@before-notes.json").unlink()
    assert await rollout.activate()
    assert ((await rollout.states(late))[0], (await rollout.states(waits))[0]) == ("ended", "review")
    assert (await robot.see(late["txn"]))["effects"][0]["decision"]["reasons"][0]["code"] == "tool_changed"


async def test_the_service_serves_the_current_version_and_others_by_digest(rollout: Bank) -> None:
    robot = rollout.robot
    current = (await robot.send("GET", "/v1/tools/pay")).json()
    old = (await robot.send("GET", f"/v1/tools/pay?digest={OLD_DIGEST}")).json()
    assert (current, old) == (_json(NEW_PAY), _json(PAY))
    missing = await robot.send("GET", f"/v1/tools/pay?digest={'0' * 64}")
    assert missing.status_code == 404 and "no version" in missing.json()["detail"]
    body = (await robot.send("GET", f"/v1/tools/pay?full=true&digest={OLD_DIGEST}")).json()
    assert (body["tool_digest"], body["unseen"], body["manifest"]) == (OLD_DIGEST, ["items"], _json(PAY))
    versions = {one["file"]: one["current"] for one in body["versions"]}
    assert versions == {"tools/pay.json": True, "tools/pay@before-notes.json": False}


async def test_a_tool_of_any_name_is_served_and_released(bank: Bank) -> None:
    for tool in ("mail.send", "a/b", "srv:tool"):
        described = manifest(tool, PAY["args"], "/account")
        bank.folder.write(f"tools/{manifest_file(tool)}", described).policies(ANYBODY)
        assert await bank.activate()
        answer = await bank.robot.send("GET", f"/v1/tools/{quote(tool, safe='')}")
        assert (answer.status_code, answer.json()) == (200, _json(described))
        digest = ToolManifest.model_validate(described).digest
        call = {"tool": tool, "tool_digest": digest, "args": {"account": "acme", "amount": 1}}
        await bank.robot.spend((await bank.robot.submit(call, run_key=tool)).json(), f"attempt-{digest[:8]}")


def _json(described: dict[str, Any]) -> Any:
    return ToolManifest.model_validate(described).to_json()

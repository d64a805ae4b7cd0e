"""An exported review proves itself: without the service, without its database, and not after anybody touched it."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from countersign.contract import PrivateKey, sign
from countersign.contract.keys import decode_base64url
from countersign.contract.names import txn_digest
from policy_service.cli import app
from policy_service.tokens.sign import TYP_EXPORT
from policy_service.workflow.proofs.exporting import content_digest
from policy_service.workflow.proofs.verifying import Given, Report, verify
from policy_service.workflow.reviews.shown import View
from tests.fakes.payments import ANYBODY, Payments, gate, person
from tests.fakes.world import Agent, World, running
from tests.integration.service.effects import mail, pay
from tests.integration.service.stepping_up import LOCALHOST, Holder, holder, review_of
from tests.integration.service.together.test_break_glass import ALONE, TWO
from tests.integration.service.together.test_break_glass import PEOPLE as ON_CALL
from tests.integration.service.together.test_break_glass import sign as break_glass

pytestmark = pytest.mark.anyio
File = dict[str, Any]
CAREFUL = ANYBODY + gate("careful", "finance", step_up="passkey", quorum="2")


@pytest.fixture
async def bank(tmp_path: Path, folder: Payments, database: dict[str, str]) -> AsyncIterator[World]:
    folder.policies(CAREFUL)
    async with running(tmp_path / "data", folder.path, public_url=LOCALHOST, **database) as started:
        yield started


@pytest.fixture(scope="module")
async def voted_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[File, list[Holder], World]]:
    """Two people have approved, each with their passkey, and it was redeemed: what was exported of it."""
    home = tmp_path_factory.mktemp("voted")
    folder = Payments(home / "bundle")
    folder.policies(CAREFUL)
    async with running(home / "data", folder.path, public_url=LOCALHOST) as bank:
        robot = await bank.agent("robot")
        view = (await robot.submit(await pay(bank, 500), await mail(bank))).json()
        people = [await holder(bank, "maya"), await holder(bank, "tomas", kind="EdDSA")]
        for one in people:
            assert (await one.approve(review_of(view))).status_code == 303
        await robot.spend(await robot.see(view["txn"]))
        yield await exported(people[0], review_of(view)), people, bank


@pytest.fixture
def voted(voted_once: tuple[File, list[Holder], World]) -> tuple[File, list[Holder]]:
    """A copy of the file, and who voted."""
    return copy.deepcopy(voted_once[0]), voted_once[1]


async def exported(who: Holder, review_id: str) -> File:
    answer = await who.visitor.get(f"/v1/reviews/{review_id}/export")
    assert answer.status_code == 200, answer.text
    assert f'filename="review-{review_id}.json"' in answer.headers["content-disposition"]
    found: File = answer.json()
    return found


def weighed(file: File, given: Given | None = None) -> Report:
    return verify(json.dumps(file).encode(), given)


def resealed(file: File) -> File:
    """By somebody who is not the service: whatever the content says now, the seal fits it."""
    key, content = PrivateKey.generate(), file["content"]
    claims = {
        "iss": content["deployment"]["iss"],
        "sub": content["review"]["review_id"],
        "iat": 1,
        "digest": content_digest(content),
    }
    return file | {"seal": sign(claims, typ=TYP_EXPORT, key=key), "jwk": key.public.jwk()}


async def test_what_was_voted_holds(voted: tuple[File, list[Holder]]) -> None:
    file, _ = voted
    report = weighed(file)
    assert report.faults == []
    told = "\n".join(report.proven)
    assert "pay with exactly these arguments" in told
    assert told.count("a passkey signed the vote of") == 2
    assert "every gate is met by people of its own, and nobody denied: 2 of 2 for finance" in told
    believed = "\n".join(report.trusted)
    assert f"is {person('maya')}'s (give --pin)" in believed
    assert "give --jwks" in believed
    assert file["content"]["redemption"]["jti"]
    assert file["content"]["decisions"][0]["commit"]


async def test_what_is_brought_along_need_not_be_believed(
    voted_once: tuple[File, list[Holder], World],
) -> None:
    file, people, bank = voted_once
    pins = {
        person(one.visitor.sub): frozenset({hashlib.sha256(one.passkeys[0].public_key).hexdigest()})
        for one in people
    }
    keys = bank.service.ctx.signer.keys
    report = weighed(file, Given(pins, LOCALHOST, keys))
    assert report.faults == []
    assert "give --" not in "\n".join(report.trusted)
    assert weighed(resealed(file), Given(pins, LOCALHOST, keys)).faults[0].startswith("step 2")
    assert weighed(file, Given(pins, "https://elsewhere.example", keys)).faults[0].startswith("step 6")
    swapped = dict(zip(pins, reversed(list(pins.values())), strict=True))
    assert weighed(file, Given(swapped, LOCALHOST, keys)).faults[0].startswith("step 8")


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        for name in value:
            yield from leaves(value[name], (*path, name))
    elif isinstance(value, list) and value:
        for place, one in enumerate(value):
            yield from leaves(one, (*path, place))
    else:
        yield path


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return ("B" if value[:1] == "A" else "A") + value[1:]
    return "something" if value is None else None


def at(file: File, path: tuple[Any, ...], change: Callable[[Any], Any]) -> File:
    other = copy.deepcopy(file)
    holder: Any = other
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = change(holder[path[-1]])
    return other


async def test_no_member_can_be_changed(voted: tuple[File, list[Holder]]) -> None:
    file, _ = voted
    paths = list(leaves(file))
    assert len(paths) > 120
    unnoticed = [path for path in paths if weighed(at(file, path, changed)).holds]
    assert unnoticed == []


# Whoever reseals the file with a key of their own can change what only the service knows. They cannot change these.
PROVEN_WHOEVER_SEALED = {
    ("content", "effect", "args"): "step 3",
    ("content", "effect", "args_digest"): "step 3",
    ("content", "effect", "effect_digest"): "step 3",
    ("content", "effect", "agent"): "step 3",
    ("content", "effect", "tool"): "step 3",
    ("content", "effect", "tool_digest"): "step 3",
    ("content", "effect", "call_key"): "step 3",
    ("content", "effect", "effect_id"): "step 3",
    ("content", "effect", "txn"): "step 3",
    ("content", "effect", "seq"): "step 3",
    ("content", "effect", "resource", "id"): "step 3",
    ("content", "effect", "resource", "type"): "step 3",
    ("content", "effect", "compensation", "tool"): "step 3",
    ("content", "transaction", "txn_digest"): "step 3",
    ("content", "transaction", "effects", 0): "step 3",
    ("content", "transaction", "effects", 1): "step 3",
    ("content", "review", "rev"): "step 4",
    ("content", "review", "review_id"): "step 4",
    ("content", "votes", 0, "rev"): "step 5",
    ("content", "votes", 0, "effect_digest"): "step 5",
    ("content", "votes", 0, "txn_digest"): "step 5",
    ("content", "votes", 0, "view_digest"): "step 5",
    ("content", "votes", 0, "verdict"): "step 5",
    ("content", "votes", 0, "person"): "step 6",
    ("content", "votes", 0, "step_up"): "step 6",
    ("content", "votes", 0, "assertion", "public_key"): "step 6",
    ("content", "votes", 0, "assertion", "client_data"): "step 6",
    ("content", "votes", 0, "assertion", "authenticator_data"): "step 6",
    ("content", "votes", 0, "assertion", "signature"): "step 6",
    ("content", "votes", 0, "assertion", "signed", "nonce"): "step 6",
    ("content", "votes", 0, "assertion", "signed", "view_digest"): "step 6",
    ("content", "votes", 0, "assertion", "signed", "person"): "step 6",
    ("content", "votes", 0, "assertion", "signed", "verdict"): "step 6",
    ("content", "votes", 0, "assertion", "signed", "rev"): "step 6",
    ("content", "deployment", "origin"): "step 6",
    ("content", "deployment", "rp_id"): "step 6",
    ("content", "gates", 0, "quorum"): "step 9",
    ("content", "votes", 0, "counted"): "step 9",
    ("content", "votes", 0, "late"): "step 9",
    ("content", "votes", 0, "revoked"): "step 9",
    ("content", "votes", 0, "permitted"): "step 9",
    ("content", "votes", 0, "groups", 0): "step 9",
    ("content", "requesters"): "step 9",
}


async def test_what_is_proven_is_proven_whoever_sealed_the_file(voted: tuple[File, list[Holder]]) -> None:
    file, _ = voted
    assert weighed(resealed(file)).faults == []
    for path, step in PROVEN_WHOEVER_SEALED.items():
        change = changed if path[-1] != "requesters" else lambda _: [person("maya")]
        report = weighed(resealed(at(file, path, change)))
        assert any(fault.startswith(step) for fault in report.faults), (path, report.faults)


def redrawn(file: File, draw: Callable[[File], None]) -> File:
    """Every vote on another view, named by its own digest: as if that had been shown."""
    other = copy.deepcopy(file)
    content = other["content"]
    for vote in content["votes"]:
        material = copy.deepcopy(content["views"][vote["view_digest"]])
        draw(material)
        vote["view_digest"] = View(material).digest
        content["views"][vote["view_digest"]] = material
    return other


def _folded(material: File) -> None:
    material["drawn"]["folded"] = ["args/account"]


def _without_proof(file: File) -> File:
    other = copy.deepcopy(file)
    other["content"]["votes"][0] |= {"assertion": None, "step_up": None}
    return other


def _one_device(file: File) -> File:
    other = copy.deepcopy(file)
    first, second = (vote["assertion"] for vote in other["content"]["votes"])
    second |= {name: first[name] for name in ("credential_id", "public_key")}
    return other


def _another_order(file: File) -> File:
    other = copy.deepcopy(file)
    transaction = other["content"]["transaction"]
    transaction["effects"] = transaction["effects"][::-1]
    transaction["txn_digest"] = txn_digest(effect_digests=transaction["effects"])
    return other


def _signed_as(file: File, draw: Callable[[File], None] | None) -> File:
    """The passkey's own words name another view, which is here or not."""
    other = copy.deepcopy(file)
    for vote in other["content"]["votes"]:
        signed = vote["assertion"]["signed"]
        if draw is None:
            signed["view_digest"] = "0" * 64
            continue
        material = copy.deepcopy(other["content"]["views"][signed["view_digest"]])
        draw(material)
        signed["view_digest"] = View(material).digest
        other["content"]["views"][signed["view_digest"]] = material
    return other


# One lie each, sealed anew so that nothing but the step itself stands in its way.
FORGED: dict[str, tuple[Callable[[File], File], str]] = {
    "another order of its effects": (_another_order, "not in its transaction at its place"),
    "other words under the digest of a view": (
        lambda file: at(file, ("content", "views"), _reworded),
        "is not that of its digest",
    ),
    "a vote that names no view": (
        lambda file: at(file, ("content", "votes", 0, "view_digest"), lambda _: None),
        "names no view",
    ),
    "a view that is left out": (
        lambda file: at(file, ("content", "views"), lambda _: {}),
        "is on a view that is not here",
    ),
    "a vote on a folded page": (lambda file: redrawn(file, _folded), "is on a page with folded arguments"),
    "a passkey's word for a view that is left out": (
        lambda file: _signed_as(file, None),
        "signed a view that is not here",
    ),
    "a passkey's word for a folded page": (
        lambda file: _signed_as(file, _folded),
        "signed a page with folded arguments",
    ),
    "one device of two people": (_one_device, "used the same passkey"),
    "an open review whose gates are met": (
        lambda file: at(file, ("content", "review", "state"), lambda _: "open"),
        "and the review says open",
    ),
    "a verdict that is none": (
        lambda file: at(file, ("content", "votes", 0, "verdict"), lambda _: "maybe"),
        "is no approval, no denial",
    ),
}


def _reworded(views: File) -> File:
    for material in views.values():
        material["effect"]["sentence"] = "Do nothing."
    return views


async def test_every_lie_is_found_by_the_step_that_looks_for_it(voted: tuple[File, list[Holder]]) -> None:
    file, _ = voted
    for name, (lie, words) in FORGED.items():
        faults = weighed(resealed(lie(file))).faults
        assert any(words in fault for fault in faults), (name, faults)


async def test_a_seal_is_for_one_review_of_one_deployment(voted: tuple[File, list[Holder]]) -> None:
    file, _ = voted
    key, content = PrivateKey.generate(), file["content"]
    claims = {
        "iss": content["deployment"]["iss"],
        "sub": content["review"]["review_id"],
        "iat": 1,
        "digest": content_digest(content),
    }
    for other, words in (
        ({"sub": "rev_other"}, "another review"),
        ({"iss": "https://x"}, "another deployment"),
    ):
        seal = sign(claims | other, typ=TYP_EXPORT, key=key)
        faults = weighed(file | {"seal": seal, "jwk": key.public.jwk()}).faults
        assert [words in fault for fault in faults] == [True]


async def test_who_is_pinned_and_used_no_passkey_is_told(voted: tuple[File, list[Holder]]) -> None:
    file, people = voted
    named = file["content"]["votes"][0]["person"]
    key = hashlib.sha256(people[0].passkeys[0].public_key).hexdigest()
    faults = weighed(resealed(_without_proof(file)), Given({named: frozenset({key})})).faults
    assert any("is pinned and voted without a passkey" in fault for fault in faults), faults


async def test_one_persons_vote_does_not_become_two(voted: tuple[File, list[Holder]]) -> None:
    file, _ = voted
    again = copy.deepcopy(file)
    votes = again["content"]["votes"]
    votes[1] = votes[0] | {"vote_id": votes[1]["vote_id"], "person": votes[1]["person"]}
    assert any("signed something else" in fault for fault in weighed(resealed(again)).faults)
    votes[1] = votes[0] | {"vote_id": votes[1]["vote_id"]}
    faults = weighed(resealed(again)).faults
    assert any("one assertion serves two votes" in fault for fault in faults)
    assert any(fault.startswith("step 9") for fault in faults)


async def test_a_proof_that_is_taken_away_is_missed(voted: tuple[File, list[Holder]]) -> None:
    file, _ = voted
    without = at(file, ("content", "votes", 0, "assertion"), lambda _: None)
    assert any("without a proof" in fault for fault in weighed(resealed(without)).faults)
    weak = at(without, ("content", "votes", 0, "step_up"), lambda _: None)
    assert any(fault.startswith("step 9") for fault in weighed(resealed(weak)).faults)
    dropped = at(file, ("content", "votes"), lambda votes: votes[1:])
    assert any("they are not" in fault for fault in weighed(resealed(dropped)).faults)


async def test_a_denial_is_told_and_cannot_be_left_out(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    maya, tomas = await holder(bank, "maya"), await holder(bank, "tomas")
    await maya.approve(review_of(view))
    answer = await robot.http.get(f"/v1/reviews/{review_of(view)}/export")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert (await maya.visitor.get("/v1/reviews/rev_none/export")).status_code == 404
    form = await tomas.form(review_of(view), "deny")
    await tomas.send(f"/reviews/{review_of(view)}/votes", **form, reason="not ours")
    file = await exported(maya, review_of(view))
    report = weighed(file)
    assert report.faults == []
    assert "somebody who may has denied it" in report.proven
    assert any("no passkey signed it" in line for line in report.trusted)
    hidden = at(file, ("content", "votes"), lambda votes: votes[:1])
    assert any("nobody denied it" in fault for fault in weighed(resealed(hidden)).faults)


async def test_who_was_asked_later_counts_there_too(bank: World, folder: Payments, robot: Agent) -> None:
    """A gate put to further people is met by one of these, in the file as here; without that word it is not."""
    folder.policies(ANYBODY + gate("slow", "finance", escalate="legal", answer_within="4h"))
    await bank.activate()
    view = (await robot.submit(await pay(bank, 500))).json()
    bank.clock.pass_(hours=2, seconds=1)
    await bank.sweep()
    ingrid = Holder(await bank.person("ingrid"))
    form = await ingrid.form(review_of(view))
    assert (await ingrid.send(f"/reviews/{review_of(view)}/votes", **form)).status_code == 303
    file = await exported(ingrid, review_of(view))
    assert weighed(file).faults == []
    assert file["content"]["review"]["escalated"] == ["finance"]
    narrow = at(file, ("content", "review", "escalated"), lambda _: [])
    assert any(fault.startswith("step 9") for fault in weighed(resealed(narrow)).faults)


BROKEN: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "another format": b'{"format": "x", "content": {}, "seal": "", "jwk": {}}',
    "not UTF-8": b"\xff",
    "a thousand brackets": b"[" * 100_000,
}


def test_what_is_no_export_is_no_export() -> None:
    for name, raw in BROKEN.items():
        report = verify(raw)
        assert not report.holds, name
        assert report.faults[0].startswith("step 1"), name


async def test_a_member_that_is_there_twice_is_refused(voted: tuple[File, list[Holder]]) -> None:
    text = json.dumps(voted[0])
    twice = text.replace('"rev": 1', '"rev": 2, "rev": 1', 1)
    assert "twice" in verify(twice.encode()).faults[0]
    more = at(voted[0], ("content",), lambda content: content | {"approved_by": "the CFO"})
    assert weighed(resealed(more)).faults[0].startswith("step 1")


async def test_the_command_says_what_is_proven_and_fails_on_any_fault(
    voted: tuple[File, list[Holder]], tmp_path: Path
) -> None:
    file, people = voted
    path, jwks = tmp_path / "review.json", tmp_path / "jwks.json"
    path.write_text(json.dumps(file))
    jwks.write_text((await people[0].visitor.http.get("/.well-known/jwks.json")).text)
    key = hashlib.sha256(decode_base64url(file["content"]["votes"][0]["assertion"]["public_key"])).hexdigest()
    given = ["--pin", f"{person('maya')}={key}", "--origin", LOCALHOST, "--jwks", str(jwks)]
    good = CliRunner().invoke(app, ["verify-review", str(path), *given])
    assert good.exit_code == 0, good.output
    assert good.output.rstrip().endswith("this review holds")
    forged = path.with_name("forged.json")
    forged.write_text(json.dumps(resealed(file)))
    unanchored = CliRunner().invoke(app, ["verify-review", str(forged)])
    assert unanchored.output.rstrip().endswith("this review holds in itself; anybody could have sealed it")
    assert CliRunner().invoke(app, ["verify-review", str(forged), *given]).exit_code == 1
    assert f"{person('maya')} used a key that is pinned" in good.output
    path.write_text(json.dumps(at(file, ("content", "votes", 0, "reason"), changed)))
    bad = CliRunner().invoke(app, ["verify-review", str(path), "--json"])
    assert bad.exit_code == 1
    assert json.loads(bad.stdout)["holds"] is False
    wrong = CliRunner().invoke(app, ["verify-review", str(path), "--pin", "maya"])
    assert wrong.exit_code == 2


async def test_what_was_opened_in_an_emergency_holds_and_is_named(
    bank: World, folder: Payments, robot: Agent
) -> None:
    """F14: such an opening proves itself as any vote does, and passes for nothing else."""
    folder.people(ON_CALL).policies(CAREFUL + TWO + ALONE)
    await bank.activate()
    people = {name: await holder(bank, name) for name in ("ingrid", "jonas")}
    openings = {
        ("ingrid", "jonas"): "2 people opened it in an emergency, without the people its gates ask",
        ("jonas",): "one person alone opened it",
    }
    for who, said in openings.items():
        view = (await robot.submit(await pay(bank, 500), run_key=" and ".join(who))).json()
        for name in who:
            assert (await people[name].break_glass(review_of(view))).status_code == 303
        file = await exported(people["ingrid"], review_of(view))
        report = weighed(file)
        assert report.faults == []
        (opened,) = [line for line in report.proven if "opened it" in line]
        assert opened.startswith(said)
        assert not any("every gate is met" in line for line in report.proven)
        for place in range(len(who)):
            vote = ("content", "votes", place)
            other = at(file, (*vote, "verdict"), lambda _: "approve")
            assert any("signed something else" in fault for fault in weighed(resealed(other)).faults)
            barred = at(at(file, (*vote, "permitted"), lambda _: False), (*vote, "alone"), lambda _: False)
            assert any(fault.startswith("step 9") for fault in weighed(resealed(barred)).faults)
            uncounted = at(file, (*vote, "counted"), changed)
            assert weighed(resealed(uncounted)).faults
        side = at(file, ("content", "requesters"), lambda _, who=who: [person(who[0])])
        assert any(fault.startswith("step 9") for fault in weighed(resealed(side)).faults)
        without = at(file, ("content", "votes"), lambda votes: votes[:-1])
        assert any(fault.startswith("step 9") for fault in weighed(resealed(without)).faults)


async def test_an_opening_without_a_passkey_holds_too(bank: World, folder: Payments, robot: Agent) -> None:
    folder.people(ON_CALL).policies(ANYBODY + gate("careful", "finance", quorum="2") + TWO + ALONE)
    await bank.activate()
    view = (await robot.submit(await pay(bank, 500))).json()
    ingrid, jonas = await bank.person("ingrid"), await bank.person("jonas")
    for one in (ingrid, jonas):
        assert (await break_glass(one, view))[0] == 303
    file = await exported(Holder(ingrid), review_of(view))
    assert weighed(file).faults == []
    for name, change in (("permitted", changed), ("person", lambda _: person("jonas"))):
        assert weighed(resealed(at(file, ("content", "votes", 0, name), change))).faults, name
    passed_off = at(file, ("content", "votes", 0, "verdict"), lambda _: "approve")
    assert weighed(resealed(passed_off)).faults

"""An exported review proves itself: without the service, without its database, and not after anybody touched it."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from countersign.contract import PrivateKey, sign
from countersign.contract.digests import txn_digest
from policy_service.cli import app
from policy_service.queries.view_digest import RenderedView
from policy_service.tokens.signer import TYP_EXPORT
from policy_service.workflow.review_export.export import content_digest
from policy_service.workflow.review_export.verification import VerificationInput, VerificationReport, verify
from tests.fakes.payments import ANYBODY, Payments, gate, person
from tests.fakes.world import Agent, World, running
from tests.integration.service.effects import mail, pay
from tests.integration.service.stepping_up import LOCALHOST, Holder, holder, review_of
from tests.integration.service.together.bank import Bank, refusal
from tests.integration.service.together.test_break_glass import ALONE, TWO
from tests.integration.service.together.test_break_glass import PEOPLE as ON_CALL
from tests.integration.service.together.test_break_glass import sign as break_glass

File = dict[str, Any]

CAREFUL = ANYBODY + gate("careful", "finance", step_up="passkey", quorum="2")


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"public_url": LOCALHOST}


@pytest.fixture
def folder(folder: Payments) -> Payments:
    return folder.policies(CAREFUL)


async def exported(who: Holder, review_id: str) -> Any:
    answer = await who.visitor.get(f"/v1/reviews/{review_id}/export")
    assert answer.status_code == 200, answer.text
    assert f'filename="review-{review_id}.json"' in answer.headers["content-disposition"]
    return answer.json()


def weighed(file: File, given: VerificationInput | None = None) -> VerificationReport:
    return verify(json.dumps(file).encode(), given)


def resealed(file: File, **claims: Any) -> File:
    """Sealed by somebody who is not the service, so that the seal fits the content."""
    key, content = PrivateKey.generate(), file["content"]
    usual = {"iss": content["deployment"]["iss"], "sub": content["review"]["review_id"], "iat": 1}
    seal = sign(usual | {"digest": content_digest(content)} | claims, typ=TYP_EXPORT, key=key)
    return file | {"seal": seal, "jwk": key.public.jwk()}


def key_of(one: Holder) -> frozenset[str]:
    return frozenset({hashlib.sha256(one.passkeys[0].public_key).hexdigest()})


def faults(file: File, given: VerificationInput | None = None) -> list[str]:
    """What is wrong with a file whose seal fits it."""
    return weighed(resealed(file), given).faults


async def test_pins_and_keys_replace_trust(file: File, voted: tuple[File, list[Holder], World]) -> None:
    report = weighed(file)
    assert report.faults == []
    proven, believed = "\n".join(report.proven), "\n".join(report.trusted)
    assert "pay with exactly these arguments" in proven
    assert proven.count("a passkey signed the vote of") == 2
    assert "every gate is met by people of its own, and no one denied: 2 of 2 for finance" in proven
    assert f"is {person('maya')}'s (give --pin)" in believed
    assert "give --jwks" in believed
    assert file["content"]["redemption"]["jti"] and file["content"]["decisions"][0]["commit"]
    _, people, bank = voted
    pins, keys = {person(one.visitor.sub): key_of(one) for one in people}, bank.service.ctx.signer.keys
    report = weighed(file, VerificationInput(pins, LOCALHOST, keys))
    assert report.faults == []
    assert "give --" not in "\n".join(report.trusted)
    assert faults(file, VerificationInput(pins, LOCALHOST, keys))[0].startswith("step 2")
    swapped = dict(zip(pins, reversed(list(pins.values())), strict=True))
    for given, origin, step in (
        (pins, "https://elsewhere.example", "step 6"),
        (swapped, LOCALHOST, "step 8"),
    ):
        assert weighed(file, VerificationInput(given, origin, keys)).faults[0].startswith(step)
    named = file["content"]["votes"][0] | {"assertion": None, "step_up": None}
    unproven = at(file, ("content", "votes", 0), lambda _: named)
    pinned = VerificationInput({named["person"]: key_of(people[0])})
    assert any("is pinned and voted without a passkey" in fault for fault in faults(unproven, pinned))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        for name in value:
            yield from leaves(value[name], (*path, name))
    elif isinstance(value, list) and value:
        for place, one in enumerate(value):
            yield from leaves(one, (*path, place))
    else:
        yield path


def another_view(file: File, digest: str, draw: Callable[[File], None]) -> str:
    """The digest of a view that is drawn otherwise, and is in the file."""
    views = file["content"]["views"]
    material = copy.deepcopy(views[digest])
    draw(material)
    views[RenderedView(material).digest] = material
    return RenderedView(material).digest


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


async def test_no_member_can_be_changed(file: File) -> None:
    paths = list(leaves(file))
    assert len(paths) > 120
    assert [path for path in paths if weighed(at(file, path, changed)).holds] == []


# A file that is sealed again with another key may change what only the service knows, but not these.
PROVEN_WITHOUT_THE_SEAL = {
    "step 3": """effect.args effect.args_digest effect.effect_digest effect.agent effect.tool effect.tool_digest
        effect.call_key effect.effect_id effect.txn effect.seq effect.resource.id effect.resource.type
        effect.compensation.tool transaction.txn_digest transaction.effects.0 transaction.effects.1""",
    "step 4": "review.rev review.review_id",
    "step 5": "votes.0.rev votes.0.effect_digest votes.0.txn_digest votes.0.view_digest votes.0.verdict",
    "step 6": """votes.0.person votes.0.step_up votes.0.assertion.public_key votes.0.assertion.client_data
        votes.0.assertion.authenticator_data votes.0.assertion.signature votes.0.assertion.signed.nonce
        votes.0.assertion.signed.view_digest votes.0.assertion.signed.person votes.0.assertion.signed.verdict
        votes.0.assertion.signed.rev deployment.origin deployment.rp_id""",
    "step 9": """gates.0.quorum votes.0.counted votes.0.late votes.0.revoked votes.0.permitted votes.0.groups.0
        requesters""",
}


async def test_a_resealed_file_proves_the_same(file: File) -> None:
    assert faults(file) == []
    for step, members in PROVEN_WITHOUT_THE_SEAL.items():
        for member in members.split():
            path = tuple(int(name) if name.isdigit() else name for name in member.split("."))
            change = changed if member != "requesters" else lambda _: [person("maya")]
            found = faults(at(file, ("content", *path), change))
            assert any(fault.startswith(step) for fault in found), (member, found)


def redrawn(file: File, draw: Callable[[File], None]) -> None:
    """Every vote on another view, named by its own digest: as if that had been shown."""
    for vote in file["content"]["votes"]:
        vote["view_digest"] = another_view(file, vote["view_digest"], draw)


def one_device(file: File) -> None:
    first, second = (vote["assertion"] for vote in file["content"]["votes"])
    second |= {name: first[name] for name in ("credential_id", "public_key")}


def another_order(file: File) -> None:
    transaction = file["content"]["transaction"]
    transaction["effects"] = transaction["effects"][::-1]
    transaction["txn_digest"] = txn_digest(effect_digests=transaction["effects"])


def signed_as(file: File, draw: Callable[[File], None] | None) -> None:
    """The passkey's own words name another view, which is here or not."""
    for vote in file["content"]["votes"]:
        signed = vote["assertion"]["signed"]
        signed["view_digest"] = "0" * 64 if draw is None else another_view(file, signed["view_digest"], draw)


def folded(material: File) -> None:
    material["drawn"]["folded"] = ["args/account"]


def reworded(views: File) -> File:
    for material in views.values():
        material["effect"]["sentence"] = "Do nothing."
    return views


def in_content(change: Callable[[Any], Any], *path: Any) -> Callable[[File], File]:
    return lambda file: at(file, ("content", *path), change)


# One lie each, sealed anew so that only the step itself can find it.
FORGED: list[tuple[Callable[[File], File | None], str]] = [
    (another_order, "not in its transaction at its place"),
    (in_content(reworded, "views"), "is not that of its digest"),
    (in_content(lambda _: None, "votes", 0, "view_digest"), "names no view"),
    (in_content(lambda _: {}, "views"), "is on a view that is not here"),
    (lambda file: redrawn(file, folded), "is on a page with folded arguments"),
    (lambda file: signed_as(file, None), "signed a view that is not here"),
    (lambda file: signed_as(file, folded), "signed a page with folded arguments"),
    (one_device, "used the same passkey"),
    (in_content(lambda _: "open", "review", "state"), "and the review says open"),
    (in_content(lambda _: "maybe", "votes", 0, "verdict"), "is no approval, no denial"),
    (in_content(lambda _: None, "votes", 0, "assertion"), "without a proof"),
    (in_content(lambda votes: votes[1:], "votes"), "they are not"),
    (in_content(lambda vote: vote | {"assertion": None, "step_up": None}, "votes", 0), "step 9"),
]


async def test_every_lie_is_found_by_the_step_that_looks_for_it(file: File) -> None:
    for lie, words in FORGED:
        forged = copy.deepcopy(file)
        found = faults(lie(forged) or forged)
        assert any(words in fault for fault in found), (words, found)
    for name, value, words in (
        ("sub", "rev_other", "another review"),
        ("iss", "https://x", "another deployment"),
    ):
        found = weighed(resealed(file, **{name: value})).faults
        assert [words in fault for fault in found] == [True]


async def test_one_persons_vote_does_not_become_two(file: File) -> None:
    votes = file["content"]["votes"]
    votes[1] = votes[0] | {"vote_id": votes[1]["vote_id"], "person": votes[1]["person"]}
    assert any("signed something else" in fault for fault in faults(file))
    votes[1] = votes[0] | {"vote_id": votes[1]["vote_id"]}
    found = faults(file)
    assert any("one assertion serves two votes" in fault for fault in found)
    assert any(fault.startswith("step 9") for fault in found)


async def test_a_denial_is_reported_and_cannot_be_left_out(bank: Bank, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    maya, tomas = await holder(bank, "maya"), await holder(bank, "tomas")
    await maya.approve(review_of(view))
    assert refusal(await robot.http.get(f"/v1/reviews/{review_of(view)}/export")) == (401, "unauthenticated")
    assert (await maya.visitor.get("/v1/reviews/rev_none/export")).status_code == 404
    form = await tomas.form(review_of(view), "deny")
    await tomas.send(f"/reviews/{review_of(view)}/votes", **form, reason="not ours")
    file = await exported(maya, review_of(view))
    report = weighed(file)
    assert report.faults == []
    assert "an eligible person denied it" in report.proven
    assert any("no passkey signed it" in line for line in report.trusted)
    hidden = at(file, ("content", "votes"), lambda votes: votes[:1])
    assert any("no one denied it" in fault for fault in faults(hidden))


async def test_who_was_asked_later_counts_there_too(bank: Bank, robot: Agent) -> None:
    """A gate put to further people is met by one of these, in the file as here; without that word it is not."""
    await bank.policies(ANYBODY + gate("slow", "finance", escalate="legal", answer_within="4h"))
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
    assert any(fault.startswith("step 9") for fault in faults(narrow))


async def test_what_is_no_export_is_no_export(file: File) -> None:
    other_format = b'{"format": "x", "content": {}, "seal": "", "jwk": {}}'
    for raw in (b"", b"{", b"[]", other_format, b"\xff", b"[" * 100_000):
        assert verify(raw).faults[0].startswith("step 1"), raw[:9]
        assert not verify(raw).holds
    twice = json.dumps(file).replace('"rev": 1', '"rev": 2, "rev": 1', 1)
    assert "twice" in verify(twice.encode()).faults[0]
    more = at(file, ("content",), lambda content: content | {"approved_by": "the CFO"})
    assert faults(more)[0].startswith("step 1")


async def test_the_command_fails_on_any_fault(
    file: File, voted: tuple[File, list[Holder], World], tmp_path: Path
) -> None:
    def said(content: File, *options: str) -> Result:
        path = tmp_path / "review.json"
        path.write_text(json.dumps(content))
        return CliRunner().invoke(app, ["verify-review", str(path), *options])

    jwks, (maya, _) = tmp_path / "jwks.json", voted[1]
    jwks.write_text((await maya.visitor.http.get("/.well-known/jwks.json")).text)
    (key,) = key_of(maya)
    given = ["--pin", f"{person('maya')}={key}", "--origin", LOCALHOST, "--jwks", str(jwks)]
    good = said(file, *given)
    assert good.exit_code == 0, good.output
    assert good.output.rstrip().endswith("this review is valid")
    assert f"{person('maya')} used a key that is pinned" in good.output
    unanchored = said(resealed(file)).output.rstrip()
    assert unanchored.endswith("this review is consistent, but anyone could have created it; add --jwks")
    assert said(resealed(file), *given).exit_code == 1
    bad = said(at(file, ("content", "votes", 0, "reason"), changed), "--json")
    assert (bad.exit_code, json.loads(bad.stdout)["holds"]) == (1, False)
    assert said(file, "--pin", "maya").exit_code == 2


async def test_what_was_opened_in_an_emergency_holds_and_is_named(bank: Bank, robot: Agent) -> None:
    """F14: such an opening proves itself as any vote does, and passes for nothing else."""
    bank.folder.people(ON_CALL).policies(CAREFUL + TWO + ALONE)
    await bank.activate()
    people = {name: await holder(bank, name) for name in ("ingrid", "jonas")}
    openings = {
        ("ingrid", "jonas"): "2 people opened it in an emergency",
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
            assert any("signed something else" in fault for fault in faults(other))
            barred = at(at(file, (*vote, "permitted"), lambda _: False), (*vote, "alone"), lambda _: False)
            assert any(fault.startswith("step 9") for fault in faults(barred))
            assert faults(at(file, (*vote, "counted"), changed))
        side = at(file, ("content", "requesters"), lambda _, who=who: [person(who[0])])
        without = at(file, ("content", "votes"), lambda votes: votes[:-1])
        for lie in (side, without):
            assert any(fault.startswith("step 9") for fault in faults(lie))
    # and one without a passkey holds too
    await bank.policies(ANYBODY + gate("careful", "finance", quorum="2") + TWO + ALONE)
    view = (await robot.submit(await pay(bank, 500), run_key="without")).json()
    for one in people.values():
        assert (await break_glass(one.visitor, view))[0] == 303
    file = await exported(people["ingrid"], review_of(view))
    assert weighed(file).faults == []
    for name, value in (("permitted", False), ("person", person("jonas")), ("verdict", "approve")):
        assert faults(at(file, ("content", "votes", 0, name), lambda _, value=value: value)), name  # type: ignore[misc]


@pytest.fixture(scope="module")
async def voted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[File, list[Holder], World]]:
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
def file(voted: tuple[File, list[Holder], World]) -> File:
    """A copy of the file."""
    return copy.deepcopy(voted[0])

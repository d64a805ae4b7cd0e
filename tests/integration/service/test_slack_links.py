"""A Slack account is linked by its person on the web, and only that person decides through it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from structlog.testing import capture_logs

from policy_service.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    UnauthenticatedError,
)  # fmt: skip
from policy_service.identity.dev_signin import DEV_ISSUER
from policy_service.identity.logout import Logout, apply_logout
from policy_service.identity.sessions import end_sessions_of, rotate_cookie
from policy_service.slack import SlackApp
from policy_service.storage.core import find
from policy_service.storage.slack_tables import SlackInvitationRow
from policy_service.workflow.expiry import sweep
from policy_service.workflow.slack.account_links import find_invitation, invite, links_of, set_direct, unlink
from tests.fakes.identity_provider import ISSUER
from tests.fakes.payments import person
from tests.fakes.slack_accounts import APP, OTHER_TEAM, TEAM, account, app_settings
from tests.integration.service.slack_links import MALLORY, MAYA, Workspace, refused


async def invitations(here: Workspace) -> list[SlackInvitationRow]:
    return await here.world.service.db.read(lambda conn: find(conn, SlackInvitationRow))


async def owners(here: Workspace) -> list[str]:
    """The people with linked accounts."""
    return [row.sub for row in await here.rows()]


# -- linking -------------------------------------------------------------------------------------------------------


async def test_only_a_full_member_of_the_workspace_is_invited(here: Workspace) -> None:
    before = len(await invitations(here))
    for more, word in (
        ({"guest": True}, "guest"),
        ({"bot": True}, "app's"),
        ({"deleted": True}, "deactivated"),
        ({"stranger": True}, "another workspace"),
        ({"team_id": OTHER_TEAM}, "another workspace"),
    ):
        asked = invite(here.world.service.ctx, here.app, replace(MAYA, **more))
        await refused(asked, ForbiddenError, "not_eligible", word)
    assert len(await invitations(here)) == before


async def test_an_account_is_its_persons_after_one_answer(here: Workspace) -> None:
    with capture_logs() as logged:
        secret = await here.invited(MAYA)
        made = await here.take(secret, await here.by_link("maya"))
    assert (made.person, made.account, made.assurance, made.direct) == (person("maya"), "maya", "dev", False)
    (linked,) = await links_of(here.world.service.ctx, DEV_ISSUER, "maya")
    assert (linked.team_id, linked.user_id) == (made.team_id, made.user_id)
    body = {"team": TEAM, "user": "U0MAYA", "assurance": "dev", "renewed": False}
    assert await here.log() == [("slack_linked", f"person:{person('maya')}", body)]
    for sub in ("maya", "tomas"):  # an invitation is used once
        asked = here.take(secret, await here.by_link(sub))
        await refused(asked, InvalidRequestError, "bad_token", "was used", "/countersign link")
    assert await owners(here) == ["maya"]
    stored = [row.__dict__ for row in await invitations(here)]
    assert secret not in repr(stored) + repr(logged) + repr(await here.log())


async def test_an_invalid_invitation_is_refused(here: Workspace, tmp_path: Path) -> None:
    secret, maya, ctx = await here.invited(MAYA), await here.by_link("maya"), here.world.service.ctx
    other = SlackApp.model_validate(app_settings(tmp_path, team_id=OTHER_TEAM))
    await refused(here.under(slack=other).take(secret, maya), InvalidRequestError, "bad_token")
    assert other.app_id == APP
    for guess in ("", "x", "U0MAYA", "é" * 43, "A" * 100_000):
        assert await find_invitation(ctx, guess) is None
        await refused(here.take(guess, maya), InvalidRequestError, "bad_token")
    here.world.clock.pass_(minutes=here.app.link_minutes)
    assert await find_invitation(ctx, secret) is None
    await refused(here.take(secret, maya), InvalidRequestError, "expired_token", "/countersign link")
    assert await owners(here) == []


async def test_a_session_that_ended_and_a_revoked_person_link_nothing(here: Workspace) -> None:
    secret, maya = await here.invited(MAYA), await here.by_link("maya")
    await here.world.service.db.write(lambda tx: end_sessions_of(tx, DEV_ISSUER, "maya"))
    await refused(here.take(secret, maya), UnauthenticatedError, "unauthenticated")
    again = await here.by_link("maya")
    await here.world.service.db.write(lambda tx: rotate_cookie(tx, again))
    await refused(here.take(secret, again), UnauthenticatedError, "unauthenticated")
    revoked = await here.by_link("maya")
    await here.world.operator("revoke-approver", {"person": person("maya"), "reason": "left"})
    await refused(here.take(secret, revoked), ForbiddenError, "not_eligible", "taken you out")
    assert await owners(here) == []


async def test_mallorys_invitation_opened_by_an_approver_joins_nothing(here: Workspace) -> None:
    """G12: an approver who takes another's link would let them decide in the approver's name."""
    asked = here.linked(MALLORY, await here.by_provider("maya", "maya@acme.example"))
    error = await refused(asked, ForbiddenError, "not_eligible", "decide in your name", "other_email")
    assert "mallory@acme.example" in error.detail
    assert (await owners(here), await here.log()) == ([], [])
    # a refusal leaves the invitation to its person
    secret = await here.invited(replace(MAYA, email="maya@acme.example"))
    wrong = await here.by_provider("tomas", "tomas@acme.example")
    await refused(here.take(secret, wrong), ForbiddenError, "not_eligible")
    await here.take(secret, await here.by_provider("maya", "maya@acme.example"))
    assert await owners(here) == ["maya"]


async def test_equal_or_unknown_addresses_may_link(here: Workspace, tmp_path: Path) -> None:
    lax = here.under(slack=SlackApp.model_validate(app_settings(tmp_path, other_email=True)))
    for where, of_account, of_person in (
        (here, "Maya@ACME.example", "maya@acme.EXAMPLE"),
        (here, None, "maya@acme.example"),
        (here, "maya@acme.example", None),
        (here, None, None),
        (here, "", "maya@acme.example"),
        (lax, "maya@private.example", "maya@acme.example"),
    ):
        await where.linked(replace(MAYA, email=of_account), await here.by_provider("maya", of_person))
        assert await owners(here) == ["maya"]
        await unlink(here.world.service.ctx, TEAM, "U0MAYA", actor="operator")


async def test_the_address_in_a_profile_links_nothing(here: Workspace) -> None:
    """G12: Slack lets people change what their profile says; an address finds no one and links nothing."""
    await here.by_provider("maya", "maya@acme.example")
    await refused(here.voter("U0MALLORY"), ForbiddenError, "not_eligible", "/countersign link")
    secret = await here.invited(replace(MALLORY, email="maya@acme.example"))
    await refused(here.voter("U0MALLORY"), ForbiddenError, "not_eligible", "/countersign link")
    own = await here.by_provider("mallory", "mallory@acme.example")
    await refused(here.take(secret, own), ForbiddenError, "not_eligible")
    assert await owners(here) == []


async def test_an_account_of_another_person_is_unlinked_first(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    tomas = await here.by_link("tomas")
    await refused(here.linked(MAYA, tomas), ConflictError, "illegal_state", "another person", "/slack")
    assert await owners(here) == ["maya"]
    (line,) = await here.world.operator("slack-links", {})
    assert (line["team"], line["user"], line["person"]) == (TEAM, "U0MAYA", person("maya"))
    args = {"team": TEAM, "user": "U0MAYA", "reason": "the phone was stolen"}
    assert (await here.world.operator("slack-unlink", args))["person"] == person("maya")
    kind, actor, body = (await here.log())[-1]
    assert (kind, actor, body["reason"]) == ("slack_unlinked", "operator", "the phone was stolen")
    await refused(here.world.operator("slack-unlink", args), NotFoundError, "not_found")
    await here.linked(MAYA, tomas)
    assert await owners(here) == ["tomas"]


async def test_the_same_person_again_renews_it(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    await set_direct(here.world.service.ctx, TEAM, "U0MAYA", True)
    here.world.clock.pass_(hours=1)
    assert (await here.linked(replace(MAYA, name="maya r."), await here.by_link("maya"))).direct
    (row,) = await here.rows()
    assert (row.account, row.direct, row.sub) == ("maya r.", True, "maya")
    last = (await here.log())[-1]
    assert (last[0], last[2]["renewed"]) == ("slack_linked", True)


# -- unlinking, direct messages ------------------------------------------------------------------------------------


async def test_only_its_person_changes_a_link(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    ctx, actor, maya = here.world.service.ctx, f"person:{person('maya')}", person("maya")
    assert not await unlink(ctx, TEAM, "U0MAYA", actor="person:x", whose=person("tomas"))
    foreign = set_direct(ctx, TEAM, "U0MAYA", True, whose=person("tomas"))
    await refused(foreign, NotFoundError, "not_found")
    await refused(set_direct(ctx, TEAM, "U0UNKNOWN", True), NotFoundError, "not_found", "/countersign link")
    assert not (await here.rows())[0].direct
    for wanted in (True, True, False):
        await set_direct(ctx, TEAM, "U0MAYA", wanted, whose=maya)
    assert await unlink(ctx, TEAM, "U0MAYA", actor=actor, whose=maya)
    assert not await unlink(ctx, TEAM, "U0MAYA", actor=actor, whose=maya)
    assert await links_of(ctx, DEV_ISSUER, "maya") == []
    log = await here.log()
    said = [(kind, body.get("wanted")) for kind, _, body in log]
    assert said[1:] == [("slack_direct", True), ("slack_direct", False), ("slack_unlinked", None)]
    assert log[-1] == ("slack_unlinked", actor, {"team": TEAM, "user": "U0MAYA", "person": maya})


# -- what is over --------------------------------------------------------------------------------------------------


async def test_invitations_that_are_long_over_are_forgotten(here: Workspace) -> None:
    await here.invited(MAYA)
    for hours, left in ((0, True), (here.world.settings.idempotency_keep_hours + 1, False)):
        here.world.clock.pass_(hours=hours)
        await sweep.delete_expired_rows(here.world.service.ctx)
        assert bool(await invitations(here)) is left


# -- two things said of a Slack account at once ----------------------------------------------------------------------


async def test_of_two_who_use_it_at_once_one_wins(here: Workspace) -> None:
    secret = await here.invited(MAYA)
    maya, tomas = await here.by_link("maya"), await here.by_link("tomas")
    answers = await asyncio.gather(here.take(secret, maya), here.take(secret, tomas), return_exceptions=True)
    lost = [answer for answer in answers if isinstance(answer, BaseException)]
    assert [type(answer) for answer in lost] == [InvalidRequestError]
    assert len(await here.rows()) == 1
    assert [kind for kind, *_ in await here.log()] == ["slack_linked"]


async def test_of_two_invitations_asked_for_at_once_one_is_live(here: Workspace) -> None:
    secrets = await asyncio.gather(*(here.invited(MAYA) for _ in range(4)))
    found = [await find_invitation(here.world.service.ctx, secret) for secret in secrets]
    assert sum(one is not None for one in found) == 1


async def test_an_invitation_that_is_replaced_while_it_is_used_wins_or_loses_whole(here: Workspace) -> None:
    secret, maya = await here.invited(MAYA), await here.by_link("maya")
    used, newer = await asyncio.gather(here.take(secret, maya), here.invited(MAYA), return_exceptions=True)
    assert isinstance(newer, str)
    assert len(await here.rows()) == (0 if isinstance(used, BaseException) else 1)
    assert await find_invitation(here.world.service.ctx, secret) is None
    assert await find_invitation(here.world.service.ctx, newer) is not None


async def test_a_vote_and_an_unlinking_at_once_leave_no_vote_after_it(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    (robot, view), linked = await here.asking(), await here.voter("U0MAYA")
    unlinking = unlink(here.world.service.ctx, TEAM, "U0MAYA", actor="operator")
    voted, gone = await asyncio.gather(here.vote("U0MAYA", view, linked), unlinking, return_exceptions=True)
    assert gone is True
    state = (await robot.see(view["txn"]))["effects"][0]["state"]
    assert state == ("review" if isinstance(voted, ForbiddenError) else "released")
    kinds = [kind for kind, *_ in await here.log("%")]
    assert "vote_recorded" not in kinds[kinds.index("slack_unlinked") :]


# -- Only the person of a Slack account decides through it, as they are known now


async def test_a_vote_through_a_linked_account_is_its_persons(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    await here.linked(account("U0SECOND"), await here.by_link("maya"))
    robot, view = await here.asking()
    linked = await here.voter("U0MAYA")
    assert (linked.voter.key, linked.voter.assurance, linked.voter.step_up) == (person("maya"), "dev", None)
    assert (await here.vote("U0MAYA", view)).counted
    assert (await robot.see(view["txn"]))["effects"][0]["state"] == "released"
    robot, view = await here.asking(5_000)  # two people of finance, and two accounts are not two people
    for user in ("U0MAYA", "U0SECOND"):
        await here.vote(user, view)
    assert (await robot.see(view["txn"]))["state"] == "review"


async def test_an_account_that_was_unlinked_decides_nothing(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    (robot, view), before = await here.asking(), await here.voter("U0MAYA")
    assert await unlink(here.world.service.ctx, TEAM, "U0MAYA", actor="operator")
    await refused(here.voter("U0MAYA"), ForbiddenError, "not_eligible", "/countersign link")
    # the channel had looked them up before, and is about to count it
    await refused(here.vote("U0MAYA", view, before), ForbiddenError, "not_eligible")
    await here.linked(MAYA, await here.by_link("tomas"))  # nor if it is another person's
    await refused(here.vote("U0MAYA", view, before), ForbiddenError, "not_eligible", "linked again")
    assert (await robot.see(view["txn"]))["state"] == "review"


async def test_a_revoked_person_decides_nothing_through_slack(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    (_, view), before = await here.asking(), await here.voter("U0MAYA")
    await here.world.operator("revoke-approver", {"person": person("maya"), "reason": "left"})
    await refused(here.voter("U0MAYA"), ForbiddenError, "not_eligible", "taken you out")
    await refused(here.vote("U0MAYA", view, before), ForbiddenError, "not_eligible", "taken you out")


async def test_an_account_of_another_workspace_is_refused(here: Workspace, tmp_path: Path) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    await refused(here.voter("U0MAYA", OTHER_TEAM), ForbiddenError, "not_eligible", "/countersign link")
    moved = here.under(slack=SlackApp.model_validate(app_settings(tmp_path, team_id=OTHER_TEAM)))
    await refused(moved.voter("U0MAYA", TEAM), ForbiddenError, "not_eligible", "/countersign link")


async def test_what_a_sign_in_vouched_for_ends_with_it(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    off = here.under(dev_signin=False)
    await refused(off.voter("U0MAYA"), ForbiddenError, "not_eligible", "development sign-in")
    await here.linked(account("U0PROVIDED"), await here.by_provider("maya"))
    assert (await here.voter("U0PROVIDED")).voter.assurance == "oidc"
    gone = here.under(providers=())
    await refused(gone.voter("U0PROVIDED"), ForbiddenError, "not_eligible", "no longer trusted")


async def test_an_old_sign_in_is_refused(here: Workspace) -> None:
    here.world.clock.stop_at(here.world.clock())
    await here.linked(MAYA, await here.by_provider("maya"))
    here.world.clock.pass_(days=here.app.signed_in_within_days, seconds=-60)
    assert (await here.voter("U0MAYA")).voter.sub == "maya"
    here.world.clock.pass_(seconds=60)
    error = await refused(here.voter("U0MAYA"), ForbiddenError, "not_eligible", "sign in on the web")
    assert error.extras["url"] == f"{here.world.settings.public_url}/sign-in"
    await here.by_provider("maya")
    assert (await here.voter("U0MAYA")).voter.sub == "maya"


async def sign_out_there(here: Workspace, sub: str | None, sid: str | None) -> None:
    now = here.world.clock()
    logout = Logout(ISSUER, sub, sid, f"j-{now.timestamp()}", now)
    await here.world.service.db.write(lambda tx: apply_logout(tx, logout))


async def test_a_back_channel_logout_needs_a_new_sign_in(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_provider("maya"))
    await here.linked(account("U0TOMAS"), await here.by_provider("tomas"))
    await sign_out_there(here, "maya", "s-maya")  # the end of one session leaves the account as it is
    await sign_out_there(here, None, "s-maya")
    assert (await here.voter("U0MAYA")).voter.sub == "maya"
    await sign_out_there(here, "maya", None)
    error = await refused(here.voter("U0MAYA"), ForbiddenError, "not_eligible", "signed you out everywhere")
    assert error.extras["url"].endswith("/sign-in")
    assert (await here.voter("U0TOMAS")).voter.sub == "tomas"
    here.world.clock.pass_(seconds=1)
    await here.by_provider("maya")
    assert (await here.voter("U0MAYA")).voter.sub == "maya"


async def test_groups_of_an_old_token_do_not_count(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_provider("maya", groups=["finance"]))
    await here.linked(account("U0TOMAS"), await here.by_provider("tomas", groups=[]))
    fresh = await here.voter("U0MAYA")
    assert (fresh.voter.groups, fresh.stale_groups) == (frozenset({"finance"}), False)
    here.world.clock.pass_(seconds=here.world.settings.max_group_age_s + 1)
    old = await here.voter("U0MAYA")
    assert (old.voter.groups, old.stale_groups, old.groups_at) == (frozenset(), True, fresh.groups_at)
    assert not (await here.voter("U0TOMAS")).stale_groups, "a token that names none has none that are old"

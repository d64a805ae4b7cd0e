"""A Slack account becomes a person's by one word of theirs on the web, and by nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from policy_service.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    UnauthenticatedError,
)  # fmt: skip
from policy_service.identity.dev_signin import DEV_ISSUER
from policy_service.identity.sessions import another_cookie, end_sessions_of
from policy_service.identity.slack_links import end_every_slack_link
from policy_service.slack import SlackApp
from policy_service.storage.core import find
from policy_service.storage.slack_tables import SlackInvitationRow
from policy_service.workflow.due import sweep
from policy_service.workflow.slack.inviting import invitation_of, invite
from policy_service.workflow.slack.linking import links_of, set_direct, unlink
from tests.fakes.payments import Payments, person
from tests.fakes.slack_accounts import APP, OTHER_TEAM, TEAM, account, app_settings
from tests.fakes.world import World
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.slack_links import MALLORY, MAYA, Workspace, refused, with_slack

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("engine", SQLITE_IN_SHORT),
]


@pytest.fixture
async def bank(tmp_path: Path, folder: Payments, database: dict[str, str]) -> AsyncIterator[World]:
    async with with_slack(tmp_path, folder.path, database) as started:
        yield started


@pytest.fixture
async def here(bank: World) -> Workspace:
    return Workspace(bank)


# -- inviting ------------------------------------------------------------------------------------------------------

NOT_MEMBERS = {
    "a guest": ({"guest": True}, "guest"),
    "an app": ({"bot": True}, "app's"),
    "somebody who left": ({"deleted": True}, "deactivated"),
    "somebody of a shared channel": ({"stranger": True}, "another workspace"),
    "somebody of another workspace": ({"team_id": OTHER_TEAM}, "another workspace"),
}


async def test_only_a_full_member_of_the_workspace_is_invited(here: Workspace) -> None:
    for more, word in NOT_MEMBERS.values():
        asked = invite(here.world.service.ctx, here.app, replace(MAYA, **more))
        await refused(asked, ForbiddenError, "not_eligible", word)
    assert await here.world.service.db.read(lambda conn: find(conn, SlackInvitationRow)) == []


async def test_the_secret_is_stored_and_written_nowhere(here: Workspace) -> None:
    with capture_logs() as told:
        secret = await here.invited(MAYA)
        await here.take(secret, await here.by_link("maya"))
    kept = await here.world.service.db.read(lambda conn: find(conn, SlackInvitationRow))
    assert secret not in repr([row.__dict__ for row in kept])
    assert secret not in repr(told)
    assert secret not in repr(await here.log())


# -- linking -------------------------------------------------------------------------------------------------------


async def test_an_account_is_its_persons_after_one_answer(here: Workspace) -> None:
    made = await here.linked(MAYA, await here.by_link("maya"))
    assert (made.person, made.account, made.assurance, made.direct) == (person("maya"), "maya", "dev", False)
    assert await links_of(here.world.service.ctx, DEV_ISSUER, "maya") == (made,)
    body = {"team": TEAM, "user": "U0MAYA", "assurance": "dev", "renewed": False}
    assert await here.log() == [("slack_linked", f"person:{person('maya')}", body)]


async def test_an_invitation_is_used_once(here: Workspace) -> None:
    secret = await here.invited(MAYA)
    await here.take(secret, await here.by_link("maya"))
    for sub in ("maya", "tomas"):
        asked = here.take(secret, await here.by_link(sub))
        await refused(asked, InvalidRequestError, "bad_token", "was used", "/countersign link")
    assert [row.sub for row in await here.rows()] == ["maya"]


async def test_an_invitation_is_over_after_its_minutes(here: Workspace) -> None:
    secret = await here.invited(MAYA)
    maya = await here.by_link("maya")
    here.world.clock.pass_(minutes=here.app.link_minutes)
    assert await invitation_of(here.world.service.ctx, secret) is None
    await refused(here.take(secret, maya), InvalidRequestError, "expired_token", "/countersign link")
    assert await here.rows() == []


async def test_a_guessed_invitation_is_none(here: Workspace) -> None:
    await here.invited(MAYA)
    maya = await here.by_link("maya")
    for guess in ("", "x", "U0MAYA", "é" * 43, "A" * 100_000):
        assert await invitation_of(here.world.service.ctx, guess) is None
        await refused(here.take(guess, maya), InvalidRequestError, "bad_token")


async def test_an_invitation_of_another_workspace_is_none(here: Workspace, tmp_path: Path) -> None:
    """The settings name another workspace since."""
    secret = await here.invited(MAYA)
    other = SlackApp.model_validate(app_settings(tmp_path, team_id=OTHER_TEAM))
    moved = Workspace(replace(here.world, settings=here.world.settings.model_copy(update={"slack": other})))
    await refused(moved.take(secret, await here.by_link("maya")), InvalidRequestError, "bad_token")
    assert other.app_id == APP


async def test_a_revoked_person_links_nothing(here: Workspace) -> None:
    secret, maya = await here.invited(MAYA), await here.by_link("maya")
    await here.world.operator("revoke-approver", {"person": person("maya"), "reason": "left"})
    await refused(here.take(secret, maya), ForbiddenError, "not_eligible", "taken you out")
    assert await here.rows() == []


async def test_a_session_that_ended_links_nothing(here: Workspace) -> None:
    secret, maya = await here.invited(MAYA), await here.by_link("maya")
    await here.world.service.db.write(lambda tx: end_sessions_of(tx, DEV_ISSUER, "maya"))
    await refused(here.take(secret, maya), UnauthenticatedError, "unauthenticated")
    again = await here.by_link("maya")
    await here.world.service.db.write(lambda tx: another_cookie(tx, again))
    await refused(here.take(secret, again), UnauthenticatedError, "unauthenticated")
    assert await here.rows() == []


async def test_mallorys_invitation_opened_by_an_approver_joins_nothing(here: Workspace) -> None:
    """G12: whoever sends an approver their own link would decide in that approver's name."""
    maya = await here.by_provider("maya", "maya@acme.example")
    asked = here.linked(MALLORY, maya)
    error = await refused(asked, ForbiddenError, "not_eligible", "decide in your name", "other_email")
    assert "mallory@acme.example" in error.detail
    assert await here.rows() == []
    assert await here.log() == []


async def test_a_refusal_leaves_the_invitation_to_whom_it_was_meant_for(here: Workspace) -> None:
    secret = await here.invited(replace(MAYA, email="maya@acme.example"))
    wrong = await here.by_provider("tomas", "tomas@acme.example")
    await refused(here.take(secret, wrong), ForbiddenError, "not_eligible")
    await here.take(secret, await here.by_provider("maya", "maya@acme.example"))
    assert [row.sub for row in await here.rows()] == ["maya"]


SAME_OR_UNKNOWN = {
    "the same in other letters": ("Maya@ACME.example", "maya@acme.EXAMPLE"),
    "Slack tells none": (None, "maya@acme.example"),
    "the provider tells none": ("maya@acme.example", None),
    "neither tells one": (None, None),
    "Slack tells an empty one": ("", "maya@acme.example"),
}


async def test_an_address_that_is_the_same_or_unknown_stands_in_nobodys_way(here: Workspace) -> None:
    for of_account, of_person in SAME_OR_UNKNOWN.values():
        await here.linked(replace(MAYA, email=of_account), await here.by_provider("maya", of_person))
        assert [row.sub for row in await here.rows()] == ["maya"]
        await unlink(here.world.service.ctx, TEAM, "U0MAYA", actor="operator")


async def test_the_settings_may_let_other_addresses_pass(here: Workspace, tmp_path: Path) -> None:
    lax = SlackApp.model_validate(app_settings(tmp_path, other_email=True))
    world = replace(here.world, settings=here.world.settings.model_copy(update={"slack": lax}))
    maya = await here.by_provider("maya", "maya@acme.example")
    await Workspace(world).linked(replace(MAYA, email="maya@private.example"), maya)
    assert [row.sub for row in await here.rows()] == ["maya"]


async def test_the_address_of_an_approver_in_a_profile_is_nobodys_word(here: Workspace) -> None:
    """G12: Slack lets people change what their profile says; an address finds nobody and links nothing."""
    await here.by_provider("maya", "maya@acme.example")
    mallory = replace(MALLORY, email="maya@acme.example")
    await refused(here.voter("U0MALLORY"), ForbiddenError, "not_eligible", "/countersign link")
    secret = await here.invited(mallory)
    await refused(here.voter("U0MALLORY"), ForbiddenError, "not_eligible", "/countersign link")
    own = await here.by_provider("mallory", "mallory@acme.example")
    await refused(here.take(secret, own), ForbiddenError, "not_eligible")
    assert await here.rows() == []


async def test_an_account_of_somebody_else_is_unlinked_first(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    tomas = await here.by_link("tomas")
    await refused(here.linked(MAYA, tomas), ConflictError, "illegal_state", "another person", "/slack")
    assert [row.sub for row in await here.rows()] == ["maya"]
    assert await unlink(here.world.service.ctx, TEAM, "U0MAYA", actor="operator")
    await here.linked(MAYA, tomas)
    assert [row.sub for row in await here.rows()] == ["tomas"]


async def test_the_same_person_again_renews_it(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    await set_direct(here.world.service.ctx, TEAM, "U0MAYA", True)
    here.world.clock.pass_(hours=1)
    again = await here.linked(replace(MAYA, name="maya r."), await here.by_link("maya"))
    assert again.direct
    (row,) = await here.rows()
    assert (row.account, row.direct, row.sub) == ("maya r.", True, "maya")
    last = (await here.log())[-1]
    assert (last[0], last[2]["renewed"]) == ("slack_linked", True)


# -- unlinking, direct messages ------------------------------------------------------------------------------------


async def test_unlinking_is_told_and_happens_once(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    ctx, actor = here.world.service.ctx, f"person:{person('maya')}"
    assert await unlink(ctx, TEAM, "U0MAYA", actor=actor, whose=person("maya"))
    assert not await unlink(ctx, TEAM, "U0MAYA", actor=actor, whose=person("maya"))
    assert await links_of(ctx, DEV_ISSUER, "maya") == ()
    body = {"team": TEAM, "user": "U0MAYA", "person": person("maya")}
    assert (await here.log())[1:] == [("slack_unlinked", actor, body)]


async def test_nobody_touches_somebody_elses_account(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    ctx = here.world.service.ctx
    assert not await unlink(ctx, TEAM, "U0MAYA", actor="person:x", whose=person("tomas"))
    asked = set_direct(ctx, TEAM, "U0MAYA", True, whose=person("tomas"))
    await refused(asked, NotFoundError, "not_found")
    await refused(set_direct(ctx, TEAM, "U0NOBODY", True), NotFoundError, "not_found", "/countersign link")
    (row,) = await here.rows()
    assert not row.direct


async def test_a_wish_for_direct_messages_is_told_when_it_changes(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    for wanted in (True, True, False):
        await set_direct(here.world.service.ctx, TEAM, "U0MAYA", wanted, whose=person("maya"))
    said = [(kind, body.get("wanted")) for kind, _, body in await here.log()]
    assert said == [("slack_linked", None), ("slack_direct", True), ("slack_direct", False)]


async def test_an_operator_lists_and_unlinks(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    (line,) = await here.world.operator("slack-links", {})
    assert (line["team"], line["user"], line["person"]) == (TEAM, "U0MAYA", person("maya"))
    args = {"team": TEAM, "user": "U0MAYA", "reason": "the phone was stolen"}
    assert (await here.world.operator("slack-unlink", args))["person"] == person("maya")
    kind, actor, body = (await here.log())[-1]
    assert (kind, actor, body["reason"]) == ("slack_unlinked", "operator", "the phone was stolen")
    await refused(here.world.operator("slack-unlink", args), NotFoundError, "not_found")


# -- what is over --------------------------------------------------------------------------------------------------


async def test_invitations_that_are_long_over_are_forgotten(here: Workspace) -> None:
    await here.invited(MAYA)
    for hours, left in ((0, 1), (here.world.settings.idempotency_keep_hours + 1, 0)):
        here.world.clock.pass_(hours=hours)
        await sweep.forget_what_is_over(here.world.service.ctx)
        rows = await here.world.service.db.read(lambda conn: find(conn, SlackInvitationRow))
        assert len(rows) == left


async def test_a_restored_database_knows_no_account(here: Workspace) -> None:
    """One that was unlinked in the lost part of the log would be somebody's again."""
    await here.linked(MAYA, await here.by_link("maya"))
    secret = await here.invited(account("U0TOMAS"))
    await here.world.service.db.write(end_every_slack_link)
    assert await here.rows() == []
    assert await invitation_of(here.world.service.ctx, secret) is None

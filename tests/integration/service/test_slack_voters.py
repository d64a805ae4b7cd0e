"""Who decides through a Slack account: its person as they stand now, and nobody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policy_service.errors import ForbiddenError
from policy_service.identity.sessions import Logout, apply_logout
from policy_service.slack import SlackApp
from policy_service.workflow.slack.account_links import unlink
from tests.fakes.identity_provider import ISSUER
from tests.fakes.payments import person
from tests.fakes.slack_accounts import OTHER_TEAM, TEAM, account, app_settings
from tests.fakes.world import World
from tests.integration.service.slack_links import MAYA, Workspace, refused

pytestmark = pytest.mark.anyio


async def test_a_vote_through_a_linked_account_is_its_persons(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    await here.linked(account("U0SECOND"), await here.by_link("maya"))
    robot, view = await here.asking()
    linked = await here.voter("U0MAYA")
    assert (linked.voter.key, linked.voter.assurance) == (person("maya"), "dev")
    assert linked.voter.step_up is None
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
    await here.linked(
        MAYA, await here.by_link("tomas")
    )  # nor does it decide for the first when it is another's
    await refused(here.vote("U0MAYA", view, before), ForbiddenError, "not_eligible", "linked again")
    assert (await robot.see(view["txn"]))["state"] == "review"


async def test_a_revoked_person_decides_nothing_through_slack(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    (_, view), before = await here.asking(), await here.voter("U0MAYA")
    await here.world.operator("revoke-approver", {"person": person("maya"), "reason": "left"})
    await refused(here.voter("U0MAYA"), ForbiddenError, "not_eligible", "taken you out")
    await refused(here.vote("U0MAYA", view, before), ForbiddenError, "not_eligible", "taken you out")


def other(here: Workspace, **changes: Any) -> Workspace:
    """The same deployment under other settings."""
    settings = here.world.settings.model_copy(update=changes)
    return Workspace(_Under(here.world, settings))  # type: ignore[arg-type]


class _Under:
    def __init__(self, world: World, settings: Any) -> None:
        self.settings = settings
        ctx = replace(world.service.ctx, settings=settings)
        self.service = type("Service", (), {"ctx": ctx, "db": world.service.db})


async def test_an_account_of_another_workspace_is_nobodys(here: Workspace, tmp_path: Path) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    await refused(here.voter("U0MAYA", OTHER_TEAM), ForbiddenError, "not_eligible", "/countersign link")
    moved = other(here, slack=SlackApp.model_validate(app_settings(tmp_path, team_id=OTHER_TEAM)))
    await refused(moved.voter("U0MAYA", TEAM), ForbiddenError, "not_eligible", "/countersign link")


async def test_what_a_sign_in_vouched_for_ends_with_it(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    off = other(here, dev_signin=False)
    await refused(off.voter("U0MAYA"), ForbiddenError, "not_eligible", "development sign-in")
    await here.linked(account("U0PROVIDED"), await here.by_provider("maya"))
    assert (await here.voter("U0PROVIDED")).voter.assurance == "oidc"
    gone = other(here, providers=())
    await refused(gone.voter("U0PROVIDED"), ForbiddenError, "not_eligible", "no longer trusted")


async def test_whoever_has_not_signed_in_for_long_is_asked_to(here: Workspace) -> None:
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
    told = Logout(ISSUER, sub, sid, f"j-{now.timestamp()}", now)
    await here.world.service.db.write(lambda tx: apply_logout(tx, told))


async def test_whom_their_provider_signed_out_everywhere_signs_in_before_they_decide(here: Workspace) -> None:
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


async def test_groups_of_a_token_that_is_old_are_left_out_and_told(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_provider("maya", groups=["finance"]))
    await here.linked(account("U0TOMAS"), await here.by_provider("tomas", groups=[]))
    fresh = await here.voter("U0MAYA")
    assert (fresh.voter.groups, fresh.stale_groups) == (frozenset({"finance"}), False)
    here.world.clock.pass_(seconds=here.world.settings.max_group_age_s + 1)
    old = await here.voter("U0MAYA")
    assert (old.voter.groups, old.stale_groups) == (frozenset(), True)
    assert old.groups_at == fresh.groups_at
    assert not (await here.voter("U0TOMAS")).stale_groups, "a token that names none has none that are old"

"""Who decides through a Slack account: its person as they stand now, and nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policy_service.errors import ForbiddenError
from policy_service.identity.logout import Logout, obey
from policy_service.slack import SlackApp
from policy_service.workflow.slack.linking import unlink
from tests.fakes.identity_provider import ISSUER
from tests.fakes.payments import Payments, person
from tests.fakes.slack_accounts import OTHER_TEAM, TEAM, account, app_settings
from tests.fakes.world import Agent, World
from tests.integration.service.effects import pay
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.slack_links import MAYA, Workspace, refused, with_slack

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


async def waiting(bank: World, robot: Agent) -> dict[str, Any]:
    view: dict[str, Any] = (await robot.submit(await pay(bank, 500))).json()
    return view


async def test_a_vote_through_a_linked_account_is_its_persons(
    here: Workspace, bank: World, robot: Agent
) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    view = await waiting(bank, robot)
    linked = await here.voter("U0MAYA")
    assert (linked.voter.key, linked.voter.assurance) == (person("maya"), "dev")
    assert linked.voter.step_up is None
    assert (await here.vote("U0MAYA", view)).counted
    assert (await robot.see(view["txn"]))["effects"][0]["state"] == "released"


async def test_an_account_that_was_unlinked_decides_nothing(
    here: Workspace, bank: World, robot: Agent
) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    view, before = await waiting(bank, robot), await here.voter("U0MAYA")
    assert await unlink(here.world.service.ctx, TEAM, "U0MAYA", actor="operator")
    await refused(here.voter("U0MAYA"), ForbiddenError, "not_eligible", "/countersign link")
    # the channel had looked them up before, and is about to count it
    await refused(here.vote("U0MAYA", view, before), ForbiddenError, "not_eligible")
    assert (await robot.see(view["txn"]))["effects"][0]["state"] == "review"


async def test_an_account_that_became_somebody_elses_does_not_decide_for_the_first(
    here: Workspace, bank: World, robot: Agent
) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    view, before = await waiting(bank, robot), await here.voter("U0MAYA")
    await unlink(here.world.service.ctx, TEAM, "U0MAYA", actor="operator")
    await here.linked(MAYA, await here.by_link("tomas"))
    await refused(here.vote("U0MAYA", view, before), ForbiddenError, "not_eligible", "linked anew")
    assert (await robot.see(view["txn"]))["effects"][0]["state"] == "review"


async def test_two_accounts_of_one_person_are_one_vote(here: Workspace, bank: World, robot: Agent) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    await here.linked(account("U0SECOND"), await here.by_link("maya"))
    view = (await robot.submit(await pay(bank, 5_000))).json()  # two people of finance
    await here.vote("U0MAYA", view)
    await here.vote("U0SECOND", view)
    assert (await robot.see(view["txn"]))["effects"][0]["state"] == "review"


async def test_an_account_of_another_workspace_is_nobodys(here: Workspace, tmp_path: Path) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    await refused(here.voter("U0MAYA", OTHER_TEAM), ForbiddenError, "not_eligible", "/countersign link")
    moved = other(here, slack=SlackApp.model_validate(app_settings(tmp_path, team_id=OTHER_TEAM)))
    await refused(moved.voter("U0MAYA", TEAM), ForbiddenError, "not_eligible", "/countersign link")


async def test_a_revoked_person_decides_nothing_through_slack(
    here: Workspace, bank: World, robot: Agent
) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    view, before = await waiting(bank, robot), await here.voter("U0MAYA")
    await here.world.operator("revoke-approver", {"person": person("maya"), "reason": "left"})
    await refused(here.voter("U0MAYA"), ForbiddenError, "not_eligible", "taken you out")
    await refused(here.vote("U0MAYA", view, before), ForbiddenError, "not_eligible", "taken you out")


def other(here: Workspace, **changes: Any) -> Workspace:
    """The same deployment under other settings."""
    service = here.world.service
    settings = here.world.settings.model_copy(update=changes)
    changed = replace(service.ctx, settings=settings)
    return Workspace(_World(here.world, settings, changed))  # type: ignore[arg-type]


class _World:
    def __init__(self, world: World, settings: Any, ctx: Any) -> None:
        self.settings = settings
        self.service = type("Service", (), {"ctx": ctx, "db": world.service.db})


async def test_what_the_development_sign_in_linked_ends_with_it(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    off = other(here, dev_signin=False)
    await refused(off.voter("U0MAYA"), ForbiddenError, "not_eligible", "development sign-in")


async def test_what_a_provider_vouched_for_ends_with_it(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_provider("maya"))
    assert (await here.voter("U0MAYA")).voter.assurance == "oidc"
    gone = other(here, providers=())
    await refused(gone.voter("U0MAYA"), ForbiddenError, "not_eligible", "no longer vouches")


async def test_whoever_has_not_signed_in_for_long_is_asked_to(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_provider("maya"))
    last = here.world.clock()
    here.world.clock.stop_at(last)
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
    await here.world.service.db.write(lambda tx: obey(tx, told))


async def test_whom_their_provider_signed_out_everywhere_signs_in_before_they_decide(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_provider("maya"))
    await here.linked(account("U0TOMAS"), await here.by_provider("tomas"))
    await sign_out_there(here, "maya", None)
    error = await refused(here.voter("U0MAYA"), ForbiddenError, "not_eligible", "signed you out everywhere")
    assert error.extras["url"].endswith("/sign-in")
    assert (await here.voter("U0TOMAS")).voter.sub == "tomas"
    here.world.clock.pass_(seconds=1)
    await here.by_provider("maya")
    assert (await here.voter("U0MAYA")).voter.sub == "maya"


async def test_the_end_of_one_session_at_the_provider_leaves_the_account_as_it_is(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_provider("maya"))
    await sign_out_there(here, "maya", "s-maya")
    await sign_out_there(here, None, "s-maya")
    assert (await here.voter("U0MAYA")).voter.sub == "maya"


async def test_groups_of_a_token_that_is_old_are_left_out_and_told(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_provider("maya", groups=["finance"]))
    fresh = await here.voter("U0MAYA")
    assert (fresh.voter.groups, fresh.stale_groups) == (frozenset({"finance"}), False)
    here.world.clock.pass_(seconds=here.world.settings.max_group_age_s + 1)
    old = await here.voter("U0MAYA")
    assert (old.voter.groups, old.stale_groups) == (frozenset(), True)
    assert old.groups_at == fresh.groups_at


async def test_whose_token_names_no_group_has_none_that_are_old(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_provider("maya", groups=[]))
    here.world.clock.pass_(days=2)
    assert not (await here.voter("U0MAYA")).stale_groups

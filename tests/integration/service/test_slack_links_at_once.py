"""Two things said of a Slack account at once: one comes first, on both engines."""

from __future__ import annotations

import asyncio

import pytest

from policy_service.errors import ForbiddenError, InvalidRequestError
from policy_service.workflow.slack.inviting import invitation_of
from policy_service.workflow.slack.linking import unlink
from tests.fakes.slack_accounts import TEAM
from tests.integration.service.slack_links import MAYA, Workspace

pytestmark = pytest.mark.anyio


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
    found = [await invitation_of(here.world.service.ctx, secret) for secret in secrets]
    assert sum(one is not None for one in found) == 1


async def test_an_invitation_that_is_replaced_while_it_is_used_wins_or_loses_whole(here: Workspace) -> None:
    secret, maya = await here.invited(MAYA), await here.by_link("maya")
    used, newer = await asyncio.gather(here.take(secret, maya), here.invited(MAYA), return_exceptions=True)
    assert isinstance(newer, str)
    assert len(await here.rows()) == (0 if isinstance(used, BaseException) else 1)
    assert await invitation_of(here.world.service.ctx, secret) is None
    assert await invitation_of(here.world.service.ctx, newer) is not None


async def test_a_vote_and_an_unlinking_at_once_leave_no_vote_after_it(here: Workspace) -> None:
    await here.linked(MAYA, await here.by_link("maya"))
    (robot, view), linked = await here.asking(), await here.voter("U0MAYA")
    unlinking = unlink(here.world.service.ctx, TEAM, "U0MAYA", actor="operator")
    voted, gone = await asyncio.gather(here.vote("U0MAYA", view, linked), unlinking, return_exceptions=True)
    assert gone is True
    state = (await robot.see(view["txn"]))["effects"][0]["state"]
    assert state == ("review" if isinstance(voted, ForbiddenError) else "released")
    kinds = [kind for kind in await here.kinds() if kind in {"vote_recorded", "slack_unlinked"}]
    assert kinds[-1] == "slack_unlinked"

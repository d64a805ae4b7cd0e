"""The command ``/countersign`` and the app's home: list a person's reviews, link their account, evaluate a call.

No command decides a review. Only the sender sees a response. An invitation link is shown once: a repeated payload does
not return it again.
"""

from __future__ import annotations

import asyncio
import html
from functools import partial
from typing import Any, Final

import structlog

from countersign.contract import JSON, AdmissionError, load
from policy_service.channels.presentation.formatting import as_sentence
from policy_service.channels.slack.blocks.block_kit import RenderedMessage
from policy_service.channels.slack.blocks.views import (
    home_view,
    link_invitation,
    my_reviews_message,
    refusal_message,
    simulation_message,
    text_message,
    usage_message,
)
from policy_service.channels.slack.client import VIEW_TIMEOUT_S, SlackCallError, SlackClient
from policy_service.channels.slack.payloads import Command
from policy_service.errors import ForbiddenError, InvalidRequestError, RequestError
from policy_service.identity.people import slack_link
from policy_service.queries.context import Context
from policy_service.queries.queue import QueueFilter, QueuePage, queue_page
from policy_service.storage.slack_tables import SlackLinkRow
from policy_service.workflow.effects.evaluation_requests import try_effect
from policy_service.workflow.slack.account_links import (
    COMMAND,
    Account,
    invite,
    require_member,
    set_direct,
    unlink,
)
from policy_service.workflow.slack.enqueue import delivery_id, mark_processed
from policy_service.workflow.slack.interactions import LinkedVoter, voter_for_account
from policy_service.workflow.transitions import person_actor

log = structlog.get_logger(__name__)

_ROWS: Final = 20
_DIRECT: Final = "you are asked in direct messages too"
_IN_CHANNELS: Final = "you are asked in channels only"

_SIMULATED_S: Final = 1.2
"""What is left of Slack's three seconds after the account is confirmed."""


class Commands:
    """Handles commands and the app's home."""

    def __init__(self, ctx: Context, slack: SlackClient) -> None:
        self._ctx, self._slack = ctx, slack
        self._verbs = {
            "": self._reviews,
            "reviews": self._reviews,
            "link": self._link,
            "unlink": self._unlink,
            "direct": self._direct,
            "simulate": self._simulate,
        }

    async def answer(self, given: Command) -> dict[str, Any]:
        """The response to a command, visible only to its sender."""
        verb, _, rest = given.text.strip().partition(" ")
        answer = self._verbs.get(verb.lower())
        if answer is None:
            return ephemeral_response(usage_message())
        delivery = delivery_id("command", given.user_id, given.trigger_id, given.text)
        if not await mark_processed(
            self._ctx, delivery
        ):  # before responding: of two simultaneous payloads only one gets a response
            return ephemeral_response(text_message("this command was already processed; run it again"))
        try:
            account = await self._slack.account(given.user_id, given.team_id)
            require_member(self._slack.app, account)
            return ephemeral_response(await answer(account, rest.strip()))
        except RequestError as error:
            return ephemeral_response(
                refusal_message(error.detail, url=str(error.extras.get("url") or "") or None)
            )

    async def _reviews(self, account: Account, rest: str) -> RenderedMessage:
        linked = await self._linked(account)
        return my_reviews_message(await self._waiting(linked), public_url=self._ctx.settings.public_url)

    async def _link(self, account: Account, rest: str) -> RenderedMessage:
        url = await invite(self._ctx, self._slack.app, account)
        return link_invitation(url, self._slack.app.link_minutes)

    async def _unlink(self, account: Account, rest: str) -> RenderedMessage:
        await self._take_back(account)
        return text_message("this Slack account is no longer linked; link it again with /countersign link")

    async def _direct(self, account: Account, rest: str) -> RenderedMessage:
        if rest not in ("", "on", "off"):
            raise InvalidRequestError("write /countersign direct on, or /countersign direct off")
        linked = await self._linked(account)
        if not rest:
            state, other = (_DIRECT, "off") if linked.link.direct else (_IN_CHANNELS, "on")
            return text_message(f"{state}; /countersign direct {other} changes that")
        await self._set_direct(account, linked, wanted=rest == "on")
        return text_message(_DIRECT if rest == "on" else _IN_CHANNELS)

    async def _simulate(self, account: Account, rest: str) -> RenderedMessage:
        await self._linked(account)
        agent, tool, args = _parse_simulation(rest)
        try:
            async with asyncio.timeout(_SIMULATED_S):
                return simulation_message(await try_effect(self._ctx, agent, tool, args))
        except TimeoutError:
            raise InvalidRequestError(
                "the sources of facts take longer than Slack waits; evaluate it on the web",
                url=f"{self._ctx.settings.public_url}/policies",
            ) from None

    # -- the home ----------------------------------------------------------------------------------------------------

    async def set_from_home(self, account: Account, action: str, value: str) -> None:
        """Apply a button of the app's home.

        Raises:
            ForbiddenError: the account is not allowed, or not linked.
        """
        require_member(self._slack.app, account)
        if action == "unlink":
            await self._take_back(account)
        else:
            await self._set_direct(account, await self._linked(account), wanted=value == "on")

    async def show_home(self, user_id: str, team_id: str | None, note: str | None) -> None:
        """Publish a user's home, also for guests; ``note``: a message above it."""
        try:
            view = await self._home(user_id, team_id or self._slack.app.team_id, note)
            await self._slack.call("views.publish", timeout_s=VIEW_TIMEOUT_S, user_id=user_id, view=view)
        except SlackCallError as fault:
            log.warning("slack_home_not_shown", error=fault.error)

    async def _home(self, user_id: str, team_id: str, note: str | None) -> dict[str, Any]:
        draw = partial(
            home_view, public_url=self._ctx.settings.public_url, now=self._ctx.clock(), slack_note=note
        )
        unlinked = partial(draw, None, name=None, direct=False)
        row: SlackLinkRow | None = None
        try:
            account = await self._slack.account(user_id, team_id)
            require_member(self._slack.app, account)
            if (row := await self._link_of(account)) is None:
                return unlinked()
            linked = await self._linked(account)
        except ForbiddenError as error:
            log.info("slack_home_refused", code=error.code.value)
            return unlinked(why_not=as_sentence(error.detail), linked=row is not None)
        return draw(await self._waiting(linked), name=linked.voter.name, direct=linked.link.direct)

    # -- shared steps ------------------------------------------------------------------------------------------------

    async def _linked(self, account: Account) -> LinkedVoter:
        ctx, app = self._ctx, self._slack.app
        return await ctx.db.read(
            lambda conn: voter_for_account(conn, ctx, app, account.team_id, account.user_id, ctx.clock())
        )

    async def _waiting(self, linked: LinkedVoter) -> QueuePage:
        return await queue_page(self._ctx, linked.voter, QueueFilter(), None, _ROWS)

    async def _take_back(self, account: Account) -> None:
        """Unlink an account. This requires only the link, because people who may not decide now may still unlink."""
        row = await self._link_of(account)
        if row is None:
            raise ForbiddenError(f"this Slack account is not linked yet; link it: {COMMAND}")
        actor, whose = person_actor(row.iss, row.sub), row.person
        await unlink(self._ctx, account.team_id, account.user_id, actor=actor, whose=whose)

    async def _link_of(self, account: Account) -> SlackLinkRow | None:
        return await self._ctx.db.read(lambda conn: slack_link(conn, account.team_id, account.user_id))

    async def _set_direct(self, account: Account, linked: LinkedVoter, *, wanted: bool) -> None:
        await set_direct(self._ctx, account.team_id, account.user_id, wanted, whose=linked.voter.key)


def ephemeral_response(drawn: RenderedMessage) -> dict[str, Any]:
    """A response to a command that only its sender sees."""
    return {"response_type": "ephemeral", "text": drawn.text, "blocks": list(drawn.blocks)}


def _parse_simulation(text: str) -> tuple[str, str, JSON]:
    """Parse an agent, a tool and its arguments.

    Raises:
        InvalidRequestError: the text has another form.
    """
    parts = text.split(None, 2)
    if len(parts) != 3:
        raise InvalidRequestError('write /countersign simulate AGENT TOOL {"argument": "value"}')
    text = html.unescape(parts[2])  # Slack escapes &, < and > in what is written to a command
    try:
        return parts[0], parts[1], load(text.encode())
    except AdmissionError:
        return parts[0], parts[1], _load(text.translate(_STRAIGHT_QUOTES))


def _load(text: str) -> JSON:
    try:
        return load(text.encode())
    except AdmissionError as error:
        raise InvalidRequestError(f"the arguments cannot be read: {error}") from error


_STRAIGHT_QUOTES: Final = str.maketrans({"“": '"', "”": '"'})
"""Some text fields turn quotes into typographic ones, which are not JSON."""

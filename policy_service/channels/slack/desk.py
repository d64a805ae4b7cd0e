"""Taking what Slack delivers: from a delivery to what is done, and what Slack is told.

Rules kept here:

- a delivery of another team or app is nobody's: it is refused as if it were not signed;
- what somebody presses is judged in the workflow; here it is only named, and a button that should not be there (the
  message may be older than the rules) is no button;
- the answer is given after what was done is durable; a form is opened after that answer, since Slack lets it be opened
  for three seconds only;
- a refusal is told to the one who pressed, and to nobody else.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import structlog

from policy_service.channels.showing.wording import sentence
from policy_service.channels.slack.client import INLINE_S, Slack, SlackFault
from policy_service.channels.slack.commands import Commands
from policy_service.channels.slack.drawing.answers import under_field
from policy_service.channels.slack.drawing.message import Pointer
from policy_service.channels.slack.drawing.modals import (
    REASON_ACTION,
    REASON_BLOCK,
    approve_modal,
    ask_modal,
    deny_modal,
)
from policy_service.channels.slack.drawing.withheld import buttons_withheld
from policy_service.channels.slack.payloads import (
    Action,
    Challenge,
    Command,
    Delivery,
    Happened,
    Interaction,
    Other,
    View,
    is_text,
)
from policy_service.channels.slack.refusals import NotOursError
from policy_service.errors import (
    ForbiddenError,
    NotFoundError,
    RequestError,
)
from policy_service.slack import SlackApp, is_app, is_team
from policy_service.workflow.context import Context
from policy_service.workflow.slack.accounts import Account, nobody
from policy_service.workflow.slack.acting import (
    Does,
    Press,
    Pressed,
    act,
    look,
    remember,
    require_openable,
    require_words,
    sentence_of,
)
from policy_service.workflow.slack.deliveries import delivery_of, first_time, is_known
from policy_service.workflow.slack.sending import lost

log = structlog.get_logger(__name__)

ANSWERED_S: Final = 2.3
"""Slack waits three seconds for its answer; what is left of them is for the unit that makes the press durable."""

FACTS_S: Final = 0.5
"""Other systems have at least so long for their facts, however long it took to learn who pressed."""

_DOES: Final = frozenset({"approve", "deny", "ask"})
_FORMS: Final = {"approve": approve_modal, "deny": deny_modal, "ask": ask_modal}

After = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What Slack is told, and what is done when it was told."""

    body: dict[str, Any] | None = None
    after: After | None = None


class Desk:
    """Takes deliveries, whichever way they come."""

    def __init__(self, ctx: Context, slack: Slack) -> None:
        self._ctx, self._slack = ctx, slack
        self._commands = Commands(ctx, slack)

    @property
    def _app(self) -> SlackApp:
        return self._slack.app

    async def take(self, delivery: Delivery) -> Answer:
        """Do what it asks for.

        Raises:
            UnauthenticatedError: it is of another team or app.
            ServiceError: it could not be done; nothing was acknowledged.
        """
        if isinstance(delivery, Challenge):
            return Answer({"challenge": delivery.challenge})
        if isinstance(delivery, Other):
            return Answer()
        self._require_ours(delivery)
        if isinstance(delivery, Interaction):
            return await self._interaction(delivery)
        if isinstance(delivery, Command):
            return Answer(await self._commands.answer(delivery))
        return await self._event(delivery)

    def _require_ours(self, delivery: Interaction | Command | Happened) -> None:
        team = delivery.team.id if isinstance(delivery, Interaction) else delivery.team_id
        if (team, delivery.api_app_id) != (self._app.team_id, self._app.app_id):
            told = {"team_id": team} if is_team(team) else {}
            told |= {"app_id": delivery.api_app_id} if is_app(delivery.api_app_id) else {}
            raise NotOursError("this is of another workspace or app", "team_or_app", **told)

    # -- buttons and forms -------------------------------------------------------------------------------------------

    async def _interaction(self, given: Interaction) -> Answer:
        if given.type == "view_submission":
            return await self._form(given, given.view) if given.view is not None else Answer()
        action = given.actions[0] if given.actions else None
        if action is None:
            return Answer()
        if action.action_id in _DOES:
            return await self._button(given, action)
        if given.view is not None and action.action_id in ("direct", "unlink"):
            return await self._home_button(given, given.view, action)
        return Answer()  # a link, which the browser follows by itself

    async def _button(self, given: Interaction, action: Action) -> Answer:
        arrived, where = time.monotonic(), given.container
        named = (
            given.user.id,
            where.channel_id or "",
            where.message_ts or "",
            action.action_id,
            action.action_ts,
        )
        press = Press(
            delivery=delivery_of("action", *named),
            account=nobody(given.user.team_id or given.team.id, given.user.id),
            does=cast(Does, action.action_id),
            card_id="",
            view_digest="",
            channel=where.channel_id or "",
            ts=where.message_ts or "",
        )
        if await is_known(self._ctx, press.delivery):
            return Answer()
        try:
            press = _pointed(press, action.value)
            press = replace(press, account=await self._account(given))
            pressed = await look(self._ctx, self._app, press)
            page = pressed.page
            if press.does != "approve" or (page.reason_required and page.state == "open"):
                return await self._open(press, pressed, given.trigger_id)
            await self._act(press, pressed, arrived)
        except RequestError as refusal:
            await remember(self._ctx, press, refusal)
            return Answer()
        await remember(self._ctx, press)
        return Answer()

    async def _open(self, press: Press, pressed: Pressed, trigger_id: str) -> Answer:
        """Open a form; where it could not be sent, say so at once. Of two deliveries at once one opens it: the trigger
        serves once."""
        await require_openable(pressed, press, buttons_withheld)
        view = _FORMS[press.does](pressed.page, Pointer(press.card_id, press.view_digest))
        if not await remember(self._ctx, press):
            return Answer()

        async def after() -> None:
            try:
                await self._slack.call("views.open", timeout_s=INLINE_S, trigger_id=trigger_id, view=view)
            except SlackFault as fault:
                log.warning("slack_form_not_opened", error=fault.error)
                why = ForbiddenError(
                    "Slack did not open the form; press again, or decide on the page", code="forbidden"
                )
                await remember(self._ctx, replace(press, delivery=f"{press.delivery}_form"), why)

        return Answer(after=after)

    async def _form(self, given: Interaction, view: View) -> Answer:
        if view.callback_id not in _DOES:
            return Answer()
        arrived = time.monotonic()
        press = Press(
            delivery=delivery_of("view", given.user.id, view.id),
            account=nobody(given.user.team_id or given.team.id, given.user.id),
            does=cast(Does, view.callback_id),
            card_id="",
            view_digest="",
            words=_words(view),
        )
        if await is_known(self._ctx, press.delivery):
            return Answer()
        try:
            press = _pointed(press, view.private_metadata)
            if press.does != "approve":
                press = replace(press, words=require_words(press.words))
            press = replace(press, account=await self._account(given))
            await self._act(press, await look(self._ctx, self._app, press), arrived)
        except RequestError as refusal:
            told = under_field(sentence_of(refusal), elsewhere="url" in refusal.extras)
            return Answer({"response_action": "errors", "errors": {REASON_BLOCK: told}})
        await remember(self._ctx, press)
        return Answer()

    async def _act(self, press: Press, pressed: Pressed, arrived: float) -> None:
        left_s = max(FACTS_S, ANSWERED_S - (time.monotonic() - arrived))
        await act(self._ctx, self._app, press, pressed, withheld=buttons_withheld, within_s=left_s)

    async def _account(self, given: Interaction) -> Account:
        return await self._slack.account(given.user.id, given.user.team_id or self._app.team_id)

    # -- the home and what happens in the workspace --------------------------------------------------------------------

    async def _home_button(self, given: Interaction, view: View, action: Action) -> Answer:
        delivery = delivery_of("home", given.user.id, view.id, action.action_id, action.action_ts)
        if await is_known(self._ctx, delivery):
            return Answer()
        note: str | None = None
        try:
            account = await self._account(given)
            await self._commands.set_from_home(account, action.action_id, action.value or "")
        except RequestError as refusal:
            log.info("slack_home_refused", code=refusal.code.value)
            note = sentence(refusal.detail)
        # after it was done: what was not is delivered again, and not known then
        if not await first_time(self._ctx, delivery):
            return Answer()
        return Answer(after=lambda: self._commands.show_home(given.user.id, given.user.team_id, note))

    async def _event(self, given: Happened) -> Answer:
        event = given.event
        if event.type == "app_home_opened" and event.tab == "home":
            return Answer(after=lambda: self._commands.show_home(event.user, None, None))
        if event.type in ("tokens_revoked", "app_uninstalled"):
            log.error("slack_app_lost", event_type=event.type)
            await lost(self._ctx, self._app, event.type)
        return Answer()


def _pointed(press: Press, value: object) -> Press:
    pointer = Pointer.read(value)
    if pointer is None:
        raise NotFoundError("this button is none of ours; open the review on the web")
    return replace(press, card_id=pointer.card_id, view_digest=pointer.view_digest)


def _words(view: View) -> str | None:
    """What was written into a form, wherever Slack says that it is; None for anything that is no text."""
    values = view.state.get("values")
    block = values.get(REASON_BLOCK) if isinstance(values, dict) else None
    field = block.get(REASON_ACTION) if isinstance(block, dict) else None
    words = field.get("value") if isinstance(field, dict) else None
    return words if is_text(words) else None

"""Dispatch payloads from Slack to commands, buttons, forms and events, and build the response.

- A payload of another team or app is refused as if its signature were invalid.
- The workflow decides whether a press is allowed. A button that should no longer exist (its message may be older than
  the policies) is refused.
- Slack gets a response once the result is durable. If that takes too long, the response says that the work is being
  recorded; the work continues and its result follows.
- A form opens after the response, because Slack's trigger expires after three seconds.
- Only the person who pressed sees a refusal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, cast

import structlog

from policy_service.channels.presentation.formatting import as_sentence
from policy_service.channels.slack.blocks.block_kit import Pointer
from policy_service.channels.slack.blocks.card import no_buttons_reason
from policy_service.channels.slack.blocks.views import (
    REASON_ACTION,
    REASON_BLOCK,
    approve_modal,
    ask_modal,
    deny_modal,
    field_error,
    notice_modal,
    text_message,
)
from policy_service.channels.slack.client import VIEW_TIMEOUT_S, SlackCallError, SlackClient
from policy_service.channels.slack.commands import Commands, ephemeral_response
from policy_service.channels.slack.payloads import (
    Action,
    Challenge,
    Command,
    EventEnvelope,
    ForeignPayloadError,
    Interaction,
    Payload,
    UnhandledPayload,
    View,
    is_text,
)
from policy_service.channels.slack.send_queue import record_app_removed
from policy_service.errors import ForbiddenError, InternalError, NotFoundError, RequestError, ServiceError
from policy_service.queries.context import Context
from policy_service.slack import SlackApp, is_app, is_team
from policy_service.workflow.slack.account_links import Account, unverified_account
from policy_service.workflow.slack.enqueue import delivery_id, is_processed, mark_processed
from policy_service.workflow.slack.interactions import (
    ButtonAction,
    ButtonContext,
    ButtonPress,
    handle_interaction,
    load_interaction,
    record_interaction,
    refusal_text,
    require_openable,
    require_words,
)

log = structlog.get_logger(__name__)

RESPONSE_TIMEOUT_S: Final = 2.5
"""Slack shows an error to the user after three seconds, including network time."""

FACTS_DEADLINE_S: Final = 2.0
"""Deadline for facts from other systems. The rest of the time is for the unit of work that records the press."""

MIN_FACTS_S: Final = 0.5
"""Minimum time for facts from other systems, however long the account lookup took."""

_ACTIONS: Final = frozenset({"approve", "deny", "ask"})
_FORMS: Final = {"approve": approve_modal, "deny": deny_modal, "ask": ask_modal}

_RECORDING: Final = (
    "your answer is being recorded, which takes longer than usual; if the message does not show it within a minute, "
    "press again: an answer counts once"
)
_RECORDING_FORM: Final = "This takes longer than usual. Keep this open: it shows the result."
_RECORDED: Final = "It is recorded. The message shows it."
_LATE: Final = "this takes longer than Slack waits; run the command again in a moment"

FollowUp = Callable[[], Awaitable[None]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SlackResponse:
    """The response to a payload, and what runs after it was sent."""

    body: dict[str, Any] | None = None
    after: FollowUp | None = None


class Dispatcher:
    """Handles payloads from HTTP and Socket Mode."""

    def __init__(self, ctx: Context, slack: SlackClient) -> None:
        self._ctx, self._slack = ctx, slack
        self._commands = Commands(ctx, slack)

    @property
    def _app(self) -> SlackApp:
        return self._slack.app

    async def take(self, delivery: Payload) -> SlackResponse:
        """Handle one payload.

        Raises:
            UnauthenticatedError: it is of another team or app.
            ServiceError: it failed; nothing was acknowledged.
        """
        if isinstance(delivery, Challenge):
            return SlackResponse({"challenge": delivery.challenge})
        if isinstance(delivery, UnhandledPayload):
            return SlackResponse()
        self._require_own_app(delivery)
        if isinstance(delivery, Interaction):
            return await self._interaction(delivery)
        if isinstance(delivery, Command):
            return await self._command(delivery)
        return await self._event(delivery)

    async def _within_deadline(
        self, work: Coroutine[Any, Any, T], late: Callable[[Awaitable[T]], SlackResponse]
    ) -> T | SlackResponse:
        """The result of ``work``; or after a timeout ``late(work)`` as the response, while the work continues."""
        task = asyncio.create_task(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=RESPONSE_TIMEOUT_S)
        except asyncio.CancelledError:
            task.cancel()  # Slack got no response: it shows an error, or sends the payload again
            raise
        return task.result() if done else late(task)

    async def _outcome(self, work: Awaitable[T]) -> T | ServiceError:
        """The result or error of work whose response was already sent."""
        try:
            return await work
        except ServiceError as error:
            log.warning("slack_not_recorded", code=error.code.value)
            return error
        except Exception:
            log.exception("slack_not_recorded")
            return InternalError("something went wrong here")

    async def _command(self, given: Command) -> SlackResponse:
        def late(work: Awaitable[dict[str, Any]]) -> SlackResponse:
            async def after() -> None:
                await self._outcome(work)

            return SlackResponse(ephemeral_response(text_message(_LATE)), after)

        answer = await self._within_deadline(self._commands.answer(given), late)
        return answer if isinstance(answer, SlackResponse) else SlackResponse(answer)

    def _require_own_app(self, delivery: Interaction | Command | EventEnvelope) -> None:
        team = delivery.team.id if isinstance(delivery, Interaction) else delivery.team_id
        if (team, delivery.api_app_id) != (self._app.team_id, self._app.app_id):
            ids = {"team_id": team} if is_team(team) else {}
            ids |= {"app_id": delivery.api_app_id} if is_app(delivery.api_app_id) else {}
            raise ForeignPayloadError("this is of another workspace or app", "team_or_app", **ids)

    # -- buttons and forms -------------------------------------------------------------------------------------------

    async def _interaction(self, given: Interaction) -> SlackResponse:
        if given.type == "view_submission":
            return await self._form(given, given.view) if given.view is not None else SlackResponse()
        action = given.actions[0] if given.actions else None
        if action is None:
            return SlackResponse()
        if action.action_id in _ACTIONS:
            return await self._button(given, action)
        if given.view is not None and action.action_id in ("direct", "unlink"):
            return await self._home_button(given, given.view, action)
        return SlackResponse()  # a link, which the client opens itself

    async def _button(self, given: Interaction, action: Action) -> SlackResponse:
        arrived, where = time.monotonic(), given.container
        named = (
            given.user.id,
            where.channel_id or "",
            where.message_ts or "",
            action.action_id,
            action.action_ts,
        )
        press = ButtonPress(
            delivery=delivery_id("action", *named),
            account=unverified_account(given.user.team_id or given.team.id, given.user.id),
            does=cast(ButtonAction, action.action_id),
            card_id="",
            view_digest="",
            channel=where.channel_id or "",
            ts=where.message_ts or "",
        )

        def late(work: Awaitable[SlackResponse]) -> SlackResponse:
            async def after() -> None:
                if press.does == "approve":
                    await self._notify(press, _RECORDING)
                result = await self._outcome(work)
                if isinstance(result, ServiceError):
                    await self._notify(press, _uncertain_text(result))
                elif result.after is not None:
                    await result.after()

            return SlackResponse(after=after)

        return await self._within_deadline(self._pressed(given, action, press, arrived), late)

    async def _pressed(
        self, given: Interaction, action: Action, press: ButtonPress, arrived: float
    ) -> SlackResponse:
        if await is_processed(self._ctx, press.delivery):
            return SlackResponse()
        try:
            press = _with_pointer(press, action.value)
            press = replace(press, account=await self._account(given))
            pressed = await load_interaction(self._ctx, self._app, press)
            page = pressed.page
            if press.does != "approve" or (page.reason_required and page.state == "open"):
                return await self._open(press, pressed, given.trigger_id)
            await self._act(press, pressed, arrived)
        except RequestError as refusal:
            await record_interaction(self._ctx, press, refusal)
            return SlackResponse()
        await record_interaction(self._ctx, press)
        return SlackResponse()

    async def _open(self, press: ButtonPress, pressed: ButtonContext, trigger_id: str) -> SlackResponse:
        """Open a form, or refuse at once if it could not be submitted. Of two simultaneous payloads only one opens it,
        because the trigger is valid once."""
        await require_openable(pressed, press, no_buttons_reason)
        view = _FORMS[press.does](pressed.page, Pointer(press.card_id, press.view_digest))
        if not await record_interaction(self._ctx, press):
            return SlackResponse()

        async def after() -> None:
            try:
                await self._slack.call(
                    "views.open", timeout_s=VIEW_TIMEOUT_S, trigger_id=trigger_id, view=view
                )
            except SlackCallError as fault:
                log.warning("slack_form_not_opened", error=fault.error)
                why = ForbiddenError(
                    "Slack did not open the form; press again, or decide on the web", code="forbidden"
                )
                await record_interaction(self._ctx, replace(press, delivery=f"{press.delivery}_form"), why)

        return SlackResponse(after=after)

    async def _form(self, given: Interaction, view: View) -> SlackResponse:
        if view.callback_id not in _ACTIONS:
            return SlackResponse()
        arrived = time.monotonic()
        press = ButtonPress(
            delivery=delivery_id("view", given.user.id, view.id),
            account=unverified_account(given.user.team_id or given.team.id, given.user.id),
            does=cast(ButtonAction, view.callback_id),
            card_id="",
            view_digest="",
            words=_form_text(view),
        )

        def late(work: Awaitable[RequestError | None]) -> SlackResponse:
            async def after() -> None:
                result = await self._outcome(work)
                if result is None:
                    await self._show(view, _RECORDED)
                else:
                    ids = (
                        refusal_text(result) if isinstance(result, RequestError) else _uncertain_text(result)
                    )
                    await self._show(view, as_sentence(ids))

            return SlackResponse({"response_action": "update", "view": notice_modal(_RECORDING_FORM)}, after)

        result = await self._within_deadline(self._submitted(given, view, press, arrived), late)
        if not isinstance(result, RequestError):
            return result or SlackResponse()
        ids = field_error(refusal_text(result), elsewhere="url" in result.extras)
        return SlackResponse({"response_action": "errors", "errors": {REASON_BLOCK: ids}})

    async def _submitted(
        self, given: Interaction, view: View, press: ButtonPress, arrived: float
    ) -> RequestError | None:
        """Apply a submitted form. Returns why it was refused."""
        if await is_processed(self._ctx, press.delivery):
            return None
        try:
            press = _with_pointer(press, view.private_metadata)
            if press.does != "approve":
                press = replace(press, words=require_words(press.words))
            press = replace(press, account=await self._account(given))
            await self._act(press, await load_interaction(self._ctx, self._app, press), arrived)
        except RequestError as refusal:
            return refusal
        await record_interaction(self._ctx, press)
        return None

    async def _notify(self, press: ButtonPress, words: str) -> None:
        """Notify the person who pressed, directly and not through the outbox, because the database is slow."""
        drawn = text_message(words)
        try:
            await self._slack.call(
                "chat.postEphemeral", channel=press.channel, user=press.account.user_id, text=drawn.text,
                blocks=list(drawn.blocks),
            )  # fmt: skip
        except SlackCallError as fault:
            log.warning("slack_not_told", error=fault.error)

    async def _show(self, view: View, words: str) -> None:
        """Replace a form by its result."""
        try:
            await self._slack.call("views.update", view_id=view.id, view=notice_modal(words))
        except SlackCallError as fault:
            log.warning("slack_not_told", error=fault.error)

    async def _act(self, press: ButtonPress, pressed: ButtonContext, arrived: float) -> None:
        left_s = max(MIN_FACTS_S, FACTS_DEADLINE_S - (time.monotonic() - arrived))
        await handle_interaction(
            self._ctx, self._app, press, pressed, withheld=no_buttons_reason, within_s=left_s
        )

    async def _account(self, given: Interaction) -> Account:
        return await self._slack.account(given.user.id, given.user.team_id or self._app.team_id)

    # -- the app's home and workspace events ---------------------------------------------------------------------------

    async def _home_button(self, given: Interaction, view: View, action: Action) -> SlackResponse:
        def shown(note: str | None) -> FollowUp:
            return lambda: self._commands.show_home(given.user.id, given.user.team_id, note)

        def late(work: Awaitable[SlackResponse]) -> SlackResponse:
            async def after() -> None:
                result = await self._outcome(work)
                if isinstance(result, ServiceError):
                    await shown(as_sentence(_uncertain_text(result)))()
                elif result.after is not None:
                    await result.after()

            return SlackResponse(after=after)

        return await self._within_deadline(self._apply_home_button(given, view, action, shown), late)

    async def _apply_home_button(
        self, given: Interaction, view: View, action: Action, shown: Callable[[str | None], FollowUp]
    ) -> SlackResponse:
        delivery = delivery_id("home", given.user.id, view.id, action.action_id, action.action_ts)
        if await is_processed(self._ctx, delivery):
            return SlackResponse()
        note: str | None = None
        try:
            account = await self._account(given)
            await self._commands.set_from_home(account, action.action_id, action.value or "")
        except RequestError as refusal:
            log.info("slack_home_refused", code=refusal.code.value)
            note = as_sentence(refusal.detail)
        # recorded afterwards: if it failed, Slack sends the payload again and it must not count as processed
        return (
            SlackResponse(after=shown(note)) if await mark_processed(self._ctx, delivery) else SlackResponse()
        )

    async def _event(self, given: EventEnvelope) -> SlackResponse:
        event = given.event
        if event.type == "app_home_opened" and event.tab == "home" and event.user:
            return SlackResponse(after=lambda: self._commands.show_home(event.user, None, None))
        if event.type == "app_uninstalled" or (event.type == "tokens_revoked" and event.bot_revoked):
            log.error("slack_app_lost", event_type=event.type)
            await record_app_removed(self._ctx, self._app, event.type)
        return SlackResponse()


def _uncertain_text(error: ServiceError) -> str:
    return f"your answer may not be recorded: {error.detail}; press again, it counts once"


def _with_pointer(press: ButtonPress, value: object) -> ButtonPress:
    pointer = Pointer.read(value)
    if pointer is None:
        raise NotFoundError("this button is unknown; open the review on the web")
    return replace(press, card_id=pointer.card_id, view_digest=pointer.view_digest)


def _form_text(view: View) -> str | None:
    """The text of a submitted form; None if there is no text."""
    values = view.state.get("values")
    block = values.get(REASON_BLOCK) if isinstance(values, dict) else None
    field = block.get(REASON_ACTION) if isinstance(block, dict) else None
    words = field.get("value") if isinstance(field, dict) else None
    return words if is_text(words) else None

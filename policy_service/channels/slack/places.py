"""Which channel of Slack's a place is: found once, so that a channel that is renamed stays the same."""

from __future__ import annotations

from typing import Final

from policy_service.channels.slack.client import Slack, SlackFault, cursor_after
from policy_service.queries.context import Context
from policy_service.storage.slack_tables import SlackPlaceRow
from policy_service.workflow.slack.sending import Came, found

_A_PAGE: Final = 1000
_PAGES: Final = 50


class Places:
    """Finds channels as Slack names them."""

    def __init__(self, ctx: Context, slack: Slack) -> None:
        self._ctx, self._slack = ctx, slack

    async def channel_of(self, place: SlackPlaceRow) -> str:
        """Slack's own id of a place.

        Raises:
            SlackFault: there is none that the app can see, or Slack does not say.
        """
        if place.channel is not None:
            return place.channel
        channel = await self._look_up(place.place)
        await found(self._ctx, place.place, channel)
        return channel

    async def _look_up(self, place: str) -> str:
        if place.startswith(("U", "W")):
            opened = await self._slack.call("conversations.open", users=place)
            return str(opened["channel"]["id"])
        return await channel_named(self._slack, place.removeprefix("#")) if place.startswith("#") else place


async def channel_named(slack: Slack, name: str) -> str:
    """The channel of this name, without its ``#``, among those the app can see.

    Raises:
        SlackFault: there is none, or Slack does not say.
    """
    cursor: str | None = None
    for _ in range(_PAGES):
        answer = await slack.call(
            "conversations.list",
            types="public_channel,private_channel",
            exclude_archived="true",
            limit=_A_PAGE,
            cursor=cursor,
        )
        for channel in answer["channels"]:
            if channel.get("name") == name:
                return str(channel["id"])
        cursor = cursor_after(answer)
        if cursor is None:
            break
    raise SlackFault(Came.PLACE, "channel_not_found", unsent=True)

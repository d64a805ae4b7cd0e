"""What Slack says and the third-party server of the tests does not: laid over its answers and over what it sends.

Nothing here fails or delays anything; that is `slack_faults` and `slack_deliveries`. Pure: JSON in, JSON out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from tests.counterparts.slack import PEOPLE

Json = dict[str, Any]

FOREIGN_TEAM: Final = "T0PARTNER"
GUEST: Final = {"is_restricted": True}
LEFT: Final = {"deleted": True}
STRANGER: Final = {"is_stranger": True, "team_id": FOREIGN_TEAM}
_ORDINARY: Final = {"is_restricted": False, "is_ultra_restricted": False, "is_app_user": False}
_PAGE: Final = 100  # conversations.history without a limit


def _people() -> dict[str, Json]:
    said = {"grace": GUEST, "walter": LEFT, "ximena": STRANGER}
    return {str(PEOPLE[name]["id"]): dict(what) for name, what in said.items()}


@dataclass
class Truth:
    """What has to be remembered for it: people by id, metadata and time by message, the Home each person has."""

    people: dict[str, Json] = field(default_factory=_people)
    metadata: dict[tuple[str, str], Json] = field(default_factory=dict)
    homes: dict[str, Json] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    posted: dict[tuple[str, str], float] = field(default_factory=dict)  # by that clock

    def answer(self, method: str, args: Mapping[str, Any], said: Json) -> Json:
        """What Slack would have answered to this call, after what the server has answered."""
        if not said.get("ok"):
            return said
        match method:
            case "users.info":
                return {**said, "user": self._person(said["user"])}
            case "chat.postMessage" | "chat.update":
                if self.clock is not time.time:  # else the message's own name says when
                    self.posted.setdefault((said["channel"], said["ts"]), self.clock())
                if args.get("metadata"):
                    self.metadata[said["channel"], said["ts"]] = args["metadata"]
            case "views.publish":
                self.homes[args["user_id"]] = said["view"]
            case "conversations.history" | "conversations.replies":
                return self._page(method, args, said)
        return said

    def payload(self, payload: Json) -> Json:
        """What Slack would have sent; the very same object where the server sends that."""
        sent = deepcopy(payload)
        person = sent.get("user")
        if isinstance(person, dict) and person["id"] in self.people:
            person["team_id"] = self.people[person["id"]].get("team_id", person.get("team_id"))
        if sent.get("type") == "block_actions":
            _place(sent, self.homes)
        return payload if sent == payload else sent

    def _person(self, user: Json) -> Json:
        return {**_ORDINARY, **user, **self.people.get(user["id"], {})}

    def _page(self, method: str, args: Mapping[str, Any], said: Json) -> Json:
        """No ephemerals, the time and the number asked for, and metadata for those who ask."""
        seen = [m for m in said["messages"] if m.get("subtype") != "ephemeral"]
        if method == "conversations.history":
            seen = [m for m in seen if self._at(args, m["ts"]) > float(args.get("oldest") or 0)]
        start, limit = int(args.get("cursor") or 0), int(args.get("limit") or _PAGE)
        page, more = seen[start : start + limit], len(seen) > start + limit
        if args.get("include_all_metadata") == "true":
            page = [self._with_metadata(str(args["channel"]), message) for message in page]
        cursor = str(start + limit) if more else ""
        return {**said, "messages": page, "has_more": more, "response_metadata": {"next_cursor": cursor}}

    def _at(self, args: Mapping[str, Any], ts: str) -> float:
        return self.posted.get((str(args["channel"]), ts), float(ts))

    def _with_metadata(self, channel: str, message: Json) -> Json:
        kept = self.metadata.get((channel, message["ts"]))
        return {**message, "metadata": kept} if kept else message


def _place(sent: Json, homes: Mapping[str, Json]) -> None:
    """A click in the Home has a view and no channel; one on an ephemeral message has no message."""
    if not sent["channel"]["id"]:
        view = homes[sent["user"]["id"]]
        sent["container"] = {"type": "view", "view_id": view["id"]}
        sent["view"] = view
        for key in ("channel", "message", "response_url"):
            sent.pop(key, None)
    elif sent.get("message", {}).get("subtype") == "ephemeral":
        sent["container"]["is_ephemeral"] = True
        del sent["message"]

"""Forged payloads with a valid signature: presses, forms and commands with any member changed.

Their sender has the signing secret, so the service must refuse them by its own state and not by their content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from sqlalchemy import func, select

from policy_service.storage.core import Row, table
from policy_service.storage.system_tables import OutboxRow
from policy_service.storage.tables import CommentRow, VoteRow
from tests.counterparts.slack import pressed
from tests.fakes.slack_deliveries import Answer, Json, Kind
from tests.fakes.slack_faults import SlackFaults
from tests.fakes.world import World

_times = count(1_795_000_000)
APPROVALS: Final = "C0APPROVALS"
GONE: Final = object()
"""A member that is left out."""


def changed(payload: Json, changes: Mapping[str, Any]) -> Json:
    """The payload with members changed, named by their path: ``team__id``, ``actions.0.value``."""
    result: Json = json.loads(json.dumps(payload))
    for path, value in changes.items():
        *way, last = [int(step) if step.isdigit() else step for step in path.replace("__", ".").split(".")]
        at: Any = result
        for step in way:
            at = at[step]
        if value is GONE:
            del at[last]
        else:
            at[last] = value
    return result


class Attacks:
    """Payloads signed by an attacker or by Slack, and their results."""

    world: World
    faults: SlackFaults
    before: dict[type[Row], int]  # rows of the tests before, which have to stay

    @property
    def app(self) -> Any:
        """The settings' app."""
        app = self.world.settings.slack
        assert app is not None
        return app

    def press(self, user: str, card: Json, action: str = "approve", /, **changes: Any) -> Json:
        """A press on a card as Slack sends it, but for ``changes``, whose paths are written with ``__``."""
        return self.press_of(user, card, pressed(card["blocks"], action), **changes)

    def press_of(self, user: str, card: Json, button: Json, /, **changes: Any) -> Json:
        """The same of a button that may not be there."""
        stamp = f"{next(_times)}.000100"
        payload = {
            **self._of(user, "block_actions"), "token": "no-longer-used", "enterprise": None,
            "is_enterprise_install": False, "response_url": "https://hooks.slack.com/actions/T0/1/abc",
            "container": {
                "type": "message", "message_ts": card["ts"], "channel_id": APPROVALS, "is_ephemeral": False,
            },
            "channel": {"id": APPROVALS, "name": "approvals"},
            "message": {"ts": card["ts"], "text": card.get("text", ""), "blocks": card.get("blocks", [])},
            "actions": [button | {"action_ts": stamp}],
        }  # fmt: skip
        return changed(payload, changes)

    def press_at_home(self, user: str, action: str, value: str = "on") -> Json:
        """A press on a button of somebody's home."""
        home = {"container": {"type": "view", "view_id": "V0HOME"}, "view": {"id": "V0HOME", "type": "home"}}
        return self.press_of(user, {"ts": ""}, {"action_id": action, "value": value}, **home)

    def form(self, user: str, kind: str, pointer: str, text: str | None, /, **changes: Any) -> Json:
        """A form that was sent."""
        state = {"values": {"reason": {"words": {"type": "plain_text_input", "value": text}}}}
        view = {"id": f"V{next(_times)}", "type": "modal", "callback_id": kind, "private_metadata": pointer}
        payload = self._of(user, "view_submission") | {"view": view | {"state": state}, "response_urls": []}
        return changed(payload, changes)

    def command(self, user: str, text: str, /, **changes: Any) -> Json:
        """A slash command."""
        payload = {
            "command": "/countersign", "text": text, "user_id": user, "channel_id": APPROVALS,
            "team_id": self.app.team_id, "team_domain": "northwind", "api_app_id": self.app.app_id,
            "response_url": "https://hooks.slack.com/commands/1/2", "trigger_id": f"{next(_times)}.trigger",
        }  # fmt: skip
        return changed(payload, changes)

    def event(self, kind: str, /, **changes: Any) -> Json:
        """Something that happened in the workspace."""
        payload = {
            "type": "event_callback", "team_id": self.app.team_id, "api_app_id": self.app.app_id,
            "event_id": f"Ev{next(_times)}", "event": {"type": kind, "tokens": {"bot": [self.app.app_id]}},
        }  # fmt: skip
        return changed(payload, changes)

    def _of(self, user: str, kind: str) -> Json:
        """What every payload has that comes of somebody's hand."""
        team, app = self.app.team_id, self.app.app_id
        return {
            "type": kind, "api_app_id": app, "team": {"id": team, "domain": "northwind"},
            "user": {"id": user, "username": user.lower(), "team_id": team}, "trigger_id": f"{next(_times)}.trigger",
        }  # fmt: skip

    async def deliver(self, payload: Json, kind: Kind = "interactive", **how: Any) -> Answer:
        """Have it delivered over HTTP, signed with the right secret unless another is given."""
        at = {"at": self.faults.clock()}
        return await self.faults.deliveries.forge(kind, payload, **(at | how))

    async def say(self, user: str, text: str, /, **changes: Any) -> Answer:
        """Have a command delivered."""
        return await self.deliver(self.command(user, text, **changes), "slash_commands")

    async def pressed(self, user: str, card: Json, *actions: str, **changes: Any) -> None:
        """Have presses on these buttons delivered, on Approve where none is named; Slack hears that they arrived."""
        for action in actions or ("approve",):
            answer = await self.deliver(self.press(user, card, action, **changes))
            assert (answer.status, answer.body) == (200, b""), (action, changes)

    async def forged(self, user: str, card: Json, /, **button: Any) -> None:
        """The same of Approve with members changed, where the card need not have it."""
        press = self.press_of(user, card, {"type": "button", "action_id": "approve"} | button)
        assert (await self.deliver(press)).status == 200, button

    async def sent(self, user: str, kind: str, pointer: str, text: Any = "because", **changes: Any) -> str:
        """Have a form delivered: why it was refused, in Slack's words for it; nothing where it was taken."""
        answer = await self.deliver(self.form(user, kind, pointer, text, **changes))
        assert answer.status == 200
        assert not answer.body or answer.json["response_action"] == "errors"
        return answer.body.decode()

    # -- what came of it ---------------------------------------------------------------------------------------------

    async def count(self, model: type[Row]) -> int:
        """How many rows of a table there are, without those that stay from the tests before."""
        query = select(func.count()).select_from(table(model))
        found = await self.world.service.db.read(lambda conn: conn.execute(query).scalar_one())
        return found - self.before.get(model, 0)

    async def nothing_said(self) -> bool:
        """Require that no vote and no comment was recorded."""
        return (await self.count(VoteRow), await self.count(CommentRow)) == (0, 0)

    async def votes(self) -> list[tuple[str, str, bool]]:
        """Who voted what, and whether it was late."""
        row = table(VoteRow).c
        query = select(row.sub, row.verdict, row.late).order_by(row.vote_id)
        found = await self.world.service.db.read(lambda conn: conn.execute(query).all())
        return [tuple(one) for one in found[self.before.get(VoteRow, 0) :]]

    async def answers(self) -> list[Json]:
        """The ephemeral messages, sent or not."""
        row = table(OutboxRow).c
        query = select(row.payload).where(row.kind == "slack_ephemeral").order_by(row.created_at)
        found = await self.world.service.db.read(lambda conn: conn.execute(query).scalars().all())
        return [dict(one) for one in found]

    async def answer(self) -> Json:
        """The only ephemeral message."""
        (one,) = await self.answers()
        return one


def value_of(card: Json, action: str = "approve") -> str:
    """The value of a button: a pointer."""
    value: str = pressed(card["blocks"], action)["value"]
    return value

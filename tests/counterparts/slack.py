"""A Slack to talk to: the third-party server `local-slack`, a process on a loopback port of its own, gone at the end.

It keeps the messages, sends signed deliveries or Socket Mode envelopes, and has a page a browser can click. What it
sends and what it cannot do is in README.md of this folder; what it cannot do and a test needs is in
`tests/fakes/slack_faults.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import aiohttp

from examples.local_service import free_port
from tests.counterparts import require
from tests.counterparts.node import group_of_its_own, until_it_answers

Mode = Literal["events", "socket"]
Json = dict[str, Any]

WAY_TO_GET: Final = "npm ci --prefix tests/counterparts (Linux on x86-64 only)"
_PROGRAM: Final = Path(__file__).parent / "node_modules/local-slack-linux-x64/bin/local-slack"
_START_S: Final = 60.0
_ANSWER_S: Final = 30.0

TEAM: Final = "T0NORTHWIND"
SECRET: Final = "8f742231b10e8888abcd99yyyzzz85a5"  # the form of Slack's own; no real app has it
# The guest, the one who left and the one of another workspace are ordinary people to this server: the proxy of
# tests/fakes/slack_faults.py says of them what Slack would.
PEOPLE: Final[Mapping[str, Mapping[str, Any]]] = {
    "dana": {"id": "U0DANA", "real_name": "Dana Finance", "email": "dana@northwind.example"},
    "felix": {"id": "U0FELIX", "real_name": "Felix Finance", "email": "felix@northwind.example"},
    "olivia": {"id": "U0OLIVIA", "real_name": "Olivia Owner", "email": "olivia@northwind.example"},
    "sam": {"id": "U0SAM", "real_name": "Sam Unlinked", "email": "sam@northwind.example"},
    "grace": {"id": "U0GRACE", "real_name": "Grace Guest", "email": "grace@agency.example"},
    "walter": {"id": "U0WALTER", "real_name": "Walter Who Left", "email": "walter@northwind.example"},
    "ximena": {"id": "U0XIMENA", "real_name": "Ximena Elsewhere", "email": "ximena@partner.example"},
    "robot": {"id": "U0ROBOT", "real_name": "Some Robot", "is_bot": True},
}
CHANNELS: Final[Mapping[str, str]] = {"approvals": "C0APPROVALS", "payments": "C0PAYMENTS"}


@dataclass(frozen=True)
class App:
    """One app of the workspace, and how events are delivered to it."""

    mode: Mode
    id: str = "A0COUNTERSIGN"
    bot_user: str = "U0COUNTERSIGN"
    bot_name: str = "countersign"
    bot_token: str = "xoxb-countersign"
    app_token: str = "xapp-countersign"
    signing_secret: str = SECRET
    request_url: str | None = None

    def as_config(self) -> Json:
        """As the server's file wants it."""
        return {
            "appId": self.id, "botUserId": self.bot_user, "botName": self.bot_name,
            "botToken": self.bot_token, "appToken": self.app_token, "signingSecret": self.signing_secret,
            "mode": self.mode, **({"requestUrl": self.request_url} if self.request_url else {}),
        }  # fmt: skip


@dataclass(frozen=True)
class SlackServer:
    """A running workspace, seen from outside. Every method opens and closes its own connection."""

    url: str
    app: App
    team_id: str = TEAM
    users: Mapping[str, str] = field(
        default_factory=lambda: {name: str(p["id"]) for name, p in PEOPLE.items()}
    )
    channels: Mapping[str, str] = field(default_factory=lambda: dict(CHANNELS))

    @property
    def api_url(self) -> str:
        """What `WebClient(base_url=...)` wants: the slash at its end belongs to it."""
        return f"{self.url}/api/"

    @property
    def ui_url(self) -> str:
        """The page people use."""
        return f"{self.url}/"

    @property
    def app_id(self) -> str:
        return self.app.id

    @property
    def bot_token(self) -> str:
        return self.app.bot_token

    @property
    def app_token(self) -> str:
        return self.app.app_token

    @property
    def signing_secret(self) -> str:
        return self.app.signing_secret

    async def messages(self, channel: str) -> list[Json]:
        """What everybody in the channel sees, the oldest first, without threads."""
        return [m for m in await self._kept(channel) if not _is_ephemeral(m) and "thread_ts" not in m]

    async def replies(self, channel: str, ts: str) -> list[Json]:
        """The thread under a message, without the message."""
        return [m for m in await self._kept(channel) if not _is_ephemeral(m) and m.get("thread_ts") == ts]

    async def ephemerals(self, channel: str, user: str) -> list[Json]:
        """What only this person was shown there."""
        return [m for m in await self._kept(channel) if _is_ephemeral(m) and m["ephemeral_to"] == user]

    async def direct(self, user: str) -> list[Json]:
        """What the app wrote to this person alone."""
        state = await self._control("state")
        with_them = [c["id"] for c in state["channels"] if c["is_im"] and user in c["members"]]
        return [message for channel in with_them for message in await self._kept(channel)]

    async def click(self, channel: str, ts: str, user: str, action: str | Mapping[str, Any]) -> None:
        """A person presses the button with this action_id; a mapping is sent as it is, however forged.

        Returns when the service has answered, or could not be reached.
        """
        if isinstance(action, str):
            kept = next(m for m in await self._kept(channel) if m["ts"] == ts)
            action = pressed(kept["blocks"], action)
        await self._control("interact", channel=channel, messageTs=ts, user=user, action=dict(action))

    async def command(self, user: str, channel: str, text: str, command: str = "/countersign") -> None:
        """A person types a slash command; returns when it has been answered."""
        await self._control(
            "command", channel=channel, user=user, command=command, text=text, appId=self.app.id
        )

    async def open_home(self, user: str) -> None:
        """A person opens the app's Home; returns when the app has answered."""
        await self._control("open-home", user=user, appId=self.app.id)

    async def home(self, user: str) -> Json | None:
        """The view last published to this person."""
        views = (await self._page())["homeViews"]
        view: Json | None = views.get(user, {}).get(self.app.id)
        return view

    async def modals(self) -> list[Json]:
        """The open views, the topmost last. There is one stack for all people of the workspace."""
        views: list[Json] = (await self._page())["modalStack"]
        return views

    async def is_connected(self) -> bool:
        """Whether the app holds a Socket Mode connection."""
        apps = (await self._page())["apps"]
        return any(app["connected"] for app in apps if app["appId"] == self.app.id)

    async def reset(self) -> None:
        """No message, no modal, no Home, no log; connections stay."""
        await self._control("reset", post=True)

    async def _kept(self, channel: str) -> list[Json]:
        messages: list[Json] = (await self._control(f"messages/{channel}"))["messages"]
        return messages

    async def _control(self, path: str, *, post: bool = False, **body: Any) -> Json:
        url, timeout = f"{self.url}/_control/{path}", aiohttp.ClientTimeout(total=_ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            if body or post:
                return await _response(http.post(url, json=body))
            try:
                return await _response(http.get(url))
            except aiohttp.ServerDisconnectedError:  # it is busy; reading once more changes nothing
                return await _response(http.get(url))

    async def _page(self) -> Json:
        """What the page is shown when it opens."""
        async with aiohttp.ClientSession() as http, http.ws_connect(f"{self.url}/ui") as page:
            state: Json = (await page.receive_json(timeout=_ANSWER_S))["state"]
            return state


async def _response(request: Any) -> Json:
    """What the server answers."""
    async with request as answer:
        assert answer.status == 200, await answer.text()
        body: Json = await answer.json()
        return body


def pressed(blocks: list[Json], action_id: str) -> Json:
    """What the page sends for this button: a block without an id of its own is named by its place."""
    for place, block in enumerate(blocks):
        for element in [*block.get("elements", []), block.get("accessory", {})]:
            if element.get("action_id") == action_id:
                kept = {key: element[key] for key in ("action_id", "value", "text") if key in element}
                return {"type": "button", "block_id": block.get("block_id", f"b{place}"), **kept}
    raise AssertionError(f"no button {action_id!r} in {json.dumps(blocks)}")


def _is_ephemeral(message: Mapping[str, Any]) -> bool:
    return message.get("subtype") == "ephemeral"


@contextmanager
def local_slack(folder: Path, *, request_url: str, mode: Mode = "events") -> Iterator[SlackServer]:
    """A workspace with the app of the tests."""
    program = require("local-slack", _PROGRAM if _PROGRAM.exists() else None, WAY_TO_GET)
    app = App(mode, request_url=request_url)
    file, port = folder / "slack.json", free_port()
    file.write_text(json.dumps(_config(app)))
    command = [str(program), "--config", str(file), "--port", str(port), "--base-host", "127.0.0.1",
               "--files-dir", str(folder / "files")]  # fmt: skip
    with group_of_its_own(*command) as process:
        server = SlackServer(f"http://127.0.0.1:{port}", app)
        until_it_answers(f"{server.url}/_control/state", process)
        yield server


def _config(app: App) -> Json:
    members = [*(str(person["id"]) for person in PEOPLE.values()), app.bot_user]
    return {
        "workspace": {"name": "Northwind", "domain": "northwind", "teamId": TEAM},
        "apps": [app.as_config()],
        "users": [{"name": name, **person} for name, person in PEOPLE.items()],
        "channels": [{"id": id_, "name": name, "members": members} for name, id_ in CHANNELS.items()],
    }

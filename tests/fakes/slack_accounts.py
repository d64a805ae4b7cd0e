"""Accounts of a Slack workspace as the channel would describe them, and the settings of an app in it."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from typing import Any

from policy_service.workflow.slack.account_links import Account
from tests.fakes.http_server import Loopback, Quiet

TEAM, APP, OTHER_TEAM = "T0ACME", "A0COUNTERSIGN", "T0RIVAL"


def app_settings(folder: Path, **more: Any) -> dict[str, Any]:
    """The table ``[slack]``; its secrets are made up, in files of their own, and its Slack takes everything."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("bot-token", "xoxb-nobodys"), ("signing-secret", "5" * 32)):
        secret_file(folder / name, text)
    return {
        "team_id": TEAM,
        "app_id": APP,
        "bot_token_file": folder / "bot-token",
        "signing_secret_file": folder / "signing-secret",
        "default_channel": "#approvals",
        "api_url": polite_slack(),
        **more,
    }


def secret_file(path: Path, text: str) -> None:
    """A secret that only this user can read."""
    path.write_text(text)
    path.chmod(0o600)


def account(user_id: str, name: str = "", **more: Any) -> Account:
    """A full member, but for what is given."""
    no = dict.fromkeys(("deleted", "bot", "guest", "stranger"), False)
    said: dict[str, Any] = {"team_id": TEAM, "email": None} | no
    return Account(user_id=user_id, name=name or user_id.lower(), **(said | more))


_counter = itertools.count(1)


class _Answers(Quiet):
    def respond(self) -> None:
        self.body()
        said = {"ok": True, **_said(self.path.partition("?")[0].rpartition("/")[2])}
        self.answer(200, json.dumps(said).encode(), {"Content-Type": "application/json"})


def _said(method: str) -> dict[str, Any]:
    if method == "auth.test":
        return {"team_id": "T0ACME", "user_id": "U0COUNTERSIGN"}
    if method == "conversations.list":
        return {"channels": [{"id": "C0APPROVALS", "name": "approvals"}]}
    if method.startswith("conversations."):
        return {"messages": [], "channel": {"id": "D0SOMEBODY"}}
    return {"channel": "C0APPROVALS", "ts": f"1795000000.{next(_counter):06}"}


@functools.cache
def polite_slack() -> str:
    """The address of a Slack that takes everything and remembers nothing, as long as this process lives."""
    return f"{Loopback(_Answers).__enter__().url}/api/"

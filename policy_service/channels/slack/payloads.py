"""What Slack delivers, as far as we read it. Everything else in it is ignored, and what we read is typed.

Whose it is stands in it: the team, the app and the user. None of it says who may do what.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from policy_service.channels.requests import media_type
from policy_service.errors import InvalidRequestError

FORM: Final = "application/x-www-form-urlencoded"
_MOST_FIELDS: Final = 100


def is_text(value: object) -> bool:
    """Whether this is text that every database keeps: no NUL and no half of a character is in it."""
    return (
        isinstance(value, str)
        and "\0" not in value
        and not any("\ud800" <= char <= "\udfff" for char in value)
    )


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    @field_validator("*")
    @classmethod
    def _is_kept_by_databases(cls, value: object) -> object:
        if isinstance(value, str) and not is_text(value):
            raise ValueError("this is no text of Slack's")
        return value

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class Team(_Read):
    """A workspace."""

    id: str


class User(_Read):
    """Whoever pressed. ``team_id`` is another than the team's for somebody of a shared channel."""

    id: str
    team_id: str | None = None


class Container(_Read):
    """Where a button stands: in a message, or in a view."""

    message_ts: str | None = None
    channel_id: str | None = None


class Action(_Read):
    """A button that was pressed."""

    action_id: str
    action_ts: str
    value: str | None = None


class View(_Read):
    """A form that was sent, or the home."""

    id: str
    callback_id: str = ""
    private_metadata: str = ""
    state: dict[str, Any] = Field(default_factory=dict)


class Interaction(_Read):
    """Somebody pressed a button or sent a form."""

    type: Literal["block_actions", "view_submission"]
    api_app_id: str
    team: Team
    user: User
    trigger_id: str = ""
    container: Container = Container()
    actions: list[Action] = Field(default_factory=list)
    view: View | None = None


class Command(_Read):
    """Somebody wrote ``/countersign``."""

    command: str
    text: str = ""
    team_id: str
    user_id: str
    api_app_id: str
    channel_id: str = ""
    trigger_id: str = Field(min_length=1)  # what tells it from the same command written again


class Event(_Read):
    """Something that happened in the workspace.

    Events have many forms: `user` is an object in `team_join` and `user_change`. A field of another type than ours is
    left out and the event is accepted, since Slack repeats a refused event and in the end turns events off.
    """

    type: str = ""
    user: str = ""
    tab: str = ""
    bot_revoked: bool = False  # of `tokens_revoked`: the app's own token is among them

    @model_validator(mode="before")
    @classmethod
    def _leave_out_what_is_not_text(cls, given: Any) -> dict[str, Any]:
        given = given if isinstance(given, dict) else {}
        tokens = given.get("tokens")
        bots = tokens.get("bot") if isinstance(tokens, dict) else None
        texts = {name: given[name] for name in ("type", "user", "tab") if is_text(given.get(name))}
        return texts | {"bot_revoked": isinstance(bots, list) and any(is_text(bot) and bot for bot in bots)}


class Happened(_Read):
    """The envelope of an event."""

    type: Literal["event_callback"]
    team_id: str
    api_app_id: str
    event: Event = Event()


class Challenge(_Read):
    """Slack asks whether the address is ours."""

    type: Literal["url_verification"]
    challenge: str = Field(max_length=1_000)


class Other(_Read):
    """Something we did not ask to be told."""

    type: str = ""


Delivery = Interaction | Command | Happened | Challenge | Other


def read_body(body: bytes, content_type: str) -> Delivery:
    """A delivery over HTTP, whose signature holds.

    Raises:
        InvalidRequestError: it is none of those Slack makes, or not in UTF-8.
    """
    try:
        if media_type(content_type) != FORM:
            return _of(json.loads(body))
        fields = dict(
            parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
        )
        return _of(json.loads(fields["payload"]) if "payload" in fields else fields)
    except (ValueError, KeyError, RecursionError) as error:
        raise _unreadable() from error


def read_envelope(kind: str, payload: Any) -> Delivery:
    """The same of Socket Mode.

    Raises:
        InvalidRequestError: it is none of those Slack makes.
    """
    return _of(payload) if kind in ("interactive", "slash_commands", "events_api") else Other(type=kind)


_MODELS: Final[dict[str, type[Interaction] | type[Happened] | type[Challenge]]] = {
    "block_actions": Interaction,
    "view_submission": Interaction,
    "event_callback": Happened,
    "url_verification": Challenge,
}


def _of(given: Any) -> Delivery:
    if not isinstance(given, dict):
        raise _unreadable()
    kind = given.get("type")
    try:
        if "command" in given:
            return Command.model_validate(given)
        model = _MODELS.get(kind) if isinstance(kind, str) else None
        return Other() if model is None else model.model_validate(given)
    except ValidationError as error:
        if kind == "event_callback":
            return Other()  # Slack repeats a refused event; nothing in it is for us
        raise _unreadable() from error


def _unreadable() -> InvalidRequestError:
    return InvalidRequestError("this is no delivery of Slack")

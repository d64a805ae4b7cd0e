"""What Slack delivers, as far as we read it. Everything else in it is ignored, and what we read is typed.

Whose it is stands in it: the team, the app and the user. None of it says who may do what.

Whether a delivery is Slack's: its signature over the raw bytes, not older than five minutes.

Numbered as they run; whatever goes wrong in any of them is a refusal:

1. there is one signature and one time, no more;
2. the time is a whole number, at most five minutes from ours either way;
3. the signature is that of this time and exactly these bytes by our secret, compared in constant time.

Deliveries that are refused: each is counted, and what did not hold is told in the log, for the operator alone.

Whoever sent it reads no more than that it was refused. Anybody may send some, so each check has one line in ten seconds
at most, which says how many more there were since the one before; nothing of what was sent is in it, but for the ids of
the workspace and the app where the signature held.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Literal
from urllib.parse import parse_qsl

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from slack_sdk.signature import Clock, SignatureVerifier

from policy_service import metrics
from policy_service.channels.requests import media_type
from policy_service.errors import InvalidRequestError, ServiceError, UnauthenticatedError

FORM_TYPE: Final = "application/x-www-form-urlencoded"
_MAX_FIELDS: Final = 100


def is_text(value: object) -> bool:
    """Whether this is text that every database keeps: no NUL and no half of a character is in it."""
    return (
        isinstance(value, str)
        and "\0" not in value
        and not any("\ud800" <= char <= "\udfff" for char in value)
    )


class _SlackModel(BaseModel):
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


class Team(_SlackModel):
    """A workspace."""

    id: str


class User(_SlackModel):
    """Whoever pressed. ``team_id`` is another than the team's for somebody of a shared channel."""

    id: str
    team_id: str | None = None


class Container(_SlackModel):
    """Where a button stands: in a message, or in a view."""

    message_ts: str | None = None
    channel_id: str | None = None


class Action(_SlackModel):
    """A button that was pressed."""

    action_id: str
    action_ts: str
    value: str | None = None


class View(_SlackModel):
    """A form that was sent, or the home."""

    id: str
    callback_id: str = ""
    private_metadata: str = ""
    state: dict[str, Any] = Field(default_factory=dict)


class Interaction(_SlackModel):
    """Somebody pressed a button or sent a form."""

    type: Literal["block_actions", "view_submission"]
    api_app_id: str
    team: Team
    user: User
    trigger_id: str = ""
    container: Container = Container()
    actions: list[Action] = Field(default_factory=list)
    view: View | None = None


class Command(_SlackModel):
    """Somebody wrote ``/countersign``."""

    command: str
    text: str = ""
    team_id: str
    user_id: str
    api_app_id: str
    channel_id: str = ""
    trigger_id: str = Field(min_length=1)  # what tells it from the same command written again


class Event(_SlackModel):
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


class EventEnvelope(_SlackModel):
    """The envelope of an event."""

    type: Literal["event_callback"]
    team_id: str
    api_app_id: str
    event: Event = Event()


class Challenge(_SlackModel):
    """Slack asks whether the address is ours."""

    type: Literal["url_verification"]
    challenge: str = Field(max_length=1_000)


class UnhandledPayload(_SlackModel):
    """Something we did not ask to be told."""

    type: str = ""


Payload = Interaction | Command | EventEnvelope | Challenge | UnhandledPayload


def read_body(body: bytes, content_type: str) -> Payload:
    """A delivery over HTTP, whose signature holds.

    Raises:
        InvalidRequestError: it is none of those Slack makes, or not in UTF-8.
    """
    try:
        if media_type(content_type) != FORM_TYPE:
            return _parse(json.loads(body))
        fields = dict(
            parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
        )
        return _parse(json.loads(fields["payload"]) if "payload" in fields else fields)
    except (ValueError, KeyError, RecursionError) as error:
        raise _invalid_payload() from error


def read_envelope(kind: str, payload: Any) -> Payload:
    """The same of Socket Mode.

    Raises:
        InvalidRequestError: it is none of those Slack makes.
    """
    return (
        _parse(payload)
        if kind in ("interactive", "slash_commands", "events_api")
        else UnhandledPayload(type=kind)
    )


_MODELS: Final[dict[str, type[Interaction] | type[EventEnvelope] | type[Challenge]]] = {
    "block_actions": Interaction,
    "view_submission": Interaction,
    "event_callback": EventEnvelope,
    "url_verification": Challenge,
}


def _parse(given: Any) -> Payload:
    if not isinstance(given, dict):
        raise _invalid_payload()
    kind = given.get("type")
    try:
        if "command" in given:
            return Command.model_validate(given)
        model = _MODELS.get(kind) if isinstance(kind, str) else None
        return UnhandledPayload() if model is None else model.model_validate(given)
    except ValidationError as error:
        if kind == "event_callback":
            return UnhandledPayload()  # Slack repeats a refused event; nothing in it is for us
        raise _invalid_payload() from error


def _invalid_payload() -> InvalidRequestError:
    return InvalidRequestError("this is no delivery of Slack")


log = structlog.get_logger(__name__)

LOG_INTERVAL_S: Final = 10.0
"""Between two lines about the same check."""


class ForeignPayloadError(UnauthenticatedError):
    """It is not Slack's, or not for this app. ``check`` is what did not hold; ``told`` is for the log."""

    def __init__(self, detail: str, check: str, **told: str) -> None:
        super().__init__(detail)
        self.check, self.told = check, told


class RefusalLog:
    """Those of one way by which deliveries come."""

    def __init__(self, way: str) -> None:
        self._way = way
        self._said: dict[str, float] = {}  # by check, of which there are a few
        self._more: Counter[str] = Counter()

    def note(self, refusal: ServiceError) -> None:
        """Count it, and tell it unless there was a line about such a one just now."""
        metrics.SLACK_DELIVERIES.labels(self._way, "refused").inc()
        check = refusal.check if isinstance(refusal, ForeignPayloadError) else "content"
        now, said = time.monotonic(), self._said.get(check)
        if said is not None and now - said < LOG_INTERVAL_S:
            self._more[check] += 1
            return
        self._said[check] = now
        told = refusal.told if isinstance(refusal, ForeignPayloadError) else {}
        log.warning(
            "slack_delivery_refused",
            way=self._way,
            code=refusal.code.value,
            check=check,
            more=self._more.pop(check, 0),
            **told,
        )


SIGNATURE_HEADER: Final = "x-slack-signature"
TIMESTAMP_HEADER: Final = "x-slack-request-timestamp"
WINDOW_S: Final = 300

FailedCheck = Literal["signature", "time"]


class _ServiceClock(Clock):
    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now

    def now(self) -> float:
        return self._now().timestamp()


class SignatureChecker:
    """Checks by one secret."""

    def __init__(self, secret: str, now: Callable[[], datetime]) -> None:
        self._clock = _ServiceClock(now)
        self._verifier = SignatureVerifier(secret, self._clock)

    def failed(self, body: bytes, headers: Sequence[tuple[str, str]]) -> FailedCheck | None:
        """Which check says that this delivery is not Slack's; None where it is. Never raises."""
        given = {
            name: [v for n, v in headers if n.lower() == name]
            for name in (SIGNATURE_HEADER, TIMESTAMP_HEADER)
        }
        if any(len(values) != 1 for values in given.values()):
            return "signature"
        [signature], [timestamp] = given[SIGNATURE_HEADER], given[TIMESTAMP_HEADER]
        if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
            return "time"
        try:
            if abs(self._clock.now() - int(timestamp)) > WINDOW_S:
                return "time"
            return None if self._verifier.is_valid(body, timestamp, signature) else "signature"
        except Exception:  # noqa: BLE001  doubt is a refusal, whatever the doubt is about
            return "signature"

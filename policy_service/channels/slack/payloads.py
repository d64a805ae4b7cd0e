"""Payloads from Slack: models of the fields we read, parsing, and signature verification.

A payload names its team, app and user. Nothing in it grants a permission.

A payload over HTTP needs a signature over the raw bytes that is at most five minutes old. The checks in order, where
any error is a refusal:

1. there is exactly one signature and one timestamp;
2. the timestamp is an integer, at most five minutes from this host's clock;
3. the signature matches this timestamp and these bytes with the signing secret, compared in constant time.

Refused payloads are counted, and the failed check is logged. The sender learns only that the payload was refused.
Anyone can send payloads, so each check is logged at most once in ten seconds, with the number of suppressed lines. The
log holds nothing of the payload, except the ids of workspace and app if the signature was valid.
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

log = structlog.get_logger(__name__)

FORM_TYPE: Final = "application/x-www-form-urlencoded"
_MAX_FIELDS: Final = 100


def is_text(value: object) -> bool:
    """Whether this is text that every database can store: without NUL and lone surrogates."""
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
            raise ValueError("this is not valid text")
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
    """The user. ``team_id`` differs from the team's id for a user from a shared channel."""

    id: str
    team_id: str | None = None


class Container(_SlackModel):
    """The container of a button: a message or a view."""

    message_ts: str | None = None
    channel_id: str | None = None


class Action(_SlackModel):
    """A pressed button."""

    action_id: str
    action_ts: str
    value: str | None = None


class View(_SlackModel):
    """A submitted form, or the app's home."""

    id: str
    callback_id: str = ""
    private_metadata: str = ""
    state: dict[str, Any] = Field(default_factory=dict)


class Interaction(_SlackModel):
    """A pressed button or a submitted form."""

    type: Literal["block_actions", "view_submission"]
    api_app_id: str
    team: Team
    user: User
    trigger_id: str = ""
    container: Container = Container()
    actions: list[Action] = Field(default_factory=list)
    view: View | None = None


class Command(_SlackModel):
    """The slash command ``/countersign``."""

    command: str
    text: str = ""
    team_id: str
    user_id: str
    api_app_id: str
    channel_id: str = ""
    trigger_id: str = Field(min_length=1)  # distinguishes it from a repeated command


class Event(_SlackModel):
    """An event of the workspace.

    Events have many forms: `user` is an object in `team_join` and `user_change`. A field of an unexpected type is
    dropped and the event is accepted, because Slack repeats a refused event and finally disables events.
    """

    type: str = ""
    user: str = ""
    tab: str = ""
    bot_revoked: bool = False  # in `tokens_revoked`: the bot token was revoked

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
    """Slack's verification of the endpoint's URL."""

    type: Literal["url_verification"]
    challenge: str = Field(max_length=1_000)


class UnhandledPayload(_SlackModel):
    """A payload of a kind that we do not handle."""

    type: str = ""


Payload = Interaction | Command | EventEnvelope | Challenge | UnhandledPayload


def read_body(body: bytes, content_type: str) -> Payload:
    """Parse a payload over HTTP whose signature was verified.

    Raises:
        InvalidRequestError: it is not a payload of Slack, or not in UTF-8.
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
    """Parse a payload of Socket Mode.

    Raises:
        InvalidRequestError: it is not a payload of Slack.
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
            return UnhandledPayload()  # Slack repeats a refused event, so ignore it
        raise _invalid_payload() from error


def _invalid_payload() -> InvalidRequestError:
    return InvalidRequestError("this is not a payload of Slack")


LOG_INTERVAL_S: Final = 10.0
"""Minimum interval between two log lines about the same check."""


class ForeignPayloadError(UnauthenticatedError):
    """The payload is not from Slack, or not for this app. ``check``: the failed check; ``details`` are for the log."""

    def __init__(self, detail: str, check: str, **details: str) -> None:
        super().__init__(detail)
        self.check, self.details = check, details


class RefusalLog:
    """Counts and logs refused payloads of one transport, with a rate limit per check."""

    def __init__(self, way: str) -> None:
        self._way = way
        self._logged_at: dict[str, float] = {}  # by check
        self._suppressed: Counter[str] = Counter()

    def note(self, refusal: ServiceError) -> None:
        """Count a refusal, and log it unless the same check was logged within the interval."""
        metrics.SLACK_DELIVERIES.labels(self._way, "refused").inc()
        check = refusal.check if isinstance(refusal, ForeignPayloadError) else "content"
        now, last = time.monotonic(), self._logged_at.get(check)
        if last is not None and now - last < LOG_INTERVAL_S:
            self._suppressed[check] += 1
            return
        self._logged_at[check] = now
        details = refusal.details if isinstance(refusal, ForeignPayloadError) else {}
        log.warning(
            "slack_delivery_refused",
            way=self._way,
            code=refusal.code.value,
            check=check,
            more=self._suppressed.pop(check, 0),
            **details,
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
    """Verifies signatures with one secret."""

    def __init__(self, secret: str, now: Callable[[], datetime]) -> None:
        self._clock = _ServiceClock(now)
        self._verifier = SignatureVerifier(secret, self._clock)

    def failed(self, body: bytes, headers: Sequence[tuple[str, str]]) -> FailedCheck | None:
        """The check that fails for this payload; None if it is from Slack. Never raises."""
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
        except Exception:  # noqa: BLE001  any error is a refusal
            return "signature"

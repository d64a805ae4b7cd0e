"""Settings of the Slack app: the table ``[slack]``.

One workspace and one app. Payloads of another team or app are refused, even if their signature is valid. Payloads
arrive over HTTP if there is a signing secret, over Socket Mode if there is an app token; both may be set.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Self, TypeGuard

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from policy_service.issuers import SafeUrl

API: Final = "https://slack.com/api/"

EVENTS_PATH: Final = "/slack/events"
"""Path of the HTTP endpoint for Slack's payloads."""

UNHEALTHY_FAILURES: Final = 3
"""Consecutive failed calls before the health check fails. A single failure is normal."""

_TEAM: Final = re.compile(r"[TE][A-Z0-9]{2,30}\Z")
_APP: Final = re.compile(r"A[A-Z0-9]{2,30}\Z")
_PLACE: Final = re.compile(r"(#[^\s#@,]{1,80}|[CG][A-Z0-9]{2,30})\Z")


def is_team(value: object) -> TypeGuard[str]:
    """Whether this has the form of a workspace's or organisation's id."""
    return isinstance(value, str) and _TEAM.match(value) is not None


def is_app(value: object) -> TypeGuard[str]:
    """Whether this has the form of an app's id."""
    return isinstance(value, str) and _APP.match(value) is not None


def require_channel(channel: str) -> str:
    """Validate a channel of a policy or the settings: ``#name``, or its Slack id.

    Raises:
        ValueError: it is neither. Policies cannot address direct messages or ``@names``.
    """
    if not _PLACE.match(channel):
        raise ValueError(
            f"{channel!r} is not a Slack channel; write '#approvals', or its id such as C0123456789"
        )
    return channel


ChannelName = Annotated[str, AfterValidator(require_channel)]


class SlackApp(BaseModel):
    """The app, its workspace and its default channel."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    team_id: str = Field(description="the workspace's id, T...; payloads of another one are refused")
    app_id: str = Field(description="the app's id, A...; payloads of another one are refused")
    bot_token_file: Path = Field(description="the bot token, xoxb-..., in a file only this user can read")
    signing_secret_file: Path | None = Field(
        None, description="the signing secret, in such a file: payloads arrive over HTTP at /slack/events"
    )
    app_token_file: Path | None = Field(
        None, description="an app-level token, xapp-..., in such a file: payloads arrive over Socket Mode"
    )
    default_channel: ChannelName = Field(description="the channel of reviews whose gates name no @channel")
    digest_above: int = Field(
        10,
        ge=1,
        le=100,
        description="waiting cards of a channel before further reviews share one message",
    )
    link_minutes: int = Field(
        10, ge=1, le=60, description="life of a link that connects a Slack account to a person"
    )
    signed_in_within_days: int = Field(
        30,
        ge=1,
        le=365,
        description="a person must have signed in on the web within this time to decide in Slack",
    )
    other_email: bool = Field(
        False,
        description="allow linking an account whose e-mail address differs from that of the signed-in person",
    )
    timeout_s: float = Field(10, gt=0, le=30, description="timeout of one call to Slack")
    api_url: SafeUrl = Field(API, description="Slack's API; change it only in tests")

    @field_validator("team_id")
    @classmethod
    def _is_a_team(cls, value: str) -> str:
        return _require_match(_TEAM, value, "workspace's id, such as T0123456789")

    @field_validator("app_id")
    @classmethod
    def _is_an_app(cls, value: str) -> str:
        return _require_match(_APP, value, "app's id, such as A0123456789")

    @field_validator("api_url")
    @classmethod
    def _ends_in_a_slash(cls, value: str) -> str:
        return value if value.endswith("/") else f"{value}/"

    @model_validator(mode="after")
    def _has_delivery_path(self) -> Self:
        if self.signing_secret_file is None and self.app_token_file is None:
            raise ValueError(
                "Slack could deliver nothing: name signing_secret_file (HTTP), app_token_file (Socket Mode), or both"
            )
        return self


def _require_match(pattern: re.Pattern[str], value: str, what: str) -> str:
    if not pattern.match(value):
        raise ValueError(f"{value!r} is not a {what}")
    return value

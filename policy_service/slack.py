"""The Slack app people are asked through: the settings' table ``[slack]``.

One workspace, one app, both named here: what says it comes from another team or app is refused, whoever signed it.
Deliveries come over HTTP where there is a signing secret, over Socket Mode where there is an app token; both may run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Self, TypeGuard

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from policy_service.issuers import SafeUrl

API: Final = "https://slack.com/api/"

EVENTS_PATH: Final = "/slack/events"
"""Where Slack delivers over HTTP."""

UNHEALTHY_FAILURES: Final = 3
"""Calls that fail in a row before it is said aloud: one that fails is an ordinary Tuesday."""

_TEAM: Final = re.compile(r"[TE][A-Z0-9]{2,30}\Z")
_APP: Final = re.compile(r"A[A-Z0-9]{2,30}\Z")
_PLACE: Final = re.compile(r"(#[^\s#@,]{1,80}|[CG][A-Z0-9]{2,30})\Z")


def is_team(value: object) -> TypeGuard[str]:
    """Whether this is written as the id of a workspace, or of an organisation."""
    return isinstance(value, str) and _TEAM.match(value) is not None


def is_app(value: object) -> TypeGuard[str]:
    """Whether this is written as the id of an app."""
    return isinstance(value, str) and _APP.match(value) is not None


def require_channel(channel: str) -> str:
    """A channel as a policy or the settings name it: ``#name``, or Slack's own id of it.

    Raises:
        ValueError: it is neither; nobody is asked in a direct message or as ``@somebody`` by a policy.
    """
    if not _PLACE.match(channel):
        raise ValueError(
            f"{channel!r} is no Slack channel; write '#approvals', or its id such as C0123456789"
        )
    return channel


ChannelName = Annotated[str, AfterValidator(require_channel)]


class SlackApp(BaseModel):
    """The app, its workspace and where it asks."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    team_id: str = Field(description="the workspace's id, T...; what comes from another one is refused")
    app_id: str = Field(description="the app's id, A...; what comes from another one is refused")
    bot_token_file: Path = Field(description="the bot token, xoxb-..., in a file only this user can read")
    signing_secret_file: Path | None = Field(
        None, description="the signing secret, in such a file: deliveries come over HTTP to /slack/events"
    )
    app_token_file: Path | None = Field(
        None, description="an app-level token, xapp-..., in such a file: deliveries come over Socket Mode"
    )
    default_channel: ChannelName = Field(description="where people are asked when a gate names no @channel")
    digest_above: int = Field(
        10,
        ge=1,
        le=100,
        description="reviews that wait to be posted in a channel before one message holds the rest",
    )
    link_minutes: int = Field(
        10, ge=1, le=60, description="life of a link that joins a Slack account to a person"
    )
    signed_in_within_days: int = Field(
        30,
        ge=1,
        le=365,
        description="whoever has not signed in on the web for so long is asked to, before they decide",
    )
    other_email: bool = Field(
        False,
        description="let an account be linked whose e-mail address is not that of the person who signs in",
    )
    timeout_s: float = Field(10, gt=0, le=30, description="for Slack's answer to one call")
    api_url: SafeUrl = Field(API, description="Slack's API; another one is for tests")

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
                "nobody could press a button: name signing_secret_file (HTTP), app_token_file (Socket Mode), or both"
            )
        return self


def _require_match(pattern: re.Pattern[str], value: str, what: str) -> str:
    if not pattern.match(value):
        raise ValueError(f"{value!r} is no {what}")
    return value

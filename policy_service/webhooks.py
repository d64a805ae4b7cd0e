"""Who is told by webhook: the settings' table ``[[webhooks]]``, and which events there are to tell of.

The operator's word alone: no caller, bundle or page names an address that is called. Refused: an address on no public
network that no ``addresses`` names, plain http to anywhere but this machine, a kind of event that does not exist.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from policy_service.issuers import SafeUrl, Slug
from policy_service.reaching import is_open

TOLD: Final = (
    "agent",
    "approver",
    "break",  # _glass_signed, _glass_opened
    "bundle",
    "comment",
    "commit",
    "effect",
    "outcome",
    "passkey",
    "proposal",
    "question",
    "redemption",
    "review",
    "slack",
    "stop",
    "task",
    "transaction",
    "vote",
)
"""Families of events that are told unless ``kinds`` says otherwise: the first word of a line's kind in the log."""

ON_REQUEST: Final = ("decision",)
"""Families that are told where ``kinds`` names them: every answer of the policy, several for one effect."""

_KIND: Final = re.compile(r"([a-z]+)(_[a-z_]+)?\Z")


class Webhook(BaseModel):
    """One receiver of events."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    name: Slug = Field(
        description="how operators call it; another name is another receiver, told from now on"
    )
    url: SafeUrl
    secret_files: tuple[Path, ...] = Field(
        min_length=1,
        max_length=2,
        description="files only this user can read, each with a whsec_ secret or a whsk_ key; two while one is changed",
    )
    kinds: tuple[str, ...] = Field(
        TOLD,
        min_length=1,
        description="families of events, such as review, or single ones, such as task_opened",
    )
    ca_file: Path | None = Field(
        None, description="the authority its certificate is from, where this host trusts it not"
    )
    addresses: tuple[IPv4Network | IPv6Network, ...] = Field(
        (), description="private networks its name may lead to, such as 10.0.0.0/8; without one, none"
    )
    timeout_s: float = Field(10, gt=0, le=30, description="for the head of its answer; the rest is not read")

    @field_validator("kinds")
    @classmethod
    def _are_told(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            found = _KIND.match(kind)
            if found is None or found[1] not in (*TOLD, *ON_REQUEST):
                families = ", ".join((*TOLD, *ON_REQUEST))
                raise ValueError(
                    f"{kind!r} is no event that is told; write a family or one of its kinds: {families}"
                )
        return kinds

    @model_validator(mode="after")
    def _may_be_reached(self) -> Self:
        host = urlsplit(self.url).hostname or ""
        try:
            address = ip_address("127.0.0.1" if host == "localhost" else host)
        except ValueError:
            return self  # a name: looked at whenever it is called
        if not is_open(address, self.addresses):
            raise ValueError(
                f"webhook {self.name!r} is at {host}, which is no public address; if it is meant, name its network "
                f"in addresses, such as {str(address)!r}"
            )
        return self

    def wants(self, kind: str) -> bool:
        """Whether it is told of events of this kind."""
        return kind in self.kinds or kind.partition("_")[0] in self.kinds

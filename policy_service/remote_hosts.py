"""Settings of hosts that the service calls: fact hosts, directories, webhook receivers.

Only the operator names an address that is called: no caller, bundle or page can. A fact host outside the allowlist is
refused when a bundle loads. A webhook is refused at an address on no public network that no ``addresses`` names, over
plain http to anywhere but this machine, and for a kind of event that does not exist.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Final, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from policy_service.http_clients import is_allowed_address
from policy_service.issuers import SafeUrl, Slug, require_safe_url

_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*/?\Z")
_ENV: Final = r"^[A-Z][A-Z0-9_]*$"
_PERSON: Final = re.compile(r"[^|\s{}]+\|\{(value|externalId)\}\Z")
_PORTS: Final = {"https": 443, "http": 80}


def require_canonical_url(url: str) -> str:
    """An address that can be compared: https (http on this machine), lower-case host, a path of plain letters.

    Raises:
        ValueError: it is none. A query, an escape or ``..`` would let two readers see two places.
    """
    parts = urlsplit(require_safe_url(url))
    host = url.removeprefix(f"{parts.scheme}://").partition("/")[0]
    if host != host.lower() or "?" in url or ".." in parts.path or not _PATH.match(parts.path):
        raise ValueError(
            "write https://host/path: a lower-case host, and a path of letters, digits and . _ ~ - only"
        )
    _ = parts.port  # raises ValueError where it is none
    return url


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


class _RemoteHost(BaseModel):
    """A host this service may call, as whom, and into which private network."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    url: SafeUrl
    token_file: Path | None = Field(None, description="its bearer token, in a file only this user can read")
    token_env: str | None = Field(
        None, pattern=_ENV, description="its bearer token, in this environment variable"
    )
    ca_file: Path | None = Field(
        None, description="the authority its certificate is from, where this host trusts it not"
    )
    addresses: tuple[IPv4Network | IPv6Network, ...] = Field(
        (), description="private networks its name may lead to, such as 10.0.0.0/8; without one, none"
    )

    @field_validator("url")
    @classmethod
    def _plain(cls, url: str) -> str:
        return require_canonical_url(url)

    @model_validator(mode="after")
    def _one_token(self) -> Self:
        if self.token_file is not None and self.token_env is not None:
            raise ValueError(f"{self.url}: give token_file or token_env, not both")
        return self


class FactsHost(_RemoteHost):
    """One entry of the allowlist: sources of facts.toml at this address or below it may be asked."""

    at_once: int = Field(8, gt=0, le=64, description="questions to it at the same time; further ones wait")

    def covers(self, url: str) -> bool:
        """Whether an address of facts.toml is this one or below it: scheme, host and port exactly the same."""
        mine, asked = urlsplit(self.url), urlsplit(url)
        path = mine.path.rstrip("/")
        return _origin(mine) == _origin(asked) and (asked.path == path or asked.path.startswith(f"{path}/"))


class DirectoryApi(_RemoteHost):
    """The directory that groups are read from, by SCIM 2.0 (RFC 7644)."""

    person: str = Field(
        description="how a member is spelt here: the issuer people sign in at, '|', and {value} or {externalId}"
    )

    @field_validator("person")
    @classmethod
    def _names_a_subject(cls, person: str) -> str:
        if not _PERSON.match(person):
            raise ValueError(
                f"person {person!r} must be ISSUER|{{value}} (the directory's own id) or ISSUER|{{externalId}}; a "
                "name or an address is given to somebody else one day"
            )
        return person


DEFAULT_FAMILIES: Final = (
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

OPT_IN_FAMILIES: Final = ("decision",)
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
        DEFAULT_FAMILIES,
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
    def _are_known_families(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            found = _KIND.match(kind)
            if found is None or found[1] not in (*DEFAULT_FAMILIES, *OPT_IN_FAMILIES):
                families = ", ".join((*DEFAULT_FAMILIES, *OPT_IN_FAMILIES))
                raise ValueError(
                    f"{kind!r} is no event that is told; write a family or one of its kinds: {families}"
                )
        return kinds

    @model_validator(mode="after")
    def _has_allowed_address(self) -> Self:
        host = urlsplit(self.url).hostname or ""
        try:
            address = ip_address("127.0.0.1" if host == "localhost" else host)
        except ValueError:
            return self  # a name: looked at whenever it is called
        if not is_allowed_address(address, self.addresses):
            raise ValueError(
                f"webhook {self.name!r} is at {host}, which is no public address; if it is meant, name its network "
                f"in addresses, such as {str(address)!r}"
            )
        return self

    def wants(self, kind: str) -> bool:
        """Whether it is told of events of this kind."""
        return kind in self.kinds or kind.partition("_")[0] in self.kinds

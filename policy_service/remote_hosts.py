"""Settings of hosts that the service calls: fact hosts, directories, webhook receivers.

Only the operator configures these addresses; callers, bundles and pages cannot. A bundle that names a fact host outside
the allowlist does not load. A webhook is refused at a non-public address that ``addresses`` does not allow, over plain
http except to this machine, and for an unknown kind of event.
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
    """Require a canonical URL: https (http on this machine), lower-case host, a path of unreserved characters.

    Raises:
        ValueError: it is another one. With a query, an escape or ``..`` two parsers could see two locations.
    """
    parts = urlsplit(require_safe_url(url))
    host = url.removeprefix(f"{parts.scheme}://").partition("/")[0]
    if host != host.lower() or "?" in url or ".." in parts.path or not _PATH.match(parts.path):
        raise ValueError(
            "write https://host/path: a lower-case host, and a path of letters, digits and . _ ~ - only"
        )
    _ = parts.port  # raises ValueError if it is invalid
    return url


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


class RemoteHost(BaseModel):
    """A host this service may call, its certificate authority, and its allowed private networks."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    url: SafeUrl
    ca_file: Path | None = Field(
        None, description="the authority of its certificate, if this host does not trust it"
    )
    addresses: tuple[IPv4Network | IPv6Network, ...] = Field(
        (), description="private networks its name may resolve to, such as 10.0.0.0/8; empty: none"
    )


class _TokenHost(RemoteHost):
    """A host that this service calls with a bearer token."""

    token_file: Path | None = Field(None, description="its bearer token, in a file only this user can read")
    token_env: str | None = Field(
        None, pattern=_ENV, description="its bearer token, in this environment variable"
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


class FactsHost(_TokenHost):
    """One entry of the allowlist: sources of facts.toml at this URL or below it may be requested."""

    at_once: int = Field(8, gt=0, le=64, description="concurrent requests to it; further ones wait")

    def covers(self, url: str) -> bool:
        """Whether a URL of facts.toml is this one or below it, with the same scheme, host and port."""
        mine, asked = urlsplit(self.url), urlsplit(url)
        path = mine.path.rstrip("/")
        return _origin(mine) == _origin(asked) and (asked.path == path or asked.path.startswith(f"{path}/"))


class DirectoryApi(_TokenHost):
    """The directory that groups are read from, over SCIM 2.0 (RFC 7644)."""

    person: str = Field(
        description="the key of a member: the issuer people sign in at, '|', and {value} or {externalId}"
    )

    @field_validator("person")
    @classmethod
    def _names_a_subject(cls, person: str) -> str:
        if not _PERSON.match(person):
            raise ValueError(
                f"person {person!r} must be ISSUER|{{value}} (the directory's own id) or ISSUER|{{externalId}}; "
                "names and addresses can be reassigned to another person"
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
"""Families of events that are sent by default. A family is the first word of an audit kind."""

OPT_IN_FAMILIES: Final = ("decision",)
"""Families that are sent only if ``kinds`` names them: every decision, of which one effect has several."""

_KIND: Final = re.compile(r"([a-z]+)(_[a-z_]+)?\Z")


class Webhook(RemoteHost):
    """One receiver of events."""

    name: Slug = Field(
        description="its name for operators; another name is a new receiver, which gets events from now on"
    )
    secret_files: tuple[Path, ...] = Field(
        min_length=1,
        max_length=2,
        description="files only this user can read, each with a whsec_ secret or a whsk_ key; two during a rotation",
    )
    kinds: tuple[str, ...] = Field(
        DEFAULT_FAMILIES,
        min_length=1,
        description="families of events, such as review, or single ones, such as task_opened",
    )
    timeout_s: float = Field(
        10, gt=0, le=30, description="timeout for the head of its response; the body is not read"
    )

    @field_validator("kinds")
    @classmethod
    def _are_known_families(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            found = _KIND.match(kind)
            if found is None or found[1] not in (*DEFAULT_FAMILIES, *OPT_IN_FAMILIES):
                families = ", ".join((*DEFAULT_FAMILIES, *OPT_IN_FAMILIES))
                raise ValueError(f"{kind!r} is not an event; write a family or one of its kinds: {families}")
        return kinds

    @model_validator(mode="after")
    def _has_allowed_address(self) -> Self:
        host = urlsplit(self.url).hostname or ""
        try:
            address = ip_address("127.0.0.1" if host == "localhost" else host)
        except ValueError:
            return self  # a name: its addresses are checked for each request
        if not is_allowed_address(address, self.addresses):
            raise ValueError(
                f"webhook {self.name!r} is at {host}, which is not a public address; to allow it, name its network "
                f"in addresses, such as {str(address)!r}"
            )
        return self

    def wants(self, kind: str) -> bool:
        """Whether it receives events of this kind."""
        return kind in self.kinds or kind.partition("_")[0] in self.kinds

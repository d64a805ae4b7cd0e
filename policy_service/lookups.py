"""Where the service may look things up: the settings' tables ``[[facts_http]]`` and ``[directory]``.

Both are the operator's word alone, never the bundle's: a bundle names a source or a group, and whether this service
calls anybody for it, with which token and into which network, is decided here.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Final, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from policy_service.issuers import SafeUrl, require_safe_url

_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*/?\Z")
_ENV: Final = r"^[A-Z][A-Z0-9_]*$"
_PERSON: Final = re.compile(r"[^|\s{}]+\|\{(value|externalId)\}\Z")
_PORTS: Final = {"https": 443, "http": 80}


def require_plain_address(url: str) -> str:
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


def _place(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


class _Place(BaseModel):
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
        return require_plain_address(url)

    @model_validator(mode="after")
    def _one_token(self) -> Self:
        if self.token_file is not None and self.token_env is not None:
            raise ValueError(f"{self.url}: give token_file or token_env, not both")
        return self


class FactsHost(_Place):
    """One entry of the allowlist: sources of facts.toml at this address or below it may be asked."""

    at_once: int = Field(8, gt=0, le=64, description="questions to it at the same time; further ones wait")

    def covers(self, url: str) -> bool:
        """Whether an address of facts.toml is this one or below it: scheme, host and port exactly the same."""
        mine, asked = urlsplit(self.url), urlsplit(url)
        path = mine.path.rstrip("/")
        return _place(mine) == _place(asked) and (asked.path == path or asked.path.startswith(f"{path}/"))


class DirectoryApi(_Place):
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

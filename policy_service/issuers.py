"""Settings of identity providers: the tables ``[[providers]]`` for people and ``[[trusted_issuers]]`` for agents.

Only the operator configures them. A token counts only for what is configured here: its issuer, its audience, its
algorithms, and which claims name a group or an agent.
"""

from __future__ import annotations

import hashlib
import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA"
]  # fmt: skip
# Signatures that need the issuer's private key. No HS256: a verifier could also sign. No RSA with SHA-1, no none.
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
GITHUB = "https://github.com"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}\Z")
_RESERVED = frozenset({"dev"})  # /sign-in/dev is the development sign-in's address
_PLAIN = re.compile(r"[!-~]+\Z")  # printable ASCII without spaces
_GOOGLE = "https://accounts.google.com"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def require_safe_url(url: str) -> str:
    """Require an https URL, or http on this machine, without a user or fragment.

    Raises:
        ValueError: it is not one. The sentence does not quote it, because it may hold a password.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    if (
        not secure
        or not parts.hostname
        or parts.username is not None
        or parts.fragment
        or not _PLAIN.match(url)
    ):
        raise ValueError("it must be a plain https URL without a user (http on 127.0.0.1 only)")
    return url


def require_issuer(url: str) -> str:
    """Require a URL that can name an issuer (OpenID Connect Core, section 2: no query, no fragment).

    Raises:
        ValueError: it cannot. With a '|' two people could share one key ISSUER|SUBJECT.
    """
    if "?" in url or "|" in url:
        raise ValueError("an issuer is a URL without query and without '|'")
    return require_safe_url(url)


def require_published_url(url: str, issuer: str) -> str:
    """Require a URL that an issuer may publish in its metadata: on its own host, or https to a named host.

    An issuer must not direct requests into the operator's network: to this machine, or to an IP address (SSRF).

    Raises:
        ValueError: it is another URL.
    """
    require_safe_url(url)
    host, own = urlsplit(url).hostname or "", urlsplit(issuer).hostname
    if host != own and (host in _LOOPBACK or _is_address(host)):
        raise ValueError("it names an IP address, not a host of the issuer")
    return url


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _name(value: str) -> str:
    if not _NAME.match(value) or value in _RESERVED:
        raise ValueError(
            f"{value!r} cannot be a name here: lower-case letters, digits and '-', starting with a letter"
        )
    return value


SafeUrl = Annotated[str, AfterValidator(require_safe_url)]
IssuerUrl = Annotated[str, AfterValidator(require_issuer)]
Slug = Annotated[str, AfterValidator(_name)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class SignInProvider(_Table):
    """A sign-in provider: OpenID Connect with discovery, or GitHub's OAuth 2.0."""

    name: Slug = Field(
        description="part of the address: /sign-in/NAME/callback is the redirect URI to register"
    )
    title: str = Field(min_length=1, max_length=60, description="on the button")
    kind: Literal["oidc", "github"] = "oidc"
    issuer: IssuerUrl = Field(
        description="exactly as in its tokens; for GitHub https://github.com or your server"
    )
    client_id: str = Field(min_length=1)
    client_secret: SecretStr | None = None
    client_secret_file: Path | None = Field(None, description="a file that only the service's user can read")
    token_auth: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"  # noqa: S105
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    groups_claim: str | None = Field(
        None,
        min_length=1,
        description="claim that lists groups, or a dotted path to it; none: its tokens carry no groups",
    )
    groups: dict[str, str] | None = Field(
        None, description="the claim's values to the bundle's groups; what is not listed is dropped"
    )
    required: dict[str, str | bool | int] = Field(
        default_factory=dict, description='claims every person must carry, such as {"hd": "acme.example"}'
    )
    members_of: tuple[str, ...] = Field(
        (),
        description="who may sign in: people whose groups claim lists one of these, as the provider names them",
    )
    api_url: SafeUrl | None = Field(None, description="GitHub's API, if it is not api.github.com")
    algorithms: tuple[Algorithm, ...] = ALGORITHMS

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if (self.client_secret is None) == (self.client_secret_file is None):
            raise ValueError(f"provider {self.name!r}: give client_secret or client_secret_file, one of them")
        if self.kind == "oidc" and "openid" not in self.scopes:
            raise ValueError(f"provider {self.name!r}: scopes must hold 'openid'")
        if self.groups is not None and self.groups_claim is None:
            raise ValueError(
                f"provider {self.name!r}: groups maps the values of groups_claim, and there is none"
            )
        if self.members_of and self.groups_claim is None:
            raise ValueError(f"provider {self.name!r}: members_of looks at groups_claim, and there is none")
        if self.issuer == GITHUB and not self.members_of:
            raise ValueError(
                f"provider {self.name!r}: anyone can have a GitHub account; restrict who may sign in: "
                'groups_claim = "teams", members_of = ["ORG/TEAM"] and the scope "read:org"'
            )
        if self.issuer == _GOOGLE and "hd" not in self.required:
            raise ValueError(
                f"provider {self.name!r}: anyone can have a Google account; restrict who may sign in: "
                'required = { hd = "your.domain" }'
            )
        if self.kind == "github" and (self.required or self.groups_claim not in {None, "teams"}):
            raise ValueError(
                f"provider {self.name!r}: GitHub sends no claims; groups_claim may be 'teams' (ORG/TEAM), no required"
            )
        return self

    @property
    def trust(self) -> str:
        """A digest of every setting that affects who may sign in and as which person. Sessions end when it changes."""
        return _digest(
            self, {"title", "client_secret", "client_secret_file", "token_auth", "scopes", "api_url"}
        )

    @property
    def api(self) -> str:
        """The base URL of GitHub's API."""
        return self.api_url or (
            "https://api.github.com" if self.issuer == GITHUB else f"{self.issuer}/api/v3"
        )


class AgentRule(_Table):
    """Maps a token to an agent: every claim must be present with exactly this value."""

    agent: str = Field(min_length=1)
    claims: dict[str, str] = Field(min_length=1)


class TrustedIssuer(_Table):
    """An issuer whose tokens let an agent enrol its own key: OIDC, Kubernetes, GitHub Actions, SPIFFE."""

    name: Slug
    kind: Literal["oidc", "spiffe"] = "oidc"
    issuer: IssuerUrl | None = Field(None, description="exactly as in its tokens")
    trust_domain: str | None = Field(
        None,
        pattern=r"^[a-z0-9._-]{1,255}$",
        description="SPIFFE: the host of every sub; its tokens name no issuer",
    )
    jwks_url: SafeUrl | None = Field(
        None, description="URL of its keys; empty: from the issuer's discovery document"
    )
    jwks_file: Path | None = Field(None, description="its keys as a file, if the service cannot reach it")
    audiences: tuple[str, ...] = Field(
        (), description="one of these must be in aud; empty: this service's address"
    )
    types: tuple[str, ...] = Field(
        ("JWT", "at+jwt"), description="what header typ may be; absent counts as JWT"
    )
    algorithms: tuple[Algorithm, ...] = ALGORITHMS
    max_age_s: int = Field(86_400, gt=0, description="a token that lives longer than this is refused")
    agents: tuple[AgentRule, ...] = Field(min_length=1)

    @property
    def trust(self) -> str:
        """A digest of the settings. Keys enrolled through this issuer end when it changes."""
        return _digest(self, set())

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        spiffe = self.kind == "spiffe"
        if spiffe != (self.trust_domain is not None) or spiffe == (self.issuer is not None):
            raise ValueError(
                f"issuer {self.name!r}: an oidc issuer has `issuer`, a spiffe one has `trust_domain`, never both"
            )
        if self.jwks_url is not None and self.jwks_file is not None:
            raise ValueError(f"issuer {self.name!r}: give jwks_url or jwks_file, not both")
        if spiffe and self.jwks_url is None and self.jwks_file is None:
            raise ValueError(
                f"issuer {self.name!r}: a trust domain has no discovery; give jwks_url or jwks_file"
            )
        return self


def _digest(one: BaseModel, without: set[str]) -> str:
    return hashlib.sha256(one.model_dump_json(exclude=without).encode()).hexdigest()


def require_distinct(tables: tuple[SignInProvider, ...] | tuple[TrustedIssuer, ...]) -> None:
    """Require distinct names and issuers, so that a token has exactly one meaning.

    Raises:
        ValueError: two tables share one.
    """
    for what in ("name", "issuer", "trust_domain"):
        seen = [value for one in tables if (value := getattr(one, what, None)) is not None]
        if twice := {value for value in seen if seen.count(value) > 1}:
            raise ValueError(f"{what} {sorted(twice)[0]!r} is used twice; use one table for each")

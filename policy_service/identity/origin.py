"""Host, origin and cookie checks of browser requests.

Pure functions. The public URL is configuration; no request header changes it, in particular no Forwarded header.

- Another Host is refused for every method: a rebound DNS name must not reach a session or a development link.
- A POST must prove that our own page sent it: by Origin, or without one by Sec-Fetch-Site.
- A POST that decides must be a navigation: no script, not even our own, can send a vote.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from policy_service.errors import ForbiddenError, InvalidRequestError

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Headers(Protocol):
    """Request headers, with repeated ones."""

    def getlist(self, key: str) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Site:
    """The parsed public URL."""

    origin: str
    hosts: frozenset[str]
    secure: bool

    @property
    def session_cookie(self) -> str:
        """With `__Host-` a browser requires that the cookie is Secure, host-only and valid for every path."""
        return "__Host-countersign" if self.secure else "countersign_dev"

    @property
    def sign_in_cookie(self) -> str:
        """The sealed state of a sign-in, which the browser returns from its identity provider."""
        return "__Host-countersign-sign-in" if self.secure else "countersign_dev_sign_in"

    @property
    def invitation_cookie(self) -> str:
        """The secret of an invitation to link a Slack account, so that no address and no page contains it."""
        return "__Host-countersign-invitation" if self.secure else "countersign_dev_invitation"

    @property
    def theme_cookie(self) -> str:
        return "__Host-countersign-theme" if self.secure else "countersign_dev_theme"

    @property
    def keys_cookie(self) -> str:
        return "__Host-countersign-keys" if self.secure else "countersign_dev_keys"


def relying_party_id(public_url: str) -> str | None:
    """The WebAuthn relying party id of a deployment; None for an IP address, which cannot be one."""
    host = urlsplit(public_url).hostname or ""
    return None if not host or ":" in host or host.replace(".", "").isdigit() else host


def read_cookie(headers: Headers, name: str) -> str | None:
    """The single cookie of exactly this name.

    The header is parsed here, because a lenient parser strips more than spaces. A cookie of another site named
    "\xa0__Host-..." would then pass as ours and defeat ``__Host-``. A name that occurs twice is ignored.
    """
    pairs = [pair.strip(" \t") for header in headers.getlist("cookie") for pair in header.split(";")]
    found = [value for one in pairs for key, equals, value in [one.partition("=")] if equals and key == name]
    return found[0] if len(found) == 1 else None


def parse_site(public_url: str) -> Site:
    """Raises ValueError if the URL has no http or https host."""
    parts = urlsplit(public_url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError(f"public_url {public_url!r} must be an http or https URL with a host")
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    default = _DEFAULT_PORTS[parts.scheme]
    port = parts.port or default
    netloc = name if port == default else f"{name}:{port}"
    hosts = {netloc, f"{name}:{port}"} if port == default else {netloc}
    return Site(f"{parts.scheme}://{netloc}", frozenset(hosts), parts.scheme == "https")


def require_host(site: Site, host: str | None) -> None:
    """Raises InvalidRequestError (`misdirected_host`) unless the Host header matches the public URL."""
    if (host or "").lower() not in site.hosts:
        raise InvalidRequestError(
            f"this service answers at {site.origin} only, not at {host!r}: open it there",
            code="misdirected_host",
        )


def require_own_page(site: Site, headers: Mapping[str, str]) -> None:
    """Raises ForbiddenError (`csrf`) unless a page of this site sent the POST by navigation."""
    origin, fetch_site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is None and fetch_site is None:
        raise ForbiddenError("this form came without an origin: send it from our own page", code="csrf")
    if origin is not None and origin != site.origin:
        raise ForbiddenError(f"this form was sent from {origin!r}, not from {site.origin}", code="csrf")
    if fetch_site not in (None, "same-origin"):
        raise ForbiddenError(
            f"this form was sent from a {fetch_site!r} page; send it from our own", code="csrf"
        )
    if headers.get("sec-fetch-mode") not in (None, "navigate"):
        raise ForbiddenError("a script sent this form: press the button on the page itself", code="csrf")


def local_path(value: str) -> str:
    """A path on this site to return to. Anything a browser could read as another site becomes `/`."""
    plain = value.startswith("/") and not value.startswith("//") and value.isascii() and value.isprintable()
    return value if plain and "\\" not in value and " " not in value else "/"

"""Whether a request is for us, comes from our own page, and which cookie it may carry.

Pure. The public URL is configuration; nothing a request says (Forwarded headers least of all) changes it.
Rules kept here:
- another Host is refused, whatever the method: a rebound name must not reach a session or a development link;
- a POST must prove that our own page sent it: by Origin, and where there is none by Sec-Fetch-Site;
- a POST that decides must be a navigation: no script, not even one of ours, can send a vote.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from policy_service.errors import ForbiddenError, InvalidRequestError

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Headers(Protocol):
    """Headers of a request, each as often as it came."""

    def getlist(self, key: str) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Site:
    """The public URL, taken apart once."""

    origin: str
    hosts: frozenset[str]
    secure: bool

    @property
    def session_cookie(self) -> str:
        """`__Host-` makes a browser refuse the cookie unless it is Secure, host-only and for every path."""
        return "__Host-countersign" if self.secure else "countersign_dev"

    @property
    def sign_in_cookie(self) -> str:
        """What a browser takes along to its identity provider and brings back."""
        return "__Host-countersign-sign-in" if self.secure else "countersign_dev_sign_in"

    @property
    def invitation_cookie(self) -> str:
        """The secret of an invitation to link a Slack account, so that no address and no page holds it meanwhile."""
        return "__Host-countersign-invitation" if self.secure else "countersign_dev_invitation"

    @property
    def theme_cookie(self) -> str:
        return "__Host-countersign-theme" if self.secure else "countersign_dev_theme"

    @property
    def keys_cookie(self) -> str:
        return "__Host-countersign-keys" if self.secure else "countersign_dev_keys"


def read_cookie(headers: Headers, name: str) -> str | None:
    """The one cookie of exactly this name.

    Read from the header itself: a lenient parser strips more than spaces, so that a neighbour's cookie called
    "\xa0__Host-..." would pass for ours, and the browser's promise about ``__Host-`` would be worth nothing. A name
    that is there twice is nobody's.
    """
    pairs = [pair.strip(" \t") for header in headers.getlist("cookie") for pair in header.split(";")]
    found = [value for one in pairs for key, equals, value in [one.partition("=")] if equals and key == name]
    return found[0] if len(found) == 1 else None


def parse_site(public_url: str) -> Site:
    """Raises ValueError when the URL names no http or https host."""
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
    """Raises InvalidRequestError (`misdirected_host`) unless the Host header is the public URL's."""
    if (host or "").lower() not in site.hosts:
        raise InvalidRequestError(
            f"this service answers at {site.origin} only, not at {host!r}: open it there",
            code="misdirected_host",
        )


def require_own_page(site: Site, headers: Mapping[str, str]) -> None:
    """Raises ForbiddenError (`csrf`) unless a POST came from a page of this site, by a navigation."""
    origin, fetch_site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is None and fetch_site is None:
        raise ForbiddenError(
            "this form was sent without saying from where: send it from our own page", code="csrf"
        )
    if origin is not None and origin != site.origin:
        raise ForbiddenError(f"this form was sent from {origin!r}, not from {site.origin}", code="csrf")
    if fetch_site not in (None, "same-origin"):
        raise ForbiddenError(
            f"this form was sent from a {fetch_site!r} page; send it from our own", code="csrf"
        )
    if headers.get("sec-fetch-mode") not in (None, "navigate"):
        raise ForbiddenError("a script sent this form: press the button on the page itself", code="csrf")


def local_path(value: str) -> str:
    """A path on this site to go back to; anything that a browser could read as another place becomes `/`."""
    plain = value.startswith("/") and not value.startswith("//") and value.isascii() and value.isprintable()
    return value if plain and "\\" not in value and " " not in value else "/"

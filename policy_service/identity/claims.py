"""What the claims of a verified ID token say of a person, as far as we take their word for it."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

import structlog

from policy_service.errors import ForbiddenError
from policy_service.issuers import SignInProvider

log = structlog.get_logger(__name__)

LONGEST = {"sub": 255, "name": 100, "email": 320, "group": 200}  # characters
_MOST_GROUPS = 500


def readable(text: str, what: str) -> bool:
    """Whether people can read it: not too long, nothing hidden, and something that can be seen."""
    fits = 0 < len(text) <= LONGEST[what] and text.isprintable()
    return fits and any(character.isalnum() and not _is_blank(character) for character in text)


def _is_blank(character: str) -> bool:
    """A letter that draws nothing: the fillers of Hangul are letters to Unicode and nothing to the eye."""
    return "FILLER" in unicodedata.name(character, "")


def email_in(claims: Mapping[str, Any]) -> str | None:
    """An address that the provider says it has checked; another is anybody's wish."""
    email = claims.get("email")
    checked = claims.get("email_verified") is True
    return email if checked and isinstance(email, str) and readable(email, "email") else None


def name_in(claims: Mapping[str, Any], sub: str) -> str:
    """What people call them: the first usable of these, else the subject, which is always there."""
    for value in (claims.get("name"), claims.get("preferred_username"), email_in(claims)):
        if isinstance(value, str) and readable(value, "name"):
            return value.strip()
    return sub[: LONGEST["name"]]


def require_member(provider: SignInProvider, claims: Mapping[str, Any]) -> None:
    """Whoever is in none of the groups that may sign in at all sees nothing here, not even the queue.

    Raises:
        ForbiddenError: they are not.
    """
    if not provider.members_of:
        return
    listed = claims.get(str(provider.groups_claim))
    if not isinstance(listed, list) or not any(one in provider.members_of for one in listed):
        log.warning("sign_in_refused", provider=provider.name, why="in none of members_of")
        raise ForbiddenError(
            f"{provider.title} knows you, but you are in none of the groups that may sign in here"
        )


def groups_in(provider: SignInProvider, claims: Mapping[str, Any]) -> frozenset[str] | None:
    """The groups a token carries, in the bundle's words; a claim that is no list of texts carries none."""
    if provider.groups_claim is None:
        return None
    listed = claims.get(provider.groups_claim, [])
    usable = isinstance(listed, list) and len(listed) <= _MOST_GROUPS
    if not usable or not all(isinstance(one, str) and readable(one, "group") for one in listed):
        log.warning("groups_not_usable", provider=provider.name, claim=provider.groups_claim)
        return frozenset()
    if provider.groups is None:
        return frozenset(listed)
    return frozenset(provider.groups[one] for one in listed if one in provider.groups)

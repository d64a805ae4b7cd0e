"""The claims of a verified ID token that are used: name, email address and groups."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from policy_service.errors import ForbiddenError
from policy_service.issuers import SignInProvider

log = structlog.get_logger(__name__)

MAX_LENGTHS = {"sub": 255, "name": 100, "email": 320, "group": 200}  # characters
_MAX_GROUPS = 500
_MAX_LISTED = 3  # refused entries, or groups, in one message
_MAX_LISTED_LENGTH = 60  # characters of a group in it


@dataclass(frozen=True, slots=True)
class ListedGroups:
    """The groups in a person's claims, in the provider's names, and why some or all are missing."""

    names: tuple[str, ...] = ()
    problem: str | None = None


def is_readable(text: str, what: str) -> bool:
    """Whether people can read it: within the length, printable, with at least one visible letter or digit."""
    fits = 0 < len(text) <= MAX_LENGTHS[what] and text.isprintable()
    return fits and any(character.isalnum() and not _is_blank(character) for character in text)


def _is_blank(character: str) -> bool:
    """An invisible letter: Unicode counts the Hangul fillers as letters."""
    return "FILLER" in unicodedata.name(character, "")


def verified_email(claims: Mapping[str, Any]) -> str | None:
    """The email address, if the provider has verified it; an unverified one is only a claim of the user."""
    email = claims.get("email")
    checked = claims.get("email_verified") is True
    return email if checked and isinstance(email, str) and is_readable(email, "email") else None


def display_name(claims: Mapping[str, Any], sub: str) -> str:
    """The first usable of these claims, else the subject."""
    for value in (claims.get("name"), claims.get("preferred_username"), verified_email(claims)):
        if isinstance(value, str) and is_readable(value, "name"):
            return value.strip()
    return sub[: MAX_LENGTHS["name"]]


def require_member(provider: SignInProvider, listed: ListedGroups) -> None:
    """Refuse a person in none of the groups that may sign in.

    Raises:
        ForbiddenError: they are in none, or their groups are unknown.
    """
    if not provider.members_of or set(listed.names) & set(provider.members_of):
        return
    because = "" if listed.problem is None else f": {listed.problem}"
    log.warning("sign_in_refused", provider=provider.name, why=f"in none of members_of{because}")
    raise ForbiddenError(
        f"{provider.title} knows you, but you are in none of the groups that may sign in here{because}"
    )


def listed_groups(
    provider: SignInProvider, sources: Sequence[Mapping[str, Any]], why_missing: str = ""
) -> ListedGroups:
    """The groups in the claim named by the settings. Each entry is accepted or refused on its own.

    Args:
        sources: claims, the most trusted first; the first that has the claim counts.
        why_missing: the known reason if none has it.
    """
    if (claim := provider.groups_claim) is None:
        return ListedGroups()
    found = next((value for one in sources if (value := claim_at(one, claim)) is not None), None)
    if found is None:
        problem = f"{provider.title} sent no claim {claim!r}{why_missing}"
        if any(_is_overage(one, claim) for one in sources):
            problem = (
                f"{provider.title} left your groups out because they are too many (overage); "
                "an operator assigns fewer of them to the application there"
            )
        return ListedGroups((), problem)
    if isinstance(found, str):
        found = [found]  # several providers send a single group as text; never split it
    if not isinstance(found, list):
        return ListedGroups(
            (), f"the claim {claim!r} of {provider.title} is {_kind(found)}, not a list of texts"
        )
    if not found:
        return ListedGroups((), f"{provider.title} lists no group for you")
    refused = {f"/{at}": why for at, one in enumerate(found) if (why := _unusable(one)) is not None}
    names = tuple(dict.fromkeys(one for one in found if _unusable(one) is None))
    return ListedGroups(names, _entries_refused(provider, refused, len(found)))


def effective_groups(
    provider: SignInProvider, listed: ListedGroups
) -> tuple[frozenset[str] | None, str | None]:
    """The listed groups in the bundle's names, and why some or all do not count, which is logged too.

    They are None if the settings take no groups from this provider.
    """
    if provider.groups_claim is None:
        return None, None
    names, problems = listed.names, [listed.problem]
    if provider.groups is not None:
        names = tuple(dict.fromkeys(provider.groups[one] for one in names if one in provider.groups))
        if listed.names and not names:
            problems.append(
                f"the settings' groups of {provider.title} hold none of those it lists for you: "
                f"{_join_limited([repr(one[:_MAX_LISTED_LENGTH]) for one in listed.names])}"
            )
    if len(names) > _MAX_GROUPS:
        problems.append(
            f"{provider.title} lists {len(names):,} groups for you; the first {_MAX_GROUPS} count"
        )
    problem = "; ".join(one for one in problems if one is not None) or None
    if problem is not None:
        log.warning("groups_not_usable", provider=provider.name, claim=provider.groups_claim, why=problem)
    return frozenset(names[:_MAX_GROUPS]), problem


def claim_at(claims: Mapping[str, Any], path: str) -> Any:
    """The claim of this name, or at this dotted path; a name that contains dots comes first."""
    if claims.get(path) is not None:
        return claims[path]
    dots = [at for at, character in enumerate(path) if character == "."]
    for at in reversed(dots):
        inner = claims.get(path[:at])
        found = claim_at(inner, path[at + 1 :]) if isinstance(inner, dict) else None
        if found is not None:
            return found
    return None


def _is_overage(claims: Mapping[str, Any], claim: str) -> bool:
    """Whether Entra left a claim out because of its size; its address is not fetched."""
    elsewhere = claims.get("_claim_names")
    return (isinstance(elsewhere, dict) and claim in elsewhere) or claims.get("hasgroups") in (True, "true")


def _unusable(one: object) -> str | None:
    """Why an entry is not a group name, or None."""
    if not isinstance(one, str):
        return f"is {_kind(one)}"
    if len(one) > MAX_LENGTHS["group"]:
        return f"is longer than {MAX_LENGTHS['group']} characters"
    return None if is_readable(one, "group") else "cannot be read"


def _kind(value: object) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), "null")


def _entries_refused(provider: SignInProvider, refused: Mapping[str, str], total: int) -> str | None:
    if not refused:
        return None
    entries = _join_limited([f"{pointer} {why}" for pointer, why in refused.items()])
    claim = provider.groups_claim
    return f"{len(refused):,} of {total:,} entries in {claim!r} of {provider.title} are left out: {entries}"


def _join_limited(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _MAX_LISTED:,} more" if len(texts) > _MAX_LISTED else ""
    return ", ".join(texts[:_MAX_LISTED]) + more

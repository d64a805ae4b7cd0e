"""Groups as a directory has them, by SCIM 2.0 (RFC 7644): the members of a few named groups, whole or not at all.

Rules kept here: a group is the one whose displayName is exactly the one asked for; two of them, half a list, or pages
that do not add up are no answer; a group that is gone has no members. A member is a user: one whose type is Group is
passed over, so somebody in a nested group is not counted. Where people are known by their externalId, only active users
that have one count. Everything is read anew at each look, within limits of pages, of members and of time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from countersign.contract import Limits
from policy_service.facts.calling import Place
from policy_service.facts.sql import SourceFailedError
from policy_service.lookups import DirectoryApi

PATIENCE_S: Final = 60.0  # for one look at everything
_ANSWER_S: Final = 10.0
# 100,000 members in one group
_LIMITS: Final = Limits(max_bytes=16_777_216, max_depth=16, max_nodes=1_000_000)
_PER_PAGE: Final = 200
_PAGES: Final = 2_000
_SUBJECT: Final = re.compile(r"[^\s]{1,512}\Z")


@dataclass(frozen=True)
class Read:
    """What one look found: the members by the directory's own name of the group, and what was passed over."""

    members: Mapping[str, frozenset[str]]
    missing: tuple[str, ...] = ()


async def read_groups(place: Place, names: frozenset[str]) -> Read:
    """Who is in these groups.

    Raises:
        SourceFailedError: the directory gave no whole answer.
    """
    setting = place.setting
    if not isinstance(setting, DirectoryApi):
        raise SourceFailedError("no directory is set")
    try:
        async with asyncio.timeout(PATIENCE_S):
            found = {name: await _group(place, name) for name in sorted(names)}
            subjects = await _external_ids(place) if "{externalId}" in setting.person and names else None
    except TimeoutError as error:
        raise SourceFailedError(f"reading all groups took longer than {PATIENCE_S:g} s") from error
    return Read(
        {name: _people(setting, ids or frozenset(), subjects) for name, ids in found.items()},
        tuple(name for name, ids in found.items() if ids is None),
    )


def _people(setting: DirectoryApi, ids: frozenset[str], subjects: Mapping[str, str] | None) -> frozenset[str]:
    issuer = setting.person.partition("|")[0]
    known = ids if subjects is None else {subjects[one] for one in ids if one in subjects}
    return frozenset(f"{issuer}|{subject}" for subject in known if _SUBJECT.match(subject))


async def _group(place: Place, name: str) -> frozenset[str] | None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    query = {"filter": f'displayName eq "{quoted}"'}
    same = [group async for group in _pages(place, "Groups", query) if group.get("displayName") == name]
    if len(same) > 1:
        raise SourceFailedError(f"it has {len(same)} groups called {name!r}; rename one, or nobody is in it")
    return _member_ids(same[0]) if same else None


def _member_ids(group: Mapping[str, Any]) -> frozenset[str]:
    members = group.get("members", [])
    if not isinstance(members, list):
        raise SourceFailedError("the members of a group are no list")
    return frozenset(
        str(each["value"])
        for each in members
        if isinstance(each, dict) and isinstance(each.get("value"), str) and each.get("type") != "Group"
    )


async def _external_ids(place: Place) -> dict[str, str]:
    """By the directory's id of a user, what it says that others know them by."""
    query = {"attributes": "id,externalId,active"}
    found: dict[str, str] = {}
    async for user in _pages(place, "Users", query):
        one, known_as = user.get("id"), user.get("externalId")
        if isinstance(one, str) and isinstance(known_as, str) and user.get("active", True) is True:
            found[one] = known_as
    return found


async def _pages(place: Place, kind: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
    """Every resource of a list, page after page."""
    start = 1
    for _ in range(_PAGES):
        asked = urlencode({**query, "startIndex": start, "count": _PER_PAGE})
        url = f"{place.setting.url.rstrip('/')}/{kind}?{asked}"
        answer = await place.ask("GET", url, limits=_LIMITS, seconds=_ANSWER_S)
        total, resources = _list(answer, start)
        for each in resources:
            yield each
        start += len(resources)
        if start > total:
            return
        if not resources:
            raise SourceFailedError(f"it says {total} {kind}, but ends after {start - 1}")
    raise SourceFailedError(f"its list of {kind} has more than {_PAGES} pages")


def _list(answer: Any, start: int) -> tuple[int, list[dict[str, Any]]]:
    """RFC 7644 section 3.4.2: `Resources` may be left out when there are none; `startIndex` says where we are."""
    if not isinstance(answer, dict) or type(answer.get("totalResults")) is not int:
        raise SourceFailedError("its answer is no SCIM list")
    resources = answer.get("Resources", [])
    if not isinstance(resources, list) or not all(isinstance(each, dict) for each in resources):
        raise SourceFailedError("the Resources of its list are no objects")
    if answer.get("startIndex", start) != start:
        raise SourceFailedError(f"it was asked for page {start} and answered with {answer['startIndex']!r}")
    return answer["totalResults"], resources

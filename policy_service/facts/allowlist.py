"""External hosts the service may read facts and groups from: the allowlist, and the directory as last read.

A bundle that reads a host outside the list does not load. A bundle chooses only names, never hosts or tokens. The
directory is read in the background, all of its groups or none. What was read expires: afterwards its groups are empty,
which is checked at each look-up and not by a timer.

Directory groups are read by SCIM 2.0 (RFC 7644). A group is the one whose displayName matches exactly. Two such
groups, half a list, or inconsistent pages are an error; a missing group has no members. A member of type Group is
skipped, so members of nested groups do not count. If people are identified by externalId, only active users with one
count. Everything is read anew each time, within limits of pages, members and time.
"""

from __future__ import annotations

import asyncio
import copy
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import structlog

from countersign.contract import Limits
from policy_service import metrics
from policy_service.errors import StartError
from policy_service.facts.readers import AllowedHost, SourceFailedError
from policy_service.health import Health
from policy_service.remote_hosts import DirectoryApi, FactsHost
from policy_service.settings import Settings

READ_TIMEOUT_S: Final = 60.0  # for all groups together
_ANSWER_S: Final = 10.0
# 100,000 members in one group
_LIMITS: Final = Limits(max_bytes=16_777_216, max_depth=16, max_nodes=1_000_000)
_PER_PAGE: Final = 200
_PAGES: Final = 2_000
_SUBJECT: Final = re.compile(r"[^\s]{1,512}\Z")


@dataclass(frozen=True)
class DirectoryMembers:
    """The members by the directory's name of the group, and the groups it lacks."""

    members: Mapping[str, frozenset[str]]
    missing: tuple[str, ...] = ()


async def read_groups(place: AllowedHost, names: frozenset[str]) -> DirectoryMembers:
    """Read the members of these groups.

    Raises:
        SourceFailedError: the directory gave no complete answer.
    """
    setting = place.setting
    if not isinstance(setting, DirectoryApi):
        raise SourceFailedError("no directory is set")
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            found = {name: await _group(place, name) for name in sorted(names)}
            subjects = await _external_ids(place) if "{externalId}" in setting.person and names else None
    except TimeoutError as error:
        raise SourceFailedError(f"reading all groups took longer than {READ_TIMEOUT_S:g} s") from error
    return DirectoryMembers(
        {name: _people(setting, ids or frozenset(), subjects) for name, ids in found.items()},
        tuple(name for name, ids in found.items() if ids is None),
    )


def _people(setting: DirectoryApi, ids: frozenset[str], subjects: Mapping[str, str] | None) -> frozenset[str]:
    issuer = setting.person.partition("|")[0]
    known = ids if subjects is None else {subjects[one] for one in ids if one in subjects}
    return frozenset(f"{issuer}|{subject}" for subject in known if _SUBJECT.match(subject))


async def _group(place: AllowedHost, name: str) -> frozenset[str] | None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    query = {"filter": f'displayName eq "{quoted}"'}
    same = [group async for group in _pages(place, "Groups", query) if group.get("displayName") == name]
    if len(same) > 1:
        raise SourceFailedError(
            f"it has {len(same)} groups called {name!r}; rename one; until then it has no members"
        )
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


async def _external_ids(place: AllowedHost) -> dict[str, str]:
    """From the directory's user id to its externalId."""
    query = {"attributes": "id,externalId,active"}
    found: dict[str, str] = {}
    async for user in _pages(place, "Users", query):
        one, known_as = user.get("id"), user.get("externalId")
        if isinstance(one, str) and isinstance(known_as, str) and user.get("active", True) is True:
            found[one] = known_as
    return found


async def _pages(place: AllowedHost, kind: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
    """Every resource of a list, page by page."""
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
    """RFC 7644 section 3.4.2: `Resources` may be missing if there are none; `startIndex` is the page's position."""
    if not isinstance(answer, dict) or type(answer.get("totalResults")) is not int:
        raise SourceFailedError("its answer is no SCIM list")
    resources = answer.get("Resources", [])
    if not isinstance(resources, list) or not all(isinstance(each, dict) for each in resources):
        raise SourceFailedError("the Resources of its list are no objects")
    if answer.get("startIndex", start) != start:
        raise SourceFailedError(f"it was asked for page {start} and answered with {answer['startIndex']!r}")
    return answer["totalResults"], resources


log = structlog.get_logger(__name__)

NO_MEMBERS: Final[Mapping[str, frozenset[str]]] = {}


class DirectoryReader:
    """The directory as last read. `members` is replaced as a whole, and only if it changed."""

    def __init__(
        self,
        place: AllowedHost,
        clock: Callable[[], datetime],
        max_age: timedelta,
        health: Health | None = None,
    ) -> None:
        self._place = place
        self._clock = clock
        self._max_age = max_age
        self._health = health
        self._one_at_a_time = asyncio.Lock()
        self.members: Mapping[str, frozenset[str]] = NO_MEMBERS
        self.read_at: datetime | None = None

    def fresh(self) -> bool:
        """Whether the members still count."""
        return (
            self.read_at is not None and timedelta(seconds=-5) <= self._clock() - self.read_at < self._max_age
        )

    def knows(self, names: frozenset[str]) -> bool:
        """Whether these groups were read and still count."""
        return self.fresh() and names <= self.members.keys()

    def not_asked(self) -> None:
        """No group is in the directory: clear its health finding."""
        self._report(None)

    async def read(self, names: frozenset[str]) -> None:
        """Read the groups of these directory names. On failure the previous members stay and get older."""
        async with self._one_at_a_time:
            began = self._clock()
            try:
                found = await read_groups(self._place, names)
            except SourceFailedError as error:
                log.warning("directory_unreadable", why=str(error))
                self._report("could not be read at the last attempt")
                return
            if dict(found.members) != dict(self.members):
                self.members = found.members
            self.read_at = began  # the answer may be as old as the request
            metrics.DIRECTORY_READ.labels(urlsplit(self._place.setting.url).netloc).set(began.timestamp())
            self._report(f"has no group called {found.missing[0]!r}" if found.missing else None)

    def _report(self, fault: str | None) -> None:
        if self._health is None:
            return
        late = "" if self.fresh() else "; its groups are empty until it is"
        self._health.say("groups", None if fault is None else f"the directory {fault}{late}")


class Allowlist:
    """The hosts one service may read. Shared by its bundles."""

    def __init__(
        self,
        hosts: Sequence[AllowedHost] = (),
        directory: DirectoryReader | None = None,
        health: Health | None = None,
    ) -> None:
        self._hosts = [
            (place.setting, place, asyncio.Semaphore(place.setting.at_once))
            for place in hosts
            if isinstance(place.setting, FactsHost)
        ]
        self.directory = directory
        self.health = health

    def without_health(self) -> Allowlist:
        """The same hosts without health reports, for a bundle in shadow."""
        other = copy.copy(self)
        other.health = None
        return other

    def host_for(self, url: str) -> tuple[AllowedHost, asyncio.Semaphore] | None:
        """The longest matching entry of the allowlist for an address; None if none matches."""
        covering = [each for each in self._hosts if each[0].covers(url)]
        if not covering:
            return None
        _, place, turns = max(covering, key=lambda each: len(each[0].url))
        return place, turns


def load_allowlist(
    settings: Settings,
    clock: Callable[[], datetime],
    health: Health | None,
    read_secret: Callable[[Path], bytes],
) -> Allowlist:
    """The hosts of the settings, each with its token.

    Raises:
        StartError: a token or a CA file is missing or malformed.
    """
    directory = None
    if settings.directory is not None:
        max_age = timedelta(seconds=settings.directory_max_age_s)
        directory = DirectoryReader(_allowed_host(settings.directory, read_secret), clock, max_age, health)
    return Allowlist([_allowed_host(host, read_secret) for host in settings.facts_http], directory, health)


def _allowed_host(found: FactsHost | DirectoryApi, read_secret: Callable[[Path], bytes]) -> AllowedHost:
    if found.ca_file is not None and not found.ca_file.is_file():
        raise StartError(
            f"{found.url}: ca_file names {str(found.ca_file)!r}, which is no file; name one that exists"
        )
    if found.token_file is not None:
        return AllowedHost(found, _token(found, read_secret(found.token_file).decode(errors="replace")))
    if found.token_env is not None:
        return AllowedHost(found, _token(found, os.environ.get(found.token_env, "")))
    return AllowedHost(found)


def _token(found: FactsHost | DirectoryApi, raw: str) -> str:
    token = raw.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        where = found.token_env or found.token_file
        raise StartError(
            f"{found.url}: the token in {where} is empty, or no token: write one line of plain ASCII"
        )
    return token

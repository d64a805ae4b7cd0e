"""What of the world outside this service may use for facts and groups: the allowlist, and the directory as last read.

Rules kept here: a bundle that asks a host which is not on the list does not load; the directory is read in the
background, all of its groups or none, and what was read counts only for a while: afterwards its groups are empty, which
is noticed at the moment of counting and not by a timer. Nothing here is a bundle's to say but the names.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import structlog

from policy_service import metrics
from policy_service.errors import StartError
from policy_service.facts.calling import Place
from policy_service.facts.scim import read_groups
from policy_service.facts.sql import SourceFailedError
from policy_service.health import Health
from policy_service.lookups import DirectoryApi, FactsHost
from policy_service.settings import Settings

log = structlog.get_logger(__name__)

NOBODY: Final[Mapping[str, frozenset[str]]] = {}


class DirectoryReader:
    """The directory as it was last read. `members` is replaced as a whole, and only when somebody came or went."""

    def __init__(
        self, place: Place, clock: Callable[[], datetime], max_age: timedelta, health: Health | None = None
    ) -> None:
        self._place = place
        self._clock = clock
        self._max_age = max_age
        self._health = health
        self._one_at_a_time = asyncio.Lock()
        self.members: Mapping[str, frozenset[str]] = NOBODY
        self.read_at: datetime | None = None

    def fresh(self) -> bool:
        """Whether what was read still counts."""
        return (
            self.read_at is not None and timedelta(seconds=-5) <= self._clock() - self.read_at < self._max_age
        )

    def knows(self, names: frozenset[str]) -> bool:
        """Whether these groups were read, and what was read still counts."""
        return self.fresh() and names <= self.members.keys()

    def not_asked(self) -> None:
        """No group is in the directory: whatever was wrong with it concerns nobody."""
        self._tell(None)

    async def read(self, names: frozenset[str]) -> None:
        """Read the groups with these names of the directory's. A failure leaves what there was, which gets older."""
        async with self._one_at_a_time:
            began = self._clock()
            try:
                found = await read_groups(self._place, names)
            except SourceFailedError as error:
                log.warning("directory_unreadable", why=str(error))
                self._tell("could not be read when it was last asked")
                return
            if dict(found.members) != dict(self.members):
                self.members = found.members
            self.read_at = began  # the answer is at least as old as the question
            metrics.DIRECTORY_READ.set(began.timestamp())
            self._tell(f"has no group called {found.missing[0]!r}" if found.missing else None)

    def _tell(self, fault: str | None) -> None:
        if self._health is None:
            return
        late = "" if self.fresh() else "; its groups are empty until it is"
        self._health.say("groups", None if fault is None else f"the directory {fault}{late}")


class Outside:
    """The places one service may ask. Shared by its bundles."""

    def __init__(
        self,
        hosts: Sequence[Place] = (),
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

    def untold(self) -> Outside:
        """The same places for a bundle whose failing sources are nobody's trouble: one in shadow."""
        other = copy.copy(self)
        other.health = None
        return other

    def place_for(self, url: str) -> tuple[Place, asyncio.Semaphore] | None:
        """The entry of the allowlist that covers an address, the longest of several; None when none does."""
        covering = [each for each in self._hosts if each[0].covers(url)]
        if not covering:
            return None
        _, place, turns = max(covering, key=lambda each: len(each[0].url))
        return place, turns


def outside_of(
    settings: Settings,
    clock: Callable[[], datetime],
    health: Health | None,
    read_secret: Callable[[Path], bytes],
) -> Outside:
    """The places the settings allow, each with the token this service is known by there.

    Raises:
        StartError: a token or a certificate's authority is not where the settings say.
    """
    directory = None
    if settings.directory is not None:
        max_age = timedelta(seconds=settings.directory_max_age_s)
        directory = DirectoryReader(_place(settings.directory, read_secret), clock, max_age, health)
    return Outside([_place(host, read_secret) for host in settings.facts_http], directory, health)


def _place(found: FactsHost | DirectoryApi, read_secret: Callable[[Path], bytes]) -> Place:
    if found.ca_file is not None and not found.ca_file.is_file():
        raise StartError(
            f"{found.url}: ca_file names {str(found.ca_file)!r}, which is no file; name one that exists"
        )
    if found.token_file is not None:
        return Place(found, _token(found, read_secret(found.token_file).decode(errors="replace")))
    if found.token_env is not None:
        return Place(found, _token(found, os.environ.get(found.token_env, "")))
    return Place(found)


def _token(found: FactsHost | DirectoryApi, raw: str) -> str:
    token = raw.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        where = found.token_env or found.token_file
        raise StartError(
            f"{found.url}: the token in {where} is empty, or no token: write one line of plain ASCII"
        )
    return token

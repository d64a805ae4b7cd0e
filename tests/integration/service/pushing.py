"""A service that follows a repository of the payments' rules, and what it says of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import Payments, plain_forbid
from tests.fakes.repository import Repository
from tests.fakes.world import World, running


class Rules:
    """A repository whose bundle is that of the payments."""

    def __init__(self, path: Path, **files: str) -> None:
        self.folder, self.repository = Payments(path), Repository(path)
        for name, content in files.items():
            self.folder.write(name, content)
        self.first = self.repository.commit("the first rules")

    def push(self, name: str = "stop") -> str:
        """A good commit with one rule more."""
        self.folder.write(f"{name}.cedar", plain_forbid(name))
        return self.repository.commit(name)

    def break_(self) -> str:
        """A commit that does not parse."""
        self.folder.write("broken.cedar", '// a comment\n@id("x") permit (principal,')
        return self.repository.commit("broken")


@asynccontextmanager
async def following(data: Path, rules: Rules, **more: Any) -> AsyncIterator[World]:
    """The service over that repository; it looks when a test says so."""
    given = {"policies_repository": str(rules.repository.path), "policies_poll_s": 3600, **more}
    async with running(data, data / "no-folder", **given) as world:
        yield world
        assert await world.service.db.read(faults_of_log) == []


def commit_of(world: World) -> str:
    """What is in force."""
    return world.service.active.current.commit


def finding(world: World) -> str:
    """What /readyz says about the bundle."""
    return "; ".join(one.wrong for one in world.service.health.findings() if one.check == "bundle")

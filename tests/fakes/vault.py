"""Copies of a database that is not in use, and databases brought back from them, on either engine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Self

from sqlalchemy import NullPool, create_engine, text
from typer.testing import CliRunner

from policy_service.cli import app
from tests.counterparts import postgres
from tests.fakes.world import Agent, World, running

REASON = ("restored", "--reason", "the disk died")


class Vault:
    """The database of one data folder. ``settings`` are those of the one in use now."""

    def __init__(self, data: Path, bundle: Path, server: str | None, stack: ExitStack) -> None:
        self.data, self.bundle = data, bundle
        self._server, self._stack = server, stack
        self._saved = 0
        self.settings: dict[str, str] = {}

    @classmethod
    @contextmanager
    def opened(cls, data: Path, bundle: Path, server: str | None, template: str | None) -> Iterator[Self]:
        """A vault for the data folder; with a server its database lies there."""
        with ExitStack() as stack:
            vault = cls(data, bundle, server, stack)
            if server is not None:
                vault.settings = {"database_url": vault._database(template or "template1")}
            yield vault

    @property
    def env(self) -> dict[str, str]:
        """What an operator's shell exports."""
        env = {"COUNTERSIGN_DATA_DIR": str(self.data), "COUNTERSIGN_BUNDLE_DIR": str(self.bundle)}
        if "database_url" in self.settings:
            env["COUNTERSIGN_DATABASE_URL"] = self.settings["database_url"]
        return env

    def save(self) -> str:
        """A copy of the database as it is; what it is called."""
        if self._server is not None:
            return self._name(self._database(self._name(self.settings["database_url"])))
        self._saved += 1
        copy = self.data.parent / f"copy-{self._saved}.db"
        shutil.copyfile(self.data / "countersign.db", copy)
        return str(copy)

    def bring_back(self, copy: str) -> None:
        """Put a copy in the place of the database."""
        if self._server is not None:
            self.settings = {"database_url": self._database(copy)}
            return
        for file in self.data.glob("countersign.db*"):
            file.unlink()
        shutil.copyfile(copy, self.data / "countersign.db")

    def replace(self, name: str, copy: str) -> None:
        """Put a copy in the place of a database that is in use: the server breaks every connection to it."""
        assert self._server is not None
        admin = create_engine(self._server, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with admin.connect() as conn:
            conn.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
            conn.execute(text(f"CREATE DATABASE {name} TEMPLATE {copy}"))

    def verb(self, *args: str) -> tuple[int, str]:
        """One verb of the command line: how it ended and what it said."""
        result = CliRunner().invoke(app, list(args), env=self.env)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output.strip()

    def _database(self, template: str) -> str:
        assert self._server is not None
        return self._stack.enter_context(postgres.database(self._server, template))

    def _name(self, url: str) -> str:
        return url.rpartition("/")[2]


def serving(vault: Vault) -> AbstractAsyncContextManager[World]:
    """The service on it."""
    return running(vault.data, vault.bundle, **vault.settings)


def at(world: World, who: Agent) -> Agent:
    """An agent of before, at another service's door."""
    return Agent(who.name, who.key, world.http, world.clock)


async def tasks(world: World) -> list[tuple[str, str]]:
    """The open tasks: kind and effect."""
    maya = await world.person("maya")
    found = (await maya.get("/v1/tasks")).json()["tasks"]
    return sorted((task["kind"], task["effect_id"]) for task in found)

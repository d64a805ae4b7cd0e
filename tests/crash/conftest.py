"""Stories on both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.counterparts import postgres
from tests.crash.story import Story
from tests.unit.storage.databases import migrated_template, postgres_server, sqlite_url

__all__ = ["migrated_template", "postgres_server", "sqlite_url"]

STORIES = [
    pytest.mark.timeout(600),  # a busy machine; nothing here is timed
    # a client that connects to somebody who has just been killed leaves its socket to the collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
Stories = Callable[..., Story]


@pytest.fixture
def stories(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stories]:
    """Makes stories, each in a folder and a database of its own, and ends what still runs."""
    with ExitStack() as stack:
        made = 0

        def make(engine: str, **given: Any) -> Story:
            nonlocal made
            made += 1
            folder = tmp_path / str(made)
            folder.mkdir()
            if engine == "postgresql":
                template = request.getfixturevalue("migrated_template")
                server = request.getfixturevalue("postgres_server")
                given["database_url"] = stack.enter_context(postgres.database(server, template))
            return stack.enter_context(Story(folder, **given))

        yield make

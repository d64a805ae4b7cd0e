"""An agent that writes files beside a refund is killed on either side of the redemption, before the real service."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from countersign import Runtime, Settings, resume, tool, transaction
from countersign.adapters.files import FilesAdapter
from countersign.adapters.redo import Work
from countersign.live.work import LiveWork
from countersign.service.client import Service
from tests.crash.forking import forked
from tests.fakes.desk import notes_database
from tests.integration.sdk.conftest import Tools

SECONDS = 60


class Told(Tools):
    """Tools whose acts other processes can read."""

    def act(self, *what: Any) -> None:
        with (self.notes.parent / "world.log").open("a") as world:
            world.write(" ".join(map(str, what)) + "\n")


@dataclass(frozen=True)
class Life:
    """One agent process, and where it dies."""

    folder: Path
    settings: Settings
    key: str
    dies: str = ""

    def tools(self) -> tuple[Told, Callable[[str, str], None]]:
        tools = Told(self.folder / "notes.db")
        files = FilesAdapter(self.folder / "files", name="files")

        @tool("save", lane="live", adapter=files, registry=tools.registry)
        def save(path: str, text: str) -> None:
            """Write a file, and say in another that it was written."""
            files.write(path, text)
            files.write("log/last", path)

        return tools, save


def kill(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: type, name: str) -> None:
    setattr(owner, name, kill)


def _after(owner: type, name: str) -> None:
    act = getattr(owner, name)

    async def acting(*args: Any) -> Any:
        await act(*args)
        kill()

    setattr(owner, name, acting)


def _at_second_file() -> None:
    apply = Work._apply

    def acting(self: Work, number: int, op: Any) -> None:
        if number == 1:
            kill()
        apply(self, number, op)

    Work._apply = acting  # type: ignore[method-assign]


DEATHS: dict[str, Callable[[], None]] = {
    "in the body": lambda: _before(Service, "submit"),
    "prepared, not redeemed": lambda: _before(Service, "redeem"),
    "redeemed, and nobody was told": lambda: _after(Service, "redeem"),
    "fired, not committed": lambda: _before(LiveWork, "commit"),
    "half committed": _at_second_file,
}


def run(life: Life) -> None:
    """The child."""
    DEATHS[life.dies]()
    tools, save = life.tools()
    with Runtime(life.settings, registry=tools.registry) as runtime, transaction(life.key, runtime=runtime):
        save("state", "new")
        tools.refund("o-1", 100)


def tree(folder: Path) -> dict[str, str]:
    root = folder / "files"
    found = (path for path in root.rglob("*") if path.is_file() and ".countersign" not in path.parts)
    return {str(path.relative_to(root)): path.read_text() for path in found}


def world(folder: Path) -> list[str]:
    path = folder / "world.log"
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def life(enrolled: Settings, tmp_path: Path, key: str) -> Life:
    notes_database(tmp_path)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "state").write_text("old")
    settings = replace(enrolled, journal_path=tmp_path / "journal.db", retry_base_seconds=0.01)
    return Life(tmp_path, settings, key)


def killed(life: Life) -> None:
    process = forked(run, life)
    process.join(SECONDS)
    assert process.exitcode == -signal.SIGKILL
    process.close()


def resumed(life: Life) -> list[str]:
    tools, _ = life.tools()
    with Runtime(life.settings, registry=tools.registry) as runtime:
        return [one.after for one in resume(runtime)]


@pytest.mark.parametrize(
    "dies", [pytest.param("in the body", marks=pytest.mark.long), "prepared, not redeemed"]
)
def test_killed_before_the_redemption_the_files_are_as_before(life: Life, dies: str) -> None:
    killed(replace(life, dies=dies))
    assert tree(life.folder) == {"state": "old"}
    assert [resumed(life), resumed(life)] == [["ended"], []]
    assert (tree(life.folder), world(life.folder)) == ({"state": "old"}, [])
    assert list((life.folder / "files" / ".countersign" / "sessions").iterdir()) == []


@pytest.mark.parametrize(
    "dies",
    [
        pytest.param("redeemed, and nobody was told", marks=pytest.mark.long),
        "fired, not committed",
        pytest.param("half committed", marks=pytest.mark.long),
    ],
)
def test_killed_after_the_redemption_what_was_prepared_is_finished(life: Life, dies: str) -> None:
    killed(replace(life, dies=dies))
    assert [resumed(life), resumed(life)] == [["settled"], []]
    assert tree(life.folder) == {"state": "new", "log/last": "state"}
    assert world(life.folder) == ["refund o-1 100"]
    assert list((life.folder / "files" / ".countersign" / "sessions").iterdir()) == []

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

SECONDS, OLD = 60, {"state": "old"}


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


def before(owner: type, name: str) -> Callable[[], None]:
    return lambda: setattr(owner, name, kill)


def after_redemption() -> None:
    redeem = Service.redeem

    async def acting(*args: Any) -> Any:
        await redeem(*args)
        kill()

    Service.redeem = acting  # type: ignore[assignment]


def at_second_file() -> None:
    apply = Work._apply

    def acting(self: Work, number: int, op: Any) -> None:
        if number == 1:
            kill()
        apply(self, number, op)

    Work._apply = acting  # type: ignore[method-assign]


DEATHS: dict[str, Callable[[], None]] = {
    "in the body": before(Service, "submit"),
    "prepared, not redeemed": before(Service, "redeem"),
    "redeemed, and nobody was told": after_redemption,
    "fired, not committed": before(LiveWork, "commit"),
    "half committed": at_second_file,
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


def killed_and_resumed(life: Life, dies: str, after: list[str]) -> None:
    """It dies there; the next round ends like this, and the one after it finds nothing."""
    process = forked(run, replace(life, dies=dies))
    process.join(SECONDS)
    assert process.exitcode == -signal.SIGKILL
    process.close()
    if after == ["ended"]:
        assert tree(life.folder) == OLD
    for expected in (after, []):
        tools, _ = life.tools()
        with Runtime(life.settings, registry=tools.registry) as runtime:
            assert [one.after for one in resume(runtime)] == expected
    assert list((life.folder / "files" / ".countersign" / "sessions").iterdir()) == []


LONG = pytest.mark.long


@pytest.mark.parametrize("dies", [pytest.param("in the body", marks=LONG), "prepared, not redeemed"])
def test_killed_before_the_redemption_the_files_are_as_before(life: Life, dies: str) -> None:
    killed_and_resumed(life, dies, ["ended"])
    assert (tree(life.folder), world(life.folder)) == (OLD, [])


@pytest.mark.parametrize(
    "dies",
    [
        pytest.param("redeemed, and nobody was told", marks=LONG),
        "fired, not committed",
        pytest.param("half committed", marks=LONG),
    ],
)
def test_killed_after_the_redemption_what_was_prepared_is_finished(life: Life, dies: str) -> None:
    killed_and_resumed(life, dies, ["settled"])
    assert tree(life.folder) == {"state": "new", "log/last": "state"}
    assert world(life.folder) == ["refund o-1 100"]

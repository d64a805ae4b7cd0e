"""A process that archives what is settled, forty days later, and ends by SIGKILL at one step.

``python -m tests.fakes.archiving STEP DATA BUNDLE``. Without a step it ends by itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from policy_service.storage import archive_files
from policy_service.workflow.expiry import archive
from tests.conventions.repository import ROOT
from tests.fakes.world import Clock, running

DAYS = 40


def die(*_: object, **__: object) -> Any:
    """End as by a power cut of this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def _then_die(act: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: (act(*given), die())


def _in_the_middle(folder: Path, name: str, lines: Sequence[bytes]) -> None:
    folder.mkdir(mode=0o700)
    (folder / name).write_bytes(lines[0][: len(lines[0]) // 2])
    die()


STEPS: dict[str, Callable[[], None]] = {
    "before the lease": lambda: setattr(archive, "acquire_lease", die),
    "before the file": lambda: setattr(archive, "append_lines", die),
    "in the middle of the line": lambda: setattr(archive, "append_lines", _in_the_middle),
    "before the sync": lambda: setattr(archive_files, "os", SimpleNamespace(**vars(os) | {"fsync": die})),
    "after the sync": lambda: setattr(archive, "append_lines", _then_die(archive_files.append_lines)),
    "before the commit": lambda: setattr(archive, "_move", _then_die(archive._move)),
    "after the commit": lambda: setattr(archive, "_archive_page", _committed),
}
_page = archive._archive_page


async def _committed(*given: Any) -> int:
    await _page(*given)
    die()
    return 0


def archived(data: Path, bundle: Path, step: str = "") -> int:
    """How such a process ended; its lines are in the archive of that data folder."""
    command = [sys.executable, "-m", __name__, step, str(data), str(bundle)]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "sdk/python")])
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, timeout=120, check=False
    )
    return done.returncode


async def _main(data: Path, bundle: Path) -> None:
    clock = Clock()
    clock.pass_(days=DAYS)
    async with running(data, bundle, clock=clock, archive_after_days=DAYS - 1) as world:
        await archive.Archiver(world.service.ctx, "test").run()


if __name__ == "__main__":
    if sys.argv[1]:
        STEPS[sys.argv[1]]()
    asyncio.run(_main(Path(sys.argv[2]), Path(sys.argv[3])))

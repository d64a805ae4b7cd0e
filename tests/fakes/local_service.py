"""The service of the examples, forked from a process that has imported it."""

from __future__ import annotations

import subprocess
from typing import BinaryIO

from examples.local_service import PROGRAM, LocalService
from tests.fakes import warm


class WarmService(LocalService):
    """`policy-service` as the examples run it; it starts in a tenth of the time."""

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return warm.run([*PROGRAM, *words], cwd=warm.REPOSITORY, env=self._environment)

    def _start(self, log: BinaryIO) -> warm.Process | subprocess.Popen[bytes]:  # type: ignore[override]
        return warm.start(
            [*PROGRAM, "serve"],
            cwd=warm.REPOSITORY,
            env=self._environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

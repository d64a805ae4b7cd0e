"""The errors of replays; see the tree in errors/ of the package.

Unlike the others a divergence quotes arguments, for whoever replays a step has them at hand; secrets are hidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from countersign.errors import CountersignError, MisuseError

if TYPE_CHECKING:
    from countersign.rehearsal.divergences import Divergence


class NotRecorded(MisuseError):
    """A reconstruction needs an answer that the record does not hold: what a live call returned."""

    code = "not_recorded"


class ReplayDiverged(CountersignError):
    """A replayed step does not do what was recorded of it."""

    code = "replay_diverged"

    def __init__(self, key: str, divergences: tuple[Divergence, ...]) -> None:
        self.key, self.divergences = key, divergences
        told = "; ".join(map(str, divergences))
        super().__init__(
            f"the replay of {key!r} differs from what was recorded: {told}. Mend the step; if it is meant to differ, "
            "run it under another key and replay that"
        )

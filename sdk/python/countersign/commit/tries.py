"""When a call is made once more: of an idempotent tool with the same call key, and of one that was not called at all
because its process stood still until its time was over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from countersign.backoff import backoff
from countersign.commit.plan import PlannedCall
from countersign.commit.raised import beside_earlier, describe_error, says_not_done
from countersign.commit.renewing import PermitRefused, TimeToFire, TooLateError
from countersign.engine import Engine
from countersign.errors import NotDone
from countersign.tools.unfinished import UnfinishedError

_LONGEST_PAUSE: Final = 30.0  # seconds; live effects hold their locks meanwhile
_MOST_LATE: Final = 3  # times that a run gives more time to calls that came too late


def is_last_word(call: PlannedCall, error: BaseException) -> bool:
    """Whether it says that nothing happened, and no other try follows that could say otherwise."""
    if isinstance(error, TooLateError) or not says_not_done(call, error):
        return False
    return isinstance(error, NotDone) or not call.manifest.idempotent


class Tries:
    """How the calls of one run ended that did not fire, and how often they are given time."""

    def __init__(self, engine: Engine, time: TimeToFire) -> None:
        self._engine = engine
        self._time = time
        self._ended: dict[str, list[Exception]] = {}
        self._cut_off: set[str] = set()  # by an earlier run, of which nobody knows how its try ended
        self._late = 0

    def were_cut_off(self, effect_ids: Collection[str]) -> None:
        """An earlier run had begun these and did not write how they ended."""
        self._cut_off.update(effect_ids)

    def note(self, call: PlannedCall, error: Exception) -> None:
        """One try was made, and ended so."""
        self._ended.setdefault(call.effect.effect_id, []).append(error)

    def last(self, call: PlannedCall) -> Exception | None:
        """How the last try of it ended; None where there was none."""
        tries = self._ended.get(call.effect.effect_id)
        return tries[-1] if tries else None

    def told(self, call: PlannedCall, error: BaseException) -> str:
        """What people get to read of a try that ended so; where it knows that nothing happened, also of the one before
        it that does not: that one is why nobody knows.
        """
        told = describe_error(call, error)
        if not says_not_done(call, error):
            return told
        tries = self._ended.get(call.effect.effect_id, [])
        doubtful = next((one for one in reversed(tries) if not says_not_done(call, one)), None)
        if doubtful is not None:
            return beside_earlier(told, f"raised {describe_error(call, doubtful)}")
        return beside_earlier(told, "was cut off") if call.effect.effect_id in self._cut_off else told

    def may_go_on(self, call: PlannedCall, error: Exception) -> bool:
        """Whether an idempotent tool may be called once more with the same call key (I-3)."""
        if not call.manifest.idempotent or isinstance(error, NotDone | UnfinishedError):
            return False  # NotDone is the tool's last word, and a tool that returns work does so every time
        most = call.tool.tries or self._engine.settings.idempotent_tries
        return len(self._ended[call.effect.effect_id]) < most

    async def more_time(
        self, again: Sequence[PlannedCall], late: Sequence[PlannedCall], after: Sequence[PlannedCall]
    ) -> PermitRefused | None:
        """Time for those that may go on and for those that came too late; or why there is none."""
        self._late += bool(late)
        if self._late > _MOST_LATE:
            return PermitRefused(f"its time to fire was over before it was called, {self._late} times")
        if again:
            tried = max(len(self._ended[call.effect.effect_id]) for call in again)
            pause = backoff(self._engine.settings.retry_base_seconds, tried, _LONGEST_PAUSE)
            await self._engine.waits.sleep(pause)
        try:
            await self._time.take([*again, *late], after)
        except PermitRefused as refused:
            return refused
        return None

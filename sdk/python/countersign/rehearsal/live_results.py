"""Whether the live calls of a replay returned what they returned then.

Rules: the same call is meant, by its call key; results are equal where their canonical bytes are, or what the tool's
return annotation makes of them. What cannot be compared is said, never passed over: a record from before the SDK kept
results, one that JSON does not hold or that is too large, one that an export hides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from countersign.contract.admission import load
from countersign.journal.sealing import HIDDEN
from countersign.rehearsal.divergences import Divergence, differing_members
from countersign.rehearsal.recorded import RecordedCall
from countersign.tools.registry import ToolRegistry

_NULL: Final = b"null"
_SHOWN: Final = 200  # characters of one result in a sentence; all of it is beside it


@dataclass(frozen=True, slots=True)
class Returned:
    """One live call of the replay, and its result as canonical bytes; None where JSON does not hold it."""

    call_key: str
    result: bytes | None = field(repr=False)


class LiveResults:
    """Compares the results of one replay. `hides`: something of it is secret, so no result is told."""

    def __init__(self, registry: ToolRegistry, *, hides: bool) -> None:
        self._registry = registry
        self._hides = hides
        self.unchecked: list[str] = []

    def differing(self, recorded: Sequence[RecordedCall], now: Iterable[Returned]) -> Iterator[Divergence]:
        """Every difference; `unchecked` says afterwards what was not compared, and why."""
        then = {call.call_key: call for call in recorded}
        for position, one in enumerate(now, start=1):
            if (call := then.get(one.call_key)) is not None:
                yield from self._differing(position, call, one.result)

    def _differing(self, position: int, call: RecordedCall, now: bytes | None) -> Iterator[Divergence]:
        known = call.known_result
        if known is not None:
            if not self._equal(call.tool, known.encode(), now):
                yield self._divergence(position, call, known, now)
        elif call.result is None and now is not None and self._answers_nothing(call.tool, now):
            return
        else:
            why = "was not recorded" if call.result is None else "is hidden in the export"
            self.unchecked.append(
                f"{call.lane} call {position} of {call.tool}: its result {why}, so it is not compared"
            )

    def _equal(self, name: str, then: bytes, now: bytes | None) -> bool:
        if then == now:
            return True
        tool = self._registry.get(name)
        if tool is None or now is None:
            return False
        if tool.signature.load_result(then) == load(then):
            return False  # plain JSON, of which its bytes tell more: 1 is no true
        return tool.signature.loses_result(tool.signature.load_result(now), then) is None

    def _answers_nothing(self, name: str, now: bytes) -> bool:
        tool = self._registry.get(name)
        return now == _NULL and tool is not None and tool.signature.answers_nothing

    def _divergence(self, position: int, call: RecordedCall, known: str, now: bytes | None) -> Divergence:
        has = None if now is None else now.decode()
        if self._hides:
            known, has, told = HIDDEN, HIDDEN, "its result is another, and is hidden"
        elif has is None:
            told = f"its result was {_short(known)} and is nothing that JSON could hold"
        else:
            told = _told(known, has)
        return Divergence("result", call.lane, position, call.tool, known, has, f"of {call.tool}: {told}")


def _told(then: str, now: str) -> str:
    before, after = orjson.loads(then), orjson.loads(now)
    if isinstance(before, dict) and isinstance(after, dict):
        return f"in its result {_short(differing_members(before, after))}"
    return f"its result was {_short(then)} and is {_short(now)}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."

"""What a replay answers: what became of every recorded call, typed, and how the step differs from the record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from countersign.contract.admission import load
from countersign.journal.telling import visible
from countersign.rehearsal.divergences import Divergence, ReplayDiverged
from countersign.rehearsal.recorded import RecordedCall
from countersign.tools.registry import ToolRegistry


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """One recorded call. `result` is typed as its tool says it returns; `recorded` is that as the journal shows it.
    Where it is hidden there, `result` is what the journal's key opens, and `is_known` says whether it did.
    """

    lane: str
    position: int
    tool: str
    effect_id: str
    args: str
    outcome: str
    result: Any = field(repr=False)
    recorded: str | None
    error: str | None
    misfit: Divergence | None = None
    is_known: bool = True

    @classmethod
    def of(cls, call: RecordedCall, registry: ToolRegistry) -> ReplayedCall:
        """The call with its result; where the tool is not here any more, as plain JSON."""
        result, misfit = None, None
        told = call.known_result
        if told is not None:
            result, misfit = _typed(call, told.encode(), registry)
        return cls(
            call.lane,
            call.seq,
            call.tool,
            call.effect_id,
            call.args,
            call.state,
            result,
            call.result,
            call.error,
            misfit,
            is_known=told is not None or call.result is None,
        )


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """One replay. `value` is what the step returned; its placeholders hold the recorded results. `unchecked` says what
    nobody could compare, or vouch for, in sentences.
    """

    key: str
    mode: Literal["verify", "reconstruct"]
    outcomes: tuple[ReplayedCall, ...]
    divergences: tuple[Divergence, ...]
    value: Any
    unchecked: tuple[str, ...] = ()

    @property
    def status(self) -> Literal["same", "diverged"]:
        """Whether the step did what was recorded, as far as that could be compared: see `unchecked`."""
        return "diverged" if self.divergences else "same"

    def raise_on_divergence(self) -> None:
        """For tests of an agent.

        Raises:
            ReplayDiverged: naming every difference.
        """
        if self.divergences:
            raise ReplayDiverged(self.key, self.divergences)

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "key": self.key,
            "mode": self.mode,
            "status": self.status,
            "outcomes": [
                {
                    "lane": one.lane,
                    "position": one.position,
                    "tool": one.tool,
                    "effect_id": one.effect_id,
                    "args": one.args,
                    "outcome": one.outcome,
                    "result": one.recorded,
                    "error": one.error,
                }
                for one in self.outcomes
            ],
            "divergences": [
                {
                    "kind": one.kind,
                    "lane": one.lane,
                    "position": one.position,
                    "tool": one.tool,
                    "recorded": one.recorded,
                    "now": one.now,
                    "text": str(one),
                }
                for one in self.divergences
            ],
            "unchecked": list(self.unchecked),
        }

    def __str__(self) -> str:
        return "\n".join(visible(line) for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"replay of {self.key!r}: {self.status}; nothing fired"
        for one in self.outcomes:
            result = f": {one.recorded}" if one.recorded is not None else ""
            yield f"  {one.lane} {one.position}  {one.tool} {one.args}: {one.outcome}{result}"
        for divergence in self.divergences:
            yield f"  differs: {divergence}"
        for told in self.unchecked:
            yield f"  unchecked: {told}"


def _typed(call: RecordedCall, raw: bytes, registry: ToolRegistry) -> tuple[Any, Divergence | None]:
    tool = registry.get(call.tool)
    if tool is None:
        return load(raw), None
    if tool.signature.result_fits(raw):
        return tool.signature.load_result(raw), None
    text = f"of {call.tool}: its recorded result is not of the type that the tool says it returns now"
    return load(raw), Divergence("result", call.lane, call.seq, call.tool, call.args, None, text)

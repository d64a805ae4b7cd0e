"""The result of a replay: each recorded call, and how the step differs from the recording.

Calls are compared by call key, which binds tool, arguments and repeats, within each lane: a journal does not record how
staged and live calls interleaved. Results of live calls are equal if their canonical bytes are, or the values that the
tool's return annotation makes of them. What cannot be compared is reported. Unlike other errors a divergence quotes
arguments; secrets are hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from typing import Any, Final, Literal

import orjson

from countersign.contract.admission import load
from countersign.contract.pointers import pointer_to
from countersign.errors import CountersignError, MisuseError
from countersign.journal.export import escape_unprintable, without_secrets
from countersign.journal.shown import HIDDEN
from countersign.simulation.recording import RecordedCall
from countersign.tools.registry import ToolRegistry

Kind = Literal["changed", "missing", "extra", "result", "raised"]
_ABSENT: Final = "absent"


@dataclass(frozen=True, slots=True)
class ReplayCall:
    """One call of the replay."""

    tool: str
    call_key: str
    args: bytes = field(repr=False)
    secrets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Divergence:
    """One difference. `position` counts the calls of the lane from 1; `recorded` and `now` are arguments as text, or
    results.
    """

    kind: Kind
    lane: str
    position: int
    tool: str
    recorded: str | None
    now: str | None
    text: str

    def __str__(self) -> str:
        place = "" if self.kind == "raised" else f"{self.lane} call {self.position} "
        return escape_unprintable(f"{place}{self.text}")


def compare_calls(
    lane: str, recorded: Sequence[RecordedCall], now: Sequence[ReplayCall]
) -> Iterator[Divergence]:
    """Every difference between two lists of calls."""
    old_keys, new_keys = [one.call_key for one in recorded], [one.call_key for one in now]
    for kind, a, b, c, d in SequenceMatcher(None, old_keys, new_keys, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        paired = min(b - a, d - c)
        for step in range(paired):
            yield _changed(lane, c + step + 1, recorded[a + step], now[c + step])
        for position in range(a + paired, b):
            yield _missing(lane, position + 1, recorded[position])
        for position in range(c + paired, d):
            yield _extra(lane, position + 1, now[position])


def _changed(lane: str, position: int, old: RecordedCall, one: ReplayCall) -> Divergence:
    shown = _shown(one, old)
    if old.tool != one.tool:
        text = f"was {old.tool} {old.recorded_args} and is now {one.tool} {shown}"
    else:
        text = f"of {one.tool}: {_differing(old.recorded_args, shown)}"
    return Divergence("changed", lane, position, one.tool, old.recorded_args, shown, text)


def _missing(lane: str, position: int, old: RecordedCall) -> Divergence:
    text = f"is missing: {old.tool} {old.recorded_args} was recorded and is not called now"
    return Divergence("missing", lane, position, old.tool, old.recorded_args, None, text)


def _extra(lane: str, position: int, one: ReplayCall) -> Divergence:
    shown = _shown(one, None)
    text = f"is new: {one.tool} {shown} is called now and was not recorded"
    return Divergence("extra", lane, position, one.tool, None, shown, text)


def _differing(old: str, now: str) -> str:
    """The arguments that differ, by name. If the difference is hidden, the text says so."""
    before, after = orjson.loads(old), orjson.loads(now)
    if not isinstance(before, dict) or not isinstance(after, dict):
        return f"was called with {old} and is now called with {now}"
    message = differing_members(before, after)
    return message or "it differs in an argument that is hidden, or in how often it was meant"


def differing_members(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """The members that differ between two objects, by name, and how; empty if none does."""
    return ", ".join(
        f"{name} was {_value(before, name)} and is {_value(after, name)}"
        for name in sorted({*before, *after})
        if _value(before, name) != _value(after, name)
    )


def _value(args: Mapping[str, object], name: str) -> str:
    return orjson.dumps(args[name]).decode() if name in args else _ABSENT


def _shown(one: ReplayCall, old: RecordedCall | None) -> str:
    """The current arguments, without what the code or the recording of the same call hides."""
    hidden = () if old is None else tuple(_hidden(orjson.loads(old.recorded_args), ""))
    if "" in hidden:
        return orjson.dumps(HIDDEN).decode()
    return orjson.dumps(without_secrets(orjson.loads(one.args), (*one.secrets, *hidden))).decode()


def _hidden(value: object, at: str) -> Iterator[str]:
    if value == HIDDEN:
        yield at
    elif isinstance(value, dict):
        for name, child in value.items():
            yield from _hidden(child, f"{at}{pointer_to(str(name))}")
    elif isinstance(value, list):
        for position, child in enumerate(value):
            yield from _hidden(child, f"{at}/{position}")


def require_mode(mode: str) -> None:
    """Refuse an unknown mode.

    Raises:
        MisuseError: it is neither 'verify' nor 'reconstruct'.
    """
    if mode not in {"verify", "reconstruct"}:
        raise MisuseError(f"there is no mode {mode!r}; write 'verify' or 'reconstruct'")


class NotRecorded(MisuseError):
    """A reconstruction needs the result of a live call that was not recorded."""

    code = "not_recorded"


class ReplayDiverged(CountersignError):
    """A replayed step differs from its recording."""

    code = "replay_diverged"

    def __init__(self, key: str, divergences: tuple[Divergence, ...]) -> None:
        self.key, self.divergences = key, divergences
        message = "; ".join(map(str, divergences))
        super().__init__(
            f"the replay of {key!r} differs from what was recorded: {message}. Fix the step. If the difference is "
            "intended, run it under another key and replay that"
        )


_NULL: Final = b"null"
_OUTCOME_MEMBERS: Final = ("lane", "position", "tool", "effect_id", "args", "outcome")
_SHOWN: Final = 200  # characters of one result in a sentence; `recorded` and `now` have all of it


@dataclass(frozen=True, slots=True)
class ReturnedResult:
    """One live call of the replay with its result as canonical bytes; None if it is no JSON."""

    call_key: str
    result: bytes | None = field(repr=False)


class LiveResults:
    """Compares the results of one replay. `hides`: the recording has secrets, so no result is shown."""

    def __init__(self, registry: ToolRegistry, *, hides: bool) -> None:
        self._registry = registry
        self._hides = hides
        self.unchecked: list[str] = []

    def differing(
        self, recorded: Sequence[RecordedCall], now: Iterable[ReturnedResult]
    ) -> Iterator[Divergence]:
        """Every difference; afterwards `unchecked` lists what was not compared, and why."""
        old = {call.call_key: call for call in recorded}
        for position, one in enumerate(now, start=1):
            if (call := old.get(one.call_key)) is not None:
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

    def _equal(self, name: str, old: bytes, now: bytes | None) -> bool:
        if old == now:
            return True
        tool = self._registry.get(name)
        if tool is None or now is None:
            return False
        if tool.signature.result.load(old) == load(old):
            return False  # plain JSON, whose bytes are stricter: 1 is not true
        return tool.signature.result.loses(tool.signature.result.load(now), old) is None

    def _answers_nothing(self, name: str, now: bytes) -> bool:
        tool = self._registry.get(name)
        return now == _NULL and tool is not None and tool.signature.answers_nothing

    def _divergence(self, position: int, call: RecordedCall, known: str, now: bytes | None) -> Divergence:
        has = None if now is None else now.decode()
        if self._hides:
            known, has, message = HIDDEN, HIDDEN, "its result is another, and is hidden"
        elif has is None:
            message = f"its result was {_short(known)} and is no JSON now"
        else:
            message = _difference_text(known, has)
        return Divergence("result", call.lane, position, call.tool, known, has, f"of {call.tool}: {message}")


def _difference_text(old: str, now: str) -> str:
    before, after = orjson.loads(old), orjson.loads(now)
    if isinstance(before, dict) and isinstance(after, dict):
        return f"in its result {_short(differing_members(before, after))}"
    return f"its result was {_short(old)} and is {_short(now)}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """One recorded call. `result` has the tool's return type; `recorded` is the text the journal shows. If that is
    hidden, `result` is unsealed with the journal's key, and `is_known` is False if that failed.
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
        """The call with its result; as plain JSON if the tool is not registered any more."""
        result, misfit = None, None
        message = call.known_result
        if message is not None:
            result, misfit = _typed(call, message.encode(), registry)
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
            is_known=message is not None or call.result is None,
        )


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """One replay. `value` is what the step returned; its placeholders hold the recorded results. `unchecked` lists,
    in sentences, what could not be compared or verified.
    """

    key: str
    mode: Literal["verify", "reconstruct"]
    outcomes: tuple[ReplayedCall, ...]
    divergences: tuple[Divergence, ...]
    value: Any
    unchecked: tuple[str, ...] = ()

    @property
    def status(self) -> Literal["same", "diverged"]:
        """Whether the step did what was recorded, as far as it could be compared: see `unchecked`."""
        return "diverged" if self.divergences else "same"

    def raise_on_divergence(self) -> None:
        """For tests of an agent.

        Raises:
            ReplayDiverged: naming every difference.
        """
        if self.divergences:
            raise ReplayDiverged(self.key, self.divergences)

    def to_json(self) -> dict[str, Any]:
        """The result as plain values."""
        return {
            "key": self.key,
            "mode": self.mode,
            "status": self.status,
            "outcomes": [
                {name: getattr(one, name) for name in _OUTCOME_MEMBERS}
                | {"result": one.recorded, "error": one.error}
                for one in self.outcomes
            ],
            "divergences": [asdict(one) | {"text": str(one)} for one in self.divergences],
            "unchecked": list(self.unchecked),
        }

    def __str__(self) -> str:
        return "\n".join(escape_unprintable(line) for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"replay of {self.key!r}: {self.status}; nothing fired"
        for one in self.outcomes:
            result = f": {one.recorded}" if one.recorded is not None else ""
            yield f"  {one.lane} {one.position}  {one.tool} {one.args}: {one.outcome}{result}"
        for divergence in self.divergences:
            yield f"  differs: {divergence}"
        for message in self.unchecked:
            yield f"  unchecked: {message}"


def _typed(call: RecordedCall, raw: bytes, registry: ToolRegistry) -> tuple[Any, Divergence | None]:
    tool = registry.get(call.tool)
    if tool is None:
        return load(raw), None
    if tool.signature.result.fits(raw):
        return tool.signature.result.load(raw), None
    text = f"of {call.tool}: its recorded result is not of the type that the tool says it returns now"
    return load(raw), Divergence("result", call.lane, call.seq, call.tool, call.args, None, text)

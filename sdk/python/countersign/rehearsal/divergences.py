"""How a replayed step differs from what was recorded, call by call, and why that matters.

Calls are compared by their call keys, which bind tool, arguments and repeats, within each lane: a journal does not say
in which order staged and live calls came after each other. Where calls were put in or left out, the ones around them
still match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Final, Literal

import orjson

from countersign.contract.pointers import pointer_to
from countersign.errors import MisuseError
from countersign.journal.sealing import HIDDEN
from countersign.journal.telling import visible, without_secrets
from countersign.rehearsal.recorded import RecordedCall

Kind = Literal["changed", "missing", "extra", "result", "raised"]
_ABSENT: Final = "absent"


@dataclass(frozen=True, slots=True)
class CallNow:
    """One call of the replay."""

    tool: str
    call_key: str
    args: bytes = field(repr=False)
    secrets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Divergence:
    """One difference. `position` counts the calls of the lane from 1; `recorded` and `now` are arguments as text, and
    results where these differ.
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
        return visible(f"{place}{self.text}")


def compared(lane: str, recorded: Sequence[RecordedCall], now: Sequence[CallNow]) -> Iterator[Divergence]:
    """Every difference between two lists of calls."""
    keys_then, keys_now = [one.call_key for one in recorded], [one.call_key for one in now]
    for kind, a, b, c, d in SequenceMatcher(None, keys_then, keys_now, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        paired = min(b - a, d - c)
        for step in range(paired):
            yield _changed(lane, c + step + 1, recorded[a + step], now[c + step])
        for position in range(a + paired, b):
            yield _missing(lane, position + 1, recorded[position])
        for position in range(c + paired, d):
            yield _extra(lane, position + 1, now[position])


def _changed(lane: str, position: int, then: RecordedCall, one: CallNow) -> Divergence:
    shown = _shown(one, then)
    if then.tool != one.tool:
        text = f"was {then.tool} {then.called_with} and is now {one.tool} {shown}"
    else:
        text = f"of {one.tool}: {_differing(then.called_with, shown)}"
    return Divergence("changed", lane, position, one.tool, then.called_with, shown, text)


def _missing(lane: str, position: int, then: RecordedCall) -> Divergence:
    text = f"is missing: {then.tool} {then.called_with} was recorded and is not called now"
    return Divergence("missing", lane, position, then.tool, then.called_with, None, text)


def _extra(lane: str, position: int, one: CallNow) -> Divergence:
    shown = _shown(one, None)
    text = f"is new: {one.tool} {shown} is called now and was not recorded"
    return Divergence("extra", lane, position, one.tool, None, shown, text)


def _differing(then: str, now: str) -> str:
    """Which arguments differ, by name; where all that differs is hidden, that."""
    before, after = orjson.loads(then), orjson.loads(now)
    if not isinstance(before, dict) or not isinstance(after, dict):
        return f"was called with {then} and is now called with {now}"
    told = differing_members(before, after)
    return told or "it differs in an argument that is hidden, or in how often it was meant"


def differing_members(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """Which members of two objects differ, by name, and how; nothing where none does."""
    return ", ".join(
        f"{name} was {_value(before, name)} and is {_value(after, name)}"
        for name in sorted({*before, *after})
        if _value(before, name) != _value(after, name)
    )


def _value(args: Mapping[str, object], name: str) -> str:
    return orjson.dumps(args[name]).decode() if name in args else _ABSENT


def _shown(one: CallNow, then: RecordedCall | None) -> str:
    """The arguments now, hiding what the code calls secret and whatever the record hides of the same call."""
    hidden = () if then is None else tuple(_hidden(orjson.loads(then.called_with), ""))
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
    """Refuse a mode there is none of.

    Raises:
        MisuseError: it is neither of the two.
    """
    if mode not in {"verify", "reconstruct"}:
        raise MisuseError(f"there is no mode {mode!r}; write 'verify' or 'reconstruct'")

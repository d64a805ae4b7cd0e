"""What a person may answer to a task, and what each answer makes of the effect. Pure; the one table of it.

Rules: an answer moves an effect only where the contract's table leads (what was spent and did not happen has failed,
what never was is unused); what is terminal stays so, and a finding that contradicts it stands beside it; an answer that
does not belong to a kind of task is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from countersign.contract import EffectState, TaskAnswer, TaskKind

_E, _K, _A = EffectState, TaskKind, TaskAnswer

ANSWERS: Final[Mapping[TaskKind, tuple[TaskAnswer, ...]]] = MappingProxyType(
    {
        _K.UNKNOWN: (_A.FIRED, _A.NOT_FIRED),
        _K.RESTORED: (_A.FIRED, _A.NOT_FIRED),
        _K.COMPENSATION_FAILED: (_A.COMPENSATED, _A.LEFT_STANDING),
        _K.COMPENSATION_DUE: (_A.COMPENSATED, _A.LEFT_STANDING),
        _K.STANDING: (_A.COMPENSATED, _A.LEFT_STANDING),
        _K.CONTRADICTION: (_A.RECORD_HOLDS, _A.REPORT_HOLDS),
        _K.IMPOSSIBLE_QUORUM: (_A.WITHDRAWN, _A.LEFT_WAITING),
        _K.BREAK_GLASS_REVIEW: (_A.JUSTIFIED, _A.NOT_JUSTIFIED),
    }
)
"""The answers each kind of task takes."""

_ABOUT: Final[Mapping[TaskKind, EffectState]] = MappingProxyType(
    {
        _K.UNKNOWN: _E.UNKNOWN,
        _K.RESTORED: _E.UNKNOWN,
        _K.COMPENSATION_FAILED: _E.COMPENSATION_FAILED,
        _K.COMPENSATION_DUE: _E.FIRED,
        _K.STANDING: _E.FIRED,
        _K.IMPOSSIBLE_QUORUM: _E.REVIEW,
    }
)


def is_about(kind: TaskKind, state: EffectState) -> bool:
    """Whether a task of this kind still has something to settle about an effect in this state."""
    return kind not in _ABOUT or _ABOUT[kind] is state


def moves_of(state: EffectState, answer: TaskAnswer, *, spent: bool) -> tuple[EffectState, ...]:
    """Where an answer leads an effect, step by step; nowhere, where only the word is kept.

    A withdrawal is not among them: it ends a whole transaction, by its own verb.
    """
    if answer is _A.FIRED:
        return (_E.FIRED,)
    if answer is _A.NOT_FIRED:
        return (_E.FAILED,) if spent else (_E.UNUSED,)
    if answer is _A.COMPENSATED:
        return (_E.COMPENSATED,) if state is _E.COMPENSATION_FAILED else (_E.COMPENSATING, _E.COMPENSATED)
    return ()

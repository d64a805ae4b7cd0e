"""What a task asks of people, in one sentence, wherever they are told of it."""

from typing import Final

from countersign.contract import TaskKind

_QUESTIONS: Final = {
    TaskKind.UNKNOWN: "We do not know whether this fired",
    TaskKind.RESTORED: "We do not know whether this fired: what this service remembers was put back",
    TaskKind.COMPENSATION_FAILED: "This fired, and could not be taken back",
    TaskKind.COMPENSATION_DUE: "This fired, and nobody has taken it back",
    TaskKind.STANDING: "This fired, and what belongs to it did not",
    TaskKind.CONTRADICTION: "Two reports of this differ",
    TaskKind.BREAK_GLASS_REVIEW: "One person opened this alone, in an emergency: was it justified?",
    TaskKind.IMPOSSIBLE_QUORUM: "Nobody can approve this as things stand",
}
_DOUBTS: Final = frozenset({TaskKind.UNKNOWN, TaskKind.RESTORED})


def is_doubt(kind: TaskKind) -> bool:
    """Whether it is asked for because nobody knows what happened."""
    return kind in _DOUBTS


def question_text(kind: TaskKind, *, of_compensation: bool) -> str:
    """What is asked; a doubt about a compensation is about that, not about the effect."""
    if of_compensation and is_doubt(kind):
        return "We do not know whether this was taken back"
    return _QUESTIONS[kind]

"""What people write on a review, what they ask its agent, and what that answers: read off a form, drawn as a thread.

Pure. Nobody's words are markup; an agent's answer is drawn as a claim, with what in it can mislead.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policy_service.channels.showing.arguments import Folded, folded
from policy_service.errors import InvalidRequestError
from policy_service.queries.review_models import CommentView, ReviewPage
from policy_service.queries.words import require_short

FIELDS = frozenset({"kind", "text"})
_KINDS = {"comment": False, "question": True}
_WHENCE = {"web": "on the web", "api": "over the API"}


@dataclass(frozen=True, slots=True)
class Said:
    """One entry of the thread."""

    by: CommentView
    whence: str
    text: Folded
    answer: Folded | None


def thread(page: ReviewPage) -> tuple[Said, ...]:
    """What was said, the oldest first."""
    return tuple(
        Said(
            one,
            _WHENCE.get(one.channel, one.channel),
            folded(one.text),
            None if one.answer is None else folded(one.answer),
        )
        for one in page.comments
    )


def talked(page: ReviewPage) -> str:
    """What others can add to a thread, in one word: see ``views.as_shown``."""
    answered = sum(one.answer is not None for one in page.comments)
    added = sum(bool(gate.added) for gate in page.gates)
    return f"{len(page.comments)}.{answered}.{added}"


def read_comment(fields: Mapping[str, str]) -> tuple[str, bool]:
    """The words of a form with ``FIELDS``, and whether they are a question to the agent.

    Raises InvalidRequestError.
    """
    if fields["kind"] not in _KINDS:
        raise InvalidRequestError(f"words are a 'comment' or a 'question', not {fields['kind']!r}")
    words = fields["text"].replace("\r\n", "\n").strip()
    if not words:
        raise InvalidRequestError("these are no words")
    return require_short(words), _KINDS[fields["kind"]]

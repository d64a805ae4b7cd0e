"""What a person was shown, in one digest that goes into their vote.

    view_digest = SHA-256("countersign/view/v1\\n" + JCS(material))

The material is everything a person reads to decide, taken from the same read model the page is drawn from, with how it
was drawn: by which renderer, what was hidden, what stood folded. In it are the effect in words and digests, the other
effects of its transaction in words, the gates with the text of their rules, the facts with their sources, the warnings,
and what the agent claims. Not in it is what moves without changing the question: votes, counts, the time, the state of
anything, the commit, and what is said to this person alone. So a vote that comes in meanwhile leaves a page as good as
it was, and a rule, a fact or a word that is another now does not.

A value is in it as the digest of its text, so that the material tells no secret and stays small.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from countersign.contract import canonicalize
from countersign.contract.names import labelled_digest
from policy_service.queries.effect_text import Piece
from policy_service.queries.review_models import GateView, ReviewContent

VIEW_LABEL: Final = b"countersign/view/v1\n"
WEB_RENDERER: Final = "web/2"
"""The web's renderer. Another number whenever its pages show something else of the same read model."""
BATCH_RENDERER: Final = "web-batch/2"
"""The page on which reviews of one kind are decided together: its rules, facts and claims stand a link away."""
API_RENDERER: Final = "api/1"
"""A program's: it is given everything, so nothing is folded."""
SLACK_RENDERER: Final = "slack/2"
"""A message in Slack, which stands without buttons where it cannot hold every argument; the rest is a link away."""
RENDERERS: Final[Mapping[str, tuple[str, ...]]] = {
    "web": (WEB_RENDERER, BATCH_RENDERER),
    "slack": (SLACK_RENDERER,),
    "api": (API_RENDERER,),
}
"""By the channel a vote comes through."""

CHANNELS_REQUIRING_VIEW: Final = frozenset({"web", "slack"})
"""Channels whose approvals must name what was shown."""

FOLD_ABOVE_BYTES: Final = 320  # about five lines on a phone
FOLD_ABOVE_LINES: Final = 6
MAX_SPACES: Final = 15  # in a row; more is padding
MAX_LINE_BREAKS: Final = 3  # in a row; more is padding
PADDING: Final = re.compile(rf"[ \t]{{{MAX_SPACES + 1},}}|(?:[ \t]*\n){{{MAX_LINE_BREAKS + 1},}}")
"""Runs that push text out of sight; a page counts them instead of drawing them."""

_PARTS: Final = {
    "effect": "the effect",
    "transaction": "what stands beside it in its transaction",
    "gates": "the rules that ask",
    "facts": "what was looked up",
    "warnings": "the warnings",
    "claimed": "what the agent says",
    "drawn": "how the page was drawn",
}
_PART_CHARACTERS = 16  # of a part's digest: it tells what moved, and binds nothing


def line_count(text: str) -> int:
    """The lines a page draws of a text: padding is counted there, not drawn."""
    return 1 + PADDING.sub("", text).count("\n")


def is_long(text: str) -> bool:
    """Whether a text is more than a reader takes in at a glance, so that a page folds it."""
    return len(text.encode()) > FOLD_ABOVE_BYTES or line_count(text) > FOLD_ABOVE_LINES


@dataclass(frozen=True, slots=True)
class RenderedView:
    """One rendering of a review."""

    material: Mapping[str, Any]

    @property
    def canonical(self) -> bytes:
        """The bytes that are hashed."""
        return canonicalize(dict(self.material))

    @property
    def digest(self) -> str:
        """The name of exactly this rendering."""
        return labelled_digest(VIEW_LABEL, self.canonical)

    @property
    def parts(self) -> str:
        """What a form carries beside the digest, so that a page that went stale can say what moved."""
        parts = (f"{name}={self._part(name)}" for name in _PARTS)
        return " ".join(parts)

    def moved(self, parts: str) -> list[str]:
        """What is another now than in the parts of the page that was read, in words; nothing where they say nothing."""
        read = dict(part.partition("=")[::2] for part in parts.split(" "))
        return [words for name, words in _PARTS.items() if name in read and read[name] != self._part(name)]

    def _part(self, name: str) -> str:
        digest = hashlib.sha256(canonicalize(self.material[name])).hexdigest()
        return digest[:_PART_CHARACTERS]


def view_of(page: ReviewContent, renderer: str, *, full: bool = False) -> RenderedView:
    """A review as a renderer shows it; ``full``: nothing is folded."""
    folded = _folded(page) if renderer == WEB_RENDERER and not full else []
    return RenderedView(
        {
            "v": 1,
            "review": page.review_id,
            "rev": page.rev,
            "effect": {
                "effect_digest": page.effect_digest,
                "agent": page.agent,
                "owner": page.agent_owner,
                "tool": page.tool,
                "title": page.tool_title,
                "sentence": _words(page.sentence),
                "finality": page.finality,
                "risk": page.risk,
                "args": [
                    {"name": row.name, "type": row.type_text, "bytes": row.bytes}
                    | ({} if row.secret else {"text": _text_digest(row.value_text)})
                    for row in page.args
                ],
            },
            "transaction": {
                "txn_digest": page.txn_digest,
                "others": [{"seq": other.seq, "sentence": _words(other.sentence)} for other in page.siblings],
            },
            "gates": [_gate(gate) for gate in page.gates],
            "facts": [
                {"label": fact.label, "value": fact.value, "source": fact.source} for fact in page.facts
            ],
            "warnings": list(page.warnings),
            "claimed": {name: _text_digest(str(text)) for name, text in page.claimed.items()},
            "drawn": {
                "renderer": renderer,
                "hidden": [row.name for row in page.args if row.secret],
                "folded": folded,
                "elsewhere": ["gates", "facts", "claimed"]
                if renderer in (BATCH_RENDERER, SLACK_RENDERER)
                else [],
            },
        }
    )


def views_for_channel(page: ReviewContent, channel: str) -> list[RenderedView]:
    """Every rendering a vote of this channel may come from, the usual one first."""
    renderers = RENDERERS.get(channel, (API_RENDERER,))
    folds = [view_of(page, WEB_RENDERER)] if WEB_RENDERER in renderers else []
    if any(folded_args(view) for view in folds):
        renderers = tuple(
            renderer for renderer in renderers if renderer != BATCH_RENDERER
        )  # no list holds such a one
    return [*(view_of(page, renderer, full=True) for renderer in renderers), *folds]


def folded_args(view: RenderedView) -> list[str]:
    """The arguments that stood folded."""
    return [
        name.removeprefix("args/") for name in view.material["drawn"]["folded"] if name.startswith("args/")
    ]


def _folded(page: ReviewContent) -> list[str]:
    long_args = [f"args/{row.name}" for row in page.args if not row.secret and is_long(row.value_text)]
    return long_args + [f"claimed/{name}" for name, text in page.claimed.items() if is_long(str(text))]


def _gate(gate: GateView) -> dict[str, Any]:
    return {
        "id": gate.policy_id,
        "title": gate.title,
        "groups": list(gate.groups),
        "quorum": gate.quorum,
        "step_up": gate.step_up,
        "shared": gate.shared,
        "doc": gate.doc,
        "text": _text_digest(gate.cedar_text),
    }


def _words(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

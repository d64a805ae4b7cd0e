"""The view digest: a hash of what the page showed the voter. It is part of the vote.

    view_digest = SHA-256("countersign/view/v1\\n" + JCS(material))

The material is the read model that the page renders and how it was rendered: by which renderer, what was
hidden and what was folded. It contains the effect, the other effects of its transaction, the gates with the
text of their policies, the facts with their sources, the warnings and the agent's claims. It excludes what
changes without changing the question: votes, counts, times, states, the commit, and texts for one person. So
another person's vote does not invalidate an open page; a changed rule, fact or text does.

Values are included as digests of their text, so the material reveals no secret and stays small.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from countersign.contract import canonicalize
from countersign.contract.digests import labelled_digest
from policy_service.queries.effects import Piece
from policy_service.queries.review_models import GateView, ReviewContent

VIEW_LABEL: Final = b"countersign/view/v1\n"
WEB_RENDERER: Final = "web/2"
"""The web page. Raise the number when it shows the same read model differently."""
BATCH_RENDERER: Final = "web-batch/2"
"""The batch page. Rules, facts and claims are on the linked review page."""
API_RENDERER: Final = "api/1"
"""A program. It receives everything, so nothing is folded."""
SLACK_RENDERER: Final = "slack/2"
"""A Slack message. It has no buttons if it cannot hold every argument."""
RENDERERS: Final[Mapping[str, tuple[str, ...]]] = {
    "web": (WEB_RENDERER, BATCH_RENDERER),
    "slack": (SLACK_RENDERER,),
    "api": (API_RENDERER,),
}
"""The accepted renderers of each channel."""

CHANNELS_REQUIRING_VIEW: Final = frozenset({"web", "slack"})
"""Channels whose approvals must name a view digest."""

FOLD_ABOVE_BYTES: Final = 320  # about five lines on a phone
FOLD_ABOVE_LINES: Final = 6
MAX_SPACES: Final = 15  # in a row; more is padding
MAX_LINE_BREAKS: Final = 3  # in a row; more is padding
PADDING: Final = re.compile(rf"[ \t]{{{MAX_SPACES + 1},}}|(?:[ \t]*\n){{{MAX_LINE_BREAKS + 1},}}")
"""Whitespace runs that push text out of sight; a page shows their length instead."""

_PARTS: Final = {
    "effect": "the effect",
    "transaction": "the other effects of its transaction",
    "gates": "the gates",
    "facts": "the facts",
    "warnings": "the warnings",
    "claimed": "the agent's claims",
    "drawn": "how the page was rendered",
}
_PART_CHARACTERS = 16  # a part digest only helps to name changes; it authenticates nothing


def line_count(text: str) -> int:
    """The lines a page draws for a text. Padding is counted, not drawn."""
    return 1 + PADDING.sub("", text).count("\n")


def is_long(text: str) -> bool:
    """Whether a page folds this text."""
    return len(text.encode()) > FOLD_ABOVE_BYTES or line_count(text) > FOLD_ABOVE_LINES


@dataclass(frozen=True, slots=True)
class RenderedView:
    """One rendering of a review."""

    material: Mapping[str, Any]

    @property
    def canonical(self) -> bytes:
        """The hashed bytes."""
        return canonicalize(dict(self.material))

    @property
    def digest(self) -> str:
        """The view digest."""
        return labelled_digest(VIEW_LABEL, self.canonical)

    @property
    def parts(self) -> str:
        """Short digests of the parts. Forms send them, so that the refusal of a stale page can name what
        changed.
        """
        parts = (f"{name}={self._part(name)}" for name in _PARTS)
        return " ".join(parts)

    def moved(self, parts: str) -> list[str]:
        """The parts that changed since the page with these part digests, in words; empty if they are not
        readable.
        """
        read = dict(part.partition("=")[::2] for part in parts.split(" "))
        return [words for name, words in _PARTS.items() if name in read and read[name] != self._part(name)]

    def _part(self, name: str) -> str:
        digest = hashlib.sha256(canonicalize(self.material[name])).hexdigest()
        return digest[:_PART_CHARACTERS]


def view_of(page: ReviewContent, renderer: str, *, full: bool = False) -> RenderedView:
    """A review as a renderer shows it. ``full`` folds nothing."""
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
                "sentence": _plain_text(page.sentence),
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
                "others": [
                    {"seq": other.seq, "sentence": _plain_text(other.sentence)} for other in page.siblings
                ],
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
        )  # batches contain no folded arguments
    return [*(view_of(page, renderer, full=True) for renderer in renderers), *folds]


def folded_args(view: RenderedView) -> list[str]:
    """The names of folded arguments."""
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


def _plain_text(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

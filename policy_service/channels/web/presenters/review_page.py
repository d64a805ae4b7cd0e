"""The review page for templates: folding, marking, labels. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from policy_service.channels.presentation.arguments import (
    ArgView,
    FoldedText,
    arg_views,
    canonical_view,
    fold,
    matches_canonical,
)
from policy_service.channels.presentation.formatting import clock_time, deadline_of
from policy_service.channels.presentation.marked_text import Marked
from policy_service.channels.presentation.review_status import (
    counted_denial,
    outcome_text,
    quorum_status,
    signed_sentence,
    single_amount,
)
from policy_service.channels.web.presenters.context_panel import context_panel_view
from policy_service.channels.web.presenters.proposal_form import ChangedArg, change_lines
from policy_service.queries.review_models import CommentLine, EventLine, ProposalCard, ReviewPage
from policy_service.queries.view_digest import WEB_RENDERER, view_of

# Common reasons that fit every effect.
DENIAL_REASONS = ("Amount is wrong", "Wrong person or account", "Not enough proof", "Not now")

_COMMENT_CHANNEL_TEXTS = {"web": "on the web", "api": "over the API"}

# By a word of the event kind: icon and CSS class of its dot.
_LINE_ICONS = (
    ("task_settled", "sign", "dot-ink"),
    ("contradict", "swap", ""),
    ("unknown", "unknown", ""),
    ("compensation_failed", "alert", ""),
    ("fired", "fire", "dot-good"),
    ("failed", "alert", ""),
    ("redeem", "seal", "dot-ink"),
    ("release", "key", "dot-ink"),
    ("denied", "deny", ""),
    ("vote", "sign", "dot-ink"),
    ("reminded", "bell", ""),
    ("escalated", "people", ""),
    ("comment", "quote", ""),
    ("question", "chat", ""),
    ("expired", "clock", ""),
    ("withdrawn", "close", ""),
    ("revoked", "close", ""),
    ("supersede", "swap", ""),
    ("review", "gate", ""),
    ("decision", "policy", ""),
    ("compensat", "refresh", ""),
    ("submit", "agent", ""),
)


@dataclass(frozen=True, slots=True)
class WarningLine:
    """One line of the warnings above the sheet."""

    text: str
    name: Marked | None = None
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """An event with its icon."""

    event: EventLine
    icon: str
    dot: str
    clock: str
    more: str = ""  # actor, channel and commit
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class ClaimLine:
    """A claim of the agent."""

    name: str
    text: FoldedText


@dataclass(frozen=True, slots=True)
class ProposedView:
    """A proposal with the difference marked."""

    card: ProposalCard
    changes: tuple[ChangedArg, ...]

    @property
    def warnings(self) -> int:
        """The number of findings in it."""
        return sum(len(change.findings) for change in self.changes)


def review_template_context(page: ReviewPage, now: datetime, *, full: bool = False) -> dict[str, Any]:
    """The variables of `review.html`, without those of the session; ``full`` folds nothing."""
    args, view = arg_views(page, full=full), view_of(page, WEB_RENDERER, full=full)
    signatures = quorum_status(page)
    settled = outcome_text(page) if page.state != "open" or page.superseded_by is not None else None
    return {
        "page": page,
        "args": args,
        "bytes": canonical_view(page),
        "broken": not matches_canonical(page),
        "warnings": page_warnings(page, args),
        "quorum": signatures,
        "panel": context_panel_view(page, signatures.wanted, now),
        "shown": page_fingerprint(page),
        "due": deadline_of(page.opened_at, page.answer_by, now),
        "outcome": settled,
        "denial": counted_denial(page) if page.state == "denied" else None,
        "timeline": tuple(timeline_line(event, now) for event in page.timeline),
        "claims": tuple(
            ClaimLine(name, fold(str(text), full=full)) for name, text in page.claimed.items() if text
        ),
        "signing": signed_sentence(page),
        "amount": single_amount(page),
        "thread": thread(page),
        "view": view,
        "unread": tuple(arg for arg in args if arg.value.preview is not None and not arg.row.secret),
        "proposed": tuple(ProposedView(card, change_lines(card.changes)) for card in page.proposals),
        "since_staged": change_lines(page.since_staged),
    }


def page_warnings(page: ReviewPage, args: Sequence[ArgView]) -> tuple[WarningLine, ...]:
    """The warnings of the service, then those about the arguments."""
    return (*(WarningLine(text) for text in page.warnings), *argument_warnings(args))


def argument_warnings(args: Sequence[ArgView]) -> tuple[WarningLine, ...]:
    """The findings of the arguments."""
    return tuple(WarningLine(finding.short, arg.name, arg.anchor) for arg in args for finding in arg.findings)


def timeline_line(event: EventLine, now: datetime) -> TimelineLine:
    """An event with the icon of its kind."""
    icon, dot = next(((icon, dot) for word, icon, dot in _LINE_ICONS if word in event.kind), ("log", ""))
    day = clock_time(event.at, now).removesuffix(f"{event.at:%H:%M}")
    more = filter(None, (event.actor, _CHANNEL_TEXTS.get(event.channel, event.channel), _commit_text(event)))
    anchor = f"log-{event.line}" if event.line else ""
    return TimelineLine(event, icon, dot, f"{day}{event.at:%H:%M:%S}", ", ".join(more), anchor)


_CHANNEL_TEXTS = {"web": "on the web", "api": "by the API", "slack": "in Slack", "cli": "on the command line"}


def _commit_text(event: EventLine) -> str:
    return f"rules at {event.commit[:12]}" if event.commit else ""


@dataclass(frozen=True, slots=True)
class StaleChange:
    """One argument then and now, for the page that refuses a stale vote."""

    name: str
    read: FoldedText
    now: FoldedText


def stale_changes(changed: Iterable[Mapping[str, str]]) -> tuple[StaleChange, ...]:
    """The `changed` member of a stale_review error: a list of name, read, now."""
    return tuple(StaleChange(each["name"], fold(each["read"]), fold(each["now"])) for each in changed)


def page_fingerprint(page: ReviewPage) -> str:
    """The state that others can change. The page sends it when it asks for updates.

    The page's log index would not do: a vote is shown at once and numbered later, so its voter would be
    notified of it.
    """
    met = "-".join(str(gate.have) for gate in page.gates)
    proposed = "+".join(card.proposal_id[-8:] for card in page.proposals)
    state = f"{page.rev}-{proposed}-{page.superseded_by or 0}-{page.state}-{page.effect_state}"
    return f"{state}-{len(page.votes)}-{met}-{thread_fingerprint(page)}-{len(page.rule_changes)}"


def change_notice(page: ReviewPage, shown: str) -> str:
    """What changed since the page was rendered with this fingerprint; "" if nothing did."""
    if page_fingerprint(page) == shown:
        return ""
    if page.superseded_by is not None:
        return f"Revision {page.superseded_by} replaced it, load again"
    if page.state != "open":
        return f"{outcome_text(page).heading} meanwhile, show it"
    if shown.rpartition("-")[2] not in ("", str(len(page.rule_changes))):
        return "The gates have changed, load again"
    before, now = shown.split("-"), page_fingerprint(page).split("-")
    if shown and before[1:2] != now[1:2]:
        return "The proposals have changed, load again"
    if before[:-2] == now[:-2]:  # comments or escalation
        asks_more = before[-2].rpartition(".")[2] != now[-2].rpartition(".")[2]
        return "It was escalated, load again" if asks_more else "There is a new comment, load again"
    return f"A vote came in: {quorum_status(page).count} now, load again"


@dataclass(frozen=True, slots=True)
class ThreadEntry:
    """One entry of the thread."""

    by: CommentLine
    whence: str
    text: FoldedText
    answer: FoldedText | None


def thread(page: ReviewPage) -> tuple[ThreadEntry, ...]:
    """The comments, oldest first."""
    return tuple(
        ThreadEntry(
            one,
            _COMMENT_CHANNEL_TEXTS.get(one.channel, one.channel),
            fold(one.text),
            None if one.answer is None else fold(one.answer),
        )
        for one in page.comments
    )


def thread_fingerprint(page: ReviewPage) -> str:
    """The state of the thread and of escalation."""
    answered = sum(one.answer is not None for one in page.comments)
    added = sum(bool(gate.added) for gate in page.gates)
    return f"{len(page.comments)}.{answered}.{added}"

"""Lines about the people of a review: gates, quorum, votes, denials, and the outcome.

Nothing is counted here: the read model says which votes count and how many are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slack_sdk.models.blocks import RichTextElement

from policy_service.channels.presentation.formatting import join_or, pluralize
from policy_service.channels.presentation.review_status import (
    OutcomeText,
    counted_denial,
    join_names,
    outcome_text,
    quorum_status,
)
from policy_service.channels.slack.blocks.block_kit import (
    MAX_WRITTEN,
    TextWriter,
    bold,
    date_text,
    our_text,
    quote,
    section,
)
from policy_service.queries.review_models import BreakGlassView, GateView, ReviewPage, VoteLine

MAX_GATES: Final = 4  # further gates are on the web
MAX_NAMES: Final = 6
MAX_DENIALS: Final = 2  # the newest; all are on the web


def gate_lines(page: ReviewPage, pen: TextWriter, most: int = MAX_GATES) -> list[RichTextElement]:
    """Each gate in a sentence; its groups unless the quorum's line names them."""
    alone = len(page.gates) == 1
    lines: list[RichTextElement] = [_gate(gate, pen, alone=alone) for gate in page.gates[:most]]
    if len(page.gates) > most:
        pen.cut = True
        lines.append(
            section(our_text(f"{pluralize(len(page.gates) - most, 'more gate')} apply: see the web."))
        )
    return lines


def rule_names(page: ReviewPage, pen: TextWriter, most: int = MAX_GATES) -> list[str]:
    """The policy ids, files and commit of the gates."""
    return [_rule_name(gate, page.commit, pen) for gate in page.gates[:most]]


def _rule_name(gate: GateView, commit: str, pen: TextWriter) -> str:
    name = f"{pen.shown(gate.policy_id)}, " if gate.title != gate.policy_id else ""
    return f"Rule {name}{pen.shown(gate.file)} line {gate.line:,} at commit {pen.shown(commit[:12])}"


def _gate(gate: GateView, pen: TextWriter, *, alone: bool) -> RichTextElement:
    asks = "" if alone and not gate.own_step_up else f" It asks {_gate_request_text(gate, pen)}."
    doc = f" {pen.shown(gate.doc, MAX_WRITTEN)}" if gate.doc else ""
    added = f" {_added_groups_text(gate, pen)}" if gate.added else ""
    return section(bold(pen.shown(gate.title)), our_text(f".{asks}{doc}{added}"))


def _gate_request_text(gate: GateView, pen: TextWriter) -> str:
    groups = join_or([pen.shown(group) for group in gate.groups[:MAX_NAMES]])
    if len(gate.groups) > MAX_NAMES:
        pen.cut = True
        groups += f" or {len(gate.groups) - MAX_NAMES:,} more"
    passkey = f", with a {pen.shown(gate.own_step_up)}" if gate.own_step_up else ""
    return f"{pluralize(gate.own_quorum, 'person', 'people')} in {groups}{passkey}"


def _added_groups_text(gate: GateView, pen: TextWriter) -> str:
    groups = join_or([pen.shown(group) for group in gate.added[:MAX_NAMES]])
    return f"{groups} {'is' if len(gate.added) == 1 else 'are'} asked as well by now."


def quorum_lines(page: ReviewPage, pen: TextWriter) -> list[RichTextElement]:
    """`1 of 2 approvals by finance: Ana Ito.`, and who else could approve."""
    aside, signatures = TextWriter(), quorum_status(page)
    groups = f" by {pen.shown(signatures.groups, MAX_WRITTEN)}" if signatures.groups else ""
    who = _voters(signatures.signed, aside)
    signed = [*our_text(": "), *bold(who), *our_text(".")] if who else our_text(".")
    lines: list[RichTextElement] = [section(bold(signatures.count), our_text(f" approvals{groups}"), signed)]
    if idle := signatures.without_effect:
        does = "does" if len(idle) == 1 else "do"
        lines.append(
            section(
                our_text("What "),
                bold(_voters(idle, aside)),
                our_text(f" approved {does} not count at present."),
            )
        )
    could = dict.fromkeys(
        _eligible_text(gate, aside) for gate in page.gates[:MAX_GATES] if gate.have < gate.quorum
    )
    lines += [section(our_text(words)) for words in could if words]
    glass = page.break_glass
    return lines + ([_break_glass_line(glass)] if glass is not None and glass.signed else [])


def _eligible_text(gate: GateView, aside: TextWriter) -> str:
    names = [aside.shown(name) for name in gate.could_sign[:MAX_NAMES]]
    more = gate.could_sign_more + max(0, len(gate.could_sign) - MAX_NAMES)
    could = f"{join_names(names, more)} could sign." if names else ""
    barred = [aside.shown(name) for name in gate.barred[:MAX_NAMES]]
    return could + (f" Not {join_or(barred)}, on the requester's side." if barred else "")


def decision_lines(page: ReviewPage) -> list[RichTextElement]:
    """Who decided and when, if people did; a denial with its reason."""
    aside = TextWriter()
    if page.state == "denied" and (vote := counted_denial(page)) is not None:
        lines: list[RichTextElement] = [
            section(
                bold("Denied"),
                our_text(" by "),
                bold(aside.shown(vote.person_name)),
                our_text(" · "),
                date_text(vote.at),
            )
        ]
        return [*lines, quote(aside.said(vote.reason, MAX_WRITTEN, block=True))] if vote.reason else lines
    if page.break_glass is not None and page.break_glass.signed:
        return [_break_glass_line(page.break_glass)]
    signed = quorum_status(page).signed
    if page.state != "met" or not signed:
        return []
    last = max(vote.at for vote in signed)
    return [
        section(
            bold("Approved"), our_text(" by "), bold(_voters(signed, aside)), our_text(" · "), date_text(last)
        )
    ]


def _break_glass_line(glass: BreakGlassView) -> RichTextElement:
    """A break-glass release. It is not an approval and must not look like one."""
    opened = glass.opened_at is not None
    words = "Released by break-glass by " if opened else "Signed for break-glass by "
    at = glass.opened_at or max(vote.at for vote in glass.signed)
    return section(our_text(words), bold(_voters(glass.signed, TextWriter())), our_text(" · "), date_text(at))


def recent_denial_lines(page: ReviewPage, most: int = MAX_DENIALS) -> list[RichTextElement]:
    """Recent denials of similar effects."""
    aside, lines = TextWriter(), list[RichTextElement]()
    for one in page.denied_before[:most]:
        differs = ", ".join(aside.shown(name) for name in one.differs[:MAX_NAMES])
        lines.append(
            section(
                our_text("Denied before by "),
                bold(aside.shown(one.person_name)),
                our_text(" · "),
                date_text(one.at),
                our_text(
                    f". Different here: {differs}." if differs else ". Every argument is the same as then."
                ),
            )
        )
        if one.reason:
            lines.append(quote(aside.said(one.reason, MAX_WRITTEN, block=True)))
    if (more := len(page.denied_before) - most) > 0:
        lines.append(section(our_text(f"Denied {pluralize(more, 'more time')} before: see the web.")))
    return lines


def _voters(votes: Sequence[VoteLine], aside: TextWriter) -> str:
    names = [aside.shown(vote.person_name) for vote in votes[:MAX_NAMES]]
    more = len(votes) - len(names)
    if more > 0:
        return f"{', '.join(names)} and {more:,} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


_SELF_EXPLANATORY = frozenset({"Denied", "Approved", "Released", "Break-glass"})
"""Outcomes that the line with the decider already states."""


def outcome_lines(page: ReviewPage) -> list[RichTextElement]:
    """The outcome, above all whether anything fired, and who decided, without repetition."""
    result, who = outcome_text(page), decision_lines(page)
    words = TextWriter().said(result.text, 300)
    if who and result.tag in _SELF_EXPLANATORY:
        return [*who, *([section(words)] if result.text else [])]
    head = bold(TextWriter().shown(result.heading, 120))
    if page.state == "expired" and page.superseded_by is None:
        return [section(head, our_text(" · "), date_text(page.answer_by)), section(words)]
    return [section(head, our_text("."), our_text(" "), words) if result.text else section(head), *who]


def state_text(page: ReviewPage) -> str:
    """The state of a review in one or two words."""
    if page.state == "open" and page.superseded_by is None:
        return "Review wanted"
    return _short_text(outcome_text(page))


def _short_text(result: OutcomeText) -> str:
    return TextWriter().shown(result.heading or result.tag)

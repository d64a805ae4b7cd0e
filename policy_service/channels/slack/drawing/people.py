"""Who was asked, who said what, who could: the people of a review, in lines.

Pure. It counts nothing itself: which votes count, and how many are wanted, arrive decided.

What became of an effect, for a card nobody decides on any more. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slack_sdk.models.blocks import RichTextElement

from policy_service.channels.presentation.review_status import OutcomeText, counted_denial, join_names, outcome_text, quorum_status
from policy_service.channels.presentation.formatting import pluralize, join_or
from policy_service.channels.slack.drawing.blocks import WORDS, Pen, bold, own, quote, section, when
from policy_service.queries.review_models import BreakGlassView, GateView, ReviewPage, VoteLine

MOST_GATES: Final = 4  # more rules than this about one effect are read on the page
MOST_NAMES: Final = 6
MOST_DENIALS: Final = 2  # the newest; they are context, and all of them stand on the page


def gate_lines(page: ReviewPage, pen: Pen, most: int = MOST_GATES) -> list[RichTextElement]:
    """Every rule that asks, in a plain sentence; whom it asks, where the line of the quorum does not say it."""
    alone = len(page.gates) == 1
    lines: list[RichTextElement] = [_gate(gate, pen, alone=alone) for gate in page.gates[:most]]
    if len(page.gates) > most:
        pen.cut = True
        lines.append(
            section(own(f"{pluralize(len(page.gates) - most, 'more gate')} asked: they are on the page."))
        )
    return lines


def rule_names(page: ReviewPage, pen: Pen, most: int = MOST_GATES) -> list[str]:
    """The names and the commit by which these rules are found."""
    return [_rule_name(gate, page.commit, pen) for gate in page.gates[:most]]


def _rule_name(gate: GateView, commit: str, pen: Pen) -> str:
    name = f"{pen.shown(gate.policy_id)}, " if gate.title != gate.policy_id else ""
    return f"Rule {name}{pen.shown(gate.file)} line {gate.line:,} at commit {pen.shown(commit[:12])}"


def _gate(gate: GateView, pen: Pen, *, alone: bool) -> RichTextElement:
    asks = "" if alone and not gate.own_step_up else f" It asks {_asked(gate, pen)}."
    doc = f" {pen.shown(gate.doc, WORDS)}" if gate.doc else ""
    added = f" {_also(gate, pen)}" if gate.added else ""
    return section(bold(pen.shown(gate.title)), own(f".{asks}{doc}{added}"))


def _asked(gate: GateView, pen: Pen) -> str:
    groups = join_or([pen.shown(group) for group in gate.groups[:MOST_NAMES]])
    if len(gate.groups) > MOST_NAMES:
        pen.cut = True
        groups += f" or {len(gate.groups) - MOST_NAMES:,} more"
    passkey = f", with a {pen.shown(gate.own_step_up)}" if gate.own_step_up else ""
    return f"{pluralize(gate.own_quorum, 'person', 'people')} in {groups}{passkey}"


def _also(gate: GateView, pen: Pen) -> str:
    groups = join_or([pen.shown(group) for group in gate.added[:MOST_NAMES]])
    return f"{groups} {'is' if len(gate.added) == 1 else 'are'} asked as well by now."


def quorum_lines(page: ReviewPage, pen: Pen) -> list[RichTextElement]:
    """`1 of 2 approvals by finance: Ana Ito.`, and who else could."""
    aside, signatures = Pen(), quorum_status(page)
    groups = f" by {pen.shown(signatures.groups, WORDS)}" if signatures.groups else ""
    who = _voters(signatures.signed, aside)
    signed = [*own(": "), *bold(who), *own(".")] if who else own(".")
    lines: list[RichTextElement] = [section(bold(signatures.count), own(f" approvals{groups}"), signed)]
    if idle := signatures.without_effect:
        does = "does" if len(idle) == 1 else "do"
        lines.append(
            section(
                own("What "), bold(_voters(idle, aside)), own(f" approved {does} not count as things stand.")
            )
        )
    could = dict.fromkeys(_could(gate, aside) for gate in page.gates[:MOST_GATES] if gate.have < gate.quorum)
    lines += [section(own(words)) for words in could if words]
    glass = page.break_glass
    return lines + ([_emergency(glass)] if glass is not None and glass.signed else [])


def _could(gate: GateView, aside: Pen) -> str:
    names = [aside.shown(name) for name in gate.could_sign[:MOST_NAMES]]
    more = gate.could_sign_more + max(0, len(gate.could_sign) - MOST_NAMES)
    could = f"{join_names(names, more)} could sign." if names else ""
    barred = [aside.shown(name) for name in gate.barred[:MOST_NAMES]]
    return could + (f" Not {join_or(barred)}, on the asking side." if barred else "")


def decided_lines(page: ReviewPage) -> list[RichTextElement]:
    """Who settled it and when, where people did; a denial with its reason."""
    aside = Pen()
    if page.state == "denied" and (vote := counted_denial(page)) is not None:
        lines: list[RichTextElement] = [
            section(
                bold("Denied"), own(" by "), bold(aside.shown(vote.person_name)), own(" · "), when(vote.at)
            )
        ]
        return [*lines, quote(aside.said(vote.reason, WORDS, block=True))] if vote.reason else lines
    if page.break_glass is not None and page.break_glass.signed:
        return [_emergency(page.break_glass)]
    signed = quorum_status(page).signed
    if page.state != "met" or not signed:
        return []
    last = max(vote.at for vote in signed)
    return [section(bold("Approved"), own(" by "), bold(_voters(signed, aside)), own(" · "), when(last))]


def _emergency(glass: BreakGlassView) -> RichTextElement:
    """An opening is nobody's approval, and never reads like one."""
    opened = glass.opened_at is not None
    words = "Opened in an emergency by " if opened else "Signed, to open it in an emergency, by "
    at = glass.opened_at or max(vote.at for vote in glass.signed)
    return section(own(words), bold(_voters(glass.signed, Pen())), own(" · "), when(at))


def denied_before_lines(page: ReviewPage, most: int = MOST_DENIALS) -> list[RichTextElement]:
    """What people said no to a short while ago."""
    aside, lines = Pen(), list[RichTextElement]()
    for one in page.denied_before[:most]:
        differs = ", ".join(aside.shown(name) for name in one.differs[:MOST_NAMES])
        lines.append(
            section(
                own("Denied before by "),
                bold(aside.shown(one.person_name)),
                own(" · "),
                when(one.at),
                own(f". Different here: {differs}." if differs else ". Every argument is the same as then."),
            )
        )
        if one.reason:
            lines.append(quote(aside.said(one.reason, WORDS, block=True)))
    if (more := len(page.denied_before) - most) > 0:
        lines.append(section(own(f"Denied {pluralize(more, 'more time')} before: see the page.")))
    return lines


def _voters(votes: Sequence[VoteLine], aside: Pen) -> str:
    names = [aside.shown(vote.person_name) for vote in votes[:MOST_NAMES]]
    more = len(votes) - len(names)
    if more > 0:
        return f"{', '.join(names)} and {more:,} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


_TOLD_WITH_WHO = frozenset({"Denied", "Approved", "Released", "Break-glass"})
"""Outcomes that the line of who settled it says already."""


def settled_lines(page: ReviewPage) -> list[RichTextElement]:
    """What became of it, whether anything fired above all; and who settled it. Nothing is said twice."""
    told, who = outcome_text(page), decided_lines(page)
    words = Pen().said(told.text, 300)
    if who and told.tag in _TOLD_WITH_WHO:
        return [*who, *([section(words)] if told.text else [])]
    head = bold(Pen().shown(told.heading, 120))
    if page.state == "expired" and page.superseded_by is None:
        return [section(head, own(" · "), when(page.answer_by)), section(words)]
    return [section(head, own("."), own(" "), words) if told.text else section(head), *who]


def state_words(page: ReviewPage) -> str:
    """The state of a review in a word or two."""
    if page.state == "open" and page.superseded_by is None:
        return "Review wanted"
    return _short(outcome_text(page))


def _short(told: OutcomeText) -> str:
    return Pen().shown(told.heading or told.tag)

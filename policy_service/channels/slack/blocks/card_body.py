"""The body of a card, above its buttons: the effect, warnings, arguments, gates and requester, in this order.

A body records whether it is complete: if anything of the effect is cut, the card has no buttons.

The arguments are one block of JSON, one member per line:
- Removing the layout gives the canonical bytes again. If it does not, the card has no buttons.
- A secret value is replaced by its number of bytes.
- Arguments that do not fit are cut, with a note how much is shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slack_sdk.models.blocks import Block, ContextBlock, RichTextElement

from policy_service.channels.presentation.arguments import (
    ArgumentsPage,
    ArgView,
    arg_views,
    matches_canonical,
    ordered_members,
)
from policy_service.channels.presentation.formatting import pluralize
from policy_service.channels.presentation.marked_text import TextFinding, mark
from policy_service.channels.presentation.review_status import approval_effect, quorum_status
from policy_service.channels.slack.blocks.block_kit import (
    MAX_VALUE,
    MAX_WRITTEN,
    Line,
    TextWriter,
    bold,
    characters,
    date_text,
    our_text,
    plain,
    preformatted,
    rich_text,
    section,
    utf16_units,
    visible_span,
)
from policy_service.channels.slack.blocks.people import (
    MAX_GATES,
    gate_lines,
    outcome_lines,
    quorum_lines,
    recent_denial_lines,
    rule_names,
)
from policy_service.queries.effects import ArgRow, Piece
from policy_service.queries.review_models import ReviewPage

MAX_ARGS_CHARACTERS: Final = 1_500  # about two screens of a phone
MAX_ARGS_LINES: Final = 30
PREFIX_CHARACTERS: Final = 600  # of arguments that do not fit: enough to recognize, too little to decide
PREFIX_LINES: Final = 20

_DECODER: Final = json.JSONDecoder(strict=True)


@dataclass(frozen=True, slots=True)
class ShownArgs:
    """The rendered arguments. ``exact``: complete and unchanged; otherwise ``note`` says how much is shown."""

    text: str
    exact: bool
    note: str = ""


def show_args(page: ArgumentsPage, *, short: bool = False) -> ShownArgs:
    """Render the arguments of an effect, or none if the rows do not match the canonical bytes. ``short``: for a card
    without buttons."""
    if not matches_canonical(page):
        return ShownArgs("", False, "The arguments are not shown: they do not match the canonical bytes.")
    text = lay_out_args(page)
    secrets = {row.name: row.value_json for row in page.args if row.secret}
    most = PREFIX_CHARACTERS if short else MAX_ARGS_CHARACTERS
    if utf16_units(text) <= most and text.count("\n") < MAX_ARGS_LINES:
        return ShownArgs(text, canonical_from_layout(text, secrets) == page.canonical)
    return _args_prefix(text, len(page.canonical))


def lay_out_args(page: ArgumentsPage) -> str:
    """`{`, one member per line, `}`: in canonical order, with invisible characters escaped."""
    lines = ",\n".join(f"  {_string(row.name)}: {_value(row)}" for _, row in ordered_members(page))
    return f"{{\n{lines}\n}}" if lines else "{}"


def canonical_from_layout(text: str, secrets: Mapping[str, str]) -> bytes | None:
    """The canonical bytes of rendered arguments; None if the text is not in that layout."""
    if text == "{}":
        return b"{}"
    if not text.startswith("{\n") or not text.endswith("\n}"):
        return None
    lines = text[2:-2].split("\n")
    parts = [
        _member(line.removesuffix(",") if place < len(lines) else line, secrets)
        for place, line in enumerate(lines, 1)
    ]
    whole = [member for member in parts if member is not None]
    return ("{" + ",".join(whole) + "}").encode() if len(whole) == len(lines) else None


def _member(line: str, secrets: Mapping[str, str]) -> str | None:
    if not line.startswith('  "'):
        return None
    try:
        name, end = _DECODER.raw_decode(line, 2)
    except ValueError:
        return None
    value = line[end:].removeprefix(": ")
    if value.startswith("(hidden, ") and name in secrets:
        value = secrets[name]
    return f"{line[2:end]}:{value}"


def _value(row: ArgRow) -> str:
    if row.secret:
        return f"(hidden, {pluralize(row.bytes, 'byte')})"
    if row.value_json.startswith('"'):
        return _string(row.value_text, address=row.recipient)
    return _written(row.value_json, address=False)


def _string(text: str, *, address: bool = False) -> str:
    """A JSON string. It is checked before JSON escaping, because an escape could hide a confusable word."""
    return f'"{_written(text, address=address, json_text=True)}"'


def _written(text: str, *, address: bool, json_text: bool = False) -> str:
    spans = mark(text, block=True, address=address, every=True, edges=False).spans
    return "".join(
        json.dumps(span.text, ensure_ascii=False)[1:-1]
        if json_text and span.kind == "plain"
        else visible_span(span)
        for span in spans
    )


def _args_prefix(text: str, size: int) -> ShownArgs:
    lines = text.split("\n")
    first = "\n".join(lines[:PREFIX_LINES])
    rest = f"all {pluralize(size, 'byte')} are on the web."
    if utf16_units(first) <= PREFIX_CHARACTERS:
        shown = min(PREFIX_LINES, len(lines))
        return ShownArgs(first, False, f"The first {shown:,} of {pluralize(len(lines), 'line')}; {rest}")
    first = text[:PREFIX_CHARACTERS]
    return ShownArgs(first, False, f"The first {len(first):,} of {pluralize(len(text), 'character')}; {rest}")


MAX_WARNINGS: Final = 4
MAX_SIBLINGS: Final = 6  # larger transactions are shown on the web
MAX_AMOUNTS: Final = 5
MAX_CHANGES: Final = 2


@dataclass(frozen=True, slots=True)
class MisleadingPart:
    """A misleading part and the argument it is in; an empty name: the sentence."""

    name: str
    finding: TextFinding


@dataclass(frozen=True, slots=True)
class CardBody:
    """The blocks of a card without its buttons. ``whole``: nothing of the effect is missing or changed."""

    blocks: tuple[Block, ...]
    whole: bool
    args: ShownArgs
    misled: tuple[MisleadingPart, ...]

    @property
    def size(self) -> int:
        return characters([block.to_dict() for block in self.blocks])


def card_body(page: ReviewPage, name: str | None = None, *, small: bool = False) -> CardBody:
    """Render the body of a card; ``small``: only the essential parts, for a review that is too large for a message."""
    is_open = page.state == "open" and page.superseded_by is None
    pen, args, misled = TextWriter(), show_args(page, short=small or not is_open), misleading_parts(page)
    most = 1 if small else MAX_GATES
    blocks: list[Block] = [rich_text(*_effect_lines(page, pen), block_id=name)]
    if warned := _warning_lines(page, misled, pen):
        blocks.append(rich_text(*warned))
    if not is_open:
        blocks.append(rich_text(*outcome_lines(page)))
    blocks.append(rich_text(*_arg_lines(page, args, pen)))
    if is_open:
        blocks.append(rich_text(*_review_lines(page, pen, most, small=small)))
    if page.siblings and not small:
        blocks.append(rich_text(*_sibling_lines(page, pen)))
    rules = rule_names(page, pen, most) if is_open else []
    blocks += [
        rich_text(*_requester_lines(page, pen)),
        ContextBlock(elements=[plain(" · ".join((_reference_line(page, pen), *rules)))]),
    ]
    return CardBody(tuple(blocks), args.exact and not pen.cut and not small, args, misled)


def misleading_parts(page: ReviewPage) -> tuple[MisleadingPart, ...]:
    """Everything in names, values and sentences that can mislead, without duplicates."""
    found = [MisleadingPart(arg.row.name, finding) for arg in _views(page) for finding in arg.findings]
    parts = {one.finding for one in found}
    for pieces in (page.sentence, *(sibling.sentence for sibling in page.siblings)):
        for finding in _in_sentence(pieces):
            if finding not in parts:
                parts.add(finding)
                found.append(MisleadingPart("", finding))
    return tuple(found)


def _views(page: ReviewPage) -> tuple[ArgView, ...]:
    return arg_views(page, full=True)


def _in_sentence(pieces: tuple[Piece, ...]) -> list[TextFinding]:
    values = (mark(piece.text, address=piece.kind == "recipient") for piece in pieces if piece.value)
    return [finding for marked in values for finding in marked.findings]


def _warning_lines(
    page: ReviewPage, misled: tuple[MisleadingPart, ...], pen: TextWriter
) -> list[RichTextElement]:
    number = len(page.warnings) + len(misled)
    if not number:
        return []
    lines: list[RichTextElement] = [section(bold(f"{pluralize(number, 'thing')} here can mislead you"))]
    lines += [section(pen.said(text, MAX_WRITTEN)) for text in page.warnings[:MAX_WARNINGS]]
    lines += [section(_misleading_line(one, pen)) for one in misled[:MAX_WARNINGS]]
    if (more := number - min(len(page.warnings), MAX_WARNINGS) - min(len(misled), MAX_WARNINGS)) > 0:
        pen.cut = True
        lines.append(section(our_text(f"{pluralize(more, 'more warning')}: on the web.")))
    return lines


def _misleading_line(one: MisleadingPart, pen: TextWriter) -> Line:
    wire = f" On the wire this host is {pen.shown(one.finding.wire)}." if one.finding.wire else ""
    where = bold(pen.shown(one.name)) if one.name else our_text("In the sentence")
    return [*where, *our_text(f": {pen.shown(one.finding.sentence, MAX_WRITTEN)}{wire}")]


def _effect_lines(page: ReviewPage, pen: TextWriter) -> list[RichTextElement]:
    may_fire = page.state in ("open", "met") and page.superseded_by is None
    # an effect that never fires has no finality
    final = [section(pen.said(page.finality, MAX_VALUE))] if may_fire else []
    return [section(pen.sentence(page.sentence)), *final]


def _arg_lines(page: ReviewPage, args: ShownArgs, pen: TextWriter) -> list[RichTextElement]:
    lines: list[RichTextElement] = [preformatted(args.text)] if args.text else []
    if args.note:
        lines.append(section(our_text(args.note)))
    amounts = [(row.name, row.money) for row in page.args if row.money is not None]
    lines += [
        section(
            pen.said(name), our_text(" is "), bold(pen.shown(f"{money.text} {money.currency}")), our_text(".")
        )
        for name, money in amounts[:MAX_AMOUNTS]
    ]
    if len(amounts) > MAX_AMOUNTS:
        pen.cut = True
    unseen = [row.name for row in page.args if row.unseen]
    if unseen:
        lines.append(
            section(
                our_text("No policy could evaluate "), bold(pen.names(unseen, MAX_AMOUNTS)), our_text(".")
            )
        )
    return lines


def _review_lines(page: ReviewPage, pen: TextWriter, most: int, *, small: bool) -> list[RichTextElement]:
    """The quorum, the deadline and the gates, the most important first."""
    lines = quorum_lines(page, pen)
    lines.append(
        section(
            our_text("Answer by "),
            date_text(page.answer_by, left=True),
            our_text(", else it expires unfired."),
        )
    )
    if does := approval_effect(page, quorum_status(page).wanted):
        lines.append(section(our_text(does)))
    lines += gate_lines(page, pen, most)
    if page.unanswerable:
        lines.append(section(our_text("Waiting does not help: "), pen.said(page.unanswerable, MAX_WRITTEN)))
    lines += [
        section(our_text("The rules changed while this waited. "), pen.said(change.text, MAX_WRITTEN))
        for change in page.rule_changes[:MAX_CHANGES]
    ]
    if page.since_staged:
        changed = pen.names([change.name for change in page.since_staged], MAX_AMOUNTS)
        lines.append(section(our_text(f"Changed since the agent staged it: {changed}.")))
    return lines + ([] if small else recent_denial_lines(page))


def _sibling_lines(page: ReviewPage, pen: TextWriter) -> list[RichTextElement]:
    number = len(page.siblings) + 1
    lines: list[RichTextElement] = [section(our_text(f"One of {number:,} effects that commit together."))]
    lines += [
        section(our_text(f"Effect {sibling.seq:,}: "), pen.sentence(sibling.sentence, MAX_VALUE))
        for sibling in page.siblings[:MAX_SIBLINGS]
    ]
    if (more := len(page.siblings) - MAX_SIBLINGS) > 0:
        pen.cut = True
        lines.append(section(our_text(f"{pluralize(more, 'more effect')}: on the web.")))
    return lines


def _requester_lines(page: ReviewPage, pen: TextWriter) -> list[RichTextElement]:
    owner = (
        [*our_text(", for "), *bold(pen.shown(page.agent_owner))]
        if page.agent_owner
        else our_text("; this agent has no owner")
    )
    lines: list[RichTextElement] = [
        section(our_text("Asked by "), bold(pen.shown(page.agent)), owner, our_text("."))
    ]
    facts = f"{pluralize(len(page.facts), 'fact')} looked up" if page.facts else ""
    claims = "the agent's unverified explanation" if page.claimed else ""
    context = ", and ".join(filter(None, (facts, claims)))
    return [*lines, section(our_text(f"On the web: {context}."))] if context else lines


def _reference_line(page: ReviewPage, pen: TextWriter) -> str:
    """Tool, risk, digest and revision."""
    digest = f"{page.effect_digest[:4]} {page.effect_digest[4:8]}"
    return f"{pen.shown(page.tool_title)} · {page.risk} risk · effect {digest} · revision {page.rev:,}"

"""What stands on a card above its buttons, in its order: the effect, warnings, its arguments, who asks and why.

Pure. A body knows whether all of it is there: one that had to cut anything of the effect has no buttons under it.

The exact arguments as one block of JSON, a member a line; and the proof that it is the bytes people vote on.

Pure. Rules kept here:
- take the layout away and the canonical bytes are there again; where they are not, the card has no buttons;
- a secret value is a count of its bytes, in its place;
- what does not fit shows its beginning, with how much of how much that is.
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
from policy_service.channels.presentation.marked_text import mark
from policy_service.channels.presentation.review_status import quorum_status
from policy_service.channels.presentation.signing import approval_effect
from policy_service.channels.presentation.text_findings import TextFinding
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
from policy_service.queries.effect_text import ArgRow, Piece
from policy_service.queries.review_models import ReviewPage

MAX_ARGS_CHARACTERS: Final = 1_500  # about two screens of a phone: who has to scroll further reads the page
MAX_ARGS_LINES: Final = 30
PREFIX_CHARACTERS: Final = 600  # shown of what does not fit: enough to know it again, too little to decide by
PREFIX_LINES: Final = 20

_DECODER: Final = json.JSONDecoder(strict=True)


@dataclass(frozen=True, slots=True)
class ShownArgs:
    """What is shown of the arguments. ``exact``: all of them, as they are. ``note``: how much of them this is, else."""

    text: str
    exact: bool
    note: str = ""


def show_args(page: ArgumentsPage, *, short: bool = False) -> ShownArgs:
    """The arguments of an effect, nothing of them where the rows are not the bytes. ``short``: nobody decides by it."""
    if not matches_canonical(page):
        return ShownArgs("", False, "The arguments are not shown: they do not add up to the canonical bytes.")
    text = lay_out_args(page)
    secrets = {row.name: row.value_json for row in page.args if row.secret}
    most = PREFIX_CHARACTERS if short else MAX_ARGS_CHARACTERS
    if utf16_units(text) <= most and text.count("\n") < MAX_ARGS_LINES:
        return ShownArgs(text, canonical_from_layout(text, secrets) == page.canonical)
    return _args_prefix(text, len(page.canonical))


def lay_out_args(page: ArgumentsPage) -> str:
    """`{`, a member a line, `}`: in canonical order, with what cannot be seen written out."""
    lines = ",\n".join(f"  {_string(row.name)}: {_value(row)}" for _, row in ordered_members(page))
    return f"{{\n{lines}\n}}" if lines else "{}"


def canonical_from_layout(text: str, secrets: Mapping[str, str]) -> bytes | None:
    """The canonical bytes behind a text that was laid out; None where it is none."""
    if text == "{}":
        return b"{}"
    if not text.startswith("{\n") or not text.endswith("\n}"):
        return None
    lines = text[2:-2].split("\n")
    told = [
        _member(line.removesuffix(",") if place < len(lines) else line, secrets)
        for place, line in enumerate(lines, 1)
    ]
    whole = [member for member in told if member is not None]
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
    """A string as JSON. It is marked by its own characters: an escape must not make a word of what is none."""
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
    rest = f"all {pluralize(size, 'byte')} are on the page."
    if utf16_units(first) <= PREFIX_CHARACTERS:
        shown = min(PREFIX_LINES, len(lines))
        return ShownArgs(first, False, f"The first {shown:,} of {pluralize(len(lines), 'line')}; {rest}")
    first = text[:PREFIX_CHARACTERS]
    return ShownArgs(first, False, f"The first {len(first):,} of {pluralize(len(text), 'character')}; {rest}")


MAX_WARNINGS: Final = 4
MAX_SIBLINGS: Final = 6  # a transaction of more is read on the page
MAX_AMOUNTS: Final = 5
MAX_CHANGES: Final = 2


@dataclass(frozen=True, slots=True)
class MisleadingPart:
    """Something that can mislead, and the argument it is in; no name: the sentence."""

    name: str
    finding: TextFinding


@dataclass(frozen=True, slots=True)
class CardBody:
    """The blocks of a card but for its buttons. ``whole``: nothing of the effect is missing or changed."""

    blocks: tuple[Block, ...]
    whole: bool
    args: ShownArgs
    misled: tuple[MisleadingPart, ...]

    @property
    def size(self) -> int:
        return characters([block.to_dict() for block in self.blocks])


def card_body(page: ReviewPage, name: str | None = None, *, small: bool = False) -> CardBody:
    """The body of a card; ``small``: only what must stand there, for a page that is too much for one message."""
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
    """Everything in names, values and sentences that can mislead, each once."""
    found = [MisleadingPart(arg.row.name, finding) for arg in _views(page) for finding in arg.findings]
    told = {one.finding for one in found}
    for pieces in (page.sentence, *(sibling.sentence for sibling in page.siblings)):
        for finding in _in_sentence(pieces):
            if finding not in told:
                told.add(finding)
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
        lines.append(section(our_text(f"{pluralize(more, 'more warning')}: on the page.")))
    return lines


def _misleading_line(one: MisleadingPart, pen: TextWriter) -> Line:
    wire = f" On the wire this host is {pen.shown(one.finding.wire)}." if one.finding.wire else ""
    where = bold(pen.shown(one.name)) if one.name else our_text("In the sentence")
    return [*where, *our_text(f": {pen.shown(one.finding.sentence, MAX_WRITTEN)}{wire}")]


def _effect_lines(page: ReviewPage, pen: TextWriter) -> list[RichTextElement]:
    may_fire = page.state in ("open", "met") and page.superseded_by is None
    # of what never fires it says nothing
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
            section(our_text("No policy could weigh "), bold(pen.names(unseen, MAX_AMOUNTS)), our_text("."))
        )
    return lines


def _review_lines(page: ReviewPage, pen: TextWriter, most: int, *, small: bool) -> list[RichTextElement]:
    """How far it has come, until when, and which rules ask whom: what a reader in passing looks for comes first."""
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
        lines.append(section(our_text(f"{pluralize(more, 'more effect')}: on the page.")))
    return lines


def _requester_lines(page: ReviewPage, pen: TextWriter) -> list[RichTextElement]:
    owner = (
        [*our_text(", for "), *bold(pen.shown(page.agent_owner))]
        if page.agent_owner
        else our_text(", for nobody: this agent has no owner")
    )
    lines: list[RichTextElement] = [
        section(our_text("Asked by "), bold(pen.shown(page.agent)), owner, our_text("."))
    ]
    facts = f"{pluralize(len(page.facts), 'fact')} looked up" if page.facts else ""
    claims = "what the agent says of it, unchecked" if page.claimed else ""
    beside = ", and ".join(filter(None, (facts, claims)))
    return [*lines, section(our_text(f"On the page: {beside}."))] if beside else lines


def _reference_line(page: ReviewPage, pen: TextWriter) -> str:
    """What it is found by."""
    digest = f"{page.effect_digest[:4]} {page.effect_digest[4:8]}"
    return f"{pen.shown(page.tool_title)} · {page.risk} risk · effect {digest} · revision {page.rev:,}"

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

from policy_service.channels.presentation.arguments import ArgView, ArgumentsPage, arg_views, ordered_members, matches_canonical
from policy_service.channels.presentation.text_findings import TextFinding
from policy_service.channels.presentation.marked_text import mark
from policy_service.channels.presentation.signing import approval_effect
from policy_service.channels.presentation.review_status import quorum_status
from policy_service.channels.presentation.formatting import pluralize
from policy_service.channels.slack.drawing.blocks import (
    VALUE,
    WORDS,
    Line,
    Pen,
    bold,
    characters,
    own,
    plain,
    preformatted,
    rich,
    section,
    units,
    visible,
    when,
)
from policy_service.channels.slack.drawing.people import (
    MOST_GATES,
    denied_before_lines,
    gate_lines,
    quorum_lines,
    rule_names,
    settled_lines,
)
from policy_service.queries.effect_text import ArgRow, Piece
from policy_service.queries.review_models import ReviewPage

MAX_ARGS_CHARACTERS: Final = 1_500  # about two screens of a phone: who has to scroll further reads the page
MAX_ARGS_LINES: Final = 30
BEGINNING_CHARACTERS: Final = (
    600  # shown of what does not fit: enough to know it again, too little to decide by
)
BEGINNING_LINES: Final = 20

_DECODER: Final = json.JSONDecoder(strict=True)


@dataclass(frozen=True, slots=True)
class Args:
    """What is shown of the arguments. ``exact``: all of them, as they are. ``note``: how much of them this is, else."""

    text: str
    exact: bool
    note: str = ""


def args_shown(page: ArgumentsPage, *, short: bool = False) -> Args:
    """The arguments of an effect, nothing of them where the rows are not the bytes. ``short``: nobody decides by it."""
    if not matches_canonical(page):
        return Args("", False, "The arguments are not shown: they do not add up to the canonical bytes.")
    text = laid_out(page)
    secrets = {row.name: row.value_json for row in page.args if row.secret}
    most = BEGINNING_CHARACTERS if short else MAX_ARGS_CHARACTERS
    if units(text) <= most and text.count("\n") < MAX_ARGS_LINES:
        return Args(text, canonical_of(text, secrets) == page.canonical)
    return _beginning(text, len(page.canonical))


def laid_out(page: ArgumentsPage) -> str:
    """`{`, a member a line, `}`: in canonical order, with what cannot be seen written out."""
    lines = ",\n".join(f"  {_string(row.name)}: {_value(row)}" for _, row in ordered_members(page))
    return f"{{\n{lines}\n}}" if lines else "{}"


def canonical_of(text: str, secrets: Mapping[str, str]) -> bytes | None:
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
        else visible(span)
        for span in spans
    )


def _beginning(text: str, size: int) -> Args:
    lines = text.split("\n")
    first = "\n".join(lines[:BEGINNING_LINES])
    rest = f"all {pluralize(size, 'byte')} are on the page."
    if units(first) <= BEGINNING_CHARACTERS:
        shown = min(BEGINNING_LINES, len(lines))
        return Args(first, False, f"The first {shown:,} of {pluralize(len(lines), 'line')}; {rest}")
    first = text[:BEGINNING_CHARACTERS]
    return Args(first, False, f"The first {len(first):,} of {pluralize(len(text), 'character')}; {rest}")


MOST_WARNINGS: Final = 4
MOST_SIBLINGS: Final = 6  # a transaction of more is read on the page
MOST_AMOUNTS: Final = 5
MOST_CHANGES: Final = 2


@dataclass(frozen=True, slots=True)
class Misled:
    """Something that can mislead, and the argument it is in; no name: the sentence."""

    name: str
    finding: TextFinding


@dataclass(frozen=True, slots=True)
class Body:
    """The blocks of a card but for its buttons. ``whole``: nothing of the effect is missing or changed."""

    blocks: tuple[Block, ...]
    whole: bool
    args: Args
    misled: tuple[Misled, ...]

    @property
    def size(self) -> int:
        return characters([block.to_dict() for block in self.blocks])


def body_of(page: ReviewPage, name: str | None = None, *, small: bool = False) -> Body:
    """The body of a card; ``small``: only what must stand there, for a page that is too much for one message."""
    is_open = page.state == "open" and page.superseded_by is None
    pen, args, misled = Pen(), args_shown(page, short=small or not is_open), misleading(page)
    most = 1 if small else MOST_GATES
    blocks: list[Block] = [rich(*_effect(page, pen), block_id=name)]
    if warned := _warned(page, misled, pen):
        blocks.append(rich(*warned))
    if not is_open:
        blocks.append(rich(*settled_lines(page)))
    blocks.append(rich(*_args(page, args, pen)))
    if is_open:
        blocks.append(rich(*_asked(page, pen, most, small=small)))
    if page.siblings and not small:
        blocks.append(rich(*_siblings(page, pen)))
    rules = rule_names(page, pen, most) if is_open else []
    blocks += [
        rich(*_asker(page, pen)),
        ContextBlock(elements=[plain(" · ".join((_serial(page, pen), *rules)))]),
    ]
    return Body(tuple(blocks), args.exact and not pen.cut and not small, args, misled)


def misleading(page: ReviewPage) -> tuple[Misled, ...]:
    """Everything in names, values and sentences that can mislead, each once."""
    found = [Misled(arg.row.name, finding) for arg in _views(page) for finding in arg.findings]
    told = {one.finding for one in found}
    for pieces in (page.sentence, *(sibling.sentence for sibling in page.siblings)):
        for finding in _in_sentence(pieces):
            if finding not in told:
                told.add(finding)
                found.append(Misled("", finding))
    return tuple(found)


def _views(page: ReviewPage) -> tuple[ArgView, ...]:
    return arg_views(page, full=True)


def _in_sentence(pieces: tuple[Piece, ...]) -> list[TextFinding]:
    values = (mark(piece.text, address=piece.kind == "recipient") for piece in pieces if piece.value)
    return [finding for marked in values for finding in marked.findings]


def _warned(page: ReviewPage, misled: tuple[Misled, ...], pen: Pen) -> list[RichTextElement]:
    number = len(page.warnings) + len(misled)
    if not number:
        return []
    lines: list[RichTextElement] = [section(bold(f"{pluralize(number, 'thing')} here can mislead you"))]
    lines += [section(pen.said(text, WORDS)) for text in page.warnings[:MOST_WARNINGS]]
    lines += [section(_misled(one, pen)) for one in misled[:MOST_WARNINGS]]
    if (more := number - min(len(page.warnings), MOST_WARNINGS) - min(len(misled), MOST_WARNINGS)) > 0:
        pen.cut = True
        lines.append(section(own(f"{pluralize(more, 'more warning')}: on the page.")))
    return lines


def _misled(one: Misled, pen: Pen) -> Line:
    wire = f" On the wire this host is {pen.shown(one.finding.wire)}." if one.finding.wire else ""
    where = bold(pen.shown(one.name)) if one.name else own("In the sentence")
    return [*where, *own(f": {pen.shown(one.finding.sentence, WORDS)}{wire}")]


def _effect(page: ReviewPage, pen: Pen) -> list[RichTextElement]:
    may_fire = page.state in ("open", "met") and page.superseded_by is None
    # of what never fires it says nothing
    final = [section(pen.said(page.finality, VALUE))] if may_fire else []
    return [section(pen.sentence(page.sentence)), *final]


def _args(page: ReviewPage, args: Args, pen: Pen) -> list[RichTextElement]:
    lines: list[RichTextElement] = [preformatted(args.text)] if args.text else []
    if args.note:
        lines.append(section(own(args.note)))
    amounts = [(row.name, row.money) for row in page.args if row.money is not None]
    lines += [
        section(pen.said(name), own(" is "), bold(pen.shown(f"{money.text} {money.currency}")), own("."))
        for name, money in amounts[:MOST_AMOUNTS]
    ]
    if len(amounts) > MOST_AMOUNTS:
        pen.cut = True
    unseen = [row.name for row in page.args if row.unseen]
    if unseen:
        lines.append(section(own("No policy could weigh "), bold(pen.names(unseen, MOST_AMOUNTS)), own(".")))
    return lines


def _asked(page: ReviewPage, pen: Pen, most: int, *, small: bool) -> list[RichTextElement]:
    """How far it has come, until when, and which rules ask whom: what a reader in passing looks for comes first."""
    lines = quorum_lines(page, pen)
    lines.append(
        section(own("Answer by "), when(page.answer_by, left=True), own(", else it expires unfired."))
    )
    if does := approval_effect(page, quorum_status(page).wanted):
        lines.append(section(own(does)))
    lines += gate_lines(page, pen, most)
    if page.unanswerable:
        lines.append(section(own("Waiting does not help: "), pen.said(page.unanswerable, WORDS)))
    lines += [
        section(own("The rules changed while this waited. "), pen.said(change.text, WORDS))
        for change in page.rule_changes[:MOST_CHANGES]
    ]
    if page.since_staged:
        changed = pen.names([change.name for change in page.since_staged], MOST_AMOUNTS)
        lines.append(section(own(f"Changed since the agent staged it: {changed}.")))
    return lines + ([] if small else denied_before_lines(page))


def _siblings(page: ReviewPage, pen: Pen) -> list[RichTextElement]:
    number = len(page.siblings) + 1
    lines: list[RichTextElement] = [section(own(f"One of {number:,} effects that commit together."))]
    lines += [
        section(own(f"Effect {sibling.seq:,}: "), pen.sentence(sibling.sentence, VALUE))
        for sibling in page.siblings[:MOST_SIBLINGS]
    ]
    if (more := len(page.siblings) - MOST_SIBLINGS) > 0:
        pen.cut = True
        lines.append(section(own(f"{pluralize(more, 'more effect')}: on the page.")))
    return lines


def _asker(page: ReviewPage, pen: Pen) -> list[RichTextElement]:
    owner = (
        [*own(", for "), *bold(pen.shown(page.agent_owner))]
        if page.agent_owner
        else own(", for nobody: this agent has no owner")
    )
    lines: list[RichTextElement] = [section(own("Asked by "), bold(pen.shown(page.agent)), owner, own("."))]
    facts = f"{pluralize(len(page.facts), 'fact')} looked up" if page.facts else ""
    claims = "what the agent says of it, unchecked" if page.claimed else ""
    beside = ", and ".join(filter(None, (facts, claims)))
    return [*lines, section(own(f"On the page: {beside}."))] if beside else lines


def _serial(page: ReviewPage, pen: Pen) -> str:
    """What it is found by."""
    digest = f"{page.effect_digest[:4]} {page.effect_digest[4:8]}"
    return f"{pen.shown(page.tool_title)} · {page.risk} risk · effect {digest} · revision {page.rev:,}"

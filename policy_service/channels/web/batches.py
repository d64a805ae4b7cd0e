"""The pages where several reviews are decided, each by a vote of its own: those of one kind, and the effects of one
transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from fastapi import Request, Response

from countersign.contract.receipt import MAX_EFFECTS
from countersign.contract.wire import MAX_TEXT_CHARS
from policy_service.channels.presentation.arguments import ArgView, arg_views, matches_canonical
from policy_service.channels.presentation.formatting import Deadline, deadline_of
from policy_service.channels.presentation.formatting import as_sentence as as_sentence
from policy_service.channels.web.form_parser import MAX_FORM_BYTES
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.channels.web.presenters.context_panel import SiblingLine, sibling_line
from policy_service.channels.web.presenters.queue_rows import sentence_warnings
from policy_service.channels.web.presenters.review_page import DENIAL_REASONS
from policy_service.channels.web.vote_form import BatchForm, batch_fields, line_value, read_batch
from policy_service.errors import ConflictError, InvalidRequestError, ServiceError
from policy_service.queries.batches import (
    MAX_BATCH_LINES,
    BatchLine,
    TransactionReviewPage,
    TransactionReviewPart,
    batch_page,
    transaction_review,
)
from policy_service.queries.review_models import Sibling
from policy_service.queries.reviews import review_page
from policy_service.workflow.reviews.vote import VoteInput, vote


@dataclass(frozen=True, slots=True)
class BatchLineView:
    """One review of a batch. One with anything in it that deceives or folds has no box: it is decided on its own."""

    line: BatchLine
    args: tuple[ArgView, ...]
    due: Deadline
    alone: bool


@dataclass(frozen=True, slots=True)
class TransactionPartView:
    """One effect of a transaction: what this person may decide of it here, or why they may not."""

    part: SiblingLine
    finality: str
    gates: tuple[str, ...]
    may: BatchLineView | None
    why_not_here: str


def line_views(lines: Iterable[BatchLine], now: datetime) -> tuple[BatchLineView, ...]:
    """The lines of a batch."""
    return tuple(_line(line, now) for line in lines)


def part_views(page: TransactionReviewPage, now: datetime) -> tuple[TransactionPartView, ...]:
    """The effects of a transaction, in their order."""
    return tuple(_part(part, now) for part in page.parts)


def _part(part: TransactionReviewPart, now: datetime) -> TransactionPartView:
    view = None if part.line is None else _line(part.line, now)
    odd = view is not None and view.alone
    return TransactionPartView(
        sibling_line(Sibling(part.seq, part.sentence, part.state, part.review_id, part.args)),
        part.finality,
        part.gates,
        None if odd else view,
        "something in it can mislead" if odd else part.why_not_here,
    )


def _line(line: BatchLine, now: datetime) -> BatchLineView:
    args = arg_views(line)
    odd = any(arg.findings or arg.value.preview is not None for arg in args) or not matches_canonical(line)
    return BatchLineView(
        line,
        args,
        deadline_of(line.opened_at, line.answer_by, now),
        odd or bool(sentence_warnings(line.sentence)),
    )


_WORDS: Final = frozenset({"reason", "pick", "note"})
_UNDONE: Final = "none of your votes was counted"


routes = PageRoutes()


@routes.page("/alike/{review_id}")
async def show_batch(pages: Pages, request: Request, session: PageSession, review_id: str) -> Response:
    page = await batch_page(pages.ctx, session.voter, review_id)
    lines = line_views(page.lines, pages.now())[:MAX_BATCH_LINES]
    return await pages.draw(
        request,
        "alike.html",
        session=session,
        page=page,
        review_id=review_id,
        more=page.more or len(page.lines) > MAX_BATCH_LINES,
        lines=lines,
        values=[line_value(view.line) for view in lines],
        picks=DENIAL_REASONS,
        max_reason=MAX_TEXT_CHARS,
    )


@routes.form("/alike/{review_id}/votes", {"verdict"}, _WORDS | batch_fields(MAX_BATCH_LINES), undone=_UNDONE)
async def vote_batch(
    pages: Pages, request: Request, session: PageSession, form: dict[str, str], review_id: str
) -> Response:
    """One vote for each ticked line, each on its own bytes; one that is refused stops no other."""
    batch = read_batch(form, MAX_BATCH_LINES)
    page = await batch_page(pages.ctx, session.voter, review_id)
    may = {view.line.review_id for view in line_views(page.lines, pages.now()) if not view.alone}
    kind = f"the kind of {review_id} that you may decide together"
    return await pages.draw(
        request,
        "batch_told.html",
        **await _decided(pages, session, batch, may, kind),
        back=f"/alike/{review_id}",
        back_text="What is left of this kind",
    )


@routes.page("/reviews/{review_id}/whole")
async def show_transaction(pages: Pages, request: Request, session: PageSession, review_id: str) -> Response:
    page = await transaction_review(pages.ctx, session.voter, review_id)
    views = await pages.beside(page.bytes, lambda: part_views(page, pages.now()))
    return await pages.draw(
        request,
        "whole.html",
        heavy=page.bytes,
        session=session,
        page=page,
        review_id=review_id,
        parts_here=views,
        values=["" if view.may is None else line_value(view.may.line) for view in views],
        picks=DENIAL_REASONS,
        max_reason=MAX_TEXT_CHARS,
    )


@routes.form(
    "/reviews/{review_id}/whole/votes",
    {"verdict"},
    _WORDS | {"seen"} | batch_fields(MAX_EFFECTS),
    undone=_UNDONE,
    max_bytes=2 * MAX_FORM_BYTES,
    max_fields=2 * MAX_EFFECTS,
)
async def vote_transaction(
    pages: Pages, request: Request, session: PageSession, form: dict[str, str], review_id: str
) -> Response:
    """One vote for each effect, each on its own bytes; a denial of one ends all of them."""
    batch = read_batch(form, MAX_EFFECTS)
    if batch.verdict == "approve" and "seen" not in form:
        raise InvalidRequestError("say that you have read every effect: tick the box above the button")
    page = await transaction_review(pages.ctx, session.voter, review_id)
    views = await pages.beside(page.bytes, lambda: part_views(page, pages.now()))
    may = {view.may.line.review_id for view in views if view.may is not None}
    transaction = f"the transaction of {review_id} that you may decide here"
    return await pages.draw(
        request,
        "batch_told.html",
        **await _decided(pages, session, batch, may, transaction),
        back=f"/reviews/{review_id}/whole",
        back_text="The whole transaction",
    )


async def _decided(
    pages: Pages, session: PageSession, batch: BatchForm, may: set[str], of: str
) -> dict[str, Any]:
    """What became of each vote, for a page; one that is refused stops no other. ``of`` is what only these may be
    decided of.
    """
    told = []
    for line in batch.lines:
        named = line["review_id"]
        try:
            if named not in may:
                await _require_voted_already(pages, session, named, batch.verdict, of)
            ballot = VoteInput(
                named, batch.verdict, int(line["rev"]), line["effect_digest"], line["txn_digest"],
                batch.reason or None, "web", view_digest=line["view_digest"],
            )  # fmt: skip
            result = await vote(pages.ctx, session.voter, ballot)
            if not result.counted:
                raise ConflictError(f"it had settled before ({result.state}); your vote changed nothing")
            told.append({"review_id": named, "state": result.state, "refused": ""})
        except ServiceError as error:
            told.append({"review_id": named, "state": "", "refused": as_sentence(error.detail)})
    return {"session": session, "told": told, "verdict": batch.verdict}


async def _require_voted_already(
    pages: Pages, session: PageSession, named: str, verdict: str, of: str
) -> None:
    """What may not be decided here may have been, by this very form: a page that is loaded again sends it once more,
    and a vote that stands is taken as it stands.

    Raises:
        InvalidRequestError: it is no longer open for this person, or never stood here.
    """
    now = await review_page(pages.ctx, session.voter, named)
    if now is not None and now.my_verdict == verdict:
        return
    if now is not None and now.my_verdict is not None:
        raise InvalidRequestError(f"your vote to {now.my_verdict} stands: open it to change that")
    if now is not None and now.state != "open":
        raise InvalidRequestError(f"it has settled meanwhile ({now.state}); your vote would change nothing")
    raise InvalidRequestError(f"it is not one of {of}: open it")

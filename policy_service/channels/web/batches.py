"""Pages on which several reviews are decided, each with its own vote: batches of similar reviews, and
transactions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from fastapi import Request, Response

from countersign.contract.receipt import MAX_EFFECTS
from policy_service.channels.presentation.arguments import ArgView, arg_views, matches_canonical
from policy_service.channels.presentation.formatting import Deadline, deadline_of
from policy_service.channels.presentation.formatting import as_sentence as as_sentence
from policy_service.channels.web.form_parser import MAX_FORM_BYTES
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.channels.web.presenters.context_panel import SiblingLine, sibling_line
from policy_service.channels.web.presenters.queue_rows import sentence_warnings
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
    """One review of a batch. If anything in it is deceptive or folded, it has no checkbox and must be decided
    alone.
    """

    line: BatchLine
    args: tuple[ArgView, ...]
    due: Deadline
    alone: bool


@dataclass(frozen=True, slots=True)
class TransactionPartView:
    """One effect of a transaction: what this person may decide of it here, or why not."""

    part: SiblingLine
    finality: str
    gates: tuple[str, ...]
    may: BatchLineView | None
    why_not_here: str


def line_views(lines: Iterable[BatchLine], now: datetime) -> tuple[BatchLineView, ...]:
    return tuple(_line(line, now) for line in lines)


def part_views(page: TransactionReviewPage, now: datetime) -> tuple[TransactionPartView, ...]:
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


_TEXT_FIELDS: Final = frozenset({"reason", "pick", "note"})
_UNDONE: Final = "your votes were not counted"


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
    )


@routes.form(
    "/alike/{review_id}/votes", {"verdict"}, _TEXT_FIELDS | batch_fields(MAX_BATCH_LINES), undone=_UNDONE
)
async def vote_batch(
    pages: Pages, request: Request, session: PageSession, form: dict[str, str], review_id: str
) -> Response:
    """One vote for each checked line; a refused one does not stop the others."""
    batch = read_batch(form, MAX_BATCH_LINES)
    page = await batch_page(pages.ctx, session.voter, review_id)
    may = {view.line.review_id for view in line_views(page.lines, pages.now()) if not view.alone}
    kind = f"the kind of {review_id} that you may decide together"
    return await pages.draw(
        request,
        "batch_results.html",
        **await _cast_votes(pages, session, batch, may, kind),
        back=f"/alike/{review_id}",
        back_text="Remaining reviews of this batch",
    )


@routes.page("/reviews/{review_id}/whole")
async def show_transaction(pages: Pages, request: Request, session: PageSession, review_id: str) -> Response:
    page = await transaction_review(pages.ctx, session.voter, review_id)
    views = await pages.run_pure(page.bytes, lambda: part_views(page, pages.now()))
    return await pages.draw(
        request,
        "whole.html",
        heavy=page.bytes,
        session=session,
        page=page,
        review_id=review_id,
        parts_here=views,
        values=["" if view.may is None else line_value(view.may.line) for view in views],
    )


@routes.form(
    "/reviews/{review_id}/whole/votes",
    {"verdict"},
    _TEXT_FIELDS | {"seen"} | batch_fields(MAX_EFFECTS),
    undone=_UNDONE,
    max_bytes=2 * MAX_FORM_BYTES,
    max_fields=2 * MAX_EFFECTS,
)
async def vote_transaction(
    pages: Pages, request: Request, session: PageSession, form: dict[str, str], review_id: str
) -> Response:
    """One vote for each effect; one denial ends all of them."""
    batch = read_batch(form, MAX_EFFECTS)
    if batch.verdict == "approve" and "seen" not in form:
        raise InvalidRequestError("confirm that you have read every effect: check the box above the button")
    page = await transaction_review(pages.ctx, session.voter, review_id)
    views = await pages.run_pure(page.bytes, lambda: part_views(page, pages.now()))
    may = {view.may.line.review_id for view in views if view.may is not None}
    transaction = f"the transaction of {review_id} that you may decide here"
    return await pages.draw(
        request,
        "batch_results.html",
        **await _cast_votes(pages, session, batch, may, transaction),
        back=f"/reviews/{review_id}/whole",
        back_text="The whole transaction",
    )


async def _cast_votes(
    pages: Pages, session: PageSession, batch: BatchForm, may: set[str], of: str
) -> dict[str, Any]:
    """The result of each vote; a refused one does not stop the others. ``of`` describes what may be decided
    here.
    """
    results = []
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
                raise ConflictError(f"it was already settled ({result.state}); your vote changed nothing")
            results.append({"review_id": named, "state": result.state, "refused": ""})
        except ServiceError as error:
            results.append({"review_id": named, "state": "", "refused": as_sentence(error.detail)})
    return {"session": session, "results": results, "verdict": batch.verdict}


async def _require_voted_already(
    pages: Pages, session: PageSession, named: str, verdict: str, of: str
) -> None:
    """Accept a review that this form has decided before, because a reloaded page sends the form again.

    Raises:
        InvalidRequestError: it is not open for this person, or was never part of this page.
    """
    now = await review_page(pages.ctx, session.voter, named)
    if now is not None and now.my_verdict == verdict:
        return
    if now is not None and now.my_verdict is not None:
        raise InvalidRequestError(f"your vote to {now.my_verdict} counts: open the review to change it")
    if now is not None and now.state != "open":
        raise InvalidRequestError(f"it was settled meanwhile ({now.state}); your vote would change nothing")
    raise InvalidRequestError(f"it is not part of {of}: open its review")

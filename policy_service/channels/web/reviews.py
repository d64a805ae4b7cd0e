"""One review: its page, its live updates, votes and comments."""

from __future__ import annotations

from fastapi import Request, Response

from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.channels.web.presenters.context_panel import drawn_bytes
from policy_service.channels.web.presenters.review_page import change_notice, review_template_context
from policy_service.channels.web.vote_form import OPTIONAL_VOTE_FIELDS, VOTE_FIELDS, read_ballot
from policy_service.errors import ConflictError, InvalidRequestError
from policy_service.queries.review_context import closed_review_text, require_text_length
from policy_service.queries.review_models import VoteResult
from policy_service.queries.reviews import review_page
from policy_service.workflow.reviews.comment import CommentDraft, comment
from policy_service.workflow.reviews.vote import vote

_COMMENT_FIELDS = frozenset({"kind", "text"})
_KINDS = {"comment": False, "question": True}

routes = PageRoutes()


@routes.page("/reviews/{review_id}")
async def show_review(pages: Pages, request: Request, session: PageSession, review_id: str) -> Response:
    index = pages.ctx.feed.index
    page = await pages.review(session, review_id)
    size, full = len(page.canonical) + drawn_bytes(page), request.query_params.get("full") == "1"
    context = await pages.run_pure(size, lambda: review_template_context(page, pages.now(), full=full))
    context |= {"session": session, "index": index}
    return await pages.draw(request, "review.html", heavy=size, **context)


@routes.get("/reviews/{review_id}/live")
async def review_live(pages: Pages, request: Request, session: PageSession, review_id: str) -> Response:
    page = await review_page(pages.ctx, session.voter, review_id)
    changed = "" if page is None else change_notice(page, request.query_params.get("shown", ""))
    return await pages.draw(request, "review_live.html", changed=changed, review_id=review_id)


@routes.form(
    "/reviews/{review_id}/votes", VOTE_FIELDS, OPTIONAL_VOTE_FIELDS, undone="your vote was not counted"
)
async def cast_vote(
    pages: Pages, _: Request, session: PageSession, form: dict[str, str], review_id: str
) -> Response:
    ballot = read_ballot(session, review_id, form)
    _require_in_time(await vote(pages.ctx, session.voter, ballot))
    return pages.go(f"/reviews/{review_id}")


def _require_in_time(result: VoteResult) -> None:
    """Refuse a vote that came too late, unless it repeats this person's counted vote (a second press).

    Raises ConflictError: review_closed.
    """
    if result.counted or result.already_recorded:
        return
    raise ConflictError(
        f"{closed_review_text(result.state)}; your vote was recorded and changed nothing",
        code="review_closed",
    )


@routes.form("/reviews/{review_id}/comments", _COMMENT_FIELDS, undone="your comment was not saved")
async def write_comment(
    pages: Pages, _: Request, session: PageSession, form: dict[str, str], review_id: str
) -> Response:
    words, question = _read_comment(form)
    await comment(pages.ctx, session.voter, CommentDraft(review_id, words, question=question, channel="web"))
    return pages.go(f"/reviews/{review_id}#talk")


def _read_comment(fields: dict[str, str]) -> tuple[str, bool]:
    """The text of a form, and whether it is a question to the agent.

    Raises InvalidRequestError.
    """
    if fields["kind"] not in _KINDS:
        raise InvalidRequestError(f"a text is a 'comment' or a 'question', not {fields['kind']!r}")
    words = fields["text"].replace("\r\n", "\n").strip()
    if not words:
        raise InvalidRequestError("write a text first")
    return require_text_length(words), _KINDS[fields["kind"]]

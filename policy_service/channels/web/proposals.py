"""The routes of proposals: the form, its preview, sending it, and the owner's answer."""

from dataclasses import replace
from typing import Any

from fastapi import Request, Response

from countersign.contract import JSON, canonicalize
from policy_service.channels.web.form_parser import parse_positive_int
from policy_service.channels.web.page_routes import PageRoutes, read_submission, require_session
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.channels.web.presenters.proposal_form import (
    MAX_PROPOSAL_BYTES,
    FieldView,
    change_lines,
    field_names,
    field_views,
    parse_json,
    read_fields,
)
from policy_service.errors import ConflictError, InvalidRequestError, RequestError
from policy_service.queries.proposal_views import (
    ProposalForm,
    preview_proposal,
    proposal_form,
    review_after_acceptance,
    review_of_proposal,
)
from policy_service.queries.review_context import require_text_length
from policy_service.workflow.edits.proposals import ProposalRequest, accept, decline, propose

_DIGEST_FIELDS = frozenset({"rev", "effect_digest", "txn_digest"})
_MAX_FIELDS = 2_000  # two fields for each argument of a large schema
_UNDONE = "nothing was proposed"


routes = PageRoutes()


@routes.page("/reviews/{review_id}/propose")
async def show_form(pages: Pages, request: Request, session: PageSession, review_id: str) -> Response:
    found = await proposal_form(pages.ctx, session.voter, review_id)
    return await _draw(pages, request, session, found, fields=field_views(found))


@routes.public("/reviews/{review_id}/propose", "POST")
async def show_difference(pages: Pages, request: Request, review_id: str) -> Response:
    """The preview. Its fields depend on the effect."""
    found = await proposal_form(pages.ctx, (await require_session(pages, request)).voter, review_id)
    always, ticked = field_names(found)
    session, sent = await read_submission(
        pages,
        request,
        _DIGEST_FIELDS | always,
        ticked,
        undone=_UNDONE,
        max_bytes=MAX_PROPOSAL_BYTES,
        max_fields=_MAX_FIELDS,
    )
    _require_same_bytes(found, sent)
    args, errors = read_fields(found, sent)
    if errors:
        views = field_views(found, sent, errors)
        return await _draw(pages, request, session, found, status=400, fields=views)
    return await _draw_preview(pages, request, session, found, args, field_views(found, sent))


@routes.form(
    "/reviews/{review_id}/proposals",
    _DIGEST_FIELDS | {"args", "reason"},
    {"seen"},
    undone=_UNDONE,
    max_bytes=MAX_PROPOSAL_BYTES,
)
async def send(
    pages: Pages, request: Request, session: PageSession, sent: dict[str, str], review_id: str
) -> Response:
    args = parse_json(sent["args"])
    if not isinstance(args, dict):
        raise InvalidRequestError("the arguments are not an object; open the form again")
    if not sent["reason"].strip():
        return await _draw_missing_reason(pages, request, session, review_id, sent, args)
    proposed = ProposalRequest(
        review_id=review_id,
        rev=parse_positive_int(sent, "rev"),
        effect_digest=sent["effect_digest"],
        txn_digest=sent["txn_digest"],
        args=args,
        reason=_checked_text(sent["reason"]),
        channel="web",
    )
    await propose(pages.ctx, session.voter, proposed)
    return pages.go(f"/reviews/{review_id}")


@routes.form("/proposals/{proposal_id}/accept", optional={"seen"}, undone="nothing was changed")
async def accept_proposal(
    pages: Pages, _: Request, session: PageSession, __: dict[str, str], proposal_id: str
) -> Response:
    snapshot = await accept(pages.ctx, session.voter, proposal_id)
    return pages.go(f"/reviews/{await review_after_acceptance(pages.ctx, snapshot, proposal_id)}")


@routes.form("/proposals/{proposal_id}/decline", optional={"reason"}, undone="nothing was declined")
async def decline_proposal(
    pages: Pages, _: Request, session: PageSession, sent: dict[str, str], proposal_id: str
) -> Response:
    await decline(pages.ctx, session.voter, proposal_id, _checked_text(sent.get("reason", "")) or None)
    return pages.go(f"/reviews/{await review_of_proposal(pages.ctx, proposal_id)}")


async def _draw_missing_reason(
    pages: Pages,
    request: Request,
    session: PageSession,
    review_id: str,
    sent: dict[str, str],
    args: dict[str, JSON],
) -> Response:
    """The preview again, if the reason is missing."""
    found = await proposal_form(pages.ctx, session.voter, review_id)
    _require_same_bytes(found, sent)
    fields = tuple(replace(one, present=one.name in args, value=args.get(one.name)) for one in found.fields)
    views = field_views(replace(found, fields=fields))
    asked = "give a reason: the agent and its owner read it"
    return await _draw_preview(pages, request, session, found, args, views, status=400, refused=asked)


async def _draw_preview(
    pages: Pages,
    request: Request,
    session: PageSession,
    found: ProposalForm,
    args: dict[str, JSON],
    views: tuple[FieldView, ...],
    **context: Any,
) -> Response:
    try:
        seen = await preview_proposal(pages.ctx, session.voter, found.review_id, args)
    except RequestError as error:
        if error.status in (403, 404):
            raise
        return await _draw(
            pages, request, session, found, status=error.status, fields=views, refused=error.detail
        )
    changes = change_lines(seen.changes)
    return await _draw(
        pages,
        request,
        session,
        found,
        fields=views,
        preview=seen,
        changes=changes,
        warnings=sum(len(change.findings) for change in changes),
        args_json=canonicalize(args).decode(),
        **context,
    )


async def _draw(
    pages: Pages, request: Request, session: PageSession, found: ProposalForm, **context: Any
) -> Response:
    heavy = sum(len(view.text) for view in context["fields"])
    return await pages.draw(
        request,
        "propose.html",
        heavy=heavy,
        session=session,
        form=found,
        **context,
    )


def _require_same_bytes(form: ProposalForm, sent: dict[str, str]) -> None:
    """Fields are read by position, so they must belong to the effect the form was rendered from."""
    seen = (sent["rev"], sent["effect_digest"], sent["txn_digest"])
    if seen != (str(form.rev), form.effect_digest, form.txn_digest):
        raise ConflictError(
            "nothing was proposed: the effect has changed since you read it; open the form again",
            code="superseded",
        )


def _checked_text(text: str) -> str:
    return require_text_length(text.replace("\r\n", "\n").strip())

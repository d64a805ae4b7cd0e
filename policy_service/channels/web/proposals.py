"""The routes of proposals: the form, the difference before it is sent, and the answer of the agent's owner.

The same rules as everywhere here: a GET changes nothing, a POST carries the session's token and comes from our own
page, and the form names the bytes that were read. Nothing is judged here: the workflow decides.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeAlias

from fastapi import Request, Response

from countersign.contract import JSON, canonicalize
from countersign.contract.wire import MAX_TEXT_CHARS
from policy_service.channels.web.drawing.editing import (
    MAX_FORM_BYTES,
    FieldView,
    change_lines,
    field_views,
    names_of_fields,
    read_fields,
    read_json,
)
from policy_service.channels.web.drawing.forms import whole_number
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages
from policy_service.channels.web.ports import Edited, QueueSource, Session
from policy_service.channels.web.signing_in import sent_by, signed_in
from policy_service.errors import ConflictError, InvalidRequestError, RequestError
from policy_service.workflow.pages.edit_views import EditForm
from policy_service.workflow.words import require_short

_STAMP = frozenset({"csrf_token", "rev", "effect_digest", "txn_digest"})
_MAX_FIELDS = 2_000  # two for each argument of the largest schema anybody has reviewed, with room
_UNDONE = "nothing was proposed"


_Again: TypeAlias = Callable[[Request, Session, str, dict[str, str], dict[str, JSON]], Awaitable[Response]]


def add_proposals(router: PageRoutes, pages: Pages, source: QueueSource) -> None:
    """Give a router the pages of proposals."""
    _add_answers(router, pages, source, _add_form(router, pages, source))


def _add_form(router: PageRoutes, pages: Pages, source: QueueSource) -> _Again:
    """The form and the difference; answers how to draw the difference again, for a proposal that does not say why."""

    @router.page("/reviews/{review_id}/propose")
    async def form(request: Request, review_id: str) -> Response:
        session = await pages.session(request)
        if session is None:
            return pages.go(f"/sign-in?next=/reviews/{review_id}/propose")
        found = await source.edit_form(session.person, review_id)
        return await _draw(request, session, found, fields=field_views(found))

    @router.post("/reviews/{review_id}/propose")
    async def look(request: Request, review_id: str) -> Response:
        found = await source.edit_form((await signed_in(pages, request)).person, review_id)
        always, ticked = names_of_fields(found)
        session, sent = await sent_by(
            pages,
            request,
            _STAMP | always,
            ticked,
            undone=_UNDONE,
            max_bytes=MAX_FORM_BYTES,
            max_fields=_MAX_FIELDS,
        )
        _require_same_bytes(found, sent)
        args, errors = read_fields(found, sent)
        if errors:
            views = field_views(found, sent, errors)
            return await _draw(request, session, found, status=400, fields=views)
        return await _preview(request, session, found, args, field_views(found, sent))

    async def _preview(
        request: Request,
        session: Session,
        found: EditForm,
        args: dict[str, JSON],
        views: tuple[FieldView, ...],
        **context: Any,
    ) -> Response:
        try:
            seen = await source.preview_edit(session.person, found.review_id, args)
        except RequestError as error:
            if error.status in (403, 404):
                raise
            return await _draw(
                request, session, found, status=error.status, fields=views, refused=error.detail
            )
        changes = change_lines(seen.changes)
        return await _draw(
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

    async def again(
        request: Request, session: Session, review_id: str, sent: dict[str, str], args: dict[str, JSON]
    ) -> Response:
        found = await source.edit_form(session.person, review_id)
        _require_same_bytes(found, sent)
        fields = tuple(
            replace(one, present=one.name in args, value=args.get(one.name)) for one in found.fields
        )
        views = field_views(replace(found, fields=fields))
        asked = "say why, in words: the agent's side reads it"
        return await _preview(request, session, found, args, views, status=400, refused=asked)

    async def _draw(
        request: Request, session: Session, found: EditForm, *, status: int = 200, **context: Any
    ) -> Response:
        heavy = sum(len(view.text) for view in context["fields"])
        return await pages.draw(
            request,
            "propose.html",
            status=status,
            heavy=heavy,
            session=session,
            form=found,
            max_reason=MAX_TEXT_CHARS,
            **context,
        )

    return again


def _add_answers(router: PageRoutes, pages: Pages, source: QueueSource, again: _Again) -> None:
    @router.post("/reviews/{review_id}/proposals")
    async def propose(request: Request, review_id: str) -> Response:
        session, sent = await sent_by(
            pages,
            request,
            _STAMP | {"args", "reason"},
            {"seen"},
            undone=_UNDONE,
            max_bytes=MAX_FORM_BYTES,
        )
        args = read_json(sent["args"])
        if not isinstance(args, dict):
            raise InvalidRequestError("the arguments are not an object; open the form again")
        if not sent["reason"].strip():
            return await again(request, session, review_id, sent, args)
        wish = Edited(
            review_id=review_id,
            rev=whole_number(sent, "rev"),
            effect_digest=sent["effect_digest"],
            txn_digest=sent["txn_digest"],
            args=args,
            reason=_words(sent["reason"]),
        )
        await source.propose_edit(session.person, wish)
        return pages.go(f"/reviews/{review_id}")

    @router.post("/proposals/{proposal_id}/accept")
    async def accept(request: Request, proposal_id: str) -> Response:
        undone = "nothing was changed"
        session, _ = await sent_by(pages, request, {"csrf_token"}, {"seen"}, undone=undone)
        review_id = await source.accept_edit(session.person, proposal_id)
        return pages.go(f"/reviews/{review_id}")

    @router.post("/proposals/{proposal_id}/decline")
    async def decline(request: Request, proposal_id: str) -> Response:
        undone = "nothing was declined"
        session, sent = await sent_by(pages, request, {"csrf_token"}, {"reason"}, undone=undone)
        review_id = await source.decline_edit(session.person, proposal_id, _words(sent.get("reason", "")))
        return pages.go(f"/reviews/{review_id}")


def _require_same_bytes(form: EditForm, sent: dict[str, str]) -> None:
    """The fields are read by their place, so they must be of the very effect the form was drawn from."""
    seen = (sent["rev"], sent["effect_digest"], sent["txn_digest"])
    if seen != (str(form.rev), form.effect_digest, form.txn_digest):
        raise ConflictError(
            "nothing was proposed: what you read is not what stands now; open the form again",
            code="superseded",
        )


def _words(text: str) -> str:
    return require_short(text.replace("\r\n", "\n").strip())

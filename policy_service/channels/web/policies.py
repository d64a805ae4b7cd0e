"""The policies page: the active bundle, the shadow bundle, one policy in full, and a dry run.

Nothing is edited here. A dry run stores nothing; it is a form because it looks up facts.
"""

from __future__ import annotations

from fastapi import Request, Response

from countersign.contract import JSON, ContractError, canonicalize, load
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.errors import InvalidRequestError, NotFoundError, RequestError
from policy_service.queries.policies import EvaluatedCall
from policy_service.workflow.effects.evaluation_requests import try_effect

_FIELDS = frozenset({"agent", "tool", "args"})
_EXAMPLE = {"agent": "", "tool": "", "args": "{}"}


routes = PageRoutes()


async def _draw(
    pages: Pages,
    request: Request,
    session: PageSession,
    *,
    status: int = 200,
    form: dict[str, str] | None = None,
    tried: EvaluatedCall | None = None,
    refused: str = "",
) -> Response:
    chosen = request.query_params.get("policy")
    page = await pages.policies.page(chosen)
    if chosen is not None and page.chosen is None:
        raise NotFoundError(f"the bundle in force holds no policy {chosen!r}")
    return await pages.draw(
        request,
        "policies.html",
        status=status,
        heavy=sum(len(row.text) for row in page.policies),
        session=session,
        page=page,
        form=form or _EXAMPLE,
        tried=tried,
        refused=refused,
    )


@routes.page("/policies")
async def policies(pages: Pages, request: Request, session: PageSession) -> Response:
    like = request.query_params.get("try")
    form = None if like is None else await _form_of_review(pages, session, like)
    return await _draw(pages, request, session, form=form)


async def _form_of_review(pages: Pages, session: PageSession, review_id: str) -> dict[str, str]:
    """The form filled with a review's arguments, without secrets."""
    page = await pages.review(session, review_id)
    members = ", ".join(
        f"{canonicalize(row.name).decode()}: {row.value_json}" for row in page.args if not row.secret
    )
    return {"agent": page.agent, "tool": page.tool, "args": "{" + members + "}"}


@routes.form("/policies/try", _FIELDS, undone="nothing was evaluated")
async def try_policies(
    pages: Pages, request: Request, session: PageSession, form: dict[str, str]
) -> Response:
    del form["csrf_token"]
    try:
        args = _args(form["args"])
        tried = await try_effect(pages.ctx, form["agent"].strip(), form["tool"].strip(), args)
    except RequestError as error:
        return await _draw(pages, request, session, status=error.status, form=form, refused=error.detail)
    return await _draw(pages, request, session, form=form, tried=tried)


def _args(text: str) -> JSON:
    try:
        return load(text.strip().encode("utf-8", "surrogatepass"))
    except ContractError as error:
        raise InvalidRequestError(f"the arguments are not valid JSON: {error}") from error

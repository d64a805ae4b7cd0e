"""The policies page: what is in force, what stands in shadow, one policy in full, and a form that tries an effect.

Nothing is edited here. Trying an effect asks the policy and its sources and stores nothing; it is a form and no
link all the same, because it looks up facts.
"""

from __future__ import annotations

from fastapi import Request, Response

from countersign.contract import JSON, ContractError, canonicalize, load
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages
from policy_service.channels.web.ports import PolicySource, QueueSource, Session
from policy_service.channels.web.signing_in import sent_by
from policy_service.errors import InvalidRequestError, NotFoundError, RequestError
from policy_service.workflow.reading.policies import TriedEffect

_FIELDS = frozenset({"csrf_token", "agent", "tool", "args"})
_EXAMPLE = {"agent": "", "tool": "", "args": "{}"}


def add_policies(router: PageRoutes, pages: Pages, source: PolicySource, queue: QueueSource) -> None:
    """Give a router the policies page."""

    async def draw(
        request: Request,
        session: Session,
        *,
        status: int = 200,
        form: dict[str, str] | None = None,
        tried: TriedEffect | None = None,
        refused: str = "",
    ) -> Response:
        chosen = request.query_params.get("policy")
        page = await source.policies_page(chosen)
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

    @router.page("/policies")
    async def policies(request: Request) -> Response:
        session = await pages.session(request)
        if session is None:
            return pages.go("/sign-in?next=/policies")
        like = request.query_params.get("try")
        return await draw(request, session, form=None if like is None else await _like(session, like))

    async def _like(session: Session, review_id: str) -> dict[str, str]:
        """The form filled in as in a review, without what is secret there."""
        page = await queue.review_page(review_id, session.person)
        if page is None:
            raise NotFoundError(f"there is no review {review_id!r} that you may see")
        told = ", ".join(
            f"{canonicalize(row.name).decode()}: {row.value_json}" for row in page.args if not row.secret
        )
        return {"agent": page.agent, "tool": page.tool, "args": "{" + told + "}"}

    @router.post("/policies/try")
    async def try_effect(request: Request) -> Response:
        session, form = await sent_by(pages, request, _FIELDS, (), undone="nothing was asked")
        del form["csrf_token"]
        try:
            tried = await source.try_effect(form["agent"].strip(), form["tool"].strip(), _args(form["args"]))
        except (InvalidRequestError, NotFoundError, RequestError) as error:
            return await draw(request, session, status=error.status, form=form, refused=error.detail)
        return await draw(request, session, form=form, tried=tried)


def _args(text: str) -> JSON:
    try:
        return load(text.strip().encode("utf-8", "surrogatepass"))
    except ContractError as error:
        raise InvalidRequestError(f"the arguments are not JSON we take: {error}") from error

"""A person's Slack accounts, and the page an invitation leads to.

Opening the invitation links nothing: the page says which account it is, whose it would become and what that lets it do,
and the form on it is the word that counts. The secret of the address goes into a cookie at once: the sign-in page, the
history of the browser and the Referer header do not get it. Where no Slack app is set up there are none of these pages.
"""

from __future__ import annotations

import re
from typing import Final

from fastapi import Request, Response

from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages
from policy_service.channels.web.ports import SlackAccounts
from policy_service.channels.web.signing_in import sent_by
from policy_service.errors import InvalidRequestError, NotFoundError

_UNLINKED, _UNDONE = "no Slack account was linked", "nothing was changed"
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
_INVITATION_S: Final = 3_600  # longer than an invitation can hold
_ANSWERS = {"yes": True, "no": False}


def add_slack_accounts(router: PageRoutes, pages: Pages, accounts: SlackAccounts) -> None:
    """The routes."""
    _add_invitation(router, pages, accounts)

    @router.page("/slack")
    async def mine(request: Request) -> Response:
        session = await pages.session(request)
        if session is None:
            return pages.go("/sign-in?next=/slack")
        found = await accounts.mine(session)
        return await pages.draw(
            request, "slack.html", session=session, accounts=found, command=accounts.command
        )

    @router.post("/slack/unlink")
    async def unlink(request: Request) -> Response:
        fields = {"csrf_token", "team_id", "user_id"}
        session, form = await sent_by(pages, request, fields, (), undone=_UNDONE)
        if not await accounts.unlink(session, form["team_id"], form["user_id"]):
            raise NotFoundError("this Slack account is not linked to you")
        return pages.go("/slack")

    @router.post("/slack/direct")
    async def direct(request: Request) -> Response:
        fields = {"csrf_token", "team_id", "user_id", "wanted"}
        session, form = await sent_by(pages, request, fields, (), undone=_UNDONE)
        if form["wanted"] not in _ANSWERS:
            raise InvalidRequestError("say yes or no to direct messages")
        await accounts.set_direct(session, form["team_id"], form["user_id"], _ANSWERS[form["wanted"]])
        return pages.go("/slack")


def _add_invitation(router: PageRoutes, pages: Pages, accounts: SlackAccounts) -> None:
    @router.page("/slack/link")
    async def ask(request: Request) -> Response:
        given, kept = request.query_params.get("invitation"), pages.site.invitation_cookie
        if given is not None:
            answer = pages.go("/slack/link")
            pages.set_cookie(answer, kept, given if _SECRET.fullmatch(given) else "none", _INVITATION_S)
            return answer
        session = await pages.session(request)
        if session is None:
            return pages.go("/sign-in?next=/slack/link")
        secret = pages.cookie(request, kept) or ""
        found = await accounts.invitation(secret)
        if found is None:
            raise InvalidRequestError(
                f"this link is unknown, was used or is too old; ask Slack for another: {accounts.command}",
                code="bad_token",
            )
        return await pages.draw(request, "slack_link.html", session=session, found=found, secret=secret)

    @router.post("/slack/link")
    async def link(request: Request) -> Response:
        session, form = await sent_by(pages, request, {"csrf_token", "invitation"}, (), undone=_UNLINKED)
        said = await accounts.link(session, form["invitation"])
        answer = pages.go("/slack")
        pages.set_cookie(answer, pages.site.session_cookie, said.cookie, said.max_age_seconds)
        pages.set_cookie(answer, pages.site.invitation_cookie, "", 0)
        return answer

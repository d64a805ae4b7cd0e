"""A person's Slack accounts, and the page of a link invitation.

Opening the invitation links nothing: the page names the account and what linking permits, and its form
confirms. The secret moves from the address into a cookie at once, so the sign-in page, browser history and
Referer header do not get it. Without a Slack app these pages do not exist.
"""

from __future__ import annotations

import re
from typing import Final

from fastapi import Request, Response

from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.errors import InvalidRequestError, NotFoundError
from policy_service.workflow.slack import account_links
from policy_service.workflow.transitions import person_actor

_UNLINKED, _UNDONE = "no Slack account was linked", "nothing was changed"
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
_INVITATION_S: Final = 3_600  # longer than an invitation is valid
_ANSWERS = {"yes": True, "no": False}


routes = PageRoutes()


@routes.page("/slack")
async def show_accounts(pages: Pages, request: Request, session: PageSession) -> Response:
    person = session.person
    found = await account_links.links_of(pages.ctx, person.iss, person.sub)
    return await pages.draw(
        request, "slack.html", session=session, accounts=found, command=account_links.COMMAND
    )


@routes.form("/slack/unlink", {"team_id", "user_id"}, undone=_UNDONE)
async def unlink(pages: Pages, _: Request, session: PageSession, form: dict[str, str]) -> Response:
    actor, whose = person_actor(session.person.iss, session.person.sub), session.person.key
    if not await account_links.unlink(pages.ctx, form["team_id"], form["user_id"], actor=actor, whose=whose):
        raise NotFoundError("this Slack account is not linked to you")
    return pages.go("/slack")


@routes.form("/slack/direct", {"team_id", "user_id", "wanted"}, undone=_UNDONE)
async def direct(pages: Pages, _: Request, session: PageSession, form: dict[str, str]) -> Response:
    """Turn direct messages on or off."""
    if form["wanted"] not in _ANSWERS:
        raise InvalidRequestError("answer yes or no to direct messages")
    wanted, whose = _ANSWERS[form["wanted"]], session.person.key
    await account_links.set_direct(pages.ctx, form["team_id"], form["user_id"], wanted, whose=whose)
    return pages.go("/slack")


@routes.public("/slack/link", "GET", "HEAD")
async def show_invitation(pages: Pages, request: Request) -> Response:
    given, kept = request.query_params.get("invitation"), pages.site.invitation_cookie
    if given is not None:
        answer = pages.go("/slack/link")
        pages.set_cookie(answer, kept, given if _SECRET.fullmatch(given) else "none", _INVITATION_S)
        return answer
    session = await pages.session(request)
    if session is None:
        return pages.go("/sign-in?next=/slack/link")
    secret = pages.cookie(request, kept) or ""
    found = await account_links.find_invitation(pages.ctx, secret)
    if found is None:
        raise InvalidRequestError(
            f"this link is unknown, was used or has expired; request another in Slack: {account_links.COMMAND}",
            code="bad_token",
        )
    return await pages.draw(request, "slack_link.html", session=session, found=found, secret=secret)


@routes.form("/slack/link", {"invitation"}, undone=_UNLINKED)
async def link(pages: Pages, _: Request, session: PageSession, form: dict[str, str]) -> Response:
    app = pages.ctx.settings.slack
    if app is None:
        raise NotFoundError("no Slack app is set up here")
    made = await account_links.link(pages.ctx, app, form["invitation"], session.live)
    answer = pages.go("/slack")
    pages.set_session(answer, made.cookie)
    pages.set_cookie(answer, pages.site.invitation_cookie, "", 0)
    return answer

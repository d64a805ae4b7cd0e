"""The web queue's routes: pages, fragments, forms and one event stream.

Rules kept here, for every route: the Host is the public URL's, or the answer is 421; a GET changes nothing,
not even a link's one use (a provider's answer is the exception, see `signing_in`); a POST came from our own
page, by a navigation; a signed-in person's POST carries that session's token; every refusal is a page that says
what did not happen.
"""

from datetime import timedelta

from fastapi import FastAPI, Request, Response

from policy_service.channels.streams import Streams
from policy_service.channels.web import live
from policy_service.channels.web.agents import add_agents
from policy_service.channels.web.audit import add_audit
from policy_service.channels.web.batches import add_batches
from policy_service.channels.web.drawing import talk
from policy_service.channels.web.drawing.beside import weight
from policy_service.channels.web.drawing.forms import read_form
from policy_service.channels.web.drawing.views import changed_since, review_context
from policy_service.channels.web.elsewhere import tell_people
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages
from policy_service.channels.web.passkeys import add_passkeys
from policy_service.channels.web.policies import add_policies
from policy_service.channels.web.ports import (
    Clock,
    EventFeed,
    Oversight,
    Passkeys,
    PolicySource,
    QueueSource,
    Sessions,
    SlackAccounts,
    WebSettings,
)
from policy_service.channels.web.proposals import add_proposals
from policy_service.channels.web.queue import add_queue
from policy_service.channels.web.signing_in import add_sign_in, sent_by, signed_in
from policy_service.channels.web.slack_accounts import add_slack_accounts
from policy_service.channels.web.stopping import add_stopping
from policy_service.channels.web.tasks import add_tasks
from policy_service.channels.web.voting import FIELDS, OPTIONAL, read_ballot, require_csrf
from policy_service.errors import ConflictError, InvalidRequestError, NotFoundError
from policy_service.workflow.reading.reviews import VoteResult
from policy_service.workflow.words import closed

_SETTING_FOR = timedelta(days=365)


def install(
    app: FastAPI,
    source: QueueSource,
    policies: PolicySource,
    oversight: Oversight,
    sessions: Sessions,
    feed: EventFeed,
    settings: WebSettings,
    passkeys: Passkeys,
    *,
    clock: Clock,
    slack: SlackAccounts | None = None,
) -> None:
    """Give an application the queue. Call it last: pages for lost visitors go in front of its handlers."""
    pages = Pages(
        settings.public_url, sessions, clock, policies.in_force, oversight.alarms, source.count_tasks,
        slack=slack is not None,
    )  # fmt: skip
    router = PageRoutes(pages)
    add_queue(router, pages, source, feed)
    add_batches(router, pages, source)
    _add_review(router, pages, source, feed, passkeys)
    add_passkeys(router, pages, passkeys, source)
    if slack is not None:
        add_slack_accounts(router, pages, slack)
    add_proposals(router, pages, source)
    _add_comments(router, pages, source)
    add_tasks(router, pages, source, feed)
    add_policies(router, pages, policies, source)
    add_agents(router, pages, oversight)
    add_audit(router, pages, oversight)
    add_stopping(router, pages, oversight)
    add_sign_in(router, pages, sessions, settings)
    _add_settings(router, pages)
    _add_stream(router, pages, sessions, feed)
    app.routes.extend(router.routes)
    tell_people(app, pages)


def _add_review(
    router: PageRoutes, pages: Pages, source: QueueSource, feed: EventFeed, passkeys: Passkeys
) -> None:
    @router.page("/reviews/{review_id}")
    async def review(request: Request, review_id: str) -> Response:
        session = await pages.session(request)
        if session is None:
            return pages.go(f"/sign-in?next=/reviews/{review_id}")
        index = await feed.latest()
        page = await source.review_page(review_id, session.person)
        if page is None:
            raise NotFoundError(f"there is no review {review_id!r} that you may see")
        size, full = len(page.canonical) + weight(page), request.query_params.get("full") == "1"
        context = await pages.beside(size, lambda: review_context(page, pages.now(), full=full))
        context |= {"session": session, "index": index}
        return await pages.draw(request, "review.html", heavy=size, **context)

    @router.get("/reviews/{review_id}/live")
    async def review_live(request: Request, review_id: str) -> Response:
        session = await signed_in(pages, request, touch=False)
        page = await source.review_page(review_id, session.person)
        changed = "" if page is None else changed_since(page, request.query_params.get("shown", ""))
        return await pages.draw(request, "review_live.html", changed=changed, review_id=review_id)

    @router.post("/reviews/{review_id}/votes")
    async def vote(request: Request, review_id: str) -> Response:
        session, form = await sent_by(pages, request, FIELDS, OPTIONAL, undone="your vote was not counted")
        ballot = read_ballot(form)
        result = await source.cast_vote(
            session.person,
            review_id,
            ballot.verdict,
            ballot.rev,
            ballot.effect_digest,
            ballot.txn_digest,
            ballot.reason,
            shown=ballot.shown,
            proof=passkeys.proof(session, ballot),
        )
        _require_in_time(result)
        return pages.go(f"/reviews/{review_id}")


def _require_in_time(result: VoteResult) -> None:
    """Refuse a vote that came too late, unless it only repeats what this person's counted one says: a second press.

    Raises ConflictError: review_closed.
    """
    if result.counted or result.said_before:
        return
    raise ConflictError(
        f"{closed(result.state)}; what you sent is on record and changed nothing", code="review_closed"
    )


def _add_comments(router: PageRoutes, pages: Pages, source: QueueSource) -> None:
    @router.post("/reviews/{review_id}/comments")
    async def write(request: Request, review_id: str) -> Response:
        session, form = await sent_by(pages, request, talk.FIELDS, (), undone="your words were not kept")
        words, question = talk.read_comment(form)
        await source.write_comment(session.person, review_id, words, question=question)
        return pages.go(f"/reviews/{review_id}#talk")


def _add_settings(router: PageRoutes, pages: Pages) -> None:
    @router.post("/theme")
    async def theme(request: Request) -> Response:
        session = await signed_in(pages, request)
        form = await read_form(request, {"csrf_token", "theme", "back"})
        require_csrf(session, form)
        if form["theme"] not in ("light", "dark"):
            raise InvalidRequestError(f"there is no theme {form['theme']!r}: there are 'light' and 'dark'")
        answer = pages.go(form["back"])
        seconds = int(_SETTING_FOR.total_seconds())
        pages.set_cookie(answer, pages.site.theme_cookie, form["theme"], seconds)
        return answer

    @router.post("/keys")
    async def keys(request: Request) -> Response:
        """Single keys on or off in this browser (WCAG 2.1.4)."""
        session = await signed_in(pages, request)
        form = await read_form(request, {"csrf_token", "keys", "back"})
        require_csrf(session, form)
        if form["keys"] not in ("on", "off"):
            raise InvalidRequestError(f"keys are 'on' or 'off', not {form['keys']!r}")
        answer = pages.go(form["back"])
        seconds = int(_SETTING_FOR.total_seconds()) if form["keys"] == "off" else 0
        pages.set_cookie(answer, pages.site.keys_cookie, form["keys"], seconds)
        return answer


def _add_stream(router: PageRoutes, pages: Pages, sessions: Sessions, feed: EventFeed) -> None:
    streams = Streams()

    @router.get("/events")
    async def events(request: Request) -> Response:
        person = (await signed_in(pages, request, touch=False)).person
        cookie = pages.cookie(request, pages.site.session_cookie) or ""
        last_seen = request.headers.get("last-event-id")
        after = live.whole(last_seen) if last_seen else live.index_of(request, "after")
        about = request.query_params.get("review") or request.query_params.get("task")
        body = live.stream(feed, sessions, cookie, after, about)
        return streams.answer(f"{person.iss}|{person.sub}", body, pages.stream_headers())

    @router.page("/static/{digest}/{name:path}")
    async def static(request: Request, digest: str, name: str) -> Response:
        found = pages.asset(digest, name)
        if found is None:
            raise NotFoundError(f"there is no file {name!r} of that digest")
        return found

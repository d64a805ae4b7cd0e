"""The pages of reviews and policies."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from sqlalchemy import func, select

from policy_service.channels.web import agents
from policy_service.pap.active_bundle import ActiveBundle
from policy_service.pap.bundle import NoActiveBundleError
from policy_service.storage.core import table
from policy_service.storage.system_tables import AuditRow
from tests.fakes import policies, reviews
from tests.fakes.pages import holds
from tests.fakes.world import URL
from tests.integration.service.effects import pay
from tests.integration.service.stepping_up import Holder, review_of
from tests.integration.service.together.bank import Bank
from tests.integration.web.conftest import drawn, drawn_review

pytestmark = pytest.mark.anyio

VENDORED = ["htmx.min.js", "hx-csp.min.js", "hx-sse.min.js"]
DECEIVING = "\u202e\u202c\u200b\u2066\u2069"


class Elements(HTMLParser):
    """Every element and attribute of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


async def paths(bank: Bank) -> list[str]:
    """One page of every kind, one of them with a deceptive account."""
    view = await bank.asks()
    evil = await pay(bank, 500, account="<img src=x onerror=alert(1)>\u202e")
    bad = (await bank.robot.submit(evil, run_key="evil")).json()
    queue = f"/?tab=open&review={review_of(bad)}"
    return [
        "/", queue, "/policies?policy=large", f"/reviews/{review_of(view)}", f"/reviews/{review_of(bad)}",
        "/reviews/none",
    ]  # fmt: skip


HEADERS = {
    "cache-control": "no-store", "x-frame-options": "DENY", "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin", "referrer-policy": "same-origin",
}  # fmt: skip
CONTENT_SECURITY = {
    "default-src": "'none'", "style-src": "'self'", "img-src": "'self'", "connect-src": "'self'",
    "form-action": "'self'", "frame-ancestors": "'none'", "base-uri": "'none'",
    "require-trusted-types-for": "'script'", "trusted-types": "htmx",
}  # fmt: skip


async def test_pages_are_not_cached_and_have_strict_headers(bank: Bank) -> None:
    nonces, pages = set(), await paths(bank)
    for path in pages:
        answer = await bank.maya.get(path)
        assert HEADERS.items() <= dict(answer.headers).items()
        parts = answer.headers["content-security-policy"].split(";")
        policy = dict(part.strip().split(" ", 1) for part in parts)
        nonce = policy.pop("script-src").removeprefix("'nonce-").removesuffix("'")
        assert re.fullmatch(r"[\w-]{22}", nonce)
        assert policy == CONTENT_SECURITY
        elements = Elements(answer.text).elements
        assert all(attrs["nonce"] == nonce for tag, attrs in elements if tag == "script")
        marked = [attrs for _, attrs in elements if any(name.startswith("hx-") for name in attrs)]
        assert all(attrs["hx-nonce"] == nonce for attrs in marked)  # what htmx looks at carries it too
        assert marked or path != "/"
        assert "Policies at" in answer.text
        nonces.add(nonce)
    assert len(nonces) == len(pages), "a nonce is never used twice"


async def test_pages_have_no_inline_code_and_no_foreign_resources(bank: Bank) -> None:
    asked = (*await paths(bank), "/sign-in", "/sign-in/dev?token=x", "/queue/live?since=0")
    texts = [(await bank.maya.get(path)).text for path in asked]
    for text in (*texts, await drawn_review(bank, reviews.hostile())):
        for tag, attrs in Elements(text).elements:
            assert tag not in {"style", "iframe", "object", "embed", "base"}
            assert not [name for name in attrs if name.startswith("on") or name == "style"]
            for name in ("src", "href", "action", "hx-get", "hx-sse:connect"):
                if (target := attrs.get(name)) is not None:
                    assert target.startswith(("/", "#")), (tag, name, target)
                    assert not target.startswith("//")
            assert tag != "script" or attrs.get("src"), "an inline script"
    scripts = [
        attrs for tag, attrs in Elements(texts[0]).elements
        if tag == "script" and "vendor" in str(attrs["src"])
    ]  # fmt: skip
    # Deferred, htmx sets off on a timer and may process the page before hx-csp has registered.
    assert [str(attrs["src"]).rsplit("/", 1)[1] for attrs in scripts] == VENDORED
    assert not [attrs for attrs in scripts if {"defer", "async", "type"} & attrs.keys()]


async def test_hostile_arguments_are_rendered_as_text(bank: Bank) -> None:
    """I1: no element of the page was made by the agent."""
    text = await drawn_review(bank, reviews.hostile())
    page = Elements(text)
    scripts = [str(attrs["src"]).split("/", 3)[3] for tag, attrs in page.elements if tag == "script"]
    assert set(scripts) == {"keys.js", "live.js", *(f"vendor/{name}" for name in VENDORED)}
    assert not [attrs for tag, attrs in page.elements if tag in {"img", "iframe"} or "hx-post" in attrs]
    holds(page.text, "<script>document.title='owned'</script>", "<button hx-post=")
    holds(text, "U+202E", "U+000A × 64", "xn--northwind-sttements-1op.example", without=DECEIVING)
    pages = await paths(bank)
    for path in ("/", "/?tab=open&text=%3Cimg+src%3Dx%3E%E2%80%AE%22", *pages[1:5]):
        holds((await bank.maya.get(path)).text, without=["<img", *DECEIVING])


async def test_an_agent_name_tool_title_and_reason_are_untrusted_too(bank: Bank) -> None:
    evil = "<img src=x>\u202e"
    page = reviews.denied("rev_evil", agent=evil, agent_owner=evil, warnings=(evil,), why_not=evil)
    vote = replace(page.votes[0], person_name=evil, reason=evil)
    gate = replace(page.gates[0], title=evil, doc=evil, cedar_text=evil)
    event = replace(page.timeline[0], text=evil, actor=evil)
    fact = replace(page.facts[0], label=evil, value=evil, source=evil)
    page = replace(
        page, votes=(vote,), gates=(gate,), timeline=(event,), facts=(fact,), claimed={evil: evil},
        sentence=(*page.sentence, reviews.value(evil)), finality=evil, key_kid=evil,
    )  # fmt: skip
    text = await drawn_review(bank, page)
    holds(text, without=["<img", "\u202e"])
    assert text.count("&lt;img src=x&gt;") > 15


async def test_the_sheet_describes_the_effect(bank: Bank) -> None:
    page = reviews.refund()
    text = await drawn_review(bank, page)
    heading = text.split("<h1")[1].split("</h1>")[0]
    holds(heading, '<b class=" nowrap">$1,240.00</b>', '<b class="mono nowrap">card_visa_4242</b>')
    holds(
        text, "This cannot be undone.", "Show all 393 bytes", "559 bytes, RFC 8785", "payments (SQL), 3 s old",
        "support.cedar, line 9", '<span class="k">forbid</span>', "claim, not checked",
        "You, Ingrid Vik or Tomás Reyes. Not Jonas Lindqvist, who belongs to the requester",
    )  # fmt: skip
    assert text.index('id="h-facts"') < text.index('id="h-agent"') < text.index('id="h-claim"')
    shown = text.split('aria-label="Canonical bytes">')[1].split("</pre>")[0]
    assert unescape(shown).encode() == page.canonical
    secret = await drawn_review(bank, reviews.deploy())
    holds(secret, "hidden value, 17 bytes", "Countersign and release", without=["s3cr3t"])
    body = "line of a long letter\n" * 5_000
    large = await drawn_review(bank, reviews.with_args(page, reviews.arg("body", body, "string")))
    holds(large, "First 5 of 5,001 lines. Show all 110,000 bytes")
    assert large.count("line of a long letter") >= 10_000
    asks = await drawn_review(bank, reviews.refund(reason_required=True), full=True)
    form = asks.split('id="approve"')[1].split("</form>")[0]
    holds(form, 'name="reason" maxlength="4000" required', "This cannot be undone.")
    holds(await drawn_review(bank, reviews.hostile(), full=True), without=["Countersign and release"])


async def test_a_reader_who_cannot_vote_gets_no_form(bank: Bank) -> None:
    page = reviews.refund()
    broken = replace(page, canonical=page.canonical.replace(b"124000", b"999000"))  # not what the rows say
    owner = reviews.refund(why_not="you own the agent")
    for shown in (broken, owner, reviews.denied(), reviews.fired()):
        text = await drawn_review(bank, shown)
        assert "/votes" not in text
        assert ("Do not decide on this page" in text) is (shown is broken)
        assert ("You cannot vote on this one" in text) is (shown is owner)
    text = await drawn_review(bank, reviews.deploy(my_verdict="approve"))
    holds(text, 'id="deny"', without=['id="approve"'])  # who approved may still deny
    answer = await bank.maya.get("/reviews/%3Cb%3Erev")
    assert answer.status_code == 404
    holds(answer.text, "Not found", without=["<b>rev"])


async def test_the_comment_form_offers_only_permitted_kinds(bank: Bank) -> None:
    for may_comment, may_ask in ((True, True), (True, False), (False, False)):
        html = await drawn_review(bank, reviews.talked(may_comment=may_comment, may_ask=may_ask))
        assert ('value="comment"' in html, 'value="question"' in html) == (may_comment, may_ask)
        holds(html, "Why the full amount?", without=["<i>Which", "<b>Approved", "\u202e"])
        assert ("You own the agent" in html) is (may_comment and not may_ask)
    silent = reviews.talked(comments=(), may_comment=False, may_ask=False)
    assert 'id="talk"' not in await drawn_review(bank, silent)


async def test_a_fault_is_answered_with_a_page(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> None:
        raise RuntimeError("sk_live_secret")

    monkeypatch.setattr(agents, "agent_list", fails)
    answer = await bank.maya.get("/agents")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert HEADERS.items() <= dict(answer.headers).items()
    secrets = ["sk_live_secret", "RuntimeError", "Nothing was"]
    holds(answer.text, "The service failed", "may have been done in part", without=secrets)


async def test_missing_policies_are_answered_with_a_page(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_bundle(_: ActiveBundle) -> None:
        raise NoActiveBundleError

    monkeypatch.setattr(ActiveBundle, "current", property(no_bundle))
    answer = await bank.maya.get("/agents")
    assert answer.status_code == 503
    holds(answer.text, "<h1>", "No valid policies are loaded")


async def test_an_empty_queue_shows_examples_that_work(bank: Bank) -> None:
    text = (await bank.ingrid.get("/")).text
    program, gate, shell = (Elements(block).text for block in re.findall(r"(?s)<pre.*?</pre>", text))
    compile(program, "my_agent.py", "exec")
    assert 'if __name__ == "__main__":\n    with transaction(key=' in program  # else an import runs it
    assert '@approval("legal")' in gate
    assert "/v1/transactions" in shell


async def test_without_a_session_nothing_is_shown(bank: Bank) -> None:
    review = f"/reviews/{review_of(await bank.asks())}"
    for cookie in ("", f"countersign_dev={'x' * 32}"):
        for path in ("/", review, "/tasks", "/policies"):
            answer = await bank.http.get(path, headers={"Cookie": cookie})
            assert (answer.status_code, answer.text) == (303, "")
            assert answer.headers["location"] == ("/sign-in" if path == "/" else f"/sign-in?next={path}")
        for path in ("/queue/live?since=0", f"{review}/live?since=0", "/events"):
            answer = await bank.http.get(path, headers={"Cookie": cookie})
            assert (answer.status_code, "You are signed out" in answer.text) == (401, True)


async def test_another_host_is_421_and_sees_nothing(bank: Bank) -> None:
    cookie = {"Cookie": f"countersign_dev={bank.maya.cookie}"}
    port = URL.rpartition(":")[2]
    for path in ("/", "/sign-in/dev?token=x", "/events", "/static/0/keys.js"):
        for host in (f"localhost:{port}", "127.0.0.1", "evil.example", "127.0.0.1:8766", ""):
            answer = await bank.http.get(path, headers=cookie | {"Host": host})
            assert answer.status_code == 421, (path, host)
            holds(answer.text, f"Go to {URL}", without=["Maya"])
    forwarded = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https"}
    forwarded["Forwarded"] = "host=evil.example"
    answer = await bank.http.get("/", headers=cookie | forwarded)  # which change nothing
    assert (answer.status_code, "evil.example" in answer.text) == (200, False)


async def test_no_get_and_no_other_method_changes_anything(bank: Bank) -> None:
    """H17: prefetchers and link scanners open everything, with everything in the query."""
    view, cookie = await bank.asks(), {"Cookie": f"countersign_dev={bank.maya.cookie}"}
    review = f"/reviews/{review_of(view)}"
    made = await bank.operator("sign-in-link", {"sub": "maya", "name": "Maya"})
    link = made["url"].partition("token=")[2]
    form = await Holder(bank.maya).form(review_of(view)) | {"csrf_token": bank.maya.csrf, "token": link}

    def lines(conn: Any) -> int:
        return int(conn.execute(select(func.count()).select_from(table(AuditRow))).scalar_one())

    before = await bank.service.db.read(lines)
    pages = ("/", "/policies", review, "/sign-in", "/sign-in/dev", "/sign-out", "/theme", f"{review}/votes")
    for path in pages:
        for method in ("GET", "HEAD"):
            await bank.http.request(method, path, params=form, headers=cookie)
    for path in ("/", review, f"{review}/votes", "/sign-out"):
        for method in ("PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"):
            answer = await bank.http.request(method, path, headers=cookie)
            assert answer.status_code == 405, (method, path)
    assert await bank.service.db.read(lines) == before
    assert (await bank.states(view), (await bank.maya.get("/")).status_code) == (["review", "review"], 200)
    answer = await bank.http.post("/sign-in/dev", data={"token": link}, headers={"Origin": URL})
    assert answer.status_code == 303, "the link was used up"
    bank.http.cookies.clear()


async def test_policies_that_do_not_load_are_reported(bank: Bank) -> None:
    async def text(page: Any) -> str:
        form = {"agent": "", "tool": "", "args": ""}
        return await drawn(bank, "policies.html", page=page, tried=None, form=form, refused="")

    page = policies.page()
    holds(await text(page), without=["could not be evaluated"])
    broken = policies.shadow(commit=None, since=None, problems=("a.cedar:1: this is not Cedar",), rows=())
    for shadow, expected in (
        (policies.shadow(failed=2), "2 effects could not be evaluated"),
        (broken, "It does not load, so it is not compared"),
    ):
        holds(await text(replace(page, shadow=shadow)), expected)
    problem = "refunds.cedar:12: <script>alert(1)</script>\u202e"
    force = replace(page.in_force, problems=(problem,), failed_at=reviews.NOW)
    holds(
        await text(replace(page, shadow=None, events=(), in_force=force)),
        "A newer bundle does not load", "refunds.cedar:12: &lt;script&gt;",
        without=["In shadow", "<script>alert", "\u202e"],
    )  # fmt: skip


async def test_the_dry_run_form_keeps_its_input_and_refuses_unknown_fields(bank: Bank) -> None:
    async def attempt(**changes: str) -> tuple[int, str]:
        fields = {"agent": bank.robot.name, "tool": "pay", "args": '{"a": "x\u200by",\r\n "b": 1}'}
        answer = await Holder(bank.maya).send("/policies/try", **(fields | changes))
        return answer.status_code, answer.text

    _, text = await attempt()
    area = unescape(text.split('id="try-args"')[1].split(">", 1)[1].split("</textarea>")[0])
    assert area == '\n{"a": "x\\u200by",\n "b": 1}'  # a browser takes the first line break for itself
    for changes, status, said in (
        ({"args": '{"a": 1, "a": 2}'}, 400, "arguments are not valid JSON"),
        ({"csrf_token": "another"}, 403, "Nothing was done"),
        ({"surprise": "1"}, 400, "no field"),
    ):
        found, text = await attempt(**changes)
        assert (found, said in text) == (status, True), changes
    assert (await bank.maya.get("/policies?policy=gone")).status_code == 404
    assert (await bank.maya.get("/policies?try=rev_none")).status_code == 404
    review = await bank.maya.get(f"/reviews/{review_of(view := await bank.asks())}")
    holds(review.text, f'href="/policies?try={review_of(view)}#try"')
    holds((await bank.maya.get(f"/policies?try={review_of(view)}")).text, f'value="{bank.robot.name}"')

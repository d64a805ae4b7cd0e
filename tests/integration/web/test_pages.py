"""What the pages of reviews and of policies show, and what they never do with what they show."""

from __future__ import annotations

import html as html_module
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest

from tests.fakes import policies, reviews
from tests.fakes.pages import holds
from tests.fakes.web_queue import Settings, World
from tests.integration.web.conftest import COOKIE, OWN_PAGE, SITE, Visitor, client_of

pytestmark = pytest.mark.anyio

PAGES = [
    "/", "/policies?policy=refund-needs-finance", "/reviews/rev_01KAHV6T3M", "/reviews/rev_hostile",
    "/reviews/rev_01KAHQ2W8B", "/reviews/none",
]  # fmt: skip
VENDORED = ["htmx.min.js", "hx-csp.min.js", "hx-sse.min.js"]


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


HEADERS = {
    "cache-control": "no-store", "x-frame-options": "DENY", "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin", "referrer-policy": "same-origin",
}  # fmt: skip
CONTENT_SECURITY = {
    "default-src": "'none'", "style-src": "'self'", "img-src": "'self'", "connect-src": "'self'",
    "form-action": "'self'", "frame-ancestors": "'none'", "base-uri": "'none'",
    "require-trusted-types-for": "'script'", "trusted-types": "htmx",
}  # fmt: skip


async def test_a_signed_in_page_is_kept_nowhere_and_shut(visitor: Visitor) -> None:
    nonces = set()
    for path in PAGES:
        answer = await visitor.get(path)
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
    assert len(nonces) == len(PAGES), "a nonce is never used twice"


async def test_nothing_is_inline_and_nothing_comes_from_elsewhere(visitor: Visitor) -> None:
    for path in (*PAGES, "/sign-in", "/sign-in/dev?token=x", "/queue/live?since=0"):
        for tag, attrs in Elements((await visitor.get(path)).text).elements:
            assert tag not in {"style", "iframe", "object", "embed", "base"}
            assert not [name for name in attrs if name.startswith("on") or name == "style"]
            for name in ("src", "href", "action", "hx-get", "hx-sse:connect"):
                if (target := attrs.get(name)) is not None:
                    assert target.startswith(("/", "#")), (tag, name, target)
                    assert not target.startswith("//")
            assert tag != "script" or attrs.get("src"), "an inline script"
    elements = Elements((await visitor.get("/")).text).elements
    scripts = [attrs for tag, attrs in elements if tag == "script" and "vendor" in str(attrs["src"])]
    # Deferred, htmx sets off on a timer and may process the page before hx-csp has registered.
    assert [str(attrs["src"]).rsplit("/", 1)[1] for attrs in scripts] == VENDORED
    assert not [attrs for attrs in scripts if {"defer", "async", "type"} & attrs.keys()]


async def test_hostile_bytes_are_text_and_nothing_else(visitor: Visitor) -> None:
    """I1: no element of the page was made by the agent."""
    page = Elements((await visitor.get("/reviews/rev_hostile")).text)
    scripts = [str(attrs["src"]).split("/", 3)[3] for tag, attrs in page.elements if tag == "script"]
    assert set(scripts) == {"keys.js", "live.js", *(f"vendor/{name}" for name in VENDORED)}
    assert not [attrs for tag, attrs in page.elements if tag in {"img", "iframe"} or "hx-post" in attrs]
    holds(page.text, "<script>document.title='owned'</script>", "<button hx-post=")
    for path in ("/", "/reviews/rev_hostile"):
        text = (await visitor.get(path)).text
        holds(text, without="\u202e\u202c\u200b\u2066\u2069")
    holds(text, "U+202E", "U+000A × 64", "xn--northwind-sttements-1op.example")


async def test_an_agent_name_tool_title_and_reason_are_untrusted_too(world: World, visitor: Visitor) -> None:
    evil = "<img src=x>\u202e"
    page = reviews.denied("rev_evil", agent=evil, agent_owner=evil, warnings=(evil,), why_not=evil)
    vote = replace(page.votes[0], person_name=evil, reason=evil)
    gate = replace(page.gates[0], title=evil, doc=evil, cedar_text=evil)
    event = replace(page.timeline[0], text=evil, actor=evil)
    fact = replace(page.facts[0], label=evil, value=evil, source=evil)
    world.put(
        replace(
            page, votes=(vote,), gates=(gate,), timeline=(event,), facts=(fact,), claimed={evil: evil},
            sentence=(*page.sentence, reviews.value(evil)), finality=evil, key_kid=evil,
        )
    )  # fmt: skip
    text = (await visitor.get("/reviews/rev_evil")).text
    holds(text, without=["<img", "\u202e"])
    assert text.count("&lt;img src=x&gt;") > 15


async def test_the_sheet_says_what_will_happen(world: World, visitor: Visitor) -> None:
    text = (await visitor.get("/reviews/rev_01KAHV6T3M")).text
    heading = text.split("<h1")[1].split("</h1>")[0]
    holds(heading, '<b class=" nowrap">$1,240.00</b>', '<b class="mono nowrap">card_visa_4242</b>')
    holds(
        text, "This cannot be undone.", "Show all 393 bytes", "559 bytes, RFC 8785", "payments (SQL), 3 s old",
        "support.cedar, line 9", '<span class="k">forbid</span>', "claim, not checked",
        "You, Ingrid Vik or Tomás Reyes. Not Jonas Lindqvist, on the asking side",
    )  # fmt: skip
    assert text.index('id="h-facts"') < text.index('id="h-agent"') < text.index('id="h-claim"')
    shown = text.split('aria-label="Canonical bytes">')[1].split("</pre>")[0]
    assert html_module.unescape(shown).encode() == world.pages["rev_01KAHV6T3M"].canonical
    secret = (await visitor.get("/reviews/rev_01KAHX04QE")).text
    holds(secret, "hidden value, 17 bytes", without=["s3cr3t"])
    body = "line of a long letter\n" * 5_000
    world.put(reviews.with_args(reviews.refund("rev_large"), reviews.arg("body", body, "string")))
    answer = await visitor.get("/reviews/rev_large")
    assert answer.status_code == 200
    holds(answer.text, "First 5 of 5,001 lines. Show all 110,000 bytes")
    assert answer.text.count("line of a long letter") >= 10_000


async def test_where_nothing_can_be_pressed_there_is_no_form(world: World, visitor: Visitor) -> None:
    page = reviews.refund("rev_broken")  # whose rows do not reproduce the bytes
    world.put(replace(page, canonical=page.canonical.replace(b"124000", b"999000")))
    for review_id in ("rev_broken", "rev_owner", "rev_denied", "rev_01KAHQ2W8B"):
        text = (await visitor.get(f"/reviews/{review_id}")).text
        assert "/votes" not in text
        assert ("Do not decide on this page" in text) is (review_id == "rev_broken")
        assert ("You cannot vote on this one" in text) is (review_id == "rev_owner")
    world.put(reviews.deploy("rev_mine", my_verdict="approve"))
    text = (await visitor.get("/reviews/rev_mine")).text
    holds(text, 'id="deny"', without=['id="approve"'])  # who approved may still deny
    answer = await visitor.get("/reviews/%3Cb%3Erev")
    assert answer.status_code == 404
    holds(answer.text, "There is nothing here", without=["<b>rev"])


async def test_the_queue_is_ordered_and_paged_by_key(world: World, visitor: Visitor) -> None:
    world.page_size = 3
    first = (await visitor.get("/")).text
    expires_first = ["rev_01KAHX04QE", "rev_hostile", "rev_01KAHV6T3M"]
    assert re.findall(r'data-review="(\w+)"', first) == expires_first
    assert 'href="/?cursor=' not in first
    following = re.search(r'href="(/\?tab=open&amp;cursor=\w+)"', (await visitor.get("/?tab=open")).text)
    assert following
    page = (await visitor.get(html_module.unescape(following[1]))).text
    assert re.findall(r'data-review="(\w+)"', page) == ["rev_owner"]
    answer = await visitor.get("/?cursor=../etc")
    assert (answer.status_code, "Nothing was done" in answer.text) == (400, True)


async def test_an_empty_queue_teaches(world: World, visitor: Visitor) -> None:
    world.pages.clear()
    text = (await visitor.get("/")).text
    assert "Nothing waits for you." in text
    program, gate, shell = (Elements(block).text for block in re.findall(r"(?s)<pre.*?</pre>", text))
    compile(program, "my_agent.py", "exec")
    assert 'if __name__ == "__main__":\n    with transaction(key=' in program  # else an import runs it
    assert '@approval("support-lead")' in gate
    assert "/v1/transactions" in shell
    world.group = None
    assert '@approval("GROUP")' in Elements((await visitor.get("/")).text).text


async def test_without_a_session_nothing_is_shown(world: World) -> None:
    dead: list[dict[str, str]] = [{}, {COOKIE: "x" * 32}]
    for cookies in dead:
        async with client_of(world, Settings(SITE), **cookies) as client:
            for path in ("/", "/reviews/rev_01KAHV6T3M"):
                answer = await client.get(path)
                assert answer.status_code == 303
                assert answer.headers["location"].startswith("/sign-in")
                assert "1,240" not in answer.text
            for path in ("/queue/live?since=0", "/reviews/rev_hostile/live?since=0", "/events"):
                answer = await client.get(path)
                assert (answer.status_code, "You are signed out" in answer.text) == (401, True)


async def test_another_host_is_421_and_sees_nothing(visitor: Visitor) -> None:
    for path in ("/", "/sign-in/dev?token=x", "/events", "/static/0/keys.js"):
        for host in ("localhost:8765", "127.0.0.1", "evil.example", "127.0.0.1:8766", ""):
            answer = await visitor.client.get(path, headers={"Host": host})
            assert answer.status_code == 421, (path, host)
            holds(answer.text, f"Go to {SITE}", without=["Maya"])
    forwarded = {
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Proto": "https",
        "Forwarded": "host=evil.example",
    }
    answer = await visitor.client.get("/", headers=forwarded)  # which change nothing
    assert (answer.status_code, "evil.example" in answer.text) == (200, False)


async def test_no_get_and_no_other_method_changes_anything(world: World, visitor: Visitor) -> None:
    """H17: prefetchers and link scanners open everything, with everything in the query."""
    token = world.link()
    before = (dict(world.pages), dict(world.sessions), dict(world.links), list(world.events))
    form = await visitor.form("rev_01KAHV6T3M", "approve")
    for path in (*PAGES, "/sign-in", "/sign-in/dev", "/sign-out", "/theme", "/reviews/rev_01KAHV6T3M/votes"):
        for method in ("GET", "HEAD"):
            bare = path.split("?")[0]
            await visitor.client.request(method, bare, params=form | {"token": token})
    for path in ("/", "/reviews/rev_hostile", "/reviews/rev_hostile/votes", "/sign-out"):
        for method in ("PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"):
            assert (await visitor.client.request(method, path)).status_code == 405, (method, path)
    assert before == (world.pages, world.sessions, world.links, world.events)
    assert world.cast == []


FORM = {"agent": "desk-agent", "tool": "refund_payment", "args": '{"amount_cents": 5001}'}


async def attempt(visitor: Visitor, **changes: str) -> tuple[int, str]:
    fields = FORM | {"csrf_token": visitor.session.csrf} | changes
    answer = await visitor.client.post("/policies/try", data=fields, headers=OWN_PAGE)
    return answer.status_code, answer.text


def area(text: str) -> str:
    return unescape(text.split('id="try-args"')[1].split(">", 1)[1].split("</textarea>")[0])


async def test_everything_in_force_is_on_the_page(world: World, visitor: Visitor) -> None:
    async with client_of(world, Settings(SITE)) as client:
        answer = await client.get("/policies")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=/policies")
    text = (await visitor.get("/policies")).text
    ids = [row.policy_id for row in policies.ROWS]
    holds(text, *ids, policies.COMMIT, "asks for 2 of finance, which has 1", "attachments")
    holds(
        (await visitor.get("/policies?policy=never-to-closed-accounts")).text,
        "Closed accounts get nothing back.",
        'aria-label="Cedar text of never-to-closed-accounts"',
    )
    answer = await visitor.get("/policies?policy=gone")
    assert answer.status_code == 404
    holds(answer.text, "The bundle in force holds no policy &#39;gone&#39;.")


async def test_what_does_not_load_is_told(world: World, visitor: Visitor) -> None:
    holds((await visitor.get("/policies")).text, without=["could not be asked about"])
    broken = policies.shadow(commit=None, since=None, problems=("a.cedar:1: this is not Cedar",), rows=())
    for shadow, told in (
        (policies.shadow(failed=2), "2 effects could not be asked about"),
        (broken, "It does not load, so nothing is compared with it"),
    ):
        world.policies = replace(world.policies, shadow=shadow)
        holds((await visitor.get("/policies")).text, told)
    problem = "refunds.cedar:12: <script>alert(1)</script>\u202e"
    force = replace(world.policies.in_force, problems=(problem,), failed_at=world.clock())
    world.policies = replace(world.policies, shadow=None, events=(), in_force=force)
    holds(
        (await visitor.get("/policies")).text, "A newer bundle does not load", "refunds.cedar:12: &lt;script&gt;",
        without=["In shadow", "<script>alert", "\u202e"],
    )  # fmt: skip


async def test_an_effect_is_tried_and_the_form_keeps_what_was_typed(world: World, visitor: Visitor) -> None:
    status, text = await attempt(visitor)
    assert status == 200
    assert world.tried == [("desk-agent", "refund_payment", {"amount_cents": 5001})]
    holds(text, "Asks 1 of Finance.", "Account state", "{&#34;amount_cents&#34;: 5001}")
    _, text = await attempt(visitor, args='{"a": "x\u200by",\r\n "b": 1}')
    assert area(text) == '\n{"a": "x\\u200by",\n "b": 1}'  # a browser takes the first line break for itself


async def test_what_cannot_be_tried_is_said_beside_the_form(world: World, visitor: Visitor) -> None:
    for changes, status, said in (
        ({"args": "{"}, 400, "The arguments are not JSON we take"),
        ({"args": '{"a": 1, "a": 2}'}, 400, "The arguments are not JSON we take"),
        ({"agent": "nobody"}, 404, "no agent"),
    ):
        found, text = await attempt(visitor, **changes)
        assert (found, said.lower() in text.lower(), "Nothing was asked" in text) == (status, True, True)
    assert world.tried == [("nobody", "refund_payment", {"amount_cents": 5001})]
    world.tried.clear()
    assert (await attempt(visitor, csrf_token="another"))[0] == 403
    assert (await attempt(visitor, surprise="1"))[0] == 400
    foreign = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
    data = FORM | {"csrf_token": visitor.session.csrf}
    assert (await visitor.client.post("/policies/try", data=data, headers=foreign)).status_code == 403
    assert world.tried == []


async def test_a_review_is_tried_in_a_variation_without_its_secrets(visitor: Visitor) -> None:
    review = (await visitor.get("/reviews/rev_01KAHX04QE")).text
    holds(review, 'href="/policies?try=rev_01KAHX04QE#try"')
    text = (await visitor.get("/policies?try=rev_01KAHX04QE")).text
    args = json.loads(area(text))
    assert (args["traffic_percent"], "deploy_key" in args) == (100, False)
    holds(text, 'value="ship-bot"', without=["s3cr3t"])
    assert (await visitor.get("/policies?try=rev_none")).status_code == 404

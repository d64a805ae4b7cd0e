"""Hostile arguments, and what an injected script could try, have no effect."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Site

pytestmark = pytest.mark.anyio


async def test_hostile_bytes_do_nothing(site: Site, heard: list[str]) -> None:
    page = await site.visitor()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    path = f"/reviews/{site.story.reviews['hostile']}"
    for opened in ("/", path):
        await page.goto(opened)
        await page.wait_for_timeout(300)
        assert "owned" not in await page.title()
    for fold in await page.locator("details.fold").all():
        await fold.evaluate("node => { node.open = true }")
    await page.wait_for_timeout(200)
    assert "owned" not in await page.title()
    assert all(url.startswith(site.url) for url in asked)
    assert not [url for url in asked if "votes" in url]
    assert await site.votes(path) == []
    assert heard == []


@pytest.mark.long
async def test_deceptive_text_is_marked_in_place(site: Site) -> None:
    page = await site.visitor()
    await page.goto(f"/reviews/{site.story.reviews['hostile']}")
    await expect(page.get_by_role("heading", name="5 things here can mislead you")).to_be_visible()
    await page.get_by_role("link", name="subject: hidden characters").click()
    row = page.locator("tr:target")
    await expect(row.locator(".hid").first).to_have_text("U+202E hidden character: right-to-left override")
    await expect(page.locator("h1 .sus")).to_have_text("\u0430")
    await expect(page.get_by_text("xn--northwind-sttements-1op.example").first).to_be_visible()


INJECTED = {
    "a request on load": '<button hx-post="{url}" hx-trigger="load">x</button>',
    "a request with another prefix": '<button data-hx-post="{url}" data-hx-trigger="load">x</button>',
    "a request with a guessed nonce": '<button hx-post="{url}" hx-trigger="load" hx-nonce="guess">x</button>',
    "a handler of htmx's": '<div hx-on:click="document.title=\'owned\'" hx-trigger="load">x</div>',
    "a stream of its own": '<div hx-sse:connect="{url}?stream">x</div>',
    "a boosted link": '<a hx-boost="true" href="{url}">x</a>',
}
INJECT = """markup => {
    const [, name, attributes] = markup.match(/^<(\\w+)(.*?)>/);
    const node = document.createElement(name);
    for (const [, name, value] of attributes.matchAll(/([\\w:-]+)="([^"]*)"/g)) node.setAttribute(name, value);
    document.getElementById("main").append(node);
    htmx.process(node);
    node.click();
}"""


@pytest.mark.long
async def test_injected_markup_is_ignored_by_htmx(site: Site) -> None:
    page, path = await site.visitor(), f"/reviews/{site.story.reviews['hostile']}"
    sent: list[str] = []
    page.on("request", lambda request: sent.append(f"{request.method} {request.url}"))
    for why, markup in INJECTED.items():
        await page.goto(path)
        await page.wait_for_timeout(300)
        sent.clear()
        await page.evaluate(INJECT, markup.format(url=f"{path}/votes"))
        await page.wait_for_timeout(400)
        assert not [line for line in sent if line.startswith("POST") or "?stream" in line], why
        assert "owned" not in await page.title(), why
    assert await site.votes(path) == []


@pytest.mark.long
async def test_inline_scripts_and_markup_sinks_are_refused_by_the_browser(site: Site) -> None:
    page = await site.visitor()
    await page.goto("/")
    blocked = await page.evaluate(
        """() => {
            const tried = [];
            const attempt = (name, act) => { try { act(); } catch (error) { tried.push(name); } };
            attempt("innerHTML", () => { document.body.firstElementChild.innerHTML = "<b>x</b>"; });
            attempt("text as code", () => { setTimeout("document.title = 'owned'", 0); });
            attempt("policy", () => { trustedTypes.createPolicy("mine", {createHTML: (text) => text}); });
            const script = document.createElement("script");
            attempt("script text", () => { script.textContent = "document.title = 'owned'"; });
            document.body.append(script);
            return tried;
        }"""
    )
    assert blocked == ["innerHTML", "text as code", "policy", "script text"]
    assert "owned" not in await page.title()


@pytest.mark.long
async def test_another_origin_cannot_post_a_vote(site: Site) -> None:
    """The cookie is Lax and the origin is checked: a foreign page's form does nothing."""
    page, path = await site.visitor(), await site.refund("foreign")
    await page.goto(f"{path}?full=1")
    fields = await page.locator("#approve form").evaluate("form => [...new FormData(form)]")
    fields = [*fields, ("verdict", "approve")]
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields)
    form = f'<form method=post action="{site.url}{path}/votes">{inputs}<button>go</button></form>'
    await page.route(
        "http://evil.localhost/**", lambda route: route.fulfill(content_type="text/html", body=form)
    )
    await page.goto("http://evil.localhost/")
    await page.get_by_role("button", name="go").click()
    await expect(page.get_by_role("heading", name="Nothing was done")).to_be_visible()
    assert await site.votes(path) == []


@pytest.mark.long
async def test_a_padded_value_cannot_push_the_buttons_away(site: Site) -> None:
    page = await site.visitor(width=390, height=844)
    await page.goto(f"/reviews/{site.story.reviews['hostile']}")
    await expect(page.locator("#deny > summary")).to_be_in_viewport()
    await expect(page.locator("#approve > summary")).to_be_in_viewport()

"""Every page there is, of the real service on a busy afternoon: by route, with who looks and what they pressed.

The tables are compared with the routes of the application, so that a new page is looked at or named as none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from fastapi import FastAPI
from playwright.async_api import Page
from starlette.routing import BaseRoute

from tests.fakes.afternoon import Afternoon

Press = Callable[[Page], Awaitable[None]]
PAGES = "policy_service.channels.web."  # where the routes of pages are written


@dataclass(frozen=True)
class Look:
    """One page: `path` may name a review or a task by the afternoon's word for it."""

    route: str
    words: str
    path: str
    who: str | None = "maya"
    press: Press | None = None
    ask: str = "GET"

    def address(self, story: Afternoon) -> str:
        """Where it is today."""
        tasks = {f"t_{name}": at for name, at in story.tasks.items()}
        invitations = {f"i_{name}": secret for name, secret in story.invitations.items()}
        return self.path.format_map(tasks | invitations | story.reviews)


async def _difference(page: Page) -> None:
    await page.get_by_label("amount_cents").fill("41000")
    await page.get_by_role("button", name="See the difference…").click()
    await page.locator("#h-preview").wait_for()


async def _stale(page: Page) -> None:
    await page.locator("#deny > summary").click()
    await page.locator("#deny [name=rev]").evaluate("node => { node.value = '7' }")
    await page.get_by_label("Not enough proof").check()
    await page.get_by_role("button", name="Deny this effect").click()
    await page.get_by_role("heading", name="Your vote was not counted").wait_for()


async def _to_the_passkey(page: Page) -> None:
    await page.locator("#approve > summary").click()
    await page.get_by_role("button", name="Continue with your passkey").click()
    await page.locator("#ceremony").wait_for()


async def _another_passkey(page: Page) -> None:
    await page.get_by_label("What do you call it?").fill("spare")
    await page.get_by_role("button", name="Add a passkey").click()
    await page.locator("#ceremony").wait_for()


async def _without_a_passkey(page: Page) -> None:
    await page.get_by_role("button", name="Remove my laptop").click()
    await page.locator("#ceremony").wait_for()


async def _stale_batch(page: Page) -> None:
    for box in await page.get_by_role("checkbox").all():
        await box.evaluate("node => { node.value = node.value.replace(/[0-9a-f]{64}/, '0'.repeat(64)) }")
        await box.check()
    await page.locator("#approve > summary").click()
    await page.get_by_role("button", name="Countersign each selected effect").click()
    await page.get_by_role("heading", name="votes counted").wait_for()


async def _try_it(page: Page) -> None:
    await page.get_by_label("Agent", exact=True).fill("goodwill-desk")
    await page.get_by_label("Tool", exact=True).fill("credit")
    await page.get_by_label("Arguments, as JSON").fill(
        '{"account": "cus_1130", "customer": "Chen", "amount_cents": 900, "currency": "USD", "cause": "parking"}'
    )
    await page.get_by_role("button", name="Ask the policy").click()
    await page.locator("#try [role=status]").wait_for()


def _click(selector: str) -> Press:
    return lambda page: page.locator(selector).click()


A, R, T = "/alike/{review_id}", "/reviews/{review_id}", "/tasks/{task_id}"
LOOKS = [
    Look("/", "what needs me", "/"),
    Look("/", "its filter, open", "/", press=_click("#filters > summary")),
    Look("/", "the account", "/", press=_click(".account summary")),
    Look("/", "the keys", "/", press=lambda page: page.keyboard.press("?")),
    Look("/", "all that is open, filtered", "/?tab=open&agent=ship-bot&risk=high&text=deploy"),
    Look("/", "nothing like that", "/?tab=open&text=zeppelin"),
    Look("/", "what my agents ask", "/?tab=mine", "jonas"),
    Look("/", "what was decided", "/?tab=decided"),
    Look("/", "a review next to the list", "/?tab=open&review={dana}"),
    Look("/", "nothing for me", "/", "ingrid"),
    Look(R, "an ordinary refund", "/reviews/{dana}"),
    Look(R, "nothing folded", "/reviews/{dana}?full=1"),
    Look(R, "one signature of two, and a talk", "/reviews/{deploy}"),
    Look(R, "of my own agent", "/reviews/{deploy}", "jonas"),
    Look(R, "signed by me", "/reviews/{deploy}", "tomas"),
    Look(R, "bytes that deceive", "/reviews/{hostile}?full=1"),
    Look(R, "a change is proposed", "/reviews/{amara}"),
    Look(R, "a change that waits for me", "/reviews/{amara}", "jonas"),
    Look(R, "a change of mine", "/reviews/{amara}", "tomas"),
    Look(R, "others are asked as well", "/reviews/{rows}"),
    Look(R, "changed, approved, fired", "/reviews/{halved}"),
    Look(R, "denied", "/reviews/{frozen}"),
    Look(R, "an unknown outcome", "/reviews/{lost}"),
    Look(R, "an unsatisfiable review", "/reviews/{alone}"),
    Look(R, "no passkey yet", "/reviews/{key}"),
    Look(R, "opened in an emergency", "/reviews/{glass}"),
    Look(R, "nothing there", "/reviews/rev_none"),
    Look(f"{R}/propose", "other arguments", "/reviews/{amara}/propose"),
    Look(f"{R}/propose", "the difference", "/reviews/{amara}/propose", press=_difference, ask="POST"),
    Look(f"{R}/votes", "a page that went stale", "/reviews/{amara}?full=1", press=_stale, ask="POST"),
    Look(f"{R}/step-up", "confirm with a passkey", "/reviews/{key}", "wen", _to_the_passkey, "POST"),
    Look(A, "alike ones", "/alike/{credit-1130}"),
    Look(A, "none alike", "/alike/{credit-1130}", "jonas"),
    Look(f"{A}/votes", "results line by line", "/alike/{credit-1130}", press=_stale_batch, ask="POST"),
    Look(f"{R}/whole", "a plan to approve as a whole", "/reviews/{plan}/whole"),
    Look(f"{R}/whole", "what may not be decided here", "/reviews/{dana}/whole"),
    Look("/tasks", "open tasks", "/tasks"),
    Look("/tasks", "settled tasks", "/tasks?state=settled"),
    Look(T, "an unknown outcome", "/tasks/{t_unknown}"),
    Look(T, "was it justified", "/tasks/{t_break_glass_review}"),
    Look(T, "an unsatisfiable review", "/tasks/{t_impossible_quorum}"),
    Look("/policies", "the policies", "/policies"),
    Look("/policies", "one policy", "/policies?policy=production-needs-two"),
    Look("/policies/try", "an effect that was tried", "/policies", press=_try_it, ask="POST"),
    Look("/agents", "the agents", "/agents"),
    Look("/agents/{name}", "one agent", "/agents/refund-desk"),
    Look("/agents/{name}", "a stopped one", "/agents/data-janitor"),
    Look("/audit", "the log", "/audit"),
    Look("/audit", "nothing in the log fits", "/audit?agent=unknown"),
    Look("/passkeys", "no passkey yet", "/passkeys"),
    Look("/passkeys", "one passkey", "/passkeys", "wen"),
    Look("/passkeys/additions", "an older one vouches", "/passkeys", "wen", _another_passkey, "POST"),
    Look("/passkeys/removals", "one is taken away", "/passkeys", "wen", _without_a_passkey, "POST"),
    Look("/slack", "no Slack account yet", "/slack"),
    Look("/slack", "a linked account", "/slack", "wen"),
    Look("/slack/link", "an invitation", "/slack/link?invitation={i_maya}"),
    Look("/slack/link", "an invitation that is over", "/slack/link?invitation={i_wen}"),
    Look("/stop", "the stop", "/stop"),
    Look("/stop", "what is stopped, for those who may not start it", "/stop", "tomas"),
    Look("/sign-in", "the sign-in", "/sign-in?next=/reviews/x", None),
    Look("/sign-in/{name}", "no such provider", "/sign-in/unknown", None),
    Look(
        "/sign-in/{name}/callback", "a callback without a sign-in", "/sign-in/unknown/callback?state=x", None
    ),
    Look("/sign-in/dev", "the link's landing", "/sign-in/dev?token=x", None),
]

NO_PAGES = {
    "/reviews/{review_id}/live": "a line of the page that is open",
    "/queue/live": "a line of the page that is open",
    "/tasks/live": "a line of the page that is open",
    "/tasks/{task_id}/live": "a line of the page that is open",
    "/events": "a stream of ids",
    "/static/{digest}/{name:path}": "files",
    "/audit/export.{form}": "a file",
}
ONLY_REFUSED = {
    "/theme", "/keys", "/sign-out", "/reviews/{review_id}/comments", "/reviews/{review_id}/proposals",
    "/proposals/{proposal_id}/accept", "/proposals/{proposal_id}/decline", "/passkeys/seen",
    "/passkeys/answers", "/start-again", "/slack/link", "/slack/unlink", "/slack/direct", "/stop", "/sign-in/dev",
    "/reviews/{review_id}/whole/votes", "/tasks/{task_id}/settle",
}  # fmt: skip
"""Forms that lead to another page, or to the page of a refusal, which other forms show."""


def routes_of(app: FastAPI) -> set[tuple[str, str]]:
    """Method and path of every route that people's pages have."""
    found: set[tuple[str, str]] = set()
    for route in _flat(app.routes):
        endpoint = getattr(route, "endpoint", None)
        if endpoint is not None and endpoint.__module__.startswith(PAGES):
            methods = set(getattr(route, "methods", ())) - {"HEAD"}
            found |= {(method, getattr(route, "path", "")) for method in methods}
    return found


def _flat(routes: list[BaseRoute]) -> Iterator[BaseRoute]:
    for route in routes:
        yield route
        yield from _flat(list(getattr(route, "routes", ())))
        yield from _flat(list(getattr(getattr(route, "original_router", None), "routes", ())))

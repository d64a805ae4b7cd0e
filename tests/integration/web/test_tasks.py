"""The pages of tasks: what they show, what they let through, and everything that they do not."""

from __future__ import annotations

import re
from dataclasses import replace

import httpx2
import pytest
from policy_service.channels.web.ports import QueueEvent, Said

from countersign.contract import TaskAnswer
from policy_service.channels.web import live
from tests.fakes import reviews, tasks
from tests.fakes.pages import holds
from tests.fakes.web_queue import World
from tests.integration.web.conftest import OWN_PAGE, Visitor
from tests.integration.web.test_queue import read_until

pytestmark = pytest.mark.anyio

TASK = "task_01KAHV7Q2D"
PATH = f"/tasks/{TASK}"
UNKNOWN = "We do not know whether this fired"


@pytest.fixture(autouse=True)
def task(world: World) -> str:
    return world.put_task(tasks.unknown()).task_id


async def form(visitor: Visitor, answer: str = "fired") -> dict[str, str]:
    """What the form behind an answer sends."""
    inside = (await visitor.get(PATH)).text.split(f'id="{answer}" name="act"')[1].split("</form>")[0]
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', inside))
    assert set(fields) == {"csrf_token", "effect_digest", "effect_state"}
    return fields | {"answer": answer, "reason": "the bank has it as b-7"}


async def settle(visitor: Visitor, fields: dict[str, str], **headers: str) -> httpx2.Response:
    return await visitor.client.post(f"{PATH}/settle", data=fields, headers=OWN_PAGE | headers)


async def test_every_page_says_how_many_tasks_are_open(world: World, visitor: Visitor) -> None:
    for path in ("/", "/tasks", PATH, "/reviews/rev_01KAHV6T3M"):
        holds((await visitor.get(path)).text, '<span class="n">1<span class="sr"> to settle</span></span>')
    holds((await visitor.get("/tasks")).text, f'href="{PATH}"', UNKNOWN, "<b>35 min</b>")
    world.pages.clear()
    holds((await visitor.get("/")).text, "to settle")  # the page of an empty queue too
    world.page_size = 1
    world.put_task(tasks.unknown("task_02"))
    first = (await visitor.get("/tasks")).text
    following = re.search(r'href="(/tasks\?state=open&amp;cursor=[^"]+)"', first)
    assert following is not None and "task_02" not in first
    holds((await visitor.get(following.group(1).replace("&amp;", "&"))).text, 'href="/tasks/task_02"')
    await settle(visitor, await form(visitor))
    holds((await visitor.get("/tasks?state=settled")).text, "It fired, says Maya Okafor")
    assert (await visitor.get("/tasks?state=odd")).status_code == 400


async def test_a_task_shows_what_each_answer_will_cause(world: World, visitor: Visitor) -> None:
    said = "do not know whether refund_payment fired for"
    holds(
        (await visitor.get(PATH)).text, f"{UNKNOWN}.", said, "Xk2rP0vQw8sT1uZ9", "no answer within 30 s",
        "is not idempotent", "<code>take_back</code>, with a release of its own", "Ingrid Vik",
        reviews.hexed("call" + TASK), tasks.NOT_FIRED, tasks.FIRED, "takes <code>/refund_id</code> from it",
    )  # fmt: skip
    gone = "not known: the bundle in force no longer holds this version of refund_payment</dd>"
    for idempotent, probe, told in (
        (False, None, "none in its manifest"),
        (False, "find_refund", "<code>find_refund</code> tells"),
        (None, None, gone),
    ):
        world.put_task(tasks.unknown(idempotent=idempotent, probe=probe))
        holds((await visitor.get(PATH)).text.split("<dt>Probe</dt>")[1].split("</dl>")[0], told)
    await settle(visitor, await form(visitor, "not_fired"))
    settled = (await visitor.get(PATH)).text
    holds(settled, "It did not happen, says Maya Okafor", without=[f"{UNKNOWN}.", said])


async def test_a_word_names_the_bytes_and_the_state_that_were_read(world: World, visitor: Visitor) -> None:
    fields = await form(visitor) | {"result": ' {"refund_id": "r-1"} ', "reason": "b-7\r\nby phone "}
    answer = await settle(visitor, fields)
    assert (answer.status_code, answer.headers["location"]) == (303, PATH)
    page = tasks.unknown()
    word = Said(TaskAnswer.FIRED, page.effect_digest, "unknown", "b-7\nby phone", b'{"refund_id":"r-1"}')
    assert world.said == [(TASK, word)]
    after = (await visitor.get(PATH)).text
    holds(after, "It fired, says Maya Okafor", "“b-7", "by phone", without=['name="answer"'])
    answer = await settle(visitor, fields | {"answer": "not_fired"})
    assert answer.status_code == 409
    holds(answer.text, "Nothing was settled", "The first word stands")
    assert world.said == [(TASK, word)]


REFUSED: list[tuple[dict[str, str], int, str]] = [
    ({"reason": " \n "}, 400, "write how you know"),
    ({"answer": "maybe"}, 400, "no answer to any task"),
    ({"answer": "withdrawn"}, 400, "Nothing was settled"),
    ({"result": "{'a': 1}"}, 400, "not JSON we can keep"),
    ({"result": '{"a":1,"a":2}'}, 400, "not JSON we can keep"),
    ({"result": '"\\ud800"'}, 400, "not JSON we can keep"),
    ({"reason": "x" * 4_001}, 400, "4,000 characters at most"),
    ({"effect_digest": "0" * 64}, 409, "It has moved since you read it"),
    ({"effect_state": "fired"}, 409, "It has moved since you read it"),
    ({"csrf_token": "x"}, 403, "Nothing was done"),
    ({"verdict": "approve"}, 400, "no field"),
]


async def test_what_is_not_let_through(world: World, visitor: Visitor) -> None:
    fields = await form(visitor)
    for change, status, told in REFUSED:
        answer = await settle(visitor, fields | change)
        assert (answer.status_code, told in answer.text) == (status, True), change
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await settle(visitor, fields, **headers)).status_code == 403
    assert (await visitor.get("/tasks/task_none")).status_code == 404
    world.put_task(replace(tasks.unknown(), why_not="you own refund-desk; nobody settles for their own side"))
    holds((await visitor.get(PATH)).text, "You cannot settle this one", without=['name="answer"'])
    answer = await settle(visitor, fields)
    assert answer.status_code == 403
    holds(answer.text, "nobody settles for their own side")
    world.sessions.clear()
    assert (await settle(visitor, fields)).status_code == 401
    for path in ("/tasks", PATH):
        answer = await visitor.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/sign-in?next={path}")
    assert world.said == []


async def test_bytes_that_deceive_or_do_not_add_up_are_named(world: World, visitor: Visitor) -> None:
    error = "timeout\u202e<script>alert(1)</script>"
    world.put_task(tasks.unknown(of=reviews.hostile(), error=error))
    html = (await visitor.get(PATH)).text
    deceiving = ["<script>alert", "\u202e", "<img src=x"]
    holds(html, "things here can mislead you", "I have read the", without=deceiving)
    world.put_task(replace(tasks.unknown(), canonical=b'{"amount_cents":1}'))
    holds((await visitor.get(PATH)).text, "Do not settle on this page", without=['name="answer"'])
    secret = reviews.with_args(reviews.refund(), reviews.arg("pin", "4711-secret", "string", secret=True))
    world.put_task(tasks.unknown(of=secret))
    holds((await visitor.get(PATH)).text, "hidden value", without=["4711-secret"])


async def test_what_changed_meanwhile_is_announced(world: World, visitor: Visitor) -> None:
    seen = await read_until(live.stream(world, world, visitor.cookie, 0, TASK), b"event: task")
    holds(seen.decode(), f'{{"kind":"task_opened","task_id":"{TASK}"}}', without=["event: review"])
    ask = re.search(rf'hx-get="({PATH}/live\?shown=[^"]+)"', (await visitor.get(PATH)).text)
    assert ask is not None
    assert "btn" not in (await visitor.get(ask.group(1))).text
    await settle(visitor, await form(visitor))
    holds((await visitor.get(ask.group(1))).text, "Settled while you read")
    holds((await visitor.get(f"/tasks/live?since={len(world.events) - 1}")).text, "1 settled, load again")


def test_tasks_and_reviews_are_counted_apart() -> None:
    told = [("task_opened", "a"), ("task_settled", "a"), ("task_settled", "b")]
    events = [QueueEvent(n, kind, task_id=task) for n, (kind, task) in enumerate(told, 1)]
    events.append(QueueEvent(4, "review_opened", "r"))
    assert (live.tell(events, "task"), live.tell(events)) == ((0, 1), (1, 0))

"""The pages of tasks: what they show, what they let through, and everything that they do not."""

from __future__ import annotations

import re
from dataclasses import replace

import httpx2
import pytest

from countersign.contract import TaskAnswer
from policy_service.channels.web import live
from policy_service.channels.web.ports import QueueEvent, Said
from tests.fakes import reviews, tasks
from tests.fakes.web_queue import World
from tests.integration.web.conftest import OWN_PAGE, Visitor
from tests.integration.web.test_live import read_until

pytestmark = pytest.mark.anyio

TASK = "task_01KAHV7Q2D"


@pytest.fixture(autouse=True)
def task(world: World) -> str:
    return world.put_task(tasks.unknown()).task_id


async def form(visitor: Visitor, answer: str, task_id: str = TASK) -> dict[str, str]:
    """What the form behind an answer sends."""
    html = (await visitor.get(f"/tasks/{task_id}")).text
    inside = html.split(f'id="{answer}" name="act"')[1].split("</form>")[0]
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', inside))
    assert set(fields) == {"csrf_token", "effect_digest", "effect_state"}
    return fields | {"answer": answer, "reason": "the bank has it as b-7"}


async def settle(visitor: Visitor, fields: dict[str, str], **headers: str) -> httpx2.Response:
    return await visitor.client.post(f"/tasks/{TASK}/settle", data=fields, headers=OWN_PAGE | headers)


async def test_every_page_says_how_many_tasks_are_open(world: World, visitor: Visitor) -> None:
    for path in ("/", "/tasks", f"/tasks/{TASK}", "/reviews/rev_01KAHV6T3M"):
        assert '<span class="n">1<span class="sr"> to settle</span></span>' in (await visitor.get(path)).text
    html = (await visitor.get("/tasks")).text
    assert f'href="/tasks/{TASK}"' in html
    assert "We do not know whether this fired" in html and "<b>35 min</b>" in html
    world.pages.clear()
    assert "to settle" in (await visitor.get("/")).text  # the page of an empty queue too


async def test_the_list_goes_on_by_page_and_shows_what_is_settled(world: World, visitor: Visitor) -> None:
    world.page_size = 1
    world.put_task(tasks.unknown("task_02"))
    first = (await visitor.get("/tasks")).text
    following = re.search(r'href="(/tasks\?state=open&amp;cursor=[^"]+)"', first)
    assert following is not None and "task_02" not in first
    assert 'href="/tasks/task_02"' in (await visitor.get(following.group(1).replace("&amp;", "&"))).text
    await settle(visitor, await form(visitor, "fired"))
    settled = (await visitor.get("/tasks?state=settled")).text
    assert "It fired, says Maya Okafor" in settled
    assert (await visitor.get("/tasks?state=odd")).status_code == 400


async def test_a_task_shows_what_is_known_and_what_each_answer_will_cause(visitor: Visitor) -> None:
    html = (await visitor.get(f"/tasks/{TASK}")).text
    for told in (
        "We do not know whether this fired.", "Xk2rP0vQw8sT1uZ9", "no answer within 30 s", "is not idempotent",
        "<code>take_back</code>, with a release of its own", "Ingrid Vik", reviews.hexed("call" + TASK),
        tasks.NOT_FIRED, tasks.FIRED, "takes <code>/refund_id</code> from it",
    ):  # fmt: skip
        assert told in html, told


async def test_a_settled_task_no_longer_says_that_nobody_knows(world: World, visitor: Visitor) -> None:
    said = "do not know whether refund_payment fired for"
    open_page = (await visitor.get(f"/tasks/{TASK}")).text
    assert "We do not know whether this fired." in open_page and said in open_page
    await settle(visitor, await form(visitor, "not_fired"))
    settled = (await visitor.get(f"/tasks/{TASK}")).text
    assert "It did not happen, says Maya Okafor" in settled
    assert "We do not know whether this fired." not in settled and said not in settled


async def test_a_probe_is_none_only_where_the_manifest_says_so(world: World, visitor: Visitor) -> None:
    gone = "not known: the bundle in force no longer holds this version of refund_payment</dd>"
    for idempotent, probe, told in (
        (False, None, "none in its manifest"),
        (False, "find_refund", "<code>find_refund</code> tells"),
        (None, None, gone),
    ):
        world.put_task(tasks.unknown(idempotent=idempotent, probe=probe))
        html = (await visitor.get(f"/tasks/{TASK}")).text
        assert told in html.split("<dt>Probe</dt>")[1].split("</dl>")[0]


async def test_a_word_names_the_bytes_and_the_state_that_were_read(world: World, visitor: Visitor) -> None:
    fields = await form(visitor, "fired") | {"result": ' {"refund_id": "r-1"} ', "reason": "b-7\r\nby phone "}
    answer = await settle(visitor, fields)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/tasks/{TASK}")
    page = tasks.unknown()
    word = Said(TaskAnswer.FIRED, page.effect_digest, "unknown", "b-7\nby phone", b'{"refund_id":"r-1"}')
    assert world.said == [(TASK, word)]
    after = (await visitor.get(f"/tasks/{TASK}")).text
    assert "It fired, says Maya Okafor" in after and "“b-7" in after and "by phone" in after
    assert 'name="answer"' not in after


REFUSED: dict[str, tuple[dict[str, str], int, str]] = {
    "no reason": ({"reason": " \n "}, 400, "write how you know"),
    "an answer nobody takes": ({"answer": "maybe"}, 400, "no answer to any task"),
    "an answer to another task": ({"answer": "withdrawn"}, 400, "Nothing was settled"),
    "a result that is not JSON": ({"result": "{'a': 1}"}, 400, "not JSON we can keep"),
    "a result that says a key twice": ({"result": '{"a":1,"a":2}'}, 400, "not JSON we can keep"),
    "a result with a lone surrogate": ({"result": '"\\ud800"'}, 400, "not JSON we can keep"),
    "too long a reason": ({"reason": "x" * 4_001}, 400, "4,000 characters at most"),
    "other bytes": ({"effect_digest": "0" * 64}, 409, "It has moved since you read it"),
    "another state": ({"effect_state": "fired"}, 409, "It has moved since you read it"),
    "another session's token": ({"csrf_token": "x"}, 403, "Nothing was done"),
    "a field nobody asked for": ({"verdict": "approve"}, 400, "no field"),
}


async def test_what_is_not_let_through(world: World, visitor: Visitor) -> None:
    fields = await form(visitor, "fired")
    for what, (change, status, told) in REFUSED.items():
        answer = await settle(visitor, fields | change)
        assert (answer.status_code, told in answer.text) == (status, True), what
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await settle(visitor, fields, **headers)).status_code == 403
    assert world.said == []


async def test_the_first_word_stands(world: World, visitor: Visitor) -> None:
    fields = await form(visitor, "fired")
    await settle(visitor, fields)
    answer = await settle(visitor, fields | {"answer": "not_fired"})
    assert answer.status_code == 409
    assert "Nothing was settled" in answer.text and "The first word stands" in answer.text
    assert [said.answer for _, said in world.said] == [TaskAnswer.FIRED]


async def test_somebody_who_may_not_reads_why_and_has_nothing_to_press(
    world: World, visitor: Visitor
) -> None:
    fields = await form(visitor, "fired")
    world.put_task(replace(tasks.unknown(), why_not="you own refund-desk; nobody settles for their own side"))
    html = (await visitor.get(f"/tasks/{TASK}")).text
    assert "You cannot settle this one" in html and 'name="answer"' not in html
    answer = await settle(visitor, fields)
    assert answer.status_code == 403 and "nobody settles for their own side" in answer.text
    assert world.said == []


async def test_nobody_signed_in_settles_or_reads(world: World, visitor: Visitor) -> None:
    assert (await visitor.get("/tasks/task_none")).status_code == 404
    fields = await form(visitor, "fired")
    world.sessions.clear()
    assert (await settle(visitor, fields)).status_code == 401
    for path in ("/tasks", f"/tasks/{TASK}"):
        answer = await visitor.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/sign-in?next={path}")
    assert world.said == []


async def test_hostile_bytes_and_reports_are_inert_and_named(world: World, visitor: Visitor) -> None:
    error = "timeout\u202e<script>alert(1)</script>"
    world.put_task(tasks.unknown(of=reviews.hostile(), error=error))
    html = (await visitor.get(f"/tasks/{TASK}")).text
    assert "<script>alert" not in html and "\u202e" not in html and "<img src=x" not in html
    assert "things here can mislead you" in html and "I have read the" in html


async def test_bytes_that_do_not_add_up_offer_no_answer(world: World, visitor: Visitor) -> None:
    world.put_task(replace(tasks.unknown(), canonical=b'{"amount_cents":1}'))
    html = (await visitor.get(f"/tasks/{TASK}")).text
    assert "Do not settle on this page" in html and 'name="answer"' not in html
    secret = reviews.with_args(reviews.refund(), reviews.arg("pin", "4711-secret", "string", secret=True))
    world.put_task(tasks.unknown(of=secret))
    html = (await visitor.get(f"/tasks/{TASK}")).text
    assert "4711-secret" not in html and "hidden value" in html


# --------------------------------------------------------------------------------------------------------- live


async def test_the_stream_tells_of_tasks_by_their_own_name(world: World, visitor: Visitor) -> None:
    seen = await read_until(live.stream(world, world, visitor.cookie, 0, TASK), b"event: task")
    assert f'{{"kind":"task_opened","task_id":"{TASK}"}}'.encode() in seen
    assert b"event: review" not in seen


async def test_what_changed_meanwhile_is_announced_and_what_one_did_oneself_is_not(
    world: World, visitor: Visitor
) -> None:
    html = (await visitor.get(f"/tasks/{TASK}")).text
    ask = re.search(rf'hx-get="(/tasks/{TASK}/live\?shown=[^"]+)"', html)
    assert ask is not None
    assert "btn" not in (await visitor.get(ask.group(1))).text
    await settle(visitor, await form(visitor, "fired"))
    assert "Settled while you read" in (await visitor.get(ask.group(1))).text
    assert "1 settled, load again" in (await visitor.get(f"/tasks/live?since={len(world.events) - 1}")).text


def test_tasks_and_reviews_are_counted_apart() -> None:
    told = [("task_opened", "a"), ("task_settled", "a"), ("task_settled", "b")]
    events = [QueueEvent(n, kind, task_id=task) for n, (kind, task) in enumerate(told, 1)]
    events.append(QueueEvent(4, "review_opened", "r"))
    assert (live.tell(events, "task"), live.tell(events)) == ((0, 1), (1, 0))

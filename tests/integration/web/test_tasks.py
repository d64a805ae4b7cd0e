"""The pages of tasks, and the settlements they accept and refuse."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from policy_service.channels.web import sse
from policy_service.channels.web.sse import QueueEvent
from tests.fakes import reviews, tasks
from tests.fakes.pages import holds
from tests.fakes.payments import person
from tests.integration.service.stepping_up import Holder
from tests.integration.service.together.bank import Bank
from tests.integration.service.together.test_settlement import unknown
from tests.integration.web.conftest import drawn_task

pytestmark = pytest.mark.anyio

UNKNOWN = "We do not know whether this fired"


async def opened(bank: Bank, **who: Any) -> str:
    """The path of a task with an unknown payment."""
    if who:
        who = {"robot": await bank.agent(f"{bank.robot.name}-owned", **who)}
    view = await unknown(bank, **who)
    return f"/tasks/{(await bank.maya.task(view, 'unknown'))['task']['task_id']}"


async def form(bank: Bank, path: str, answer: str = "fired") -> dict[str, str]:
    """What the form behind an answer sends."""
    inside = (await bank.maya.get(path)).text.split(f'id="{answer}" name="act"')[1].split("</form>")[0]
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', inside))
    assert set(fields) == {"csrf_token", "effect_digest", "effect_state"}
    return fields | {"answer": answer, "reason": "the bank has it as b-7"}


async def settle(bank: Bank, path: str, fields: dict[str, str]) -> httpx2.Response:
    return await Holder(bank.maya).send(f"{path}/settle", **fields)


async def test_tasks_are_listed_counted_and_settled_on_a_page(bank: Bank) -> None:
    path = await opened(bank)
    for page in ("/", "/tasks", path):
        holds((await bank.maya.get(page)).text, '<span class="sr"> to settle</span></span>')
    holds((await bank.maya.get("/tasks")).text, f'href="{path}"', UNKNOWN)
    text = (await bank.maya.get(path)).text
    ask = re.search(rf'hx-get="({path}/live\?shown=[^"]+)"', text)
    assert ask is not None
    assert "btn" not in (await bank.maya.get(ask[1])).text
    since = bank.service.feed.index
    said = await form(bank, path) | {"result": ' {"id": "r-1"} ', "reason": "b-7\r\nby phone "}
    answer = await settle(bank, path, said)
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    txn = (await bank.maya.get(f"/v1{path}")).json()["task"]["txn"]
    (word,) = (await bank.robot.see(txn))["effects"][0]["settlements"]
    assert (word["answer"], word["reason"], word["result"]) == ("fired", "b-7\nby phone", {"id": "r-1"})
    after = (await bank.maya.get(path)).text
    holds(after, "It fired, says Maya", "“b-7", "by phone", without=['name="answer"', f"{UNKNOWN}."])
    holds((await bank.maya.get("/tasks?state=settled")).text, "It fired, says Maya")
    holds((await bank.maya.get(ask[1])).text, "It was settled")
    await bank.service.sequencer.number()
    await bank.service.feed.refresh()
    holds((await bank.maya.get(f"/tasks/live?since={since}")).text, "1 settled, load again")
    answer = await settle(bank, path, said | {"answer": "not_fired"})
    assert answer.status_code == 409
    holds(answer.text, "Nothing was settled", "The first answer is final")


async def test_a_task_shows_the_consequences_of_each_answer(bank: Bank) -> None:
    task = tasks.unknown()
    holds(
        await drawn_task(bank, task), f"{UNKNOWN}.", "do not know whether refund_payment fired for",
        "Xk2rP0vQw8sT1uZ9", "no answer within 30 s", "is not idempotent",
        "<code>take_back</code>, with a release of its own", "Ingrid Vik", reviews.hexed("call" + task.task_id),
        tasks.NOT_FIRED, tasks.FIRED, "takes <code>/refund_id</code> from it",
    )  # fmt: skip
    gone = "not known: the active bundle does not contain this version of refund_payment</dd>"
    for idempotent, probe, expected in (
        (False, None, "none in its manifest"),
        (False, "find_refund", "<code>find_refund</code> finds out"),
        (None, None, gone),
    ):
        text = await drawn_task(bank, tasks.unknown(idempotent=idempotent, probe=probe))
        holds(text.split("<dt>Probe</dt>")[1].split("</dl>")[0], expected)


REFUSED: list[tuple[dict[str, str], int, str]] = [
    ({"reason": " \n "}, 400, "write how you know"),
    ({"answer": "maybe"}, 400, "not an answer of any task"),
    ({"answer": "withdrawn"}, 400, "Nothing was settled"),
    ({"result": "{'a': 1}"}, 400, "not JSON we can keep"),
    ({"result": '{"a":1,"a":2}'}, 400, "not JSON we can keep"),
    ({"result": '"\\ud800"'}, 400, "not JSON we can keep"),
    ({"reason": "x" * 4_001}, 400, "4,000 characters at most"),
    ({"effect_digest": "0" * 64}, 409, "It has changed since you read it"),
    ({"effect_state": "fired"}, 409, "It has changed since you read it"),
    ({"csrf_token": "x"}, 403, "Nothing was done"),
    ({"verdict": "approve"}, 400, "no field"),
]


async def test_invalid_settlements_are_refused(bank: Bank) -> None:
    path = await opened(bank)
    fields = await form(bank, path)
    for change, status, expected in REFUSED:
        answer = await settle(bank, path, fields | change)
        assert (answer.status_code, expected in answer.text) == (status, True), change
    assert (await bank.maya.get("/tasks/task_none")).status_code == 404
    assert (await bank.maya.get("/tasks?state=odd")).status_code == 400
    theirs = await opened(bank, owner=person("maya"))
    holds((await bank.maya.get(theirs)).text, "You cannot settle this one", without=['name="answer"'])
    read = (await bank.maya.get(f"/v1{theirs}")).json()["effect"]
    answer = await settle(bank, theirs, fields | {"effect_digest": read["effect_digest"]})
    assert answer.status_code == 403
    assert (await bank.maya.get(f"/v1{path}")).json()["effect"]["settlements"] == []


async def test_deceptive_and_mismatching_arguments_are_reported(bank: Bank) -> None:
    error = "timeout\u202e<script>alert(1)</script>"
    html = await drawn_task(bank, tasks.unknown(of=reviews.hostile(), error=error))
    deceiving = ["<script>alert", "\u202e", "<img src=x"]
    holds(html, "things here can mislead you", "I have read the", without=deceiving)
    html = await drawn_task(bank, replace(tasks.unknown(), canonical=b'{"amount_cents":1}'))
    holds(html, "Do not settle on this page", without=['name="answer"'])
    secret = reviews.with_args(reviews.refund(), reviews.arg("pin", "4711-secret", "string", secret=True))
    holds(await drawn_task(bank, tasks.unknown(of=secret)), "hidden value", without=["4711-secret"])


def test_change_counts_skip_items_that_opened_and_settled_and_separate_tasks_from_reviews() -> None:
    happened = [("task_opened", "a"), ("task_settled", "a"), ("task_settled", "b")]
    events = [QueueEvent(n, kind, task_id=task) for n, (kind, task) in enumerate(happened, 1)]
    events.append(QueueEvent(4, "review_opened", "r"))
    assert (sse.count_changes(events, "task"), sse.count_changes(events)) == ((0, 1), (1, 0))

"""The form for proposing other arguments, and the buttons of the agent's owner, as browsers send them."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import httpx2
import pytest

from tests.fakes.payments import person
from tests.fakes.world import Visitor
from tests.integration.service.together.bank import Bank
from tests.integration.service.together.test_edits import LESS, states

pytestmark = pytest.mark.anyio

OVERRIDE = "\u202e"


def address(view: dict[str, Any]) -> str:
    return f"/reviews/{view['effects'][0]['review']['review_id']}"


async def send(visitor: Visitor, path: str, fields: dict[str, str], **headers: str) -> httpx2.Response:
    own = {"Cookie": f"countersign_dev={visitor.cookie}", "Origin": visitor.origin}
    return await visitor.http.post(path, data=fields, headers=own | headers)


def fields_of(html: str, action: str) -> dict[str, str]:
    """What a form would send unchanged."""
    form = html.split(f'action="{action}"')[1].split("</form>")[0]
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form))
    lines = dict(re.findall(r'<input class="input mono" id="\w+" name="(value_\d+)" value="([^"]*)"', form))
    areas = dict(re.findall(r'<textarea[^>]* name="(value_\d+)"[^>]*>\n(.*?)</textarea>', form, re.DOTALL))
    ticks = dict.fromkeys(re.findall(r'name="(out_\d+)" value="1" checked', form), "1")
    return {name: unescape(value) for name, value in (hidden | lines | areas | ticks).items()}


async def test_a_hidden_character_is_shown_marked_and_sent_unchanged(bank: Bank) -> None:
    path = address(await bank.asks())
    fields = fields_of((await bank.maya.get(f"{path}/propose")).text, f"{path}/propose")
    looked = await send(bank.maya, f"{path}/propose", fields | {"value_0": f"ac{OVERRIDE}me"})
    assert looked.status_code == 200
    assert "U+202E" in looked.text
    assert "I have read the 1 warning" in looked.text
    wish = fields_of(looked.text, f"{path}/proposals") | {"reason": "another account"}
    assert (await send(bank.maya, f"{path}/proposals", wish)).status_code == 303
    (open_,) = (await bank.maya.get(f"/v1{path}")).json()["effect"]["review"]["proposals"]
    assert open_["args"]["account"] == f"ac{OVERRIDE}me"


async def test_a_refused_form_keeps_its_input(bank: Bank) -> None:
    old = await bank.asks()
    path = address(old)
    fields = fields_of((await bank.maya.get(f"{path}/propose")).text, f"{path}/propose")
    refused = await send(bank.maya, f"{path}/propose", fields | {"value_0": "a" * 300_000})
    assert refused.status_code == 413
    assert "Nothing was proposed." in refused.text and "bytes" in refused.text
    assert "a" * 300_000 in refused.text
    looked = await send(bank.maya, f"{path}/propose", fields | {"value_1": "300"})
    wish = fields_of(looked.text, f"{path}/proposals")
    refused = await send(bank.maya, f"{path}/proposals", wish | {"reason": "  "})
    assert (refused.status_code, "Give a reason" in refused.text) == (400, True)
    again = fields_of(refused.text, f"{path}/proposals")
    assert again == wish
    assert fields_of(refused.text, f"{path}/propose")["value_1"] == "300"
    assert await states(bank, old) == []
    assert (await send(bank.maya, f"{path}/proposals", again | {"reason": "half of it"})).status_code == 303
    assert await states(bank, old) == ["open"]


FOREIGN: list[tuple[dict[str, str], dict[str, str], int]] = [
    ({"csrf_token": "another"}, {}, 403),
    ({}, {"Origin": "https://elsewhere.example"}, 403),
    ({}, {"Origin": "null"}, 403),
    ({}, {"Sec-Fetch-Site": "cross-site"}, 403),
    ({"surprise": "1"}, {}, 400),
]


async def test_a_form_from_another_page_is_refused(bank: Bank) -> None:
    old = await bank.asks(robot=await bank.agent("owned-by-form", owner=person("jonas")))
    proposal = await bank.maya.proposed(old, LESS)
    for way in ("accept", "decline"):
        for fields, headers, status in FOREIGN:
            sent = {"csrf_token": bank.jonas.csrf} | fields
            answer = await send(bank.jonas, f"/proposals/{proposal}/{way}", sent, **headers)
            assert answer.status_code == status, (way, fields, headers)
    assert await states(bank, old) == ["open"]

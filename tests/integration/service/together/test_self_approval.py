"""An agent that wants its own yes: it knows every id of its question, holds its key, and gets nothing by either."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.service.together.bank import Bank, refusal

pytestmark = pytest.mark.anyio

FORGED: dict[str, dict[str, str]] = {
    "with nothing else": {},
    "in the name of a person": {"X-Forwarded-User": "maya", "Remote-User": "maya", "X-User": "dev|maya"},
    "with a cookie it made up": {"Cookie": "session=maya; __Host-session=maya; cs_session=maya"},
    "with a bearer token it made up": {"Authorization": "Bearer maya"},
}


def ballot(view: dict[str, Any]) -> dict[str, Any]:
    """What a person's page would send, as far as the agent can know it, and who it says it is."""
    effect = view["effects"][0]
    return {
        "verdict": "approve",
        "reason": "I have looked at it",
        "rev": view["rev"],
        "effect_digest": effect["effect_digest"],
        "txn_digest": view["txn_digest"],
        "view_digest": "0" * 64,
        "approver": "maya",
    }


async def test_an_agent_cannot_answer_its_own_question(bank: Bank) -> None:
    view = await bank.asks()
    review = view["effects"][0]["review"]["review_id"]
    for path in (f"/v1/reviews/{review}/votes", f"/reviews/{review}/votes", f"/reviews/{review}"):
        for what, headers in FORGED.items():
            answer = await bank.robot.send("POST", path, ballot(view), headers=headers)
            assert answer.status_code in {401, 403, 404, 405}, (path, what)
    seen = await bank.robot.see(view["txn"])
    assert (seen["state"], seen["effects"][0]["state"]) == ("review", "review")
    assert [kind for kind, _ in await bank.log(view["txn"]) if "vote" in kind] == []
    assert refusal(await bank.robot.release(view)) == (409, "not_ready")
    assert (await bank.maya.vote(view)).json()["state"] == "met"  # the question was a good one all along

"""No secret of the Slack channel is heard: in no log at any level, no answer but the one it is for, no span, no metric.

A canary is in every place that holds one, over HTTP and the socket, while all goes well and while all breaks.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import pytest
from sqlalchemy import select

from policy_service.storage.core import table
from policy_service.storage.system_tables import AuditRow, OutboxRow
from tests.fakes.canaries import Ears
from tests.fakes.payments import Payments, gate
from tests.fakes.slack_deliveries import Json
from tests.fakes.slack_faults import CutAfter, Garbled, NotOk, Status
from tests.integration.service.test_recorded_calls import TRANSFER
from tests.integration.slack.attacking import value_of
from tests.integration.slack.conftest import OpenOffice, SlackAndFaults
from tests.integration.slack.office import APPROVALS, Office, words
from tests.integration.slack.test_replayed import invitation_in

pytestmark = pytest.mark.anyio

PIN: Final = "canary-pin-5d1c9a"
REASON: Final = "canary-reason-of-a-person-0e71"


@pytest.fixture
def ears(slack_and_faults: SlackAndFaults, capsys: pytest.CaptureFixture[str]) -> Ears:
    """They know the secrets of Slack's app, an argument and a person's words."""
    slack, ears = slack_and_faults[0], Ears(capsys)
    secrets = (slack.bot_token, slack.app_token, slack.signing_secret, PIN, REASON)
    names = ("bot token", "app token", "signing secret", "secret argument", "words of a person")
    for name, secret in zip(names, secrets, strict=True):
        ears.plant(name, secret)
    return ears


async def test_no_slack_secret_is_exposed(open_office: OpenOffice, own_bundle: Payments, ears: Ears) -> None:
    own_bundle.write("tools/transfer.json", TRANSFER)
    own_bundle.rules(gate("look", "finance", action="transfer"))
    with ears.open():
        async with open_office(ways=("signing", "app")) as office:
            with ears.at(office.world):
                await office.faults.relay.until_open()
                await _all_goes_well(office, ears)
                await _all_breaks(office)
            rows = await office.world.service.db.read(_rows)
        everything = json.dumps([call.args for call in office.faults.calls])
    assert ears.singing() == []
    for name, secret in ears.canaries.items():
        assert name == "words of a person" or secret not in rows, name
        if name not in ("words of a person", "invitation", "value of a button"):
            assert secret not in everything, f"{name} was posted"


def _rows(conn: Any) -> str:
    """What is queued for Slack, and the whole log."""
    output = conn.execute(select(table(OutboxRow).c.payload)).scalars().all()
    log = conn.execute(select(table(AuditRow).c.body)).scalars().all()
    return json.dumps([list(output), [str(line) for line in log]])


async def _all_goes_well(office: Office, ears: Ears) -> None:
    invitation = invitation_in(await office.say("U0SAM", "link"))
    assert invitation
    ears.plant("invitation", invitation)
    dana = await office.link("maya")
    card = await _asked(office, "a")
    ears.plant("value of a button", value_of(card))
    await office.slack.click(APPROVALS, card["ts"], dana, "ask")
    form = office.form(dana, "ask", value_of(card), f"{REASON}?")
    await office.faults.deliveries.by_socket("interactive", form)
    await office.pressed("U0SAM", card)
    await office.private_message("U0SAM", "is not linked yet")
    await office.slack.open_home(dana)
    assert await office.sent(dana, "deny", value_of(card), REASON) == ""
    await office.shows("Denied")
    assert PIN not in words(await office.card())


async def _asked(office: Office, run_key: str) -> Json:
    digest = await office.world.manifest_digest("transfer")
    args = {"account": "acct-1", "pin": PIN, "card": {"number": "none"}}
    effect = {"tool": "transfer", "tool_digest": digest, "args": args}
    answer = await office.robot.submit(effect, run_key=run_key)
    assert answer.is_success, answer.text
    return await office.card_about(answer.json())


async def _all_breaks(office: Office) -> None:
    """Every fault of Slack on every call, a forged delivery, one that is none, and a token that is revoked."""
    card = await _asked(office, "b")
    for fault in (NotOk("token_revoked"), NotOk("invalid_blocks"), Status(500), CutAfter(), Garbled()):
        office.faults.on.always("*", fault)
        await office.deliver(office.press("U0FELIX", card))
        await office.say("U0FELIX", "")
        await office.slack.open_home("U0FELIX")
        await asyncio.sleep(0.05)
        office.faults.on.lift()
    assert (await office.deliver(office.press("U0DANA", card), secret="9" * 32)).status == 401
    assert (await office.deliver(office.press("U0DANA", card, team__id="T0PARTNER"))).status == 401
    odd: Json = {"type": "block_actions", "payload": value_of(card)}
    await office.deliver(odd, "events_api")
    await office.deliver({"type": "block_actions", "value": value_of(card)})
    broken = {"type": "view_submission", "value": value_of(card)}
    await office.faults.deliveries.by_socket("interactive", broken)
    await office.faults.relay.cut()

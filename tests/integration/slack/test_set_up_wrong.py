"""What the operator reads in the log, in `/readyz` and in `slack status` of an app that was set up wrongly."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from policy_service.channels.slack import transports, workers
from tests.counterparts.slack import SECRET
from tests.fakes.slack_deliveries import signed
from tests.fakes.slack_faults import NotOk
from tests.integration.slack.conftest import OpenOffice, SlackAndFaults
from tests.integration.slack.office import Office, until

pytestmark = pytest.mark.anyio


async def test_each_kind_of_refusal_is_named_in_the_log(office: Office) -> None:
    """How they are counted is in `tests/unit/channels/slack/test_slack_refusals.py`."""
    now = office.world.clock().timestamp()
    command = office.command("U0DANA", "canary")
    theirs = office.command("U0DANA", "canary", team_id="T0RIVAL")
    odd = office.command("U0DANA", "canary", team_id="T0RIVAL", api_app_id="A0 canary")
    bodies: list[tuple[bytes, Any]] = [
        signed("slash_commands", command, "9" * 32, now),
        signed("slash_commands", command, SECRET, now - 400),
        signed("slash_commands", odd, SECRET, now),
        signed("slash_commands", theirs, SECRET, now),
        signed("slash_commands", {"command": "/countersign"}, SECRET, now),
        (b"x" * 600_000, {}),
    ]
    with capture_logs() as output:
        post = partial(office.world.http.post, "/slack/events")
        answers = [await post(content=body, headers=headers) for body, headers in bodies]
    assert [answer.status_code for answer in answers] == [401, 401, 401, 401, 400, 413]
    lines = [one for one in output if one["event"] == "slack_delivery_refused"]
    assert [(one["check"], one["code"]) for one in lines] == [
        ("signature", "unauthenticated"), ("time", "unauthenticated"), ("team_or_app", "unauthenticated"),
        ("content", "invalid_request"),
    ]  # fmt: skip
    assert all((one["log_level"], one["way"]) == ("warning", "http") for one in lines)
    assert (lines[2]["team_id"], "app_id" in lines[2]) == ("T0RIVAL", False), "only valid ids are logged"
    assert "canary" not in str(output)


async def asked_again(office: Office, times: int) -> None:
    """Let time pass until the service has called so often; it asks whose its token is, and nothing else."""

    async def asked() -> bool:
        office.world.clock.pass_(seconds=20)
        return len(office.faults.calls) >= times and await office.followed()

    await until(asked)
    assert {call.method for call in office.faults.calls} == {"auth.test"}


async def test_a_foreign_token_sends_nothing(
    open_office: OpenOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a replica may say that all is well."""
    async with open_office(met=False, app={"team_id": "T0RIVAL"}) as office:
        await office.pay()
        await asked_again(office, 5)
        assert "the bot token belongs to T0NORTHWIND, the settings name T0RIVAL" in await office.finding()
        assert await office.cards() == []
        status = await office.world.operator("slack-status", {})
        assert (status["last_error"], status["waiting"] >= 1) == ("token_of_another_workspace", True)

        async def unheard(*_: Any) -> None:
            """A replica has not seen the failure."""

        monkeypatch.setattr(workers, "record_auth_test", unheard)
        await office.world.operator("slack-retry", {})
        await asked_again(office, len(office.faults.calls) + 4)


async def test_an_unconfirmed_token_sends_nothing(
    open_office: OpenOffice, slack_and_faults: SlackAndFaults
) -> None:
    slack, faults = slack_and_faults
    faults.on.always("auth.test", NotOk("internal_error"))
    with capture_logs() as output:
        async with open_office(met=False) as office:
            await office.pay()
            await asked_again(office, 2)
            faults.on.lift()
            await office.quiet()
            await office.card()
            await office.world.service.slack._check_auth()  # type: ignore[union-attr]
    kinds = [one["event"] for one in output if one["event"] in ("slack_met", "slack_not_met")]
    assert (kinds[0], kinds.count("slack_met")) == ("slack_not_met", 1)
    (met,) = [one for one in output if one["event"] == "slack_met"]
    assert (met["team_id"], met["bot_user"], met["log_level"]) == (slack.team_id, slack.app.bot_user, "info")


OPEN = "apps.connections.open"


async def connected(office: Office) -> None:
    """Wait until Slack has a connection, and the service says that all is well."""

    async def well() -> bool:
        return await office.slack.is_connected() and await office.finding() == ""

    await until(well, 30.0)


async def test_a_failing_connection_is_reported_until_it_succeeds(
    open_office: OpenOffice, slack_and_faults: SlackAndFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service with Socket Mode only, whose connection fails from the start."""
    slack_and_faults[1].on.always(OPEN, NotOk("invalid_auth"))
    monkeypatch.setattr(transports, "_MAX_PAUSE_S", 0.1)
    with capture_logs() as output:
        async with open_office(ways=("app",)) as office:

            async def asked_again() -> bool:
                return len(office.calls(OPEN)) > 2

            assert "Socket Mode is not connected (invalid_auth)" in await until(office.finding)
            await until(asked_again)
            office.faults.on.lift()
            await connected(office)
    kinds = [(one["event"], one.get("error")) for one in output if one["event"].startswith("slack_socket")]
    assert kinds == [("slack_socket_failed", "invalid_auth"), ("slack_socket_connected", None)]

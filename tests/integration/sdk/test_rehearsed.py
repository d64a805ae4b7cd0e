"""Steps rehearsed in front of the real service: what it would decide, and that it keeps nothing of the question."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from countersign import (
    Asks,
    Denied,
    EffectFailed,
    NotDone,
    ServiceRefused,
    Transaction,
    replay,
    run_transaction,
    transaction,
)
from countersign.contract import txn_id
from tests.fakes.desk import notes_in
from tests.integration.sdk.conftest import Office


def test_scenarios_56_and_57_the_plan_is_what_the_commit_then_meets(office: Office, key: str) -> None:
    before = office.tools.notes.read_bytes()
    with transaction(key, dry_run=True, runtime=office.runtime) as rehearsed:
        office.tools.note("o-1", "hello")
        for order, amount in (("o-1", 4_200), ("o-2", 6_000), ("o-3", 600_000)):
            office.tools.refund(order, amount)
        office.tools.charge("o-4", 100)
    found = rehearsed.result
    assert [one.decision for one in found.effects] == ["release", "review", "deny", "release"]
    assert [str(ask) for ask in found.effects[1].asks] == ["finance"]
    (denial,) = found.denials
    assert (denial.code, denial.policy, denial.text != "") == ("forbidden_by_policy", "never-huge", True)
    assert (office.tools.done, office.tools.notes.read_bytes()) == ([], before)
    with pytest.raises(ServiceRefused, match="not_found"):
        office.runtime.client().view(txn_id(agent=office.settings.agent, run_key=key))

    with pytest.raises(Denied) as denied:
        office.refund(key, 600_000)
    assert denied.value.reasons[0].text == denial.text
    assert office.asked(f"{key}-2", 6_000).reviews[0].asks == (Asks(("finance",), 1),)
    with transaction(f"{key}-3", runtime=office.runtime) as real:
        office.tools.note("o-1", "hello")
        office.tools.refund("o-1", 4_200)
    assert (real.state, notes_in(office.tools.notes)) == ("settled", [("o-1", "hello")])


def test_scenarios_58_to_61_what_the_service_released_replays_without_it(office: Office, key: str) -> None:
    """Fired, failed, taken back, denied; with a live call beside. The service is not asked, nothing happens twice."""
    tools = office.tools

    def fires(_: Transaction) -> list[Any]:
        tools.note("o-1", "hello")
        return [tools.refund("o-1", 4_200), tools.refund("o-1", 4_200)]

    def is_taken_back(_: Transaction) -> list[Any]:
        return [tools.charge("o-1", 100), tools.notify("o-1"), tools.refund("o-1", 100)]

    def is_denied(_: Transaction) -> list[Any]:
        return [tools.refund("o-3", 600_000)]

    run_transaction(fires, key=f"{key}-1", runtime=office.runtime)
    tools.error = NotDone("mailbox full")
    with pytest.raises(EffectFailed):
        run_transaction(is_taken_back, key=f"{key}-2", runtime=office.runtime)
    with pytest.raises(Denied):
        run_transaction(is_denied, key=f"{key}-3", runtime=office.runtime)
    done, notes = list(tools.done), tools.notes.read_bytes()

    def away(_: httpx2.Request) -> httpx2.Response:
        raise AssertionError("a replay asked the service")

    with office.through(httpx2.MockTransport(away)) as cut_off:
        steps = enumerate((fires, is_taken_back, is_denied), start=1)
        found = [replay(f"{key}-{n}", step, runtime=cut_off) for n, step in steps]
    assert [one.divergences for one in found] == [(), (), ()]
    outcomes = [[one.outcome for one in replayed.value] for replayed in found]
    assert outcomes == [["fired", "fired"], ["compensated", "failed", "unused"], ["denied"]]
    assert found[0].value[0].result == "r-o-1"
    assert (tools.done, tools.notes.read_bytes()) == (done, notes)

"""The live work beside staged effects was lost with its process: what fired is taken back, and only what is known to
have fired. What may be called again tells so by being called again, if something takes it back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from countersign import DidNotHappen, Happened, OutcomeUnknown, SQLiteAdapter, Unsure, probe, resume
from countersign.contract import EffectState, Verdict
from tests.fakes.desk import (
    Desk,
    answering_tool,
    charge_tools,
    live_states,
    note_tool,
    notes_database,
    notes_in,
    refund_tool,
    service_states,
    states,
)
from tests.unit.sdk.full_disk import full_after

Body = Callable[[], None]
Die = Callable[..., Callable[[str, str], int]]


def pay_tool(desk: Desk, *, taken_back: bool = True, **options: Any) -> Callable[[str], Any]:
    """An idempotent tool that `repay` takes back, or that nothing does."""
    answering_tool(desk, None, name="repay")
    if taken_back:
        options |= {"compensate": "repay", "compensation_map": {"order_id": "args:/order_id"}}
    return answering_tool(desk, "paid", name="pay", idempotent=True, **options)


@pytest.fixture
def died(desk: Desk) -> Die:
    """A step with live work on SQLite, and a disk that takes nothing more once `begun` calls are under way."""
    note = note_tool(desk, SQLiteAdapter(notes_database(desk.folder)))

    def die(body: Body, *, begun: int = 1) -> Callable[[str, str], int]:
        with full_after(desk.runtime.journal, begun):
            desk.run((note, "o-1", "paying"), (body,), raises=OutcomeUnknown)
        assert notes_in(desk.folder / "notes.db") == []
        return note

    return die


def test_what_may_be_called_again_is_called_and_taken_back(desk: Desk, died: Die) -> None:
    pay = pay_tool(desk)
    died(lambda: pay("o-1"))
    assert (states(desk), live_states(desk)) == ({"pay#1": "firing"}, ["live"])
    (found,) = resume(desk.runtime)
    assert (found.after, states(desk), live_states(desk)) == ("settled", {"pay#1": "compensated"}, ["undone"])
    assert [one[0] for one in desk.done] == ["pay", "pay", "repay"]
    assert desk.keys[0] == desk.keys[1] != desk.keys[2]
    assert service_states(desk, found.txn) == ["compensated"]
    assert "did not happen" not in found.note
    assert "live adapter 'notes' could not commit: the live effects were lost with" in found.note
    assert found.note.endswith("Nothing of this transaction stands. To do it again, use another key.")
    assert resume(desk.runtime) == []


def test_what_nothing_takes_back_is_not_called_again_and_a_person_is_asked(desk: Desk, died: Die) -> None:
    """Called again it would stand for certain, where it may not stand now."""
    pay = pay_tool(desk, taken_back=False)
    died(lambda: pay("o-1"))
    (found,) = resume(desk.runtime)
    assert (found.after, states(desk)) == ("unsettled", {"pay#1": "unknown"})
    assert ([one[0] for one in desk.done], live_states(desk)) == (["pay"], ["undone"])


def test_what_fired_before_it_stands_until_it_is_known(desk: Desk, died: Die) -> None:
    """Nothing is taken back while something beside it is in doubt."""
    charge, pay = charge_tools(desk), pay_tool(desk, taken_back=False)

    def body() -> None:
        charge("o-1", 100)
        pay("o-1")

    died(body, begun=2)
    resume(desk.runtime)
    assert states(desk) == {"charge#1": "fired", "pay#2": "unknown"}
    ((txn, (revision,)),) = desk.service.revisions.items()
    desk.service.settle(txn, revision.held[1].effect.effect_id, EffectState.FAILED)
    resume(desk.runtime)
    assert states(desk) == {"charge#1": "compensated", "pay#2": "failed"}


def test_what_was_not_begun_stays_so(desk: Desk, died: Die) -> None:
    pay, refund = pay_tool(desk), refund_tool(desk)

    def body() -> None:
        pay("o-1")
        refund("o-1", 100)

    died(body)
    (found,) = resume(desk.runtime)
    assert "refund did not happen: the live effects were lost with their process, or" in found.note
    assert states(desk) == {"pay#1": "compensated", "refund#2": "unused"}
    assert [one[0] for one in desk.done] == ["pay", "pay", "repay"]


def test_where_people_are_asked_to_take_it_back_that_is_told_and_waited_for(desk: Desk, died: Die) -> None:
    pay = pay_tool(desk)
    desk.service.policy = lambda name, _: Verdict.REVIEW if name == "repay" else Verdict.RELEASE
    died(lambda: pay("o-1"))
    (found,) = resume(desk.runtime)
    assert (found.waiting, found.is_kept_up) == (True, False)
    assert "finance" in found.note
    assert [one[0] for one in desk.done] == ["pay", "pay"]


@pytest.mark.parametrize(
    ("answer", "calls", "state"),
    [
        (Happened("paid"), ["pay", "repay"], "compensated"),
        (DidNotHappen(final=True), ["pay"], "failed"),
        (DidNotHappen(), ["pay", "pay", "repay"], "compensated"),
        (Unsure("busy"), ["pay", "pay", "repay"], "compensated"),
    ],
    ids=repr,
)
def test_its_probe_is_asked_first(desk: Desk, died: Die, answer: Any, calls: list[str], state: str) -> None:
    probe("find_pay", registry=desk.registry)(lambda: answer)
    pay = pay_tool(desk, probe="find_pay")
    died(lambda: pay("o-1"))
    resume(desk.runtime)
    assert ([one[0] for one in desk.done], states(desk)) == (calls, {"pay#1": state})


@pytest.mark.parametrize("doubt", ["the service gives no time", "the call ends in doubt again"])
def test_what_is_not_called_or_in_doubt_again_is_unknown(desk: Desk, died: Die, doubt: str) -> None:
    pay = pay_tool(desk)
    died(lambda: pay("o-1"))

    def slow(_: str) -> None:
        raise TimeoutError("slow")

    if doubt == "the service gives no time":
        desk.face.faults["/v1/redemptions/"] = ["lost_request"] * 20
    else:
        desk.before_fire = slow
    (found,) = resume(desk.runtime)
    assert (found.after, states(desk)) == ("unsettled", {"pay#1": "unknown"})
    assert ("slow" in found.note) is (doubt == "the call ends in doubt again")
    assert [one[0] for one in desk.done] == ["pay"]


def test_a_rerun_of_the_program_brings_the_live_work_back_and_goes_on(desk: Desk, died: Die) -> None:
    pay = pay_tool(desk)
    note = died(lambda: pay("o-1"))
    desk.run((note, "o-1", "paying"), (pay, "o-1"))
    assert (states(desk), live_states(desk)) == ({"pay#1": "fired"}, ["kept"])
    assert notes_in(desk.folder / "notes.db") == [("o-1", "paying")]

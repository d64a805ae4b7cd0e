"""What live tools returned is in the journal, so a replay notices another answer, and a reconstruction has them."""

import datetime as dt
from collections import UserDict
from typing import Any

import pytest
from pydantic import BaseModel

from countersign import MemoryAdapter, NotRecorded, errors, replay, tool, transaction
from countersign.journal.chain import find_damage
from countersign.transactions.call_list import CallList
from tests.fakes.desk import Desk, failing_tool, record_of, refund_tool
from tests.unit.sdk.full_disk import full_after
from tests.unit.sdk.journals import BOTH


class Balance(BaseModel):
    """A result with a type of its own."""

    owner: str
    cents: int


class World:
    """What live tools find: it changes between a run and its replay."""

    def __init__(self, now: Any) -> None:
        self.now, self.asked = now, 0

    def answer(self) -> Any:
        self.asked += 1
        return self.now() if callable(self.now) else self.now


def look_tool(desk: Desk, world: World, returns: Any = Any) -> Any:
    """A live tool that returns what the world holds."""

    def look(who: str = "ada") -> Any:
        """Look."""
        return world.answer()

    look.__annotations__["return"] = returns
    desk.registry._tools.pop("look", None)
    live: Any = {"lane": "live", "adapter": MemoryAdapter()}
    made: Any = tool("look", registry=desk.registry, **live)(look)
    return made


def run(desk: Desk, *looks: Any, key: str = "t-1") -> list[Any]:
    with desk.step(key):
        return [look() for look in looks]


def kept(desk: Desk, key: str = "t-1") -> list[bytes | None]:
    """The stored results of the live calls in force."""
    (record,) = desk.runtime.journal.transactions.find(key)
    assert find_damage(desk.runtime.journal.database, record.txn) is None
    query = "SELECT result FROM effects WHERE txn = ? AND staging = ? AND lane = 'live' ORDER BY seq"
    found = desk.runtime.journal.database.rows(query, (record.txn, record.staging))
    return [row["result"] for row in found]


# -------------------------------------------------------------------------------------------------- verify


def test_scenario_58_a_live_result_that_is_the_same_matches_and_another_one_diverges(desk: Desk) -> None:
    world = World(0)
    look = look_tool(desk, world, int)
    assert run(desk, look) == [0]
    same = replay("t-1", lambda _: look(), runtime=desk.runtime)
    assert (same.status, same.divergences, same.unchecked) == ("same", (), ())
    world.now = 7
    other = replay("t-1", lambda _: look(), runtime=desk.runtime)
    (one,) = other.divergences
    assert other.status == "diverged"
    assert (one.kind, one.lane, one.position, one.tool) == ("result", "live", 1, "look")
    assert (one.recorded, one.now, str(one)) == ("0", "7", "live call 1 of look: its result was 0 and is 7")
    assert run(desk, look, key="t-2") == [7]  # and nothing was kept of the replay
    assert kept(desk) == [b"0"]


DIFFERENT: list[Any] = [
    ({"cents": 1, "owner": "ada"}, {"cents": 2, "owner": "ada"}, "in its result cents was 1 and is 2"),
    ({"cents": 1}, {}, "in its result cents was 1 and is absent"),
    ([1, 2], [2, 1], "its result was [1,2] and is [2,1]"),
    ({"cents": 1}, {"cents": True}, "in its result cents was 1 and is true"),
    (None, 1, "its result was null and is 1"),
    ("a" * 9_000, "b", f'its result was "{"a" * 199}... and is "b"'),
    (1, object(), "its result was 1 and is no JSON now"),
]


def differing(desk: Desk, then: Any, now: Any, returns: Any = Any) -> list[str]:
    """What a replay reports of a live tool that returned this then, and returns that now."""
    world = World(then)
    look = look_tool(desk, world, returns)
    run(desk, look)
    world.now = now
    return [str(one) for one in replay("t-1", lambda _: look(), runtime=desk.runtime).divergences]


@pytest.mark.parametrize(("then", "now", "reported"), DIFFERENT)
def test_different_live_results_are_reported(desk: Desk, then: Any, now: Any, reported: str) -> None:
    assert differing(desk, then, now) == [f"live call 1 of look: {reported}"]


EQUAL: list[Any] = [
    (float, 1.0, 1),
    (set[str], {"a", "b", "c"}, {"c", "b", "a"}),
    (Balance, Balance(owner="ada", cents=1), {"owner": "ada", "cents": 1}),
]


@pytest.mark.parametrize(("returns", "then", "now"), EQUAL)
def test_results_that_are_equal_in_type_are_the_same(desk: Desk, returns: Any, then: Any, now: Any) -> None:
    assert differing(desk, then, now, returns) == []


def test_of_several_live_calls_the_one_that_answers_otherwise_is_named(desk: Desk) -> None:
    answers = iter([1, 2, 3, 1, 9, 3, 1, 2, 9])
    look = look_tool(desk, World(lambda: next(answers)), int)
    run(desk, look, look, lambda: look("eve"))
    (one,) = replay("t-1", lambda _: (look(), look(), look("eve")), runtime=desk.runtime).divergences
    assert str(one) == "live call 2 of look: its result was 2 and is 9"
    (one,) = replay("t-1", lambda _: (look(), look(), look("sue")), runtime=desk.runtime).divergences
    assert one.kind == "changed", "only that its arguments differ"


def run_before_results_were_kept(desk: Desk, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setattr(CallList, "returned", {})
        run(desk, look)


def test_what_an_old_journal_lacks_is_unchecked(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    look = look_tool(desk, World(0), int)
    run_before_results_were_kept(desk, look, monkeypatch)
    assert kept(desk) == [None]
    found = replay("t-1", lambda _: look(), runtime=desk.runtime)
    (reported,) = found.unchecked
    assert reported == "live call 1 of look: its result was not recorded, so it is not compared"
    assert (found.status, found.to_json()["unchecked"]) == ("same", [reported])
    assert f"  unchecked: {reported}" in str(found).splitlines()
    with pytest.raises(NotRecorded, match="what look returned is not recorded"):
        replay("t-1", lambda _: look(), mode="reconstruct", runtime=desk.runtime)


def test_of_no_answer_nothing_is_missed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    look = look_tool(desk, World(None), None)
    run_before_results_were_kept(desk, look, monkeypatch)
    for mode in ("verify", "reconstruct"):
        found = replay("t-1", lambda _: look(), mode=mode, runtime=desk.runtime)  # type: ignore[call-overload]
        assert (found.status, found.unchecked) == ("same", ())


# --------------------------------------------------------------------------------------------- reconstruct


def test_scenario_59_a_reconstruction_returns_what_live_tools_returned_in_its_type(desk: Desk) -> None:
    world = World(Balance(owner="ada", cents=250))
    look, refund = look_tool(desk, world, Balance), refund_tool(desk)

    def step(_: object) -> Balance:
        found: Balance = look()
        refund("o-1", found.cents)
        return found

    desk.run((step, None))
    world.now = Balance(owner="ada", cents=0)
    found = replay("t-1", step, mode="reconstruct", runtime=desk.runtime)
    assert (found.status, found.value, world.asked) == ("same", Balance(owner="ada", cents=250), 1)
    assert type(found.value) is Balance
    live = {"look": lambda who: Balance(owner=who, cents=1)}
    instead = replay("t-1", step, mode="reconstruct", live=live, runtime=desk.runtime)
    (one,) = instead.divergences
    assert str(one) == "staged call 1 of refund: amount_cents was 250 and is 1"


@pytest.mark.parametrize("answer", ["never", dt.datetime(2026, 11, 25, tzinfo=dt.UTC)])
def test_what_may_be_text_or_a_time_is_reconstructed_as_neither(desk: Desk, answer: object) -> None:
    look = look_tool(desk, World(answer), str | dt.datetime)
    run(desk, look)
    found = replay("t-1", lambda _: look(), runtime=desk.runtime)
    assert (found.status, found.value) == ("same", answer)
    with pytest.raises(NotRecorded, match=r"look returns text or a datetime.*live=\{'look': \.\.\.\}"):
        replay("t-1", lambda _: look(), mode="reconstruct", runtime=desk.runtime)
    live = {"look": lambda who: answer}
    again = replay("t-1", lambda _: look(), mode="reconstruct", live=live, runtime=desk.runtime)
    assert (again.status, again.value) == ("same", answer)


# ------------------------------------------------------------------------------------------ what is written


def endless() -> Any:
    yield 1
    yield 2


class Upset(UserDict[str, int]):
    """One that cannot be looked at."""

    def values(self) -> Any:
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    "make", [endless, lambda: [endless()], lambda: {"found": iter([1, 2])}, object, Upset]
)
def test_what_has_no_json_form_is_left_alone(desk: Desk, make: Any) -> None:
    look = look_tool(desk, World(make))
    (found,) = run(desk, look)
    inner = found[0] if isinstance(found, list) else found["found"] if isinstance(found, dict) else found
    assert type(found) in (object, Upset) or list(inner) == [1, 2]
    assert kept(desk) == [None]
    again = replay("t-1", lambda _: look(), runtime=desk.runtime)
    assert (again.status, len(again.unchecked)) == ("same", 1)


def test_a_result_that_is_too_large_or_would_fill_the_journal_is_not_kept(desk: Desk) -> None:
    look = look_tool(desk, World("x" * 300_000))
    run(desk, look)
    assert kept(desk) == [None]
    world = World("x" * 200_000)
    run(desk, *[look_tool(desk, world)] * 30, key="t-2")
    held = [one for one in kept(desk, "t-2") if one is not None]
    assert 0 < sum(map(len, held)) <= 4 * 1024 * 1024
    assert len(held) < 30


def test_a_live_call_that_raised_and_one_that_was_taken_back_leave_no_result(desk: Desk) -> None:
    answers: Any = iter([[1], [2], [], [3]])
    look = look_tool(desk, World(lambda: next(answers)[0]))
    with transaction("t-1", runtime=desk.runtime):
        look()
        with pytest.raises(ValueError, match="taken back"), transaction():
            look("bob")
            raise ValueError("taken back")
        with pytest.raises(IndexError):
            look("eve")
        look("sue")
    assert kept(desk) == [b"1", None, b"3"]


@pytest.mark.parametrize("engine", BOTH)
def test_a_call_that_a_rerun_brought_back_is_kept_with_what_it_returned_now(desk: Desk, engine: str) -> None:
    """Its row stays, and what it had returned was lost with the first run's process."""
    world = World(1)
    look, refund = look_tool(desk, world, int), refund_tool(desk)
    with pytest.raises((errors.JournalError, errors.OutcomeUnknown)), full_after(desk.runtime.journal, 0):
        desk.run((look,), (refund, "o-1", 100))
    assert kept(desk) == [b"1"]
    world.now = 2
    desk.run((look,), (refund, "o-1", 100))
    assert kept(desk) == [b"2"]
    assert [row.state.value for row in desk.runtime.journal.transactions.live(record_of(desk))] == ["kept"]


def test_what_was_undone_since_is_replayed_with_what_it_returned(desk: Desk) -> None:
    """A staged call failed, so the live work was undone; its recorded results are unchanged."""
    world = World(5)
    look, full = look_tool(desk, world, int), failing_tool(desk, errors.NotDone("mailbox full"), acts=False)

    def step(_: object) -> Any:
        look()
        return full("o-1")

    desk.run((step, None), raises=errors.EffectFailed)
    assert replay("t-1", step, mode="reconstruct", runtime=desk.runtime).status == "same"
    world.now = 6
    assert replay("t-1", step, runtime=desk.runtime).status == "diverged"

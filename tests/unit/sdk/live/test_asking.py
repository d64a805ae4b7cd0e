"""`ask: live`: the policy is asked about a live effect before it runs, and only a release lets it run."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from countersign import (
    Asks,
    Denied,
    OutsideTransaction,
    RegistrationError,
    ReviewRequired,
    ServiceRefused,
    ServiceUnavailable,
    SQLiteAdapter,
    replay,
    tool,
    transaction,
)
from countersign.contract import DenyCode, ErrorCode, Verdict, load, names
from countersign.contract.wire import Claimed, Reason
from countersign.manifests.drafting import manifest_json
from countersign.tools.tool import tool_of
from tests.fakes.desk import AGENT, Desk, asked_of_policy, notes_database, notes_in, refund_tool
from tests.fakes.service import Refused

NO = Reason(code=DenyCode.FORBIDDEN_BY_POLICY, text="not at night", policy="night", advice="in the morning")


@pytest.fixture
def notes(desk: Desk) -> Path:
    return notes_database(desk.folder)


def note_tool(desk: Desk, notes: Path, **draft: Any) -> Callable[[str, str], int]:
    """A live tool; its code says nothing of asking unless a test does."""
    database = SQLiteAdapter(notes)
    options: dict[str, Any] = {"resource": ("Order", "order_id"), "registry": desk.registry, **draft}

    @tool("note", lane="live", adapter=database, **options)
    def note(order_id: str, text: str) -> int:
        """Write a note."""
        written = database.connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (order_id, text))
        return written.rowcount

    return note


DENIED = (Verdict.DENY, NO)


def only_mild(_: str, args: dict[str, Any]) -> Any:
    return Verdict.RELEASE if args["text"] == "mild" else DENIED


def in_threads(fn: Callable[[str], object], *given: str) -> None:
    """Call it with each of these, in threads that belong to the open block."""
    threads = [threading.Thread(target=contextvars.copy_context().run, args=(fn, one)) for one in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def note(desk: Desk, notes: Path) -> Callable[[str, str], int]:
    """A live tool whose reviewed manifest says `ask: live`, and its code does not."""
    made = note_tool(desk, notes)
    desk.publish(made, ask="live")
    return made


def answers(desk: Desk, answer: Any) -> list[tuple[str, dict[str, Any]]]:
    """Let the policy say this; what it was asked."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def policy(name: str, args: dict[str, Any]) -> Any:
        asked.append((name, args))
        return answer(name, args) if callable(answer) else answer

    desk.service.policy = policy
    return asked


# ------------------------------------------------------------------------------------------ what the policy says


def test_what_is_released_runs_and_was_asked_for_as_it_ran(desk: Desk, notes: Path, note: Any) -> None:
    seen: list[Any] = []
    asked = answers(desk, lambda *_: seen.append(notes_in(notes)) or Verdict.RELEASE)
    with desk.step(purpose="tidy up") as txn:
        assert note("o-1", "hello") == 1
    assert (notes_in(notes), txn.state) == ([("o-1", "hello")], "settled")
    assert asked == [("note", {"order_id": "o-1", "text": "hello"})]
    assert seen == [[]], "it was asked about before it ran"
    (question,) = desk.face.evaluated
    (effect,) = question.effects
    reviewed = desk.service.manifests["note"]
    assert (effect.tool_digest, question.live, question.run_key) == (reviewed.digest, True, "t-1")
    assert question.claimed == Claimed(purpose="tidy up")
    assert effect.resource is not None and (effect.resource.type, effect.resource.id) == ("Order", "o-1")
    record = desk.runtime.journal.transactions.require(txn.txn)
    (row,) = desk.runtime.journal.transactions.effects(record, "live")
    assert row.call_key == effect.call_key


def test_what_is_denied_does_not_run_and_says_why(desk: Desk, notes: Path, note: Any) -> None:
    answers(desk, DENIED)
    with pytest.raises(Denied) as denied, desk.step():
        note("o-1", "hello")
    (reason,) = denied.value.reasons
    assert (reason.tool, reason.code, reason.text, reason.policy, reason.advice) == (
        "note", "forbidden_by_policy", "not at night", "night", "in the morning",
    )  # fmt: skip
    key = names.call_key(
        agent=AGENT, run_key="t-1", tool="note", args={"order_id": "o-1", "text": "hello"}, n=0
    )
    assert reason.effect_id == names.effect_id(txn=denied.value.txn, call_key=key)
    assert notes_in(notes) == []


def test_what_people_would_have_to_agree_to_does_not_wait_for_them(
    desk: Desk, notes: Path, note: Any
) -> None:
    answers(desk, Verdict.REVIEW)
    with pytest.raises(ReviewRequired) as refused, desk.step(wait=60):
        note("o-1", "hello")
    assert (refused.value.tool, refused.value.code) == ("note", "review_required")
    assert refused.value.asks == (Asks(("finance",), 1),)
    assert "finance would have to agree" in str(refused.value)
    assert (notes_in(notes), asked_of_policy(desk)) == ([], [("POST", "/v1/evaluations")])


@pytest.mark.parametrize("fault", [["lost_request"] * 9, ["lost_answer"] * 9, [503] * 9, [500]])
def test_nobody_answering_is_no_release(desk: Desk, notes: Path, note: Any, fault: list[Any]) -> None:
    desk.face.faults["/v1/evaluations"] = fault
    with pytest.raises((ServiceUnavailable, ServiceRefused)), desk.step():
        note("o-1", "hello")
    assert notes_in(notes) == []


def test_a_refused_question_is_no_release(desk: Desk, notes: Path, note: Any) -> None:
    def frozen(*_: Any) -> Any:
        raise Refused(403, ErrorCode.FROZEN, "the tool 'note' is frozen")

    answers(desk, frozen)
    with pytest.raises(ServiceRefused, match="frozen") as refused, desk.step():
        note("o-1", "hello")
    assert (refused.value.problem_code, notes_in(notes)) == ("frozen", [])


def test_an_answer_about_another_effect_is_no_release(desk: Desk, notes: Path, note: Any) -> None:
    told = desk.service.evaluate

    def another(effects: Any) -> Any:
        view = told(effects)
        return view.model_copy(
            update={"effects": tuple(one.model_copy(update={"tool": "x"}) for one in view.effects)}
        )

    desk.service.evaluate = another  # type: ignore[method-assign]
    with pytest.raises(ServiceUnavailable, match="other effects than it was asked"), desk.step():
        note("o-1", "hello")
    assert notes_in(notes) == []


def test_what_was_refused_and_caught_leaves_the_block_as_it_was(desk: Desk, notes: Path, note: Any) -> None:
    answers(desk, only_mild)
    with desk.step() as txn:
        note("o-1", "mild")
        with pytest.raises(Denied):
            note("o-2", "harsh")
    assert (notes_in(notes), txn.state) == ([("o-1", "mild")], "settled")
    record = desk.runtime.journal.transactions.require(txn.txn)
    rows = desk.runtime.journal.transactions.effects(record, "live")
    assert [row.args for row in rows] == [b'{"order_id":"o-1","text":"mild"}']


def test_a_call_that_was_refused_leaves_its_name_to_the_next(desk: Desk, notes: Path, note: Any) -> None:
    """So a run in which the service was away for a moment is the same run as one in which it was not."""
    desk.face.faults["/v1/evaluations"] = [500]
    with desk.step():
        with pytest.raises(ServiceUnavailable):
            note("o-1", "hello")
        note("o-1", "hello")
        note("o-1", "hello")
    with desk.step() as again:
        note("o-1", "hello")
        note("o-1", "hello")
    assert again.replayed
    assert [one.effects[0].n for one in desk.face.evaluated] == [0, 1, 0, 1]


def test_a_denial_undoes_the_live_work_before_it(desk: Desk, notes: Path, note: Any) -> None:
    answers(desk, only_mild)
    refund = refund_tool(desk)
    with pytest.raises(Denied), desk.step():
        refund("o-1", 100)
        note("o-1", "mild")
        note("o-2", "harsh")
    assert (notes_in(notes), desk.done) == ([], [])


def test_what_was_asked_is_what_runs(desk: Desk, notes: Path) -> None:
    """The tool gets arguments made from the bytes that were asked about, whatever the caller does to its own."""
    given, got = ["a"], []
    live: dict[str, Any] = {"lane": "live", "ask": "live", "adapter": SQLiteAdapter(notes)}

    @tool("tag", resource=("Order", "const:o"), registry=desk.registry, **live)
    def tag(tags: list[str]) -> None:
        got.append(tags)

    desk.publish(tag)

    def sly(_: str, args: dict[str, Any]) -> Verdict:
        given.append("b")
        args["tags"].append("c")
        return Verdict.RELEASE

    answers(desk, sly)
    with desk.step():
        tag(given)
    assert (got, given) == ([["a"]], ["a", "b"])


# ------------------------------------------------------------------------------------------------- whose word


@pytest.mark.parametrize("reviewed", [True, False])
def test_a_tool_that_nobody_wants_to_be_asked_about_runs_unasked(
    desk: Desk, notes: Path, reviewed: bool
) -> None:
    note = note_tool(desk, notes)
    if reviewed:
        desk.publish(note)
    asked = answers(desk, DENIED)
    with desk.step():
        note("o-1", "hello")
    assert (asked, notes_in(notes), asked_of_policy(desk)) == ([], [("o-1", "hello")], [])


def test_code_alone_may_ask_and_what_nobody_reviewed_is_denied(desk: Desk, notes: Path) -> None:
    note = note_tool(desk, notes, ask="live")
    with pytest.raises(Denied) as denied, desk.step():
        note("o-1", "hello")
    assert [one.code for one in denied.value.reasons] == ["unknown_tool"]
    desk.publish(note, ask=None)
    answers(desk, DENIED)
    with pytest.raises(Denied) as denied, desk.step("t-2"):
        note("o-1", "hello")
    assert [one.policy for one in denied.value.reasons] == ["night"]
    assert notes_in(notes) == []


def test_whether_to_ask_is_looked_up_once_a_minute(desk: Desk, notes: Path) -> None:
    note = note_tool(desk, notes)
    desk.publish(note)

    def once(key: str) -> None:
        with desk.step(key):
            note("o-1", "hello")

    once("t-1")
    looked = desk.face.asked("/v1/tools/note")
    desk.clock.advance(59)
    once("t-2")
    assert desk.face.asked("/v1/tools/note") == looked
    desk.service.manifests.pop("note")
    desk.publish(note, ask="live")
    answers(desk, DENIED)
    desk.clock.advance(1)
    with pytest.raises(Denied):
        once("t-3")


def test_where_nobody_can_say_whether_to_ask_nothing_runs(desk: Desk, notes: Path) -> None:
    note = note_tool(desk, notes)
    desk.face.faults["/v1/tools/"] = ["lost_request"] * 9
    with pytest.raises(ServiceUnavailable), desk.step():
        note("o-1", "hello")
    assert notes_in(notes) == []


@pytest.mark.parametrize("asks", [None, "live"])
def test_the_last_word_counts_while_the_service_is_away(desk: Desk, notes: Path, asks: str | None) -> None:
    note = note_tool(desk, notes)
    desk.publish(note, ask=asks)
    with desk.step():
        note("o-1", "hello")
    desk.clock.advance(61)
    desk.face.faults["/v1/tools/"] = ["lost_request"] * 99
    answers(desk, DENIED)
    with pytest.raises(Denied) if asks else nullcontext(), desk.step("t-2"):
        note("o-2", "hello")
        looked = desk.face.asked("/v1/tools/note")
        note("o-3", "hello")
        assert desk.face.asked("/v1/tools/note") == looked, "it is not tried again at every call"
    assert len(notes_in(notes)) == (1 if asks else 3)


def test_a_dry_run_knows_what_its_process_has_looked_up(desk: Desk, notes: Path) -> None:
    note = note_tool(desk, notes)
    desk.publish(note)
    with desk.step():
        note("o-1", "hello")
    desk.face.faults["/v1/tools/"] = ["lost_request"] * 99
    with desk.step("t-2", dry_run=True) as trial:
        note("o-2", "hello")
    assert [one.tool for one in trial.result.live] == ["note"]


@pytest.mark.parametrize("asks", [None, "live"])
def test_a_reviewed_file_beside_the_code_serves_where_the_service_is_away(
    desk: Desk, notes: Path, asks: str | None
) -> None:
    beside = desk.folder / "note.json"
    note = note_tool(desk, notes, manifest=beside)
    beside.write_bytes(manifest_json(tool_of(note).draft_manifest().model_copy(update={"ask": asks})))
    desk.face.faults["/v1/"] = ["lost_request"] * 99
    refused = pytest.raises(ServiceUnavailable, match="evaluations") if asks else nullcontext()
    with refused, desk.step():
        note("o-1", "x")
    assert notes_in(notes) == ([] if asks else [("o-1", "x")])
    assert not asks or desk.face.asked("/v1/tools/") == 0


def test_a_stale_file_beside_the_code_hides_nothing(desk: Desk, notes: Path) -> None:
    beside = desk.folder / "note.json"
    note = note_tool(desk, notes, manifest=beside)
    beside.write_bytes(manifest_json(tool_of(note).draft_manifest()))
    desk.publish(note, ask="live")
    answers(desk, DENIED)
    with pytest.raises(Denied), desk.step():
        note("o-1", "x")
    assert notes_in(notes) == []


def test_a_tool_reviewed_as_staged_does_not_run_live(desk: Desk, notes: Path) -> None:
    note = note_tool(desk, notes)
    desk.publish(note, lane="staged")
    with pytest.raises(RegistrationError, match="live in code and staged"), desk.step():
        note("o-1", "hello")
    assert notes_in(notes) == []


def test_a_changed_manifest_is_read_again_after_the_denial(desk: Desk, notes: Path, note: Any) -> None:
    with desk.step():
        note("o-1", "hello")
    desk.publish(note, ask="live", risk="high")
    with pytest.raises(Denied) as denied, desk.step("t-2"):
        note("o-2", "hello")
    assert [one.code for one in denied.value.reasons] == ["tool_changed"]
    with desk.step("t-2"):
        note("o-2", "hello")
    assert len(notes_in(notes)) == 2


@pytest.mark.parametrize("said", ["always", True])
def test_code_that_asks_otherwise_is_refused(desk: Desk, notes: Path, said: object) -> None:
    with pytest.raises(RegistrationError, match="write ask='live'"):
        note_tool(desk, notes, ask=said)


def test_a_staged_tool_has_no_question_of_its_own(desk: Desk) -> None:
    with pytest.raises(RegistrationError, match="leave ask out"):
        tool("x", resource=("A", "const:a"), registry=desk.registry, ask="live")(lambda: None)


def test_the_draft_says_it(desk: Desk, notes: Path) -> None:
    draft = load(manifest_json(tool_of(note_tool(desk, notes, ask="live")).draft_manifest()))
    assert isinstance(draft, dict) and (draft["ask"], draft["lane"]) == ("live", "live")


# ------------------------------------------------------------------------------- where it is called, and how


@pytest.mark.parametrize("released", [True, False])
@pytest.mark.parametrize("is_async", [True, False], ids=["an async tool", "a plain tool"])
def test_a_tool_in_an_async_block_is_asked_about(
    desk: Desk, notes: Path, note: Any, released: bool, is_async: bool
) -> None:
    database = SQLiteAdapter(notes)
    live: dict[str, Any] = {"lane": "live", "ask": "live", "adapter": database}

    @tool("jot", resource=("Order", "order_id"), registry=desk.registry, **live)
    async def jot(order_id: str) -> int:
        await asyncio.sleep(0)
        return database.connection.execute("INSERT INTO notes VALUES (?, 'x')", (order_id,)).rowcount

    desk.publish(jot)
    asked = answers(desk, Verdict.RELEASE if released else DENIED)

    async def body() -> Any:
        async with desk.step():
            return await jot("o-1") if is_async else note("o-1", "x")

    with nullcontext() if released else pytest.raises(Denied):
        assert asyncio.run(body()) == 1
    assert (len(asked), len(notes_in(notes))) == (1, int(released))


def test_each_call_of_a_parallel_block_is_asked_about(desk: Desk, notes: Path, note: Any) -> None:
    answers(desk, lambda _, args: DENIED if args["order_id"] == "o-2" else Verdict.RELEASE)
    refused: list[str] = []

    def one(order_id: str) -> None:
        try:
            note(order_id, "hello")
        except Denied:
            refused.append(order_id)

    with desk.step() as txn, txn.parallel():
        in_threads(one, "o-0", "o-1", "o-2", "o-3")
    assert (refused, [order for order, _ in notes_in(notes)]) == (["o-2"], ["o-0", "o-1", "o-3"])
    assert {one.effects[0].n for one in desk.face.evaluated} == {0}


def test_equal_calls_of_several_threads_have_names_of_their_own(desk: Desk, notes: Path, note: Any) -> None:
    with desk.step() as txn, txn.parallel():
        in_threads(lambda order: note(order, "x"), *["o-1"] * 4)
    assert sorted(one.effects[0].n for one in desk.face.evaluated) == [0, 1, 2, 3]
    record = desk.runtime.journal.transactions.require(txn.txn)
    assert len(desk.runtime.journal.transactions.effects(record, "live")) == 4


def test_a_block_that_ended_while_it_was_asked_runs_nothing(desk: Desk, notes: Path, note: Any) -> None:
    asking, ended = threading.Event(), threading.Event()
    raised: list[BaseException] = []

    def slow(*_: Any) -> Verdict:
        asking.set()
        assert ended.wait(30)
        return Verdict.RELEASE

    def call() -> None:
        try:
            note("o-1", "hello")
        except OutsideTransaction as error:
            raised.append(error)

    answers(desk, slow)
    with desk.step() as txn:
        with txn.parallel():
            thread = threading.Thread(target=contextvars.copy_context().run, args=(call,))
            thread.start()
            assert asking.wait(30)
        ended.set()
        thread.join()
    assert (len(raised), notes_in(notes)) == (1, [])


def test_a_nested_block_that_was_refused_leaves_the_outer_one(desk: Desk, notes: Path, note: Any) -> None:
    answers(desk, lambda _, args: Verdict.RELEASE if args["text"] == "mild" else Verdict.REVIEW)
    with desk.step():
        note("o-1", "mild")
        with pytest.raises(ReviewRequired), transaction(runtime=desk.runtime):
            note("o-2", "mild")
            note("o-3", "harsh")
        note("o-2", "mild")
    assert [order for order, _ in notes_in(notes)] == ["o-1", "o-2"]


def test_outside_a_transaction_nothing_is_asked(desk: Desk, notes: Path, note: Any) -> None:
    asked = answers(desk, Verdict.RELEASE)
    with pytest.raises(OutsideTransaction):
        note("o-1", "hello")
    assert (asked, desk.face.log) == ([], [])


# ------------------------------------------------------------------------------------ before, and again


def test_a_dry_run_asks_as_well_and_leaves_no_trace_of_it(desk: Desk, notes: Path, note: Any) -> None:
    asked = answers(desk, Verdict.RELEASE)
    with desk.step(dry_run=True) as trial:
        note("o-1", "hello")
    assert [one.tool for one in trial.result.live] == ["note"]
    assert (len(asked), notes_in(notes)) == (1, [])
    assert [one.live for one in desk.face.evaluated] == [False]


@pytest.mark.parametrize(("answer", "raised"), [(DENIED, Denied), (Verdict.REVIEW, ReviewRequired)])
def test_a_dry_run_is_refused_as_the_real_run_will_be(
    desk: Desk, notes: Path, note: Any, answer: Any, raised: type[Exception]
) -> None:
    answers(desk, answer)
    with pytest.raises(raised), desk.step(dry_run=True):
        note("o-1", "hello")
    assert notes_in(notes) == []


@pytest.mark.parametrize("mode", ["verify", "reconstruct"])
def test_a_replay_asks_nobody(desk: Desk, notes: Path, note: Any, mode: Any) -> None:
    def step(_: Any) -> int:
        answer: int = note("o-1", "hello")
        return answer

    with desk.step() as txn:
        step(txn)
    answers(desk, DENIED)
    log = len(desk.face.log)
    again = replay("t-1", step, mode=mode, live={"note": lambda **_: 1}, runtime=desk.runtime)
    assert (again.status, len(desk.face.log)) == ("same", log)

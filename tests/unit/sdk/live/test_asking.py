"""`ask: live`: the policy is asked about a live effect before it runs, and only a release lets it run."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from countersign import ApprovalRequirement, SQLiteAdapter, errors, replay, tool
from countersign.contract import DenyCode, ErrorCode, Verdict, load
from countersign.contract import digests as names
from countersign.contract.wire import Claimed, Reason
from countersign.manifests.drafts import manifest_json
from countersign.tools.tool import tool_of
from tests.fakes.desk import AGENT, Desk, asked_of_policy, notes_in
from tests.fakes.running import order_tool, run_async
from tests.fakes.service import Refused

NO = Reason(code=DenyCode.FORBIDDEN_BY_POLICY, text="not at night", policy="night", advice="in the morning")
DENIED = (Verdict.DENY, NO)
AWAY = ["lost_request"] * 99


def note_tool(desk: Desk, database: SQLiteAdapter, **draft: Any) -> Any:
    """A live tool; its code says nothing of asking unless a test does."""
    options: dict[str, Any] = {"resource": ("Order", "order_id"), "registry": desk.registry, **draft}

    @tool("note", lane="live", adapter=database, **options)
    def note(order_id: str, text: str) -> int:
        """Write a note."""
        written = database.connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (order_id, text))
        return written.rowcount

    return note


@pytest.fixture
def unasked(desk: Desk, database: SQLiteAdapter) -> Any:
    """A live tool without a review."""
    return note_tool(desk, database)


@pytest.fixture
def note(desk: Desk, unasked: Any) -> Any:
    """A live tool whose reviewed manifest says `ask: live`, and its code does not."""
    desk.publish(unasked, ask="live")
    return unasked


def answers(desk: Desk, answer: Any) -> list[tuple[str, dict[str, Any]]]:
    """Let the policy say this; what it was asked."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def policy(name: str, args: dict[str, Any]) -> Any:
        asked.append((name, args))
        return answer(name, args) if callable(answer) else answer

    desk.service.policy = policy
    return asked


def once(desk: Desk, note: Any, key: str = "t-1", order: str = "o-1", **options: Any) -> Any:
    """A transaction of one call."""
    with desk.step(key, **options) as txn:
        assert note(order, "hello") == 1
    return txn


def test_what_is_released_runs_and_was_asked_for_as_it_ran(desk: Desk, notes: Path, note: Any) -> None:
    seen: list[Any] = []
    asked = answers(desk, lambda *_: seen.append(notes_in(notes)) or Verdict.RELEASE)
    txn = once(desk, note, purpose="tidy up")
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


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_is_denied_does_not_run_and_says_why(desk: Desk, notes: Path, note: Any, dry_run: bool) -> None:
    answers(desk, DENIED)
    with pytest.raises(errors.Denied) as denied:
        once(desk, note, dry_run=dry_run)
    (reason,) = denied.value.reasons
    said = (reason.tool, reason.code, reason.text, reason.policy, reason.advice)
    assert said == ("note", "forbidden_by_policy", "not at night", "night", "in the morning")
    args = {"order_id": "o-1", "text": "hello"}
    key = names.call_key(agent=AGENT, run_key="t-1", tool="note", args=args, n=0)
    assert reason.effect_id == names.effect_id(txn=denied.value.txn, call_key=key)
    assert notes_in(notes) == []


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_needs_people_does_not_wait_for_them(desk: Desk, notes: Path, note: Any, dry_run: bool) -> None:
    answers(desk, Verdict.REVIEW)
    with pytest.raises(errors.ReviewRequired, match="would need approval by finance") as refused:
        once(desk, note, wait=60, dry_run=dry_run)
    asks = (ApprovalRequirement(("finance",), 1),)
    assert (refused.value.tool, refused.value.code, refused.value.asks) == ("note", "review_required", asks)
    assert (notes_in(notes), asked_of_policy(desk)) == ([], [("POST", "/v1/evaluations")])


FAULTS = [("/v1/evaluations", fault) for fault in (AWAY, ["lost_answer"] * 9, [503] * 9, [500])]


@pytest.mark.parametrize(("path", "fault"), [*FAULTS, ("/v1/tools/", AWAY)])
def test_no_answer_is_no_release(desk: Desk, notes: Path, note: Any, path: str, fault: Any) -> None:
    desk.face.faults[path] = fault
    with pytest.raises((errors.ServiceUnavailable, errors.ServiceRefused)):
        once(desk, note)
    assert notes_in(notes) == []


def test_a_refused_question_is_no_release(desk: Desk, notes: Path, note: Any) -> None:
    def frozen(*_: Any) -> Any:
        raise Refused(403, ErrorCode.FROZEN, "the tool 'note' is frozen")

    answers(desk, frozen)
    with pytest.raises(errors.ServiceRefused, match="frozen") as refused:
        once(desk, note)
    assert (refused.value.problem_code, notes_in(notes)) == ("frozen", [])


def test_an_answer_about_another_effect_is_no_release(desk: Desk, notes: Path, note: Any) -> None:
    reported = desk.service.evaluate

    def another(effects: Any) -> Any:
        view = reported(effects)
        others = tuple(one.model_copy(update={"tool": "x"}) for one in view.effects)
        return view.model_copy(update={"effects": others})

    desk.service.evaluate = another  # type: ignore[method-assign]
    with pytest.raises(errors.ServiceUnavailable, match="its response is about other effects"):
        once(desk, note)
    assert notes_in(notes) == []


def test_a_call_that_was_refused_leaves_its_name_to_the_next(desk: Desk, notes: Path, note: Any) -> None:
    """So a run in which the service was away for a moment is the same run as one in which it was not."""
    desk.face.faults["/v1/evaluations"] = [500]
    with desk.step():
        for refused in (pytest.raises(errors.ServiceUnavailable), nullcontext(), nullcontext()):
            with refused:
                note("o-1", "hello")
    again = desk.run((note, "o-1", "hello"), (note, "o-1", "hello"))
    assert again.replayed
    assert [one.effects[0].n for one in desk.face.evaluated] == [0, 1, 0, 1]


def test_what_was_asked_is_what_runs(desk: Desk, database: SQLiteAdapter) -> None:
    """The tool gets arguments made from the bytes that were asked about, and no change by the caller reaches them."""
    given, got = ["a"], []

    @order_tool(desk, resource=("Order", "const:o"), lane="live", ask="live", adapter=database)
    def tag(tags: list[str]) -> None:
        got.append(tags)

    def sly(_: str, args: dict[str, Any]) -> Verdict:
        given.append("b")
        args["tags"].append("c")
        return Verdict.RELEASE

    answers(desk, sly)
    desk.run((tag, given))
    assert (got, given) == ([["a"]], ["a", "b"])


@pytest.mark.parametrize("reviewed", [True, False])
def test_a_call_without_a_check_runs_at_once(desk: Desk, notes: Path, unasked: Any, reviewed: bool) -> None:
    if reviewed:
        desk.publish(unasked)
    asked = answers(desk, DENIED)
    once(desk, unasked)
    assert (asked, notes_in(notes), asked_of_policy(desk)) == ([], [("o-1", "hello")], [])


def test_code_may_ask_and_the_unreviewed_is_denied(desk: Desk, notes: Path, database: SQLiteAdapter) -> None:
    note = note_tool(desk, database, ask="live")
    draft = load(manifest_json(tool_of(note).draft_manifest()))
    assert isinstance(draft, dict) and (draft["ask"], draft["lane"]) == ("live", "live")
    with pytest.raises(errors.Denied) as denied:
        once(desk, note)
    assert [one.code for one in denied.value.reasons] == ["unknown_tool"]
    desk.publish(note, ask=None)
    answers(desk, DENIED)
    with pytest.raises(errors.Denied) as denied:
        once(desk, note, "t-2")
    assert ([one.policy for one in denied.value.reasons], notes_in(notes)) == (["night"], [])


def test_whether_to_ask_is_looked_up_once_a_minute(desk: Desk, unasked: Any) -> None:
    desk.publish(unasked)
    once(desk, unasked)
    looked = desk.face.asked("/v1/tools/note")
    desk.clock.advance(59)
    once(desk, unasked, "t-2")
    assert desk.face.asked("/v1/tools/note") == looked
    desk.service.manifests.pop("note")
    desk.publish(unasked, ask="live")
    answers(desk, DENIED)
    desk.clock.advance(1)
    with pytest.raises(errors.Denied):
        once(desk, unasked, "t-3")


@pytest.mark.parametrize("asks", [None, "live"])
def test_the_last_word_counts_without_a_service(desk: Desk, notes: Path, unasked: Any, asks: Any) -> None:
    desk.publish(unasked, ask=asks)
    once(desk, unasked)
    desk.face.faults["/v1/tools/"] = AWAY
    if asks is None:
        trial = once(desk, unasked, "t-0", dry_run=True)  # it knows what its process has looked up
        assert [one.tool for one in trial.result.live] == ["note"]
    desk.clock.advance(61)
    answers(desk, DENIED)
    with pytest.raises(errors.Denied) if asks else nullcontext(), desk.step("t-2"):
        unasked("o-2", "hello")
        looked = desk.face.asked("/v1/tools/note")
        unasked("o-3", "hello")
        assert desk.face.asked("/v1/tools/note") == looked, "it is not tried again at every call"
    assert len(notes_in(notes)) == (1 if asks else 3)


@pytest.mark.parametrize("asks", [None, "live"])
def test_a_reviewed_file_serves_in_its_stead(desk: Desk, notes: Path, database: Any, asks: Any) -> None:
    neighbor = desk.folder / "note.json"
    note = note_tool(desk, database, manifest=neighbor)
    neighbor.write_bytes(manifest_json(tool_of(note).draft_manifest().model_copy(update={"ask": asks})))
    desk.face.faults["/v1/"] = AWAY
    with pytest.raises(errors.ServiceUnavailable, match="evaluations") if asks else nullcontext():
        once(desk, note)
    assert notes_in(notes) == ([] if asks else [("o-1", "hello")])
    assert not asks or desk.face.asked("/v1/tools/") == 0


def test_a_stale_file_next_to_the_code_hides_nothing(desk: Desk, notes: Path, database: Any) -> None:
    neighbor = desk.folder / "note.json"
    note = note_tool(desk, database, manifest=neighbor)
    neighbor.write_bytes(manifest_json(tool_of(note).draft_manifest()))
    desk.publish(note, ask="live")
    answers(desk, DENIED)
    with pytest.raises(errors.Denied):
        once(desk, note)
    assert notes_in(notes) == []


def test_a_tool_reviewed_as_staged_does_not_run_live(desk: Desk, notes: Path, unasked: Any) -> None:
    desk.publish(unasked, lane="staged")
    with pytest.raises(errors.RegistrationError, match="live in code and staged"):
        once(desk, unasked)
    assert notes_in(notes) == []


def test_a_changed_manifest_is_read_again_after_the_denial(desk: Desk, notes: Path, note: Any) -> None:
    once(desk, note)
    desk.publish(note, ask="live", risk="high")
    with pytest.raises(errors.Denied) as denied:
        once(desk, note, "t-2", "o-2")
    assert [one.code for one in denied.value.reasons] == ["tool_changed"]
    once(desk, note, "t-2", "o-2")
    assert len(notes_in(notes)) == 2


def test_code_that_asks_otherwise_or_in_a_staged_tool_is_refused(desk: Desk, database: SQLiteAdapter) -> None:
    for said in ("always", True):
        with pytest.raises(errors.RegistrationError, match="write ask='live'"):
            note_tool(desk, database, ask=said)
    with pytest.raises(errors.RegistrationError, match="leave ask out"):
        tool("x", resource=("A", "const:a"), registry=desk.registry, ask="live")(lambda: None)


def test_tools_in_an_async_block_ask(desk: Desk, database: SQLiteAdapter, notes: Path, note: Any) -> None:
    @order_tool(desk, lane="live", ask="live", adapter=database)
    async def jot(order_id: str) -> None:
        database.connection.execute("INSERT INTO notes VALUES (?, 'x')", (order_id,))

    asked = answers(desk, DENIED)
    for call in ((jot, "o-1"), (note, "o-1", "x")):
        with pytest.raises(errors.Denied):
            asyncio.run(run_async(desk, call))
    assert (len(asked), notes_in(notes)) == (2, [])


def test_each_call_of_a_parallel_block_is_asked_about(desk: Desk, notes: Path, note: Any) -> None:
    answers(desk, lambda _, args: DENIED if args["order_id"] == "o-2" else Verdict.RELEASE)

    def in_threads(key: str, *orders: str) -> list[Any]:
        with desk.step(key) as txn, txn.parallel(), ThreadPoolExecutor(4) as pool:
            made = [pool.submit(contextvars.copy_context().run, note, one, "hello") for one in orders]
        return [type(one.exception()) for one in made]

    nothing = type(None)
    assert in_threads("t-1", "o-0", "o-1", "o-2", "o-3") == [nothing, nothing, errors.Denied, nothing]
    assert [order for order, _ in notes_in(notes)] == ["o-0", "o-1", "o-3"]
    assert {one.effects[0].n for one in desk.face.evaluated} == {0}
    in_threads("t-2", *["o-1"] * 4)
    assert sorted(one.effects[0].n for one in desk.face.evaluated[4:]) == [0, 1, 2, 3]  # equal calls


def test_a_block_that_ended_while_it_was_asked_runs_nothing(desk: Desk, notes: Path, note: Any) -> None:
    meeting = threading.Barrier(2, timeout=30)

    def slow(*_: Any) -> Verdict:
        meeting.wait()
        meeting.wait()
        return Verdict.RELEASE

    answers(desk, slow)
    with desk.step() as txn, ThreadPoolExecutor(1) as pool:
        with txn.parallel():
            late = pool.submit(contextvars.copy_context().run, note, "o-1", "hello")
            meeting.wait()  # it is being asked about
        meeting.wait()
        with pytest.raises(errors.OutsideTransaction):
            late.result(30)
    assert notes_in(notes) == []


def test_a_dry_run_asks_as_well_and_leaves_no_trace_of_it(desk: Desk, notes: Path, note: Any) -> None:
    asked = answers(desk, Verdict.RELEASE)
    trial = once(desk, note, dry_run=True)
    assert ([one.tool for one in trial.result.live], len(asked), notes_in(notes)) == (["note"], 1, [])
    assert [one.live for one in desk.face.evaluated] == [False]


@pytest.mark.parametrize("mode", ["verify", "reconstruct"])
def test_a_replay_sends_no_request(desk: Desk, note: Any, mode: Any) -> None:
    once(desk, note)
    answers(desk, DENIED)
    log = len(desk.face.log)
    live = {"note": lambda **_: 1}
    again = replay("t-1", lambda _: note("o-1", "hello"), mode=mode, live=live, runtime=desk.runtime)
    assert (again.status, len(desk.face.log)) == ("same", log)

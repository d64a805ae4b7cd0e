"""Replays: a step runs again and is compared with its recording, without side effects."""

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from pydantic import BaseModel

from countersign import MemoryAdapter, Runtime, errors, replay, run_transaction, tool, use_runtime
from countersign.contract import Verdict
from countersign.journal.export import transaction_digest
from countersign.simulation.replay_report import ReplayDiverged
from tests.fakes.desk import Desk, failing_tool, notes_in, refund_tool
from tests.fakes.running import order_tool, run_async
from tests.unit.sdk.journals import document


class Receipt(BaseModel):
    """A result with a type of its own."""

    number: str
    cents: int


def receipt_tool(desk: Desk) -> Any:
    @order_tool(desk)
    def pay(order_id: str, amount_cents: int) -> Receipt:
        desk.act("pay", order_id, amount_cents)
        return Receipt(number=f"n-{order_id}", cents=amount_cents)

    return pay


def rows(desk: Desk) -> dict[str, list[tuple[Any, ...]]]:
    """Everything in the journal, row by row."""
    with closing(sqlite3.connect(desk.runtime.settings.journal_path)) as db:
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(db.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in names}


def commit(desk: Desk, body: Any, key: str = "t-1") -> None:
    run_transaction(body, key=key, runtime=desk.runtime)


def again(desk: Desk, body: Any, key: str = "t-1", **options: Any) -> Any:
    """Replay, and see that nothing else happened."""
    done, log, before = list(desk.done), list(desk.face.log), rows(desk)
    found = replay(key, body, runtime=desk.runtime, **options)
    assert (desk.done, desk.face.log, rows(desk)) == (done, log, before)
    return found


def vouched(export: dict[str, Any]) -> dict[str, Any]:
    """The same, as if it had been exported so."""
    for one in export.get("transactions", ()):
        one["digest"] = transaction_digest(one)
    return export


@pytest.mark.parametrize("mode", ["verify", "reconstruct"])
def test_scenario_58_the_same_step_matches_and_nothing_fires_again(desk: Desk, mode: str) -> None:
    pay = receipt_tool(desk)

    def step(txn: Any) -> Any:
        pay("o-1", 100)
        return pay("o-2", 200)

    commit(desk, step)
    desk.service.policy = lambda *_: Verdict.DENY  # a stricter policy is not asked
    desk.face.faults[""] = ["lost_request"] * 99  # nor is anybody else
    found = again(desk, step, mode=mode)
    assert (found.status, found.divergences, len(desk.done)) == ("same", (), 2)
    found.raise_on_divergence()
    assert {(one.tool, one.outcome) for one in found.outcomes} == {("pay", "fired")}
    assert type(found.value.result) is Receipt and found.value.outcome == "fired"
    receipts = [Receipt(number=f"n-o-{n}", cents=n * 100) for n in (1, 2)]
    assert [one.result for one in found.outcomes] == receipts


def test_scenario_58_a_tampered_journal_is_refused(desk: Desk, request: pytest.FixtureRequest) -> None:
    request.node.add_marker(pytest.mark.tampers)
    pay = receipt_tool(desk)
    commit(desk, lambda txn: pay("o-1", 100))
    commit(desk, lambda txn: pay("o-1", 100), key="t-2")
    with closing(sqlite3.connect(desk.runtime.settings.journal_path, isolation_level=None)) as db:
        txn = db.execute("SELECT txn FROM transactions WHERE run_key = 't-1'").fetchone()[0]
        db.execute("UPDATE effects SET result = ? WHERE txn = ?", (b'{"cents":999,"number":"n-o-1"}', txn))
    for name in ("t-1", txn, txn[:12]):
        with pytest.raises(errors.JournalError, match="is not as the SDK wrote it"):
            replay(name, lambda txn: pay("o-1", 100), runtime=desk.runtime)
    assert again(desk, lambda txn: pay("o-1", 100), key="t-2").status == "same"


def test_scenario_60_changed_arguments_are_reported(desk: Desk, refund: Any) -> None:
    commit(desk, lambda txn: (refund("o-1", 100), refund("o-2", 200)))
    found = again(desk, lambda txn: (refund("o-1", 100), refund("o-2", 250, ["late"])))
    (one,) = found.divergences
    assert (one.kind, one.lane, one.position, one.tool) == ("changed", "staged", 2, "refund")
    assert str(one).endswith('amount_cents was 200 and is 250, tags was absent and is ["late"]')
    assert found.status == "diverged"
    with pytest.raises(ReplayDiverged, match="amount_cents was 200 and is 250") as raised:
        found.raise_on_divergence()
    assert raised.value.divergences == found.divergences
    first, second = found.value
    assert (first.outcome, second.outcome) == ("fired", "not recorded")
    with pytest.raises(errors.PlaceholderUsed, match="not recorded"):
        _ = second.result


def test_scenario_60_missing_new_and_changed_calls_are_reported_in_place(desk: Desk) -> None:
    refund, pay = refund_tool(desk), receipt_tool(desk)

    def then(_: Any) -> None:
        for n in range(1, 6):
            refund(f"o-{n}", 100)

    def now(_: Any) -> None:
        refund("new", 1)
        refund("o-1", 100)
        pay("o-2", 100)
        refund("o-3", 100)
        refund("o-5", 100)

    commit(desk, then)
    reported = [(one.kind, one.position) for one in again(desk, now).divergences]
    assert reported == [("extra", 1), ("changed", 3), ("missing", 4)]
    texts = [str(one) for one in again(desk, now).divergences]
    assert texts[0].startswith('staged call 1 is new: refund {"amount_cents":1,"order_id":"new"}')
    assert "was refund" in texts[1] and "is now pay" in texts[1]
    assert "is not called now" in texts[2]
    nothing = again(desk, lambda txn: None)
    assert [(one.kind, one.position) for one in nothing.divergences] == [("missing", n) for n in range(1, 6)]


def test_scenario_61_equal_calls_and_repeats_replay(desk: Desk, refund: Any) -> None:

    def step(txn: Any) -> list[Any]:
        first = refund("o-1", 100)
        assert refund(order_id="o-1", amount_cents=100) is first
        with txn.repeat():
            return [first, refund("o-1", 100)]

    commit(desk, step)
    found = again(desk, step)
    assert (found.status, [one.outcome for one in found.value]) == ("same", ["fired", "fired"])
    (one,) = again(desk, lambda txn: refund("o-1", 100)).divergences
    assert (one.kind, one.position) == ("missing", 2)


def test_scenario_61_failed_and_compensated_calls_replay(desk: Desk, charge: Any, refund: Any) -> None:
    full = failing_tool(desk, errors.NotDone("mailbox full"), acts=False)

    def step(txn: object) -> list[Any]:
        return [charge("o-1", 100), full("o-1"), refund("o-1", 100)]

    desk.run((step, None), raises=errors.EffectFailed)
    found = again(desk, step)
    assert found.status == "same"
    assert [one.outcome for one in found.value] == ["compensated", "failed", "unused"]
    assert [(one.lane, one.tool, one.outcome) for one in found.outcomes] == [
        ("staged", "charge", "compensated"),
        ("staged", "notify", "failed"),
        ("staged", "refund", "unused"),
        ("compensate", "void", "fired"),
    ]
    assert found.outcomes[0].result == {"charge_id": "c-o-1"}
    assert found.outcomes[1].error == "NotDone: mailbox full"


def test_scenario_61_an_unknown_outcome_and_a_denial_replay(desk: Desk, refund: Any) -> None:
    slow = failing_tool(desk, TimeoutError("slow"), name="slow")
    desk.run((slow, "o-1"), raises=errors.OutcomeUnknown)
    assert again(desk, lambda txn: slow("o-1")).value.outcome == "unknown"
    desk.run((refund, "o-1", 900_000), key="t-2", raises=errors.Denied)
    found = again(desk, lambda txn: refund("o-1", 900_000), key="t-2")
    assert (found.status, found.value.outcome) == ("same", "denied")


def test_scenario_61_independent_effects_replay_in_any_order(desk: Desk, refund: Any) -> None:

    def step(txn: object) -> list[Any]:
        return [refund(f"o-{n}", 900_000 if n == 2 else 100) for n in range(5)]

    desk.run((step, None), independent=True, raises=errors.IndependentFailures)
    found = again(desk, step)
    assert found.status == "same"
    assert [one.outcome for one in found.value] == ["fired", "fired", "denied", "fired", "fired"]
    one_of_them = desk.runtime.journal.transactions.find("t-1")[0].txn
    assert again(desk, step, key=one_of_them).status == "same"
    fewer = again(desk, lambda txn: step(txn) and refund("o-9", 1))
    assert [(one.kind, one.position) for one in fewer.divergences] == [("extra", 6)]


def test_live_calls_run_again_and_are_undone(desk: Desk, notes: Any, note: Any, refund: Any) -> None:
    ran: list[int] = []

    def step(txn: Any) -> None:
        ran.append(note("o-1", "hello"))
        refund("o-1", 100)
        note("o-1", "hello")

    commit(desk, step)
    before = notes.read_bytes()
    assert (again(desk, step).status, ran, notes.read_bytes()) == ("same", [1, 1], before)
    found = again(desk, lambda txn: (note("o-1", "hello"), note("o-1", "bye"), refund("o-1", 100)))
    (one,) = found.divergences
    assert (one.kind, one.lane, one.position) == ("changed", "live", 2)
    assert 'text was "hello" and is "bye"' in str(one)
    assert notes_in(notes) == [("o-1", "hello")]


def test_a_step_that_raises_now_is_a_divergence_with_what_it_did_before(desk: Desk, refund: Any) -> None:
    commit(desk, lambda txn: (refund("o-1", 100), refund("o-2", 100)))
    found = again(desk, lambda txn: (refund("o-1", 100), {}["gone"]))
    assert [one.kind for one in found.divergences] == ["missing", "raised"]
    assert str(found.divergences[1]) == "the step raised KeyError ('gone'), and did not when it was recorded"


def test_a_result_of_a_former_type_is_reported(desk: Desk) -> None:
    pay = receipt_tool(desk)
    commit(desk, lambda txn: pay("o-1", 100))
    written = document(desk.runtime.journal, "t-1")
    desk.registry._tools.clear()

    @tool("pay", resource=("Order", "order_id"), registry=desk.registry)
    def other(order_id: str, amount_cents: int) -> list[int]: ...  # type: ignore[empty-body]

    for export in (None, written):
        found = again(desk, lambda txn: other("o-1", 100), export=export)
        (one,) = found.divergences
        assert (one.kind, one.position) == ("result", 1)
        assert "not of the type" in str(one)
        assert found.value.result == {"number": "n-o-1", "cents": 100}
    desk.registry._tools.clear()
    assert again(desk, lambda txn: None).outcomes[0].result == {"number": "n-o-1", "cents": 100}


def twice_and_another(export: dict[str, Any]) -> dict[str, Any]:
    (one,) = export["transactions"]
    return export | {"transactions": [one, one, one | {"agent": "x"}]}


NO_EXPORTS: list[Any] = [
    (lambda d: d | {"format": "another/v1"}, "is of the form 'another/v1'"),
    (lambda d: {"format": d["format"]}, "transactions: Field required"),
    (lambda d: d | {"transactions": [{}]}, "no export of a journal: transactions/0"),
    (lambda d: d | {"transactions": []}, "there is no transaction 't-1'"),
    (twice_and_another, "several"),
    (lambda d: d | {"transactions": [d["transactions"][0] | {"effects": []}]}, "nothing to replay"),
]


@pytest.mark.parametrize(("damage", "said"), NO_EXPORTS)
def test_what_is_no_export_is_refused(desk: Desk, damage: Any, said: str) -> None:
    pay = receipt_tool(desk)
    commit(desk, lambda txn: pay("o-1", 100))
    export = vouched(damage(document(desk.runtime.journal, "t-1")))
    with pytest.raises(errors.MisuseError, match=said):
        replay("t-1", lambda txn: None, export=export, runtime=desk.runtime)


def test_a_file_that_is_no_export_is_refused(desk: Desk) -> None:
    path = desk.folder / "export"
    for text, said in ((None, "cannot be read"), ('{"format": 1, "format": 2}', "is no export of a journal")):
        if text is not None:
            path.write_text(text)
        with pytest.raises(errors.MisuseError, match=said):
            replay("t-1", lambda txn: None, export=path, runtime=desk.runtime)


def test_what_was_never_submitted_or_is_not_there_is_refused(desk: Desk, refund: Any) -> None:
    def broken(txn: Any) -> None:
        refund("o-1", 100)
        raise KeyError

    with pytest.raises(errors.MisuseError, match="no journal"):
        replay("t-1", broken, runtime=desk.runtime)
    assert not desk.runtime.settings.journal_path.exists()
    with pytest.raises(KeyError):
        commit(desk, broken)
    with pytest.raises(errors.MisuseError, match="no list of calls was ever submitted"):
        replay("t-1", broken, runtime=desk.runtime)
    with pytest.raises(errors.MisuseError, match="no transaction 'absent'"):
        replay("absent", broken, runtime=desk.runtime)
    with pytest.raises(errors.MisuseError, match="write 'verify' or 'reconstruct'"):
        replay("t-1", broken, mode="guess", runtime=desk.runtime)  # type: ignore[arg-type]


def test_what_is_no_step_is_refused_before_anything_is_read(desk: Desk) -> None:
    reported = r"^replay takes .* without calling step|^replay calls <lambda> with the transaction"
    for no_step in (7, lambda: None):
        with pytest.raises(errors.MisuseError, match=reported):
            replay("t-1", no_step, runtime=desk.runtime)  # type: ignore[call-overload]
    assert not desk.runtime.settings.journal_path.exists()


def test_a_replay_uses_journal_and_tools_of_its_runtime(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another journal is named by its path."""
    pay = receipt_tool(desk)
    commit(desk, lambda txn: pay("o-1", 100))
    with Runtime(desk.runtime.settings, registry=desk.registry) as unreachable:
        found = [replay("t-1", lambda txn: pay("o-1", 100), runtime=unreachable)]
        with use_runtime(unreachable):
            found.append(replay("t-1", lambda txn: pay("o-1", 100)))
        assert unreachable._http is None
    desk.runtime.close()
    monkeypatch.setattr("countersign.simulation.replay.default_registry", desk.registry)
    found.append(replay("t-1", lambda txn: pay("o-1", 100), journal=desk.runtime.settings.journal_path))
    assert [one.outcomes[0].result for one in found] == [Receipt(number="n-o-1", cents=100)] * 3


def test_a_replay_inside_a_transaction_is_refused(desk: Desk, refund: Any) -> None:
    commit(desk, lambda txn: refund("o-1", 100))
    with desk.step("t-2") as outer:
        with pytest.raises(errors.MisuseError, match="inside transaction 't-2'"):
            replay("t-1", lambda txn: refund("o-1", 100), runtime=desk.runtime)
        assert outer.effects == ()


def test_an_async_step_replays_on_the_event_loop(desk: Desk) -> None:
    memory = MemoryAdapter()

    @order_tool(desk)
    async def send(order_id: str) -> Receipt:
        desk.act("send", order_id)
        return Receipt(number=order_id, cents=0)

    @tool("jot", lane="live", adapter=memory, registry=desk.registry)
    async def jot(order_id: str) -> int:
        await asyncio.sleep(0)
        memory[order_id] = memory.get(order_id, 0) + 1
        return 1

    async def step(_: object) -> Any:
        assert await jot("o-1") == 1
        return await send("o-1")

    asyncio.run(run_async(desk, (step, None)))
    for mode in ("verify", "reconstruct"):
        found: Any = asyncio.run(replay("t-1", step, mode=mode, runtime=desk.runtime))  # type: ignore[call-overload]
        assert (found.status, found.value.result) == ("same", Receipt(number="o-1", cents=0))
    assert (len(desk.done), memory.snapshot()) == (1, {"o-1": 1})


def test_changed_arguments_of_an_accepted_edit_replay_as_the_body_called_it(desk: Desk, refund: Any) -> None:
    """An accepted edit shows as the arguments in force, and is no divergence of the step."""
    commit(desk, lambda txn: refund("o-1", 100))
    written = document(desk.runtime.journal, "t-1")
    (effect,) = written["transactions"][0]["effects"]
    effect["staged"], effect["args"] = effect["args"], '{"amount_cents":50,"order_id":"o-1"}'
    vouched(written)
    found = again(desk, lambda txn: refund("o-1", 100), export=written)
    assert (found.status, found.outcomes[0].args) == ("same", '{"amount_cents":50,"order_id":"o-1"}')
    (one,) = again(desk, lambda txn: refund("o-1", 70), export=written).divergences
    assert "amount_cents was 100 and is 70" in str(one)


def test_a_replay_reads_as_text(desk: Desk, refund: Any) -> None:
    commit(desk, lambda txn: refund("o-\x1b[2J", 100))
    found = again(desk, lambda txn: None)
    reported = str(found).splitlines()
    assert (reported[0], len(reported)) == ("replay of 't-1': diverged; nothing fired", 3)
    assert reported[2].startswith("  differs: staged call 1 is missing: refund")
    assert "\x1b" not in str(found)
    assert found.to_json()["divergences"][0]["kind"] == "missing"

"""What a block asked for stays readable when nothing of it was submitted, or when it did not go through."""

import asyncio
import json
from contextlib import nullcontext, suppress

import pytest

from countersign import errors, resume, transaction
from countersign.journal.export import description_of, render_export, summary_of
from countersign.journal.queries import TransactionFilter, count
from tests.fakes.desk import Desk, refund_tool
from tests.fakes.running import fails
from tests.unit.sdk.journals import both_engines, journal_command
from tests.unit.sdk.paying import CARD, pay_tool

__all__ = ["both_engines"]

PARCEL = "the parcel is back"


class Unreadable(errors.MisuseError):
    def __str__(self) -> str:
        raise RuntimeError("no text of mine")


ENDINGS = [
    (ValueError(PARCEL), False),
    (KeyboardInterrupt(PARCEL), False),
    (SystemExit(PARCEL), True),
    (asyncio.CancelledError(PARCEL), True),
    (errors.SettingsError("no file \udcff\0.txt"), False),
    (Unreadable(), False),
]


def reported(desk: Desk, key: str) -> dict:
    (txn,) = desk.runtime.journal.transactions.found_ids(key)
    return description_of(desk.runtime.journal, txn)


def calls(of: dict, kind: str = "effects") -> list:
    read = {'"(secret)"': '"(secret)"'}
    return [(one["tool"], one["state"], read.get(one["args"]) or json.loads(one["args"])) for one in of[kind]]


@pytest.mark.parametrize(("error", "is_async"), ENDINGS)
def test_a_raising_body_keeps_calls(
    desk: Desk, refund, live_notes, error: BaseException, is_async: bool
) -> None:

    def body() -> None:
        live_notes.note("o-1", "seen")
        refund("o-1", 100)
        raise error

    async def run() -> None:
        async with desk.step():
            body()

    with pytest.raises(type(error)) as raised:
        if is_async:
            asyncio.run(run())
        with desk.step():
            body()
    found, kind = reported(desk, "t-1"), type(error).__name__
    assert is_async or raised.value is error
    refunded, noted = {"order_id": "o-1", "amount_cents": 100}, {"order_id": "o-1", "text": "seen"}
    assert calls(found) == [("refund", "withdrawn", refunded), ("note", "undone", noted)]
    assert found["state"] == "ended" and kind in found["note"]
    if not isinstance(error, errors.MisuseError):
        assert found["note"] == f"the body raised {kind}: {PARCEL}"
    assert summary_of(desk.runtime.journal, found["txn"])["effects"] == "note undone, refund withdrawn"
    assert desk.done == []


def test_show_export_stats_and_filter_tell_them(desk: Desk, place, refund) -> None:
    with pytest.raises(ValueError), desk.step():
        refund("o-1", 100)
        raise ValueError("out of stock")
    for verb in (["show", "t-1"], ["export", "--format", "json"], ["export", "--format", "csv"],
                 ["export", "--format", "md"], ["show", "t-1", "--json"]):  # fmt: skip
        output = journal_command(place, *verb).output
        assert "out of stock" in output and "o-1" in output and "withdrawn" in output, verb
    listed = journal_command(place, "list").output
    assert "refund withdrawn" in listed and "out of stock" in listed
    counted = count(desk.runtime.journal.database, TransactionFilter())
    assert [(one["tool"], one["called"], one["fired"]) for one in counted["tools"]] == [("refund", 1, 0)]
    for wanted in (TransactionFilter(state="withdrawn"), TransactionFilter(tool="refund")):
        assert len(desk.runtime.journal.transactions.matching_ids(wanted)) == 1


@pytest.mark.parametrize("then", ["commits", "raises"])
def test_a_caught_inner_block_is_listed_after_the_calls(desk: Desk, refund, live_notes, then: str) -> None:
    with suppress(LookupError), desk.step():
        refund("o-1", 100)
        with suppress(ValueError), transaction(runtime=desk.runtime):
            live_notes.note("o-2", "inner")
            with suppress(KeyError), transaction(runtime=desk.runtime):
                refund("o-3", 300)
                raise KeyError("deeper")
            refund("o-2", 200)
            raise ValueError("not this one")
        if then == "raises":
            raise LookupError("nor any")
    found = reported(desk, "t-1")
    assert [one[:2] for one in calls(found)] == [("refund", "fired" if then == "commits" else "withdrawn")]
    dropped = [
        (one["tool"], one["state"], one["error"].rpartition(" raised ")[2]) for one in found["dropped"]
    ]
    withdrawn, outer = ("refund", "withdrawn"), "ValueError: not this one"
    assert dropped == [(*withdrawn, "KeyError: 'deeper'"), (*withdrawn, outer), ("note", "undone", outer)]
    assert [one[2]["order_id"] for one in calls(found, "dropped")] == ["o-3", "o-2", "o-2"]
    for form in ("json", "csv", "md"):
        assert "not this one" in render_export(form, [found], "now")
    if then == "commits":
        assert found["note"] is None and [one[1] for one in desk.done] == ["o-1"]


@pytest.mark.parametrize("inner", [False, True])
def test_what_the_manifest_calls_secret_is_sealed_and_hidden(desk: Desk, inner: bool, engine: str) -> None:
    pay, database = pay_tool(desk, secret=[]), desk.runtime.journal.database
    desk.publish(pay, secret=("/card",))  # the code does not call it secret
    block = transaction(runtime=desk.runtime) if inner else nullcontext()
    with suppress(ValueError), desk.step(), block:
        pay("o-1", 5, CARD)
        raise ValueError(f"{CARD} is refused")
    found = reported(desk, "t-1")
    kind = "dropped" if inner else "effects"
    no_key = engine == "postgresql"  # a journal that machines share has no key of its own
    args = '"(secret)"' if no_key else {"order_id": "o-1", "amount_cents": 5, "card": "(secret)"}
    assert calls(found, kind) == [("pay", "withdrawn", args)]
    assert found["note"] == "the body raised ValueError"
    written = [*database.rows("SELECT * FROM effects"), *database.rows("SELECT note FROM transactions")]
    assert CARD.encode() not in repr([tuple(row) for row in written]).encode()


def test_while_the_service_is_away_a_call_keeps_its_name_alone(desk: Desk, refund) -> None:
    desk.face.faults["/v1/tools"] = ["lost_request"] * 9
    before = len(desk.face.log)
    with pytest.raises(ValueError), desk.step():
        refund("o-1", 100)
        refund("o-2", 100)
        raise ValueError("o-1")
    found = reported(desk, "t-1")
    assert calls(found) == [("refund", "withdrawn", '"(secret)"')] * 2
    assert found["note"] == "the body raised ValueError"
    assert len(desk.face.log) - before <= 1, "the service is tried once"


def test_a_denial_names_reason_and_policy(desk: Desk, refund) -> None:
    with pytest.raises(errors.Denied) as denied, desk.step():
        refund("o-1", 600_000)
    found = reported(desk, "t-1")
    (reason,) = denied.value.reasons
    assert reason.text in found["note"] and str(reason.policy) in found["note"]
    assert calls(found)[0][:2] == ("refund", "denied")


def test_a_superseded_list_is_listed_after_the_current_one(desk: Desk, refund) -> None:
    for order in ("o-1", "o-2"):
        fails(desk, errors.ReviewPending, (refund, order, 10_000), (refund, "o-3", 10_000))
    found = reported(desk, "t-1")
    assert [(one[1], one[2]["order_id"]) for one in calls(found)] == [("review", "o-2"), ("review", "o-3")]
    assert [(one[1], one[2]["order_id"]) for one in calls(found, "dropped")] == [("withdrawn", "o-1")]
    assert found["dropped"][0]["error"] == "another list was submitted under this key"


def test_a_later_run_that_raises_leaves_the_list_in_force_and_its_text(desk: Desk, refund) -> None:
    fails(desk, errors.ReviewPending, (refund, "o-1", 10_000))
    with pytest.raises(ValueError), desk.step():
        refund("o-2", 10_000)
        raise ValueError("a typing error")
    found = reported(desk, "t-1")
    assert found["note"] == "a later run: the body raised ValueError: a typing error"
    assert (found["state"], calls(found)[0][1]) == ("parked", "review")
    assert [(one[1], one[2]["order_id"]) for one in calls(found, "dropped")] == [("withdrawn", "o-2")]
    desk.service.approve(found["txn"])
    with desk.restarted() as later:
        resume(later.runtime)
    assert reported(desk, "t-1")["note"] is None and [one[1] for one in desk.done] == ["o-1"]


def test_independent_effects_are_each_kept(desk: Desk) -> None:
    refund, journal = refund_tool(desk), desk.runtime.journal
    with pytest.raises(ValueError), desk.step(independent=True):
        refund("o-1", 100)
        with suppress(KeyError), transaction(runtime=desk.runtime):
            refund("o-2", 200)
            raise KeyError("inner")
        raise ValueError("outer")
    found = [description_of(journal, txn) for txn in journal.transactions.found_ids("t-1")]
    notes = {json.loads(one["effects"][0]["args"])["order_id"]: one["note"] for one in found}
    inner, outer = "the inner block raised KeyError: 'inner'", "the body raised ValueError: outer"
    assert notes == {"o-1": outer, "o-2": inner}

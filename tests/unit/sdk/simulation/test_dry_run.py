"""A dry run: everything that would happen is found out, and nothing of it does."""

import contextvars
import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from typing import Any

import pytest

from countersign import DryRun, FilesAdapter, MemoryAdapter, SQLiteAdapter, errors, run_transaction, tool
from countersign.adapters.protocol import Change
from countersign.contract import Verdict
from countersign.contract.codes import DenyCode
from countersign.contract.wire import Reason
from countersign.errors.pending import ApprovalRequirement
from countersign.journal.export import json_text
from countersign.simulation.dry_run_report import AdapterChanges, ForeseenEffect, SimulatedLiveCall
from tests.fakes.desk import Desk, asked_of_policy, note_tool, notes_database, notes_in, refund_tool

WRITING = ("transactions", "redemptions", "outcomes", "compensate", "withdraw", "release")


def policy(_: str, args: dict[str, Any]) -> Verdict | tuple[Verdict, Reason]:
    """Small ones go, large ones are asked about, huge ones are not made."""
    if args.get("amount_cents", 0) > 500_000:
        return Verdict.DENY, Reason(code=DenyCode.FORBIDDEN_BY_POLICY, text="too much", policy="never-huge")
    return Verdict.REVIEW if args.get("amount_cents", 0) > 5_000 else Verdict.RELEASE


def bytes_below(folder: Any) -> dict[str, bytes]:
    """The bytes of every file of a folder; but for the empty lock of the adapter's own."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files if path.name != "lock" or path.read_bytes()}


def asked(desk: Desk) -> list[str]:
    """What the service was asked that changes anything."""
    return [path for _, path in desk.face.log if any(one in path for one in WRITING)]


def test_scenario_56_a_dry_run_lists_what_would_fire_and_fires_nothing(desk: Desk, refund: Any) -> None:
    desk.service.policy = policy
    with desk.step(dry_run=True) as txn:
        small, large, huge = refund("o-1", 100), refund("o-2", 6_000), refund("o-3", 600_000)
    found = txn.result
    assert [(one.tool, one.args, one.decision) for one in found.effects] == [
        ("refund", {"order_id": "o-1", "amount_cents": 100}, "release"),
        ("refund", {"order_id": "o-2", "amount_cents": 6_000}, "review"),
        ("refund", {"order_id": "o-3", "amount_cents": 600_000}, "deny"),
    ]
    assert found.effects[1].asks == (ApprovalRequirement(("finance",), 1),)
    (denial,) = found.denials
    assert (denial.code, denial.text, denial.policy) == ("forbidden_by_policy", "too much", "never-huge")
    assert (found.is_clean, desk.done, asked(desk)) == (False, [], [])
    assert [one.effect_id for one in found.effects] == [one.effect_id for one in (small, large, huge)]
    assert small.outcome == "rehearsed"
    with pytest.raises(errors.PlaceholderUsed, match="rehearsed"):
        _ = small.result


def test_scenario_56_a_dry_run_leaves_sql_and_files_byte_identical(desk: Desk, tmp_path: Any) -> None:
    notes, root = notes_database(tmp_path), tmp_path / "root"
    (root / "deep").mkdir(parents=True)
    (root / "old.txt").write_text("old")
    (root / "deep" / "gone.txt").write_text("gone")
    with closing(sqlite3.connect(notes, isolation_level=None)) as connection:
        connection.execute("INSERT INTO notes VALUES ('o-0', 'here')")
    files = FilesAdapter(root)
    note, refund = note_tool(desk, SQLiteAdapter(notes)), refund_tool(desk)
    write = live_writer(desk, files)
    before, database = bytes_below(root), notes.read_bytes()
    long = "x" * 200_000  # more than one page, so that the file would grow
    calls = [(write, "old.txt", "new"), (write, "deep/gone.txt", None), (write, "made.txt", "made")]
    txn = desk.run((note, "o-1", long), *calls, (refund, "o-1", 100), dry_run=True)
    assert (bytes_below(root), notes.read_bytes()) == (before, database)
    assert (notes_in(notes), desk.done) == ([("o-0", "here")], [])
    sql, folder = txn.result.changes
    assert sql.changes == (Change("notes[o-1]", None, {"order_id": "o-1", "note": long}),)
    gone, made = Change("deep/gone.txt", b"gone", None), Change("made.txt", None, b"made")
    assert folder.changes == (gone, made, Change("old.txt", b"old", b"new"))
    assert [one.tool for one in txn.result.live] == ["note", "write", "write", "write"]


def live_writer(desk: Desk, files: FilesAdapter) -> Any:
    @tool("write", lane="live", adapter=files, registry=desk.registry)
    def write(path: str, text: str | None) -> None:
        """Write a file, or remove it."""
        if text is None:
            files.remove(path)
        else:
            files.write(path, text)

    return write


def test_scenario_57_a_denial_does_not_stop_the_body_of_a_dry_run(desk: Desk, refund: Any) -> None:
    desk.service.policy = policy
    txn = desk.run((refund, "o-1", 600000), (refund, "o-2", 700000), dry_run=True)
    assert len(txn.result.denials) == 2
    desk.run((refund, "o-1", 600000), raises=errors.Denied)


def test_a_dry_run_writes_no_journal_and_spends_no_key(desk: Desk, refund: Any, charge: Any) -> None:
    desk.runtime.journal.close()
    desk.run((refund, "o-1", 100), (charge, "o-1", 100), dry_run=True)
    assert not desk.runtime.settings.journal_path.exists()
    real = desk.run((refund, "o-1", 100), (charge, "o-1", 100))
    assert (real.state, len(desk.done), real.replayed) == ("settled", 2, False)


def test_a_dry_run_of_a_key_that_was_spent_leaves_it_as_it_is(desk: Desk, refund: Any) -> None:
    with desk.step() as real:
        fired = refund("o-1", 100)
    rows = desk.runtime.journal.database.rows("SELECT * FROM chain")
    txn = desk.run((refund, "o-1", 100), dry_run=True)
    assert desk.runtime.journal.database.rows("SELECT * FROM chain") == rows
    assert (txn.result.effects[0].effect_id, len(desk.done)) == (fired.effect_id, 1)
    assert (real.state, txn.state) == ("settled", "ended")


AWAY: list[Any] = [("/v1/evaluations", {"order_id": "o-1", "amount_cents": 100}), ("/v1/tools", "(secret)")]


@pytest.mark.parametrize(("path", "args"), AWAY)
def test_without_a_service_decisions_are_unknown(desk: Desk, path: str, args: Any, refund: Any) -> None:
    desk.face.faults[path] = ["lost_request"] * 9
    txn = desk.run((refund, "o-1", 100), dry_run=True)
    (one,) = txn.result.effects
    assert (one.args, one.decision, txn.result.is_clean, bool(one.why)) == (args, "unknown", False, True)


def test_a_failed_dry_run_is_undone(desk: Desk, notes: Any, note: Any, refund: Any) -> None:
    for call, error in (((divmod, 1, 0), ZeroDivisionError), ((refund, "o-1", 100), errors.ServiceRefused)):
        txn = desk.run((note, "o-1", "hello"), call, dry_run=True, raises=error)
        assert (notes_in(notes), asked_of_policy(desk)) == ([], [])
        with pytest.raises(errors.MisuseError, match=r"has no result: .* ended by an exception"):
            _ = txn.result
        desk.service.agents.clear()


def test_live_work_is_undone_before_the_service_is_asked(desk: Desk, notes: Any) -> None:
    note, refund, free = note_tool(desk, SQLiteAdapter(notes)), refund_tool(desk), []

    def look(_: str, __: dict[str, Any]) -> Verdict:
        with closing(sqlite3.connect(notes, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
        free.append(True)
        return Verdict.RELEASE

    desk.service.policy = look
    desk.run((note, "o-1", "hello"), (refund, "o-1", 100), dry_run=True)
    assert free == [True]


def test_a_call_that_cannot_be_staged_is_refused_as_in_a_real_run(desk: Desk, refund: Any) -> None:
    desk.run((refund, "o-1", 12.5), dry_run=True, raises=errors.NotStageable)
    desk.publish(refund, aud="a-gateway")
    desk.runtime.manifests.forget("refund")
    with pytest.raises(errors.NotStageable, match="a-gateway"):
        desk.run((refund, "o-1", 100), key="t-2", dry_run=True)


def test_independent_effects_are_asked_about_each_alone(desk: Desk, refund: Any) -> None:
    desk.service.policy = policy
    txn = desk.run((refund, "o-1", 100), (refund, "o-2", 600000), dry_run=True, independent=True)
    assert [one.decision for one in txn.result.effects] == ["release", "deny"]
    assert desk.face.asked("/v1/evaluations") == 2


def test_a_real_transaction_has_no_result_of_its_own(desk: Desk) -> None:
    txn = desk.run()
    with pytest.raises(errors.MisuseError, match="no dry run"):
        _ = txn.result


def test_a_dry_run_inside_a_transaction_is_refused(desk: Desk, refund: Any) -> None:
    """Its calls would be those of the outer one, and fire."""
    with desk.step() as outer:
        with pytest.raises(errors.MisuseError, match="inside transaction 't-1'"):
            desk.step("t-2", dry_run=True)
        with pytest.raises(errors.MisuseError, match="inside transaction 't-1'"):
            run_transaction(lambda txn: refund("o-1", 1), key="t-2", dry_run=True, runtime=desk.runtime)
        assert outer.effects == ()
    assert desk.done == []


def test_a_dry_run_waits_for_no_lease_of_a_real_run_of_its_key(desk: Desk, refund: Any) -> None:
    with desk.step() as real:
        refund("o-1", 100)
        dry = contextvars.Context().run(desk.run, (refund, "o-1", 100), dry_run=True)
        assert dry.result.is_clean
    assert (real.state, len(desk.done)) == ("settled", 1)


def test_what_was_found_reads_as_text_and_moves_no_cursor() -> None:
    asks = (ApprovalRequirement(("cfo", "finance"), 2, "passkey"),)
    effects = (
        ForeseenEffect("refund", "e-1", {"to": "a\nb"}, "release"),
        ForeseenEffect("refund", "e-2", {}, "review", asks),
        ForeseenEffect("refund", "e-3", "(secret)", "unknown", why="the service did not answer: away"),
    )
    files = (Change("a\x07.txt", None, b"1"), Change("b", b"1", None), Change("c", 1, 2))
    rows = (
        Change("t[1]", {"id": 1, "n": 1, "s": "a\x1b"}, {"id": 1, "n": 1.0, "s": "b"}),
        Change("t[2]", None, {"id": 2, "n": 500, "s": "x" * 130}),
        Change("t[3]", {"id": 3, "n": None}, None),
    )
    by_adapter = {"sql": None, "files": files, "memory": (), "rows": rows}
    changes = tuple(AdapterChanges(name, found) for name, found in by_adapter.items())
    reported = str(DryRun("case-\x1b[2J", effects, (SimulatedLiveCall("note", {"text": "x"}),), changes))
    assert reported.splitlines() == [
        r"dry run of 'case-\x1b[2J': nothing fired, nothing was kept",
        r'  1  refund {"to":"a\nb"}: release',
        "  2  refund {}: review: asks 2 of cfo|finance with passkey",
        '  3  refund "(secret)": unknown: the service did not answer: away',
        '  live  note {"text":"x"}: ran and was undone',
        "  changes  sql: cannot tell what would change",
        r"  changes  files: a\x07.txt new, b removed, c changed",
        "  changes  memory: no change found",
        r"  changes  rows: t[1] changed (n: 1 -> 1.0, s: 'a\x1b' -> 'b')"
        f", t[2] new (id: 2, n: 500, s: '{'x' * 119}... (132 characters)), t[3] removed (id: 3, n: None)",
    ]


def test_a_row_in_json_is_an_object_whose_values_are_cut_each_alone() -> None:
    long, longer = "x" * 500, "x" * 499 + "y"
    before = {"id": 1, "note": long, "raw": b"\x00a", "amount": 1.5, "ok": True, "n": None, "last": "new"}
    after = before | {"note": longer, "last": "paid"}
    reported = changed_in_json(Change("t[1]", before, after))
    cut = f"{'x' * 120}... (500 characters)"
    shown = {"id": 1, "note": cut, "raw": "\x00a", "amount": 1.5, "ok": True, "n": None, "last": "new"}
    of = {"key": "t[1]", "what": "changed", "columns": ["note", "last"]}
    assert reported == of | {"before": shown, "after": shown | {"last": "paid"}}


IN_JSON: list[Any] = [
    (2**53 - 1, 2**53 - 1),
    (2**53, "9007199254740992"),
    (10**30, "1" + "0" * 30),
    (float("inf"), "inf"),
    (Decimal("1.00"), "1.00"),
    ({"a": [1, None], "b": Decimal("0.5")}, '{"a": [1, null], "b": "0.5"}'),
    ([1, "ü"], '[1, "ü"]'),
    ({(1, 2): 3}, "{(1, 2): 3}"),
    ({"deep": "x" * 500}, f'{{"deep": "{"x" * 110}... (512 characters)'),
    (b"\xff", r"\xff"),
]


@pytest.mark.parametrize(("value", "reported"), IN_JSON)
def test_what_json_does_not_hold_exactly_is_its_text(value: Any, reported: Any) -> None:
    change = changed_in_json(Change("t[1]", None, {"v": value}))
    assert change == {"key": "t[1]", "what": "new", "before": None, "after": {"v": reported}}
    assert json.loads(json_text(change)) == change


def changed_in_json(change: Change) -> dict[str, Any]:
    (adapter,) = DryRun("k", (), (), (AdapterChanges("a", (change,)),)).to_json()["changes"]
    (reported,) = adapter["changes"]
    return dict(reported)


def test_what_a_live_tool_with_secrets_changes_is_hidden(desk: Desk, notes: Any) -> None:
    with closing(sqlite3.connect(notes, isolation_level=None)) as connection:
        connection.execute("INSERT INTO notes VALUES ('o-0', 'here'), ('o-9', 'there')")
    adapter, memory, secret = SQLiteAdapter(notes), MemoryAdapter(), "(secret)"

    @tool("swap", lane="live", adapter=adapter, secret=["/token"], registry=desk.registry)
    def swap(token: str) -> None:
        """One comes, one goes, one is changed."""
        adapter.connection.execute("INSERT INTO notes VALUES (?, 'made')", (token,))
        adapter.connection.execute("DELETE FROM notes WHERE order_id = 'o-0'")
        adapter.connection.execute("UPDATE notes SET note = 'other' WHERE order_id = 'o-9'")

    learn = tool("learn", lane="live", adapter=memory, registry=desk.registry)(
        lambda: memory.__setitem__("blue", 1)
    )
    txn = desk.run((swap, "t0ps3cret"), (learn,), dry_run=True)
    hidden, open_to_all = txn.result.changes
    made, gone, changed = (None, secret), (secret, None), (secret, secret)
    assert {(one.before, one.after) for one in hidden.changes} == {made, gone, changed}
    assert {one.key for one in hidden.changes} == {secret}
    assert open_to_all.changes == (Change("blue", None, 1),)
    reported = f"{txn.result}{txn.result.to_json()}"
    assert [one for one in ("t0ps3cret", "notes[", "o-0", "o-9", "here") if one in reported] == []

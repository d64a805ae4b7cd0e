"""The state diff of a database: every row that a commit would change and no other, or the word that it cannot tell."""

from itertools import count, repeat

import pytest

from countersign.adapters import row_diff
from countersign.adapters.row_diff import DiffBudget, DiffUnavailable
from tests.unit.sdk.adapters.rows import CALL, Database, diff_of, order

pytestmark = pytest.mark.xdist_group("postgresql")


def test_new_changed_and_removed_rows_are_labelled_by_key(database: Database) -> None:
    assert diff_of(
        database,
        "INSERT INTO orders VALUES (7, 'made')",
        "UPDATE orders SET state = 'paid' WHERE id = 2",
        "DELETE FROM lines WHERE order_id = 1 AND sku = 'b'",
        "UPDATE orders SET id = 9 WHERE id = 3",
    ) == {
        "orders[3]": (order(3, "new"), None),
        "orders[9]": (None, order(9, "new")),
        "orders[7]": (None, order(7, "made")),
        "orders[2]": (order(2, "new"), order(2, "paid")),
        "lines[1,b]": ({"order_id": 1, "sku": "b", "n": 2}, None),
    }


def test_what_is_as_it_was_in_the_end_is_no_change(database: Database) -> None:
    assert diff_of(database) == {}
    assert diff_of(database, "SELECT * FROM orders") == {}
    act = ["UPDATE orders SET state = 'new'", "INSERT INTO orders VALUES (8, 'x')", "UPDATE lines SET n=n+1"]
    assert diff_of(database, *act, "DELETE FROM orders WHERE id = 8", "UPDATE lines SET n = n - 1") == {}


def test_an_effect_that_failed_has_changed_nothing(database: Database) -> None:
    with database.session() as session:
        database.run(session, "UPDATE orders SET state = 'paid' WHERE id = 1")
        with pytest.raises(ZeroDivisionError), session.effect(CALL):
            database.say("DELETE FROM orders WHERE id = 3")
            raise ZeroDivisionError
        block = session.savepoint()
        database.run(session, "INSERT INTO orders VALUES (7, 'made')")
        block.rollback()
        changes = session.changes()
    assert [one.key for one in changes] == ["orders[1]"]


def test_too_many_rows_have_no_diff(database: Database, monkeypatch) -> None:
    monkeypatch.setattr(row_diff, "MAX_ROWS", 2)
    one, other = "UPDATE orders SET state = 'paid' WHERE id < 3", "UPDATE lines SET n = 7 WHERE order_id = 2"
    assert diff_of(database, one) is not None
    assert diff_of(database, other) is not None
    assert diff_of(database, "UPDATE orders SET state = 'paid'") is None
    assert diff_of(database, one, other) is None


LARGE = [
    "UPDATE orders SET state = 'paid' WHERE id > 9", "DELETE FROM orders WHERE id > 9",
    "INSERT INTO orders SELECT id + 90, state FROM orders WHERE id > 9",
]  # fmt: skip


@pytest.mark.parametrize("statement", LARGE)
def test_large_rows_have_no_diff(database: Database, monkeypatch, statement: str) -> None:
    text = "x" * 1_000
    database.outside(f"INSERT INTO orders VALUES (10, '{text}'), (11, '{text}')")
    for most, can_tell in ((8_000, True), (1_500, False)):
        monkeypatch.setattr(row_diff, "MAX_BYTES", most)
        assert (diff_of(database, statement) is not None) is can_tell


def test_ambiguous_keys_have_distinct_labels(database: Database) -> None:
    database.outside("CREATE TABLE pairs (a text, b text, v integer, PRIMARY KEY (a, b))")
    database.outside("INSERT INTO pairs VALUES ('x,y', 'z', 1), ('x', 'y,z', 1), ('', '\"]', 1)")
    found = diff_of(database, "UPDATE pairs SET v = 2")
    assert found.keys() == {'pairs["x,y",z]', 'pairs[x,"y,z"]', r'pairs["","\"]"]'}


def test_without_time_no_query_runs() -> None:
    for seconds in (0.0, -1.0, 0.000_1):
        with pytest.raises(DiffUnavailable):
            DiffBudget(seconds).milliseconds()
    assert DiffBudget(0.0).is_over
    assert 0 < DiffBudget(5.0).milliseconds() <= 5_000
    assert 0 < DiffBudget(60.0).milliseconds() <= 10_000
    assert not DiffBudget(5.0).is_over


def test_a_result_is_read_only_within_the_diff_budget(monkeypatch) -> None:
    monkeypatch.setattr(row_diff, "MAX_ROWS", 3)
    assert len(list(DiffBudget().rows(repeat((1, "a"), 3)))) == 3
    numbers = count(start=1)
    with pytest.raises(DiffUnavailable):
        list(DiffBudget().rows(zip(numbers, strict=True)))
    assert next(numbers) == 5

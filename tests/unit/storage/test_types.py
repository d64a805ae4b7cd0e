"""Times round-trip and their text sorts as they do; ids sort by time."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, insert, select
from sqlalchemy.exc import StatementError

from policy_service.storage.database import Database
from policy_service.storage.types import TIME_TEXT_LENGTH, Json, UtcDateTime, min_id_at, new_id, time_text
from tests.unit.storage.databases import column

COLUMNS = (Column("n", Integer, primary_key=True), Column("at", UtcDateTime), Column("doc", Json))
MOMENTS = Table("moments", MetaData(), *COLUMNS)


NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def moments(db: Database) -> Database:
    db.write_sync(lambda tx: MOMENTS.metadata.create_all(tx.conn))
    return db


def put(db: Database, *rows: dict[str, object]) -> None:
    db.write_sync(lambda tx: tx.conn.execute(insert(MOMENTS), rows).rowcount)


THERE = datetime(2026, 11, 21, 12, tzinfo=timezone(timedelta(hours=-7, minutes=-30)))
TIMES = [NOON, NOON + timedelta(microseconds=1), THERE]
TIMES += [datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)]


def test_a_time_comes_back_as_aware_utc(moments: Database) -> None:
    put(moments, *({"n": n, "at": moment} for n, moment in enumerate(TIMES)))
    times = select(MOMENTS.c.at).order_by(MOMENTS.c.n)
    found = moments.read_sync(lambda conn: list(conn.scalars(times)))
    assert (found, {moment.tzinfo for moment in found}) == (TIMES, {UTC})


def test_times_compare_in_the_database_as_in_python(moments: Database) -> None:
    times = [NOON + timedelta(microseconds=n) for n in (-1_000_000, -1, 0, 1, 999_999, 1_000_000)]
    put(moments, *({"n": n, "at": at} for n, at in enumerate(times)))
    statement = select(MOMENTS.c.n).where(MOMENTS.c.at <= NOON).order_by(MOMENTS.c.at.desc())
    assert moments.read_sync(lambda conn: list(conn.scalars(statement))) == [2, 1, 0]


def test_a_naive_time_is_refused(moments: Database) -> None:
    naive = NOON.replace(tzinfo=None)
    with pytest.raises(ValueError, match="no zone"):
        time_text(naive)
    with pytest.raises(StatementError, match="no zone"):
        put(moments, {"n": 1, "at": naive})


def test_the_text_has_one_width() -> None:
    assert time_text(NOON) == "2026-11-21T12:00:00.000000Z"
    texts = [time_text(at) for at in (NOON, NOON.replace(year=1), NOON.replace(microsecond=5))]
    assert {len(one) for one in texts} == {TIME_TEXT_LENGTH}


def test_json_comes_back_and_none_is_null_and_not_a_word(moments: Database) -> None:
    values = [{"a": [1, "é", None]}, [], "text", None]
    put(moments, *({"n": n, "doc": value} for n, value in enumerate(values)))
    docs = select(MOMENTS.c.doc).order_by(MOMENTS.c.n)
    assert moments.read_sync(lambda conn: list(conn.scalars(docs))) == values
    assert column(moments, "SELECT n FROM moments WHERE doc IS NULL") == [3]


def test_every_id_of_a_moment_or_later_is_not_less_than_its_first() -> None:
    now, step = NOON + timedelta(microseconds=1500), timedelta(milliseconds=1)
    assert min_id_at("dec", now) <= new_id("dec", now) < min_id_at("dec", now + step)
    assert new_id("dec", now - step) < min_id_at("dec", now)

"""Times come back as they went in, sort as text as they sort as times, and never without a zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, insert, select, text
from sqlalchemy.exc import StatementError

from policy_service.storage.database import Database
from policy_service.storage.types import TIME_TEXT_LENGTH, Json, UtcDateTime, time_text

MOMENTS = Table(
    "moments",
    MetaData(),
    Column("n", Integer, primary_key=True),
    Column("at", UtcDateTime),
    Column("doc", Json),
)
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def moments(db: Database) -> Database:
    db.write_sync(lambda tx: MOMENTS.metadata.create_all(tx.conn))
    return db


@pytest.mark.parametrize(
    "moment",
    {
        "whole second": NOON,
        "one microsecond": NOON + timedelta(microseconds=1),
        "another zone": datetime(2026, 11, 21, 12, tzinfo=timezone(timedelta(hours=-7, minutes=-30))),
        "long ago": datetime(1, 1, 2, tzinfo=UTC),
        "far away": datetime(9999, 12, 30, tzinfo=UTC),
    }.values(),
)
def test_a_time_comes_back_as_aware_utc(moments: Database, moment: datetime) -> None:
    moments.write_sync(lambda tx: tx.conn.execute(insert(MOMENTS), {"n": 1, "at": moment}).rowcount)
    found = moments.read_sync(lambda conn: conn.execute(select(MOMENTS.c.at)).scalar_one())
    assert found == moment
    assert found.tzinfo is UTC


def test_times_compare_in_the_database_as_in_python(moments: Database) -> None:
    times = [NOON + timedelta(microseconds=n) for n in (-1_000_000, -1, 0, 1, 999_999, 1_000_000)]
    rows = [{"n": n, "at": at} for n, at in enumerate(times)]
    moments.write_sync(lambda tx: tx.conn.execute(insert(MOMENTS), rows).rowcount)
    statement = select(MOMENTS.c.n).where(MOMENTS.c.at <= NOON).order_by(MOMENTS.c.at.desc())
    assert moments.read_sync(lambda conn: list(conn.scalars(statement))) == [2, 1, 0]


def test_a_naive_time_is_refused(moments: Database) -> None:
    naive = NOON.replace(tzinfo=None)
    with pytest.raises(ValueError, match="no zone"):
        time_text(naive)
    with pytest.raises(StatementError, match="no zone"):
        moments.write_sync(lambda tx: tx.conn.execute(insert(MOMENTS), {"n": 1, "at": naive}).rowcount)


def test_the_text_has_one_width() -> None:
    assert time_text(NOON) == "2026-11-21T12:00:00.000000Z"
    texts = [time_text(at) for at in (NOON, NOON.replace(year=1), NOON.replace(microsecond=5))]
    assert {len(one) for one in texts} == {TIME_TEXT_LENGTH}


@pytest.mark.parametrize("value", [{"a": [1, "é", None]}, [], "text", None])
def test_json_comes_back_and_none_is_null_and_not_a_word(moments: Database, value: object) -> None:
    moments.write_sync(lambda tx: tx.conn.execute(insert(MOMENTS), {"n": 1, "doc": value}).rowcount)
    assert moments.read_sync(lambda conn: conn.execute(select(MOMENTS.c.doc)).scalar_one()) == value
    count = text("SELECT COUNT(*) FROM moments WHERE doc IS NULL")
    assert moments.read_sync(lambda conn: conn.execute(count).scalar_one()) == (value is None)

"""The airline's database: loaded once, put back in place, and a write that fails leaves nothing."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from examples.airline import data, operations
from examples.airline.database import AirlineDatabase, unit_of_work
from tests.integration.examples import airline_world


def test_every_row_of_the_json_is_there_and_an_open_reader_sees_the_reset(airline: AirlineDatabase) -> None:
    with closing(sqlite3.connect(f"file:{airline.path}?mode=ro", uri=True)) as reader:
        rows = {"flights": 4, "flight_days": 28, "reservations": len(airline_world.reservations())}
        for table, count in rows.items():
            assert reader.execute(f"SELECT count(*) FROM {table}").fetchone() == (count,)
        with unit_of_work(airline.path) as db:
            operations.cancel(db, "ECON01")
        sql = "SELECT status FROM reservations WHERE reservation_id = 'ECON01'"
        assert reader.execute(sql).fetchone() == ("cancelled",)

        airline.reset()

        assert reader.execute(sql).fetchone() == ("booked",)


def test_an_arrival_after_midnight_is_on_the_next_day(tmp_path: Path) -> None:
    folder = airline_world.write(tmp_path / "data")
    flights = (folder / "flights.json").read_text()
    (folder / "flights.json").write_text(flights.replace('"12:00:00"', '"00:30:00+1"'))
    database = AirlineDatabase(tmp_path / "airline.sqlite3", folder)
    with closing(sqlite3.connect(database.path)) as db:
        where = "flight_number = 'HAT001' AND date = '2024-05-18'"
        found = db.execute(f"SELECT scheduled_arrival FROM flight_days WHERE {where}").fetchone()
    assert found == ("2024-05-19T00:30:00",)
    database.close()


def test_missing_data_is_named_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = airline_world.write(tmp_path / "data")
    (folder / "users.json").unlink()
    monkeypatch.setenv(data.VARIABLE, str(folder))

    with pytest.raises(data.DataMissingError, match=r"users\.json not found in .*tau-bench"):
        data.folder()


def test_two_runs_the_file_names_alike_get_names_of_their_own(tmp_path: Path) -> None:
    run = {"task_id": 1, "trial": 0, "calls": [{"step": 0, "tool": "think", "args": {}}]}
    folder = airline_world.write(tmp_path / "data", [run, run])

    first, second = data.runs(folder)

    assert first.name != second.name
    assert not first.calls[0].write

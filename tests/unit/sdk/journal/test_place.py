"""The address of a journal on PostgreSQL: its password is never shown, and what is no address is refused."""

import sys
from pathlib import Path

import pytest

from countersign.errors import JournalError, SettingsError
from countersign.journal import Journal
from countersign.journal.location import JournalUrl, parse_location
from countersign.journal.postgres import translate_sql
from countersign.settings import Settings

SECRET = "s3cr3t-w0rd"

ADDRESSES = {
    f"postgresql://ann:{SECRET}@db.example:5433/app": "postgresql://ann@db.example:5433/app",
    f"postgres://ann:{SECRET}@db.example/app?sslmode=require": "postgresql://ann@db.example/app",
    "postgresql://db.example/app": "postgresql://db.example/app",
    "postgresql:///app?host=/run/db": "postgresql:///app",
    f"postgresql://db.example/app?password={SECRET}&user=ann": "postgresql://db.example/app",
}


@pytest.mark.parametrize("address", ADDRESSES, ids=range(len(ADDRESSES)))
def test_the_password_of_an_address_is_never_shown(address: str) -> None:
    place = JournalUrl(address)
    assert str(place) == ADDRESSES[address]
    settings = Settings("https://service.example", "ann", Path("key.pem"), place)
    journal = Journal(place)
    assert SECRET not in f"{place!r} {place} {settings!r} {journal.database.name}"


UNREADABLE = [
    *(
        f"postgresql://ann:a{sign}@db.example/app"
        for sign in (f"@{SECRET}", f"/{SECRET}", f"?{SECRET}", f"/{SECRET}/b:c")
    ),
    f"postgresql://db.example/app?password=a@{SECRET}",
    f"mysql://ann:{SECRET}@db.example/app",
]


@pytest.mark.parametrize("address", UNREADABLE, ids=range(len(UNREADABLE)))
def test_an_address_whose_password_would_be_read_as_something_else_is_refused_unseen(address: str) -> None:
    with pytest.raises(SettingsError, match="cannot be read") as raised:
        JournalUrl(address)
    assert SECRET not in f"{raised.value!r}"


WRONG = {
    "there is no answer": f"postgresql://ann:{SECRET}@127.0.0.1:1/app",
    "a slash": f"postgresql://ann:a/{SECRET}@127.0.0.1:1/app",
    "a percent sign": f"postgresql://ann:%zz{SECRET}@127.0.0.1:1/app",
    "an unknown option": f"postgresql://ann@127.0.0.1:1/app?{SECRET}",
}


@pytest.mark.parametrize("address", WRONG.values(), ids=WRONG)
def test_an_error_about_an_address_does_not_tell_its_password(address: str) -> None:
    with pytest.raises((JournalError, SettingsError)) as raised:
        Journal(parse_location(address)).transactions.newest_ids(1)
    chain: BaseException | None = raised.value
    while chain is not None:
        assert SECRET not in str(chain)
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)


@pytest.mark.parametrize("named", ["sqlite:///x.db", "mysql://h/db", "postgresql+psycopg://h/db", "http://x"])
def test_an_address_of_something_else_is_refused(named: str) -> None:
    with pytest.raises(SettingsError, match="a file or a PostgreSQL database"):
        parse_location(named)
    assert parse_location("state/journal.db") == Path("state/journal.db")


def test_without_its_driver_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SettingsError, match=r"pip install 'countersign-sdk\[postgres\]'"):
        Journal("postgresql://u@h/db")


MARKED = [
    ("SELECT ? + ?", "SELECT %s + %s"),
    ("a = :name AND b = :name", "a = %(name)s AND b = %(name)s"),
    ("x LIKE '50%?:a' AND y = ?", "x LIKE '50%%?:a' AND y = %s"),
    ("x = 'it''s ?' OR x % 2 = ?", "x = 'it''s ?' OR x %% 2 = %s"),
    ("SELECT ''", "SELECT ''"),
]


@pytest.mark.parametrize(("ours", "theirs"), MARKED)
def test_values_are_marked_as_the_driver_reads_them(ours: str, theirs: str) -> None:
    assert translate_sql(ours).decode() == theirs

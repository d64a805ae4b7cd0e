"""The journal knows which turn of its conversation a message is, on both engines, and its chain binds it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from countersign.journal import Journal
from countersign.journal.place import JournalPlace
from countersign.journal.verifying import verify
from tests.unit.sdk.journals import BOTH


@pytest.fixture(params=BOTH)
def engine(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def journal(place: JournalPlace) -> Iterator[Journal]:
    opened = Journal(place)
    yield opened
    opened.close()


def test_a_message_is_known_by_its_conversation_and_its_name(journal: Journal, place: JournalPlace) -> None:
    kept = journal.conversations
    assert kept.turn("case-1", "a") is None
    kept.keep("case-1", "a", 1)
    kept.keep("case-1", "b", 2)
    kept.keep("case-2", "a", 7)
    assert [kept.turn("case-1", "a"), kept.turn("case-1", "b"), kept.turn("case-2", "a")] == [1, 2, 7]
    assert (kept.turn("case-2", "b"), kept.turn("case", "-1a")) == (None, None)
    assert verify(place).findings == ()


def test_of_two_of_one_name_the_later_is_meant(journal: Journal, place: JournalPlace) -> None:
    journal.conversations.keep("case-1", "a", 1)
    journal.conversations.keep("case-1", "a", 4)
    assert journal.conversations.turn("case-1", "a") == 4
    assert verify(place).findings == ()


def test_another_process_with_the_journal_knows_it_too(journal: Journal, place: JournalPlace) -> None:
    journal.conversations.keep("case-1", "a", 3)
    other = Journal(place)
    assert other.conversations.turn("case-1", "a") == 3
    other.close()


@pytest.mark.parametrize("engine", ["sqlite"])
def test_a_number_that_was_changed_behind_the_journal_is_found(journal: Journal, place: JournalPlace) -> None:
    journal.conversations.keep("case-1", "a", 3)
    with journal.database.unit(durable=False) as unit:
        unit.execute("UPDATE meta SET value = '1'", ())
    assert verify(place).findings != ()

"""The journal knows which turns a mark refers to, on both engines, and its chain binds it."""

import threading
from unittest.mock import Mock

import pytest

from countersign.integrations.conversation import TurnNumbering
from countersign.integrations.openai_chat import OpenAIChat
from countersign.journal import Journal
from countersign.journal.verification import verify
from tests.unit.sdk.journals import both_engines

__all__ = ["both_engines"]


@pytest.fixture
def journal(place):
    opened = Journal(place)
    yield opened
    opened.close()


def test_a_mark_is_known_by_its_conversation_and_its_name(journal: Journal, place) -> None:
    kept = journal.conversations
    assert kept.turns("case-1", "a") == set()
    kept.keep("case-1", ["a", "c"], 1)
    kept.keep("case-1", ["b"], 2)
    kept.keep("case-2", ["a"], 7)
    known = [kept.turns("case-1", one) for one in "abc"] + [kept.turns("case-2", "a")]
    assert known == [{1}, {2}, {1}, {7}]
    assert (kept.turns("case-2", "b"), kept.turns("case", "-1a")) == (set(), set())
    another_process = Journal(place)
    assert another_process.conversations.turns("case-1", "a") == {1}
    another_process.close()
    assert verify(place).findings == ()


def test_a_mark_keeps_every_turn_and_each_is_written_once(journal: Journal, place) -> None:
    for turn in (1, 4, 11, 4, 1):
        journal.conversations.keep("case-1", ["a"], turn)
    assert journal.conversations.turns("case-1", "a") == {1, 4, 11}
    assert journal.database.row("SELECT count(*) FROM chain WHERE kind = 'turn'")[0] == 3  # type: ignore[index]
    assert verify(place).findings == ()


def test_who_asks_at_the_same_time_takes_the_same_turn(journal: Journal, place) -> None:
    """What was read before the other one wrote would be the point without a turn, and the turn that was taken."""
    calls = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
    before, other = [calls, {"role": "tool", "tool_call_id": "1", "content": "done"}], Journal(place)
    watched = Mock(wraps=other.conversations)
    ours, theirs = (TurnNumbering(kept, "case-1", OpenAIChat()) for kept in (journal.conversations, watched))
    assert ours.assign([], calls) == 1
    taken: list[int] = []
    thread = threading.Thread(target=lambda: taken.append(theirs.assign(before, calls)))
    with journal.conversations.deciding():
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and not watched.turns.called
        assert ours.assign(before, calls) == 2
    thread.join()
    assert taken == [2]
    other.close()


@pytest.mark.parametrize("engine", ["sqlite"])
def test_a_changed_turn_number_is_found(journal: Journal, place) -> None:
    journal.conversations.keep("case-1", ["a"], 3)
    with journal.database.unit(durable=False) as unit:
        unit.execute("UPDATE meta SET value = '1'", ())
    assert verify(place).findings != ()

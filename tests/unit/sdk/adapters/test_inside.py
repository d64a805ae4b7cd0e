"""What tools work on ends with its effect, and not in the middle of a use."""

from __future__ import annotations

import contextvars
import threading
import time

import pytest

from countersign.adapters.inside import Inside
from countersign.errors import OutsideTransaction

WORDS = "say it inside"


def test_it_is_there_inside_and_the_inner_one_first() -> None:
    inside: Inside[str] = Inside("notes")
    with inside.effect("outer"):
        with inside.effect("inner"), inside.use(WORDS) as found:
            assert found == "inner"
        with inside.use(WORDS) as found:
            assert found == "outer"
    with pytest.raises(OutsideTransaction, match=WORDS), inside.use(WORDS):
        pass


def test_whoever_kept_the_context_is_told_that_it_is_over() -> None:
    inside: Inside[str] = Inside("notes")

    def late() -> None:
        with inside.use(WORDS):
            pass

    with inside.effect("one"):
        kept = contextvars.copy_context()
        kept.run(late)
        assert not kept.run(lambda: inside.is_over)
    with inside.effect("two"), pytest.raises(OutsideTransaction, match="notes was used by a thread or task"):
        kept.run(late)
    assert kept.run(lambda: inside.is_over)
    assert not inside.is_over


def test_an_effect_does_not_end_in_the_middle_of_a_use() -> None:
    inside: Inside[str] = Inside("notes")
    told: list[str] = []
    begun = threading.Event()

    def uses() -> None:
        with inside.use(WORDS):
            begun.set()
            time.sleep(0.2)
            told.append("used")

    with pytest.raises(TimeoutError), inside.effect("one"):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(uses,))
        thread.start()
        assert begun.wait(10)
        raise TimeoutError
    told.append("over")
    thread.join()
    assert told == ["used", "over"]

"""What a key is told that an earlier run has spent: why it failed, and what stands, so that nobody does that under
another key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from countersign import AlreadyRedeemed, CountersignError, EffectFailed, NotDone
from tests.fakes.desk import Desk, charge_tools, failing_tool, refund_tool


def twice(desk: Desk, first: Callable[..., Any], then: Callable[..., Any]) -> list[CountersignError]:
    """What two runs of one key raise; the second does nothing."""
    raised = []
    for _ in range(2):
        done = list(desk.done)
        with pytest.raises(CountersignError) as told:
            desk.run((first, "o-1", 100), (then, "o-1"))
        raised.append(told.value)
    assert desk.done == done
    return raised


def test_a_failure_is_told_again_in_the_tools_own_words_while_something_stands(desk: Desk) -> None:
    refuses = failing_tool(desk, NotDone("no address"), acts=False)
    failed, again = twice(desk, refund_tool(desk), refuses)
    assert isinstance(again, EffectFailed) and str(again) == str(failed)
    assert "notify did not happen: NotDone: no address. Still standing and not undone: refund#1" in str(again)


def test_where_nothing_stands_another_key_may_do_all_of_it(desk: Desk) -> None:
    _, spent = twice(desk, charge_tools(desk), failing_tool(desk, NotDone("no"), acts=False))
    assert isinstance(spent, AlreadyRedeemed)
    assert str(spent).endswith("Nothing of this transaction stands. To try again, use another key.")


def test_what_stands_is_not_offered_to_be_done_again() -> None:
    """As where a person has settled what stood beside a failure."""
    outcomes = {"refund#1": "fired", "notify#2": "failed"}
    told = str(AlreadyRedeemed.here("t-1", "1" * 64, outcomes, "settled", well=False, kept=False))
    assert "outcome refund#1 fired, notify#2 failed" in told
    assert "Still standing and not undone: refund#1" in told
    assert told.endswith("stage under another key only what does not stand: notify#2.")


def test_live_work_that_stands_is_told_beside_a_failure() -> None:
    told = str(
        AlreadyRedeemed.here("t-1", "1" * 64, {"notify#1": "failed"}, "settled", well=False, kept=True)
    )
    assert "Its live effects stand. To try again, stage under another key only what does not" in told
    assert "Nothing of this transaction stands" not in told


def test_what_was_done_whole_says_how_to_do_it_once_more() -> None:
    told = str(AlreadyRedeemed.here("t-1", "1" * 64, {"refund#1": "fired"}, "settled", well=True, kept=False))
    assert "outcome refund#1 fired" in told and "If you mean to act once more, use another key" in told

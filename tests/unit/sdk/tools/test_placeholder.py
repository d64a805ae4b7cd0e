"""Why a placeholder has no result, once its transaction has ended: in words that are true of that outcome."""

from __future__ import annotations

import pytest

from countersign import PlaceholderUsed
from countersign.journal import LocalState
from countersign.tools.placeholder import Placeholder, settle

LIVE = {LocalState.LIVE, LocalState.KEPT, LocalState.UNDONE}  # of effects that have no placeholder


def why(outcome: str | None, error: str | None = None) -> str:
    placeholder: Placeholder[str] = Placeholder("refund", "e" * 64, "c" * 64)
    if outcome is not None:
        settle(placeholder, outcome, "a result", error)
    with pytest.raises(PlaceholderUsed) as used:
        _ = placeholder.result
    return str(used.value)


def test_before_the_commit_it_says_when_there_will_be_one() -> None:
    assert why(None).endswith("happens only when the block commits. Read .result after the transaction")


@pytest.mark.parametrize("outcome", sorted({*LocalState} - LIVE - {LocalState.FIRED}))
def test_after_it_every_outcome_has_words_and_nobody_is_told_to_wait(outcome: LocalState) -> None:
    told = why(outcome.value)
    assert told.startswith("refund has no result: ")
    assert ".result" not in told
    assert "it is " + outcome.value not in told, "words of its own"


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("staged", "it was never submitted"),
        ("unknown", "it is not known whether it happened"),
        ("firing", "it is not known whether it happened"),
        ("compensated", "it happened and was taken back"),
        ("compensation_failed", "it happened, and could not be taken back"),
        ("not recorded", "it is not recorded"),
    ],
)
def test_what_may_have_happened_is_never_told_as_if_it_had_not(outcome: str, words: str) -> None:
    assert why(outcome) == f"refund has no result: {words}"
    assert why(outcome, "slow") == f"refund has no result: {words}: slow"

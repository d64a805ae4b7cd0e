"""How long an idempotent call waits for its next try: twice as long each time up to a bound, spread by chance."""

import pytest

from countersign import OutcomeUnknown
from countersign.waiting import SyncWaits
from tests.fakes.desk import Desk, failing_tool

TRIES = 20


@pytest.fixture
def pauses(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of a call that fails in every try, without the waiting."""
    asked: list[float] = []

    async def sleep(_: SyncWaits, seconds: float) -> None:
        asked.append(seconds)

    monkeypatch.setattr(SyncWaits, "sleep", sleep)
    notify = failing_tool(desk, ConnectionError("503"), idempotent=True, tries=TRIES)
    with pytest.raises(OutcomeUnknown), desk.step():
        notify("o-1")
    return asked


def doubled(desk: Desk) -> list[float]:
    """The pauses as they would be without chance."""
    first = 2 * desk.runtime.settings.retry_base_seconds
    return [min(first * 2**n, 30.0) for n in range(TRIES - 1)]


def test_each_pause_is_about_twice_the_one_before_and_none_is_over_30_seconds(
    desk: Desk, pauses: list[float]
) -> None:
    assert len(pauses) == TRIES - 1
    for pause, due in zip(pauses, doubled(desk), strict=True):
        assert due / 2 <= pause <= due


def test_pauses_are_spread_by_chance_so_that_many_agents_do_not_come_back_at_once(
    desk: Desk, pauses: list[float]
) -> None:
    spread = [pause / due for pause, due in zip(pauses, doubled(desk), strict=True)]
    assert max(spread) - min(spread) > 0.25

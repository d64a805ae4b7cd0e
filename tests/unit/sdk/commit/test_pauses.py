"""How long an idempotent call waits for its next try: twice as long each time up to a bound, spread by chance."""

import pytest

from countersign import OutcomeUnknown
from tests.fakes.desk import Desk, failing_tool
from tests.fakes.running import fails
from tests.unit.sdk.commit.probed import sleeping

TRIES = 20


def test_pauses_double_up_to_30_seconds_and_are_spread_by_chance(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = sleeping(desk, monkeypatch)
    fails(
        desk,
        OutcomeUnknown,
        (failing_tool(desk, ConnectionError("503"), idempotent=True, tries=TRIES), "o-1"),
    )
    first = 2 * desk.runtime.settings.retry_base_seconds
    without_chance = [min(first * 2**n, 30.0) for n in range(TRIES - 1)]
    spread = [pause / due for pause, due in zip(slept, without_chance, strict=True)]
    assert min(spread) >= 0.5 and max(spread) <= 1
    assert max(spread) - min(spread) > 0.25  # many agents do not come back at once

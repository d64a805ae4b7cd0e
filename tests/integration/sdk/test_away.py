"""The real service is stopped and started again while an agent waits for people: the wait goes on and fires once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from countersign import ReviewPending, Runtime, resume, transaction
from examples.local_service import LocalService
from tests.fakes.desk import notes_database
from tests.integration.sdk.conftest import ROLE, Office, Tools, serving

pytestmark = pytest.mark.long

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> LocalService:
    """A service nobody has started yet."""
    return serving(tmp_path_factory.mktemp("away"))


@pytest.fixture
def alone(stopped: LocalService, tmp_path: Path) -> Iterator[Office]:
    """An office whose service a test may start and stop."""
    stopped.data.mkdir(parents=True, exist_ok=True)
    stopped.command("init")
    enrolled = stopped.enroll(f"support-{tmp_path.name}", ROLE)
    settings = replace(
        enrolled, journal_path=tmp_path / "journal.db", retry_base_seconds=0.01, poll_seconds=2
    )
    tools = Tools(notes_database(tmp_path))
    with Runtime(settings, registry=tools.registry) as runtime:
        yield Office(stopped, settings, tools, runtime)


class Waiter:
    """An agent in its block, on a thread."""

    def __init__(self, office: Office, key: str, wait: float) -> None:
        self.raised: BaseException | None = None
        self._thread = threading.Thread(target=self._step, args=(office, key, wait))
        self._thread.start()

    def _step(self, office: Office, key: str, wait: float) -> None:
        try:
            with transaction(key, wait=wait, runtime=office.runtime):
                office.tools.refund("o-1", 90_000)
        except BaseException as error:  # noqa: BLE001 - the test asks which
            self.raised = error

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def ends(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self.waits


def asked(office: Office, key: str) -> ReviewPending:
    """Once people are asked: what another process of the agent is told."""
    end = time.monotonic() + PATIENCE_S
    while not (found := office.runtime.journal.transactions.find(key)) or not found[0].parked:
        assert time.monotonic() < end
        time.sleep(0.02)
    with office.elsewhere(journal_path=office.settings.journal_path.with_name("other.db")) as other:
        with pytest.raises(ReviewPending) as pending, transaction(key, runtime=other):
            office.tools.refund("o-1", 90_000)
        return pending.value


def test_a_restart_in_the_middle_of_a_wait_is_waited_through(alone: Office, key: str) -> None:
    with alone.service:
        waiter = Waiter(alone, key, PATIENCE_S)
        pending = asked(alone, key)
    time.sleep(3)  # more than the retries of one request, and than one long poll
    assert waiter.waits
    with alone.service:
        alone.approve(pending)
        waiter.ends()
        assert (waiter.raised, alone.tools.done) == (None, [("refund", "o-1", 90_000)])
        assert resume(alone.runtime) == []


def test_a_service_that_comes_back_after_the_wait_fires_what_was_approved_by_resume(
    alone: Office, key: str
) -> None:
    with alone.service:
        waiter = Waiter(alone, key, 3)
        pending = asked(alone, key)
    waiter.ends()
    assert isinstance(waiter.raised, ReviewPending)
    assert "could not be asked" in str(waiter.raised)
    with alone.service:
        alone.approve(pending)
        assert [one.after for one in resume(alone.runtime)] == ["settled"]
    assert alone.tools.done == [("refund", "o-1", 90_000)]
